"""`ottla pipeline` as people and programs meet it: the real command, at a terminal and in pipes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conformance.command import OTTLA, Command, Result, Terminal
from pipeline.standalone import free_port

if TYPE_CHECKING:
    from ottla.testing.in_process import InProcessBroker

pytestmark = pytest.mark.timeout(600)  # several processes with a Spark of their own, beside other tests

LIMIT = 180.0
"""Seconds; Spark starts in six on a machine that has nothing else to do."""

_numbers = itertools.count()

PIPELINE = """
import time
from pathlib import Path

from pyspark.sql import functions as F

from ottla.pipeline import stage, topic

POISON = Path(__file__).with_name("poison")
HELD = Path(__file__).with_name("held")
INSIDE = Path(__file__).with_name("inside")


def checked(number: int) -> int:
    if POISON.exists():
        raise ValueError(f"cannot stand {number}")
    INSIDE.touch()
    while HELD.exists():
        time.sleep(0.02)
    return number


@stage(topic("IN", json="id long"), to=topic("CLEAN", key="id"))
def clean(records):
    return records.where("id > 0")


@stage(topic("IN", json="id long"), to=topic("RISKY"))
def risky(records):
    return records.select(F.udf(checked, "long")("id").alias("id"))
"""
RAISES = next(n for n, line in enumerate(PIPELINE.splitlines(), 1) if "raise ValueError" in line)


class Shop:
    """A pipeline file in a folder of its own, and topics of its own."""

    def __init__(self, folder: Path, broker: InProcessBroker) -> None:
        number = next(_numbers)
        self.folder = folder
        self.name = f"shop{number}"
        self.topic, self.clean, self.risky = (f"cli{number}.{each}" for each in ("in", "clean", "risky"))
        self.file = folder / f"{self.name}.py"
        self.poison = folder / "poison"
        self.ottla = Command(broker.bootstrap_servers)
        self.ottla.limit = LIMIT
        self.ottla.environment |= {
            "OTTLA_CHECKPOINTS": str(folder / "checkpoints"),
            "OTTLA_SPARK_MASTER": "local[2]",
            "OTTLA_SPARK_ARCHIVE": "use",
            "SPARK_DRIVER_MEMORY": "1g",
        }
        self.write(PIPELINE)

    def write(self, text: str) -> None:
        for mark, name in (("IN", self.topic), ("CLEAN", self.clean), ("RISKY", self.risky)):
            text = text.replace(f'"{mark}"', f'"{name}"')
        self.file.write_text(text)

    def __call__(self, command: str, *arguments: str) -> Result:
        return self.ottla("pipeline", command, str(self.file), *arguments)

    def start(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self.ottla.start("pipeline", command, str(self.file), *arguments)

    def at_terminal(self, command: str, *arguments: str) -> Terminal:
        return self.ottla.at_terminal("pipeline", command, str(self.file), *arguments, columns=150)

    def produce(self, *ids: int) -> None:
        self.ottla.ok("produce", self.topic, input="".join(f'{{"id": {each}}}\n' for each in ids))

    def read(self, name: str) -> list[int]:
        return sorted(json.loads(line)["id"] for line in self.ottla.ok("consume", name).lines)

    def status(self) -> dict[str, dict[str, object]]:
        return {each["stage"]: each for each in self("status", "--json").document["stages"]}


@pytest.fixture
def shop(tmp_path: Path, broker: InProcessBroker) -> Shop:
    made = Shop(tmp_path, broker)
    broker.create_topic(made.topic)
    return made


@pytest.fixture
def ending() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are killed at the end of the test if they still run."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, f"not within {LIMIT:g} s: {what}"
        time.sleep(0.1)


# Without Spark: what is told before it is started


def test_help_names_the_commands_and_imports_no_spark() -> None:
    shown = subprocess.run([OTTLA, "pipeline", "--help"], capture_output=True, text=True, check=True).stdout
    for command in ("run", "check", "graph", "status", "reset", "compact", "warm"):
        assert f"\n  {command} " in shown
    code = "import sys; import ottla.cli.main; print(*sorted(sys.modules))"
    modules = subprocess.run(
        [OTTLA.with_name("python"), "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    for slow in ("pyspark", "pyarrow", "ottla.pipeline", "rich"):
        assert slow not in modules, slow


def test_an_error_in_the_file_is_reported_in_one_line(shop: Shop) -> None:
    shop.write(PIPELINE.replace("def clean(records)", "def clean(records, more)"))
    result = shop("run", "--once")
    assert result.code == 2
    assert result.err.startswith(f"error: {shop.name}.py: stage clean: with 1 input")
    assert "Traceback" not in result.err
    result = shop.ottla("pipeline", "run", str(shop.folder / "shpo.py"))
    assert result.code == 2
    assert "there is no file" in result.err


def test_an_unknown_stage_is_reported_with_a_similar_name(shop: Shop) -> None:
    result = shop("run", "--stage", "claen")
    assert result.code == 2
    assert "has no stage 'claen'; did you mean clean?" in result.err


def test_a_setting_outside_the_known_families_is_refused(shop: Shop) -> None:
    result = shop("run", "--set", "memory=1g")
    assert result.code == 2
    assert "--set memory" in result.err


def test_an_invalid_prometheus_address_is_refused(shop: Shop) -> None:
    result = shop("run", "--metrics", "localhost")
    assert (result.code, "--metrics: 'localhost' is no port" in result.err) == (2, True)


def test_an_unreachable_broker_is_reported_before_spark_starts(shop: Shop) -> None:
    result = shop("run", "--bootstrap", "127.0.0.1:1")
    assert result.code == 3
    assert "cannot reach the broker at 127.0.0.1:1" in result.err


def test_with_once_a_missing_topic_is_reported_before_spark_starts(shop: Shop) -> None:
    shop.write(PIPELINE.replace('"IN"', '"nowhere.to.be.seen"'))
    result = shop("run", "--once")
    assert result.code == 1
    assert "stage clean reads nowhere.to.be.seen, which is not there" in result.err


def test_a_pipeline_that_never_ran_has_a_status(shop: Shop) -> None:
    shop.produce(1, 2)
    stages = shop.status()
    assert stages["clean"]["phase"] == "never ran"
    assert stages["clean"]["lag_records"] == 2
    shown = shop("status").out
    assert shown.splitlines()[0].split()[:3] == ["STAGE", "STATUS", "BATCH"]
    away = shop("status", "--bootstrap", "127.0.0.1:1")
    assert away.code == 0
    assert "The lag is not known: cannot reach the broker" in away.out


def test_a_reset_shows_its_plan_and_requires_confirmation(shop: Shop) -> None:
    shop.produce(1, 2, 3)
    result = shop("reset", "clean", "--to", "latest")
    assert result.code == 0
    assert result.lines[1].split() == [shop.topic, "0", "-", "3", "-"]
    assert "This was a dry run" in result.err
    assert shop.status()["clean"]["partitions"] == []
    done = shop("reset", "clean", "--to", "latest", "--execute", "--json").document
    assert done["executed"] is True
    assert done["group"] == f"ottla.{shop.name}.clean"
    assert shop.status()["clean"]["partitions"][0]["group_offset"] == 3  # type: ignore[index]
    assert shop("reset", "clean", "--to", "nonsense").code == 2
    assert "Give --to earliest" in shop("reset", "clean").err
    assert "--replace starts at earliest" in shop("reset", "clean", "--replace", "--to", "latest").err
    assert "stage clean writes no lake" in shop("reset", "clean", "--replace").err
    shop.write(
        PIPELINE.replace('to=topic("CLEAN", key="id")', f'to="{shop.folder}/lake"')
        .replace("import stage, topic", "import lake, stage, topic")
        .replace('to="', 'to=lake("')
        .replace('/lake"', '/lake")')
    )
    planned = shop("reset", "clean", "--replace")
    assert "0 files go" in planned.err
    assert shop("reset", "nobody", "--to", "latest").code == 2


def test_compacting_a_missing_lake_is_an_error(shop: Shop) -> None:
    result = shop.ottla("pipeline", "compact", str(shop.folder / "lake"))
    assert result.code == 1
    assert "there is no lake" in result.err


# With Spark


def test_check_describes_stages_and_reports_errors(shop: Shop) -> None:
    broken = """
