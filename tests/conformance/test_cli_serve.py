"""`ottla serve` starts, says what a person needs to know, stops when told, and explains when it cannot."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conformance.command import LIMIT, Command
from ottla.testing.ports import ReservedPort


@pytest.fixture
def ottla() -> Command:
    return Command("127.0.0.1:1")


@contextmanager
def serving(
    ottla: Command, *options: str, **process_options: Any
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """A broker on a free port, and the line of JSON that it printed."""
    process = ottla.start("serve", "--listen", "127.0.0.1:0", "--json", *options, **process_options)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        yield process, json.loads(line)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_records_survive_a_restart_of_the_broker(ottla: Command, tmp_path: Path) -> None:
    for count in (1, 2):
        with serving(ottla, "--data", str(tmp_path / "data")) as (process, ready):
            assert ready["data"] == str(tmp_path / "data")
            assert ready["pid"] == process.pid
            client = Command(ready["bootstrap"])
            client.ok("produce", "kept", input="record\n")
            assert client.ok("consume", "kept").lines == ["record"] * count
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) == 0


def test_a_command_started_beside_the_broker_waits_until_it_listens(ottla: Command, tmp_path: Path) -> None:
    port = ReservedPort()
    address = f"{port.host}:{port.number}"
    creating = Command(address).start("topic", "create", "t", "--timeout", str(LIMIT))
    broker = ottla.start("serve", "--listen", address, "--data", str(tmp_path))
    try:
        out, err = creating.communicate(timeout=LIMIT)
    finally:
        broker.kill()
        _, log = broker.communicate()
        port.release()
    assert (creating.returncode, err) == (0, b""), log
    assert out.startswith(b"created t:")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_stops_the_broker_cleanly(ottla: Command, tmp_path: Path, number: signal.Signals) -> None:
    with serving(ottla, "--data", str(tmp_path)) as (process, _):
        process.send_signal(number)
        assert process.wait(LIMIT) == 0
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_broker_started_by_nohup_ignores_the_end_of_its_terminal(ottla: Command, tmp_path: Path) -> None:
    def nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with serving(ottla, "--data", str(tmp_path), preexec_fn=nohup) as (process, ready):
        process.send_signal(signal.SIGHUP)
        Command(ready["bootstrap"]).ok("topic", "create", "t")
        assert process.poll() is None


def test_the_start_message_names_address_folder_and_how_to_stop(ottla: Command, tmp_path: Path) -> None:
    with ottla.at_terminal("serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0") as terminal:
        terminal.wait_for("Ctrl-C")
        terminal.interrupt()
        code, screen = terminal.finish()
    assert code == 0
    assert "is ready on 127.0.0.1:" in screen
    assert f"  data  {tmp_path}\n" in screen
    assert f"  stop  Ctrl-C, or kill {terminal.process.pid}\n" in screen
    assert "Traceback" not in screen


def test_the_default_data_folder_belongs_to_the_user(ottla: Command, tmp_path: Path) -> None:
    ottla.environment["XDG_DATA_HOME"] = str(tmp_path)
    with serving(ottla) as (_, ready):
        assert ready["data"] == str(tmp_path / "ottla" / "data")
    ottla.environment["OTTLA_DATA"] = str(tmp_path / "elsewhere")
    with serving(ottla) as (_, ready):
        assert ready["data"] == str(tmp_path / "elsewhere")


def test_options_override_the_settings_of_the_file(ottla: Command, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(f"num.partitions=7\nnode.id=42\nlog.dirs={tmp_path / 'from-file'}\n")
    with serving(ottla, "--config", str(properties), "--set", "num.partitions=3") as (_, ready):
        assert ready["node_id"] == 42
        assert ready["data"] == str(tmp_path / "from-file")
        client = Command(ready["bootstrap"])
        assert client.ok("topic", "create", "t", "--json").document[0]["partitions"] == 3


def test_clients_get_the_advertised_address(ottla: Command, tmp_path: Path) -> None:
    with serving(ottla, "--data", str(tmp_path), "--advertise", "broker.example:29092") as (_, ready):
        assert ready["bootstrap"] == "broker.example:29092"


def test_an_unknown_key_is_a_warning_with_the_nearest_one(ottla: Command, tmp_path: Path) -> None:
    with serving(ottla, "--data", str(tmp_path), "--set", "num.partition=3") as (process, ready):
        assert any("num.partitions" in warning for warning in ready["warnings"])
        process.terminate()
        errors = process.communicate(timeout=LIMIT)[1].decode()
    assert "warning: " in errors
    assert "num.partitions" in errors


def test_all_configuration_errors_are_reported_at_once(ottla: Command, tmp_path: Path) -> None:
    wrong = ottla(
        "serve", "--data", str(tmp_path), "--set", "num.partitions=many", "--set", "message.max.bytes=-5"
    )
    assert wrong.code == 2
    assert wrong.out == ""
    assert "num.partitions" in wrong.err
    assert "message.max.bytes" in wrong.err
    assert "Traceback" not in wrong.err


@pytest.mark.parametrize(
    "options",
    [
        ["--listen", "nonsense"],
        ["--listen", "host:99999"],
        ["--set", "novalue"],
        ["--config", "/no/such/file"],
        ["--log-level", "loud"],
    ],
)
def test_a_wrong_option_exits_with_2(ottla: Command, tmp_path: Path, options: list[str]) -> None:
    wrong = ottla("serve", "--data", str(tmp_path), *options)
    assert wrong.code == 2
    assert wrong.err.startswith("error: ")
    assert "Traceback" not in wrong.err


def test_an_address_in_use_is_reported(ottla: Command, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        failed = ottla("serve", "--data", str(tmp_path), "--listen", address)
    assert failed.code == 1
    assert failed.err.splitlines()[-2:] == [
        f"error: cannot listen on {address}: the port is in use",
        "       Is a broker running already? --listen HOST:0 picks a free port.",
    ]


def test_an_address_of_another_machine_is_reported(ottla: Command, tmp_path: Path) -> None:
    failed = ottla("serve", "--data", str(tmp_path), "--listen", "192.0.2.1:9092")
    assert failed.code == 1
    assert "error: cannot listen on 192.0.2.1:9092: cannot assign requested address" in failed.err
    assert "Traceback" not in failed.err


def test_a_folder_in_use_is_reported_with_the_process_that_uses_it(ottla: Command, tmp_path: Path) -> None:
    with serving(ottla, "--data", str(tmp_path)) as (process, _):
        failed = ottla("serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0")
        assert failed.code == 1
        assert (
            f"error: the data folder {tmp_path} is used by another broker (pid {process.pid})" in failed.err
        )
        assert "Traceback" not in failed.err


def test_a_data_folder_that_is_a_file_is_reported(ottla: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    failed = ottla("serve", "--data", str(tmp_path / "file" / "data"), "--listen", "127.0.0.1:0")
    assert failed.code == 1
    assert failed.err.splitlines() == [
        f"error: the data folder {tmp_path / 'file' / 'data'} is a file, or lies in one",
        "       Give another one with --data DIR.",
    ]


def test_a_data_folder_that_cannot_be_created_is_reported(ottla: Command) -> None:
    failed = ottla("serve", "--data", "/proc/ottla", "--listen", "127.0.0.1:0")
    assert failed.code == 1
    assert failed.err.startswith("error: cannot make the data folder /proc/ottla: ")


def test_the_data_folder_of_another_cluster_is_refused_and_left_unchanged(
    ottla: Command, tmp_path: Path
) -> None:
    with serving(ottla, "--data", str(tmp_path)) as (process, ready):
        Command(ready["bootstrap"]).ok("produce", "kept", input="record\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    for name in ("registry.sqlite", "registry.sqlite-wal", "registry.sqlite-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    failed = ottla("serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0")
    assert failed.code == 1
    assert "belongs to cluster.id" in failed.err
    assert "Traceback" not in failed.err
    assert list(tmp_path.glob("kept-0/*.log")), "a log without a topic is not deleted"


def test_options_give_a_broker_its_place_in_a_cluster(ottla: Command, tmp_path: Path) -> None:
    registry = tmp_path / "shared.sqlite"
    options = ["--node-id", "7", "--rack", "west", "--peer-listen", "127.0.0.1:0"]
    options += ["--registry", f"sqlite:{registry}", "--data", str(tmp_path / "data")]
    with serving(ottla, *options) as (_, ready):
        assert (ready["node_id"], ready["registry"]) == (7, f"sqlite:{registry}")
        clients, peers = ready["listeners"]
        assert clients == f"PLAINTEXT://{ready['bootstrap']}"
        assert peers.startswith("INTERNAL://127.0.0.1:")
        assert registry.exists()
        assert not (tmp_path / "data" / "registry.sqlite").exists()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--registry", "etcd://a:1"], "ottla.registry: 'etcd://a:1' is no registry"),
        (["--peer-listen", "9093"], "--peer-listen '9093': HOST:PORT is wanted"),
        (["--node-id", "-1"], "-1 is not in the range"),
    ],
)
def test_wrong_places_in_a_cluster_are_explained(ottla: Command, options: list[str], what: str) -> None:
    result = ottla("serve", *options)
    assert result.code == 2
    assert what in result.err
