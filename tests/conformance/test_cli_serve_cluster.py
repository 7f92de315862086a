"""`ottla serve --brokers N`: a cluster under one supervisor, which keeps it running and stops it whole."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.command import LIMIT, Command
from ottla.testing.ports import ReservedPort


@pytest.fixture
def ottla() -> Command:
    return Command("127.0.0.1:1")


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in Path(f"/proc/{pid}/status").read_text()


@contextlib.contextmanager
def serving(
    ottla: Command, folder: Path, *options: str
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any], Path]]:
    """A cluster on free ports, the line of JSON that it printed, and the file with its log."""
    log = folder / "log"
    with log.open("wb") as errors:
        process = ottla.start(
            "serve",
            *("--brokers", "3", "--listen", "127.0.0.1:0", "--json", "--data", str(folder / "data")),
            *options,
            stderr=errors,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield process, json.loads(line), log
    finally:
        process.kill()
        process.communicate()


def brokers_of(status: dict[str, Any]) -> dict[int, str]:
    return {broker["id"]: broker["state"] for broker in status["brokers"]}


def test_a_cluster_starts_replaces_a_dead_broker_and_stops_as_a_whole(ottla: Command, tmp_path: Path) -> None:
    with serving(ottla, tmp_path, "--set=no.such.setting=1") as (process, ready, log):
        assert ready["pid"] == process.pid
        assert "no.such.setting" in ready["warnings"][0]
        assert log.read_text().count("no.such.setting") == 1, "the brokers do not repeat the warning"
        assert [broker["node_id"] for broker in ready["brokers"]] == [1, 2, 3]
        assert ready["bootstrap"] == ",".join(broker["bootstrap"] for broker in ready["brokers"])
        assert [broker["data"] for broker in ready["brokers"]] == [
            str(tmp_path / "data" / f"broker-{node}") for node in (1, 2, 3)
        ]
        client = Command(ready["bootstrap"])
        created = client.ok("topic", "create", "t", "--partitions", "3")
        assert "3 partitions, replication factor 3" in created.out
        status = client.ok("cluster", "status", "--json").document
        assert brokers_of(status) == dict.fromkeys((1, 2, 3), "alive")
        assert status["supervisor"] == process.pid
        assert [broker["pid"] for broker in status["brokers"]] == [each["pid"] for each in ready["brokers"]]

        os.kill(ready["brokers"][1]["pid"], signal.SIGKILL)
        until(lambda: "broker 2 is ready again" in log.read_text(), "broker 2 to be back")
        assert "broker 2 was ended by SIGKILL; it is started again in 1.00 s" in log.read_text()
        again = client("cluster", "status", "--json").document["brokers"]
        assert {broker["id"]: broker["address"] for broker in again}[2] == ready["brokers"][1]["bootstrap"]

        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
        text = log.read_text()
        assert all(f"broker {node} stopped cleanly" in text for node in (1, 2, 3))
        assert "Traceback" not in text


def states_of(folder: Path) -> dict[str, bytes]:
    """Leaders, epochs and in-sync sets of a topic, as the cluster's registry has them."""
    registry = sqlite3.connect(folder / "cluster.sqlite")
    try:
        return dict(registry.execute("SELECT path, data FROM nodes WHERE parent = '/brokers/topics/t'"))
    finally:
        registry.close()


def test_brokers_stop_and_leaders_stay_when_the_supervisor_is_killed(ottla: Command, tmp_path: Path) -> None:
    with serving(ottla, tmp_path) as (process, ready, log):
        Command(ready["bootstrap"]).ok("topic", "create", "t", "--partitions", "3")
        states = states_of(tmp_path / "data")
        assert len(states) == 3
        process.kill()
        process.wait()
        pids = [broker["pid"] for broker in ready["brokers"]]
        until(lambda: not any(map(runs, pids)), "the brokers to stop")
        assert log.read_text().count("stopped cleanly") == 3
        assert states_of(tmp_path / "data") == states


def a_free_port_before_a_taken_one(held: contextlib.ExitStack) -> int:
    """A port for one broker, followed by one that somebody listens on while `held` lasts."""
    for _ in range(100):
        free = ReservedPort()
        held.callback(free.release)
        taken = held.enter_context(socket.socket())
        with contextlib.suppress(OSError):
            taken.bind((free.host, free.number + 1))
            taken.listen()
            return free.number
    raise AssertionError("found no two free ports in a row")


def test_a_broker_that_cannot_start_ends_the_others(ottla: Command, tmp_path: Path) -> None:
    with contextlib.ExitStack() as taken:
        first = a_free_port_before_a_taken_one(taken)
        result = ottla("serve", "--brokers", "2", "--listen", f"127.0.0.1:{first}", "--data", str(tmp_path))
    assert result.code == 1
    assert f"cannot listen on 127.0.0.1:{first + 1}: the port is in use" in result.err
    assert "error: broker 2 did not start: it ended with exit code 1" in result.err


def test_folders_of_single_brokers_and_of_clusters_are_kept_apart(ottla: Command, tmp_path: Path) -> None:
    (tmp_path / "cluster.sqlite").touch()
    result = ottla("serve", "--data", str(tmp_path))
    assert result.code == 1
    assert "belongs to a cluster of several brokers" in result.err


@pytest.mark.parametrize("option", ["--node-id", "--rack", "--peer-listen"])
def test_options_of_a_single_broker_are_refused_beside_brokers(ottla: Command, option: str) -> None:
    result = ottla("serve", "--brokers", "3", option, "1")
    assert result.code == 2
    assert f"{option} is for a single broker" in result.err


def test_the_start_message_has_a_line_for_each_broker_and_ctrl_c_stops_all(
    ottla: Command, tmp_path: Path
) -> None:
    options = ("--brokers", "2", "--data", str(tmp_path), "--listen", "127.0.0.1:0")
    with ottla.at_terminal("serve", *options) as terminal:
        terminal.wait_for("Ctrl-C")
        terminal.interrupt()
        code, screen = terminal.finish()
    assert code == 0
    for node in (1, 2):
        assert re.search(
            rf"^  broker {node}  127\.0\.0\.1:\d+ +pid \d+  {tmp_path}/broker-{node}$", screen, re.M
        )
        assert f"broker {node} stopped cleanly" in screen
    assert f"  stop      Ctrl-C, or kill {terminal.process.pid}\n" in screen
    assert "Traceback" not in screen


def test_leaders_and_their_epochs_are_the_same_after_all_brokers_were_stopped(
    ottla: Command, tmp_path: Path
) -> None:
    def leaders(bootstrap: str) -> list[tuple[int, int, int]]:
        described = json.loads(Command(bootstrap).ok("topic", "describe", "t", "--json").out)
        return [(p["partition"], p["leader"], p["leader_epoch"]) for p in described["partitions"]]

    found: list[list[tuple[int, int, int]]] = []
    logs = ""
    for _ in range(2):
        with serving(ottla, tmp_path) as (process, ready, log):
            client = Command(ready["bootstrap"])
            if not found:
                client.ok("topic", "create", "t", "--partitions", "6")
            found.append(leaders(ready["bootstrap"]))
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT) == 0, log.read_text()
            logs += log.read_text()
    assert found[0] == found[1], logs
    assert {leader for _, leader, _ in found[0]} == {1, 2, 3}