@stage(topic("not.there", json="id long"), to=topic("elsewhere"))
def broken(records):
    return records.select("nothing")
"""
    shop.write(PIPELINE + broken)
    result = shop("check", "--json")
    assert result.code == 1
    document = result.document
    clean, risky, found = document["stages"]
    assert clean["inputs"][0]["topics"] == [shop.topic]
    assert clean["outputs"][0] | {"schema": ""} == {
        "name": shop.clean,
        "kind": "topic",
        "there": False,
        "where": None,
        "schema": "",
    }
    assert clean["outputs"][0]["schema"] == "struct<id:bigint>"
    assert clean["problems"] == risky["problems"] == []
    assert any("not.there is not there" in each for each in found["problems"])
    assert any("nothing" in each for each in found["problems"])
    assert not (shop.folder / "checkpoints" / "clean").exists()


@pytest.mark.slow
def test_once_prints_json_and_a_reset_reads_again(shop: Shop) -> None:
    shop.produce(1, 2, 3)
    result = shop("run", "--once", "--json", "--stage", "clean")
    assert result.code == 0, result
    events = [json.loads(line) for line in result.lines]
    assert {each["stage"] for each in events} == {"clean"}
    batch = next(each for each in events if each["event"] == "progress")
    assert (batch["batch"], batch["batch_rows"], batch["offsets"]) == (0, 3, {shop.topic: {"0": 3}})
    assert events[-1]["event"] == "finished"
    assert shop.read(shop.clean) == [1, 2, 3]
    assert shop.status()["clean"]["lag_records"] == 0
    idle = shop("run", "--once", "--stage", "clean", "--master", "there is no such Spark")
    assert (idle.code, idle.err) == (0, ""), idle
    assert idle.lines[-1].endswith("clean: finished")
    reset = shop("reset", "clean", "--to", "earliest", "--execute")
    assert f"moved ottla.{shop.name}.clean in 1 partition" in reset.out
    assert shop.status()["clean"]["lag_records"] == 3
    again = shop("run", "--once", "--stage", "clean")
    assert again.code == 0, again
    assert shop.read(shop.clean) == [1, 1, 2, 2, 3, 3]
    assert "clean: " in again.lines[-1]
    assert "3 rows" in again.lines[-1]


@pytest.mark.slow
def test_a_terminal_shows_a_live_table_and_ctrl_c_stops_between_batches(shop: Shop) -> None:
    shop.poison.touch()
    shop.produce(1, 2)
    with shop.at_terminal("run") as terminal:
        terminal.wait_for("rows/s")
        terminal.wait_until(
            lambda: "cannot stand" in str(shop.status()["risky"]["error"]), "error in the status"
        )
        terminal.wait_until(lambda: shop.status()["clean"]["batch"] == 0, "batch of the healthy stage")
        stages = shop.status()
        assert stages["clean"]["running"] is True
        assert stages["risky"]["error"].startswith("ValueError: cannot stand 1 (")  # type: ignore[attr-defined]
        assert f"{shop.name}.py:{RAISES}, in checked" in str(stages["risky"]["error"])
        refused = shop("reset", "clean", "--to", "earliest", "--execute")
        assert refused.code == 1
        assert "is being run by process" in refused.err
        second = shop("run")
        assert second.code == 1
        assert "is being run by process" in second.err
        shop.poison.unlink()
        terminal.wait_until(lambda: shop.status()["risky"]["batch"] == 0, "batch of the other stage")
        terminal.interrupt()
        code, screen = terminal.finish()
    assert code == 130
    assert "stopped; the next run goes on from here" in screen
    assert "Traceback" not in screen
    assert "Exception" not in screen
    assert shop.read(shop.clean) == [1, 2]
    assert shop.read(shop.risky)[-2:] == [1, 2] or set(shop.read(shop.risky)) == {1, 2}
    stages = shop.status()
    assert (stages["clean"]["running"], stages["clean"]["phase"]) == (False, "stopped")


def figures(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text: bytes = answer.read()
    return text.decode()


@pytest.mark.slow
def test_output_in_a_pipe_is_plain_and_sigterm_stops_cleanly(
    shop: Shop, ending: list[subprocess.Popen[bytes]]
) -> None:
    shop.produce(1)
    port = free_port()
    process = shop.start("run", "--stage", "clean", "--metrics", str(port))
    ending.append(process)
    until(lambda: shop.status()["clean"]["batch"] == 0, "a batch")
    counted = f'rows_total{{pipeline="{shop.name}",stage="clean"}} 1\n'
    until(lambda: counted in figures(port), "the figures of the batch")
    busy = shop("run", "--stage", "risky", "--metrics", str(port))
    assert (busy.code, "Address already in use" in busy.err) == (1, True)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    lines = out.decode().splitlines()
    assert any("clean: running" in line for line in lines)
    assert lines[-1].endswith("; stopped")
    assert "\x1b" not in out.decode() + err.decode()
    assert "stopped; the next run goes on from here" in err.decode()
    shop.write(
        PIPELINE.replace(
            '@stage(topic("IN", json="id long"), to=topic("CLEAN"',
            '@stage(topic("RISKY", json="id long"), to=topic("CLEAN"',
        )
    )
    refused = shop("run", "--stage", "clean")
    assert refused.code == 1
    assert "stage clean has changed in a way its checkpoint cannot follow" in refused.err
    assert f"ottla pipeline reset {shop.file} clean --to earliest" in refused.err


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once(shop: Shop, ending: list[subprocess.Popen[bytes]]) -> None:
    held = shop.folder / "held"
    held.touch()
    shop.produce(1)
    process = shop.start("run", "--stage", "risky")
    ending.append(process)
    until((shop.folder / "inside").exists, "a batch that is inside")
    java = _java_of(process.pid)
    process.send_signal(signal.SIGINT)
    until(lambda: shop.status()["risky"]["phase"] == "stopping", "the first one taken")
    assert shop.status()["risky"]["note"] == "finishing batch 0"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "stopped at once: what was being written is written again" in err.decode()
    assert "Traceback" not in err.decode()
    held.unlink()
    until(lambda: not Path(f"/proc/{java}").exists(), "the end of its JVM")
    assert shop.status()["risky"]["batch"] is None


@pytest.mark.slow
def test_a_run_whose_spark_process_dies_reports_it_and_exits(
    shop: Shop, ending: list[subprocess.Popen[bytes]]
) -> None:
    shop.produce(1)
    process = shop.start("run", "--stage", "clean")
    ending.append(process)
    until(lambda: shop.status()["clean"]["batch"] == 0, "a batch")
    os.kill(_java_of(process.pid), signal.SIGKILL)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "clean failed: Spark's Java process has ended" in err.decode()
    assert "Traceback" not in err.decode()


def _java_of(pid: int) -> int:
    """The JVM that the process started."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_bytes().split(b"\0")[0]
            except (OSError, ValueError, IndexError):
                continue
            if parent == pid and command.endswith(b"java"):
                return int(folder.name)
    raise AssertionError(f"process {pid} has no JVM")
