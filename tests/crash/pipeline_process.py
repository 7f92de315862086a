"""`ottla pipeline run` as processes of its own, killed like the kernel or an operator would, and looked into.

The driver is a Python process with a JVM below it and Python workers below that, each in a session or
process group of its own; so it is the whole family that is killed, by descent. How far the stages are is
read from their checkpoints, as they are on disk.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from broker_process import OTTLA
from ottla.pipeline.checkpoints import Checkpoints

PATIENCE = 600.0
"""A start of Spark takes 5 s alone and a minute beside other tests."""

Ranges = dict[int, tuple[int, int]]
"""By partition: the first offset and the one after the last."""


class Position(NamedTuple):
    """How far a stage is."""

    committed: int
    """The last batch that is done; -1 before the first."""
    planned: int
    """The last batch that was begun."""

    @property
    def open(self) -> range:
        """Batches that were begun and are not done."""
        return range(self.committed + 1, self.planned + 1)


class PipelineProcess:
    """The driver of a pipeline file; started, killed and started again."""

    def __init__(self, file: Path, bootstrap: str, checkpoints: Path, topic: str) -> None:
        self._output = file.with_suffix(".txt")
        self._topic = topic
        self._folder = checkpoints
        self._command = [
            *(str(OTTLA), "pipeline", "run", str(file), "--bootstrap", bootstrap),
            *("--checkpoints", str(checkpoints), "--master", "local[2]"),
            *("--set", "spark.driver.memory=1g", "--set", "spark.sql.shuffle.partitions=2", "--json"),
        ]
        self.process: subprocess.Popen[bytes] | None = None
        self._began = 0
        """Where in the output the running driver's begins."""
        self._passed: set[int] = set()

    def __enter__(self) -> PipelineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, *more: str) -> None:
        # An archive of classes is used when there is one; making one takes a core for half a minute.
        environment = {**os.environ, "OTTLA_SPARK_ARCHIVE": "use", "TZ": "UTC"}
        with self._output.open("ab") as output:
            self._began = output.tell()
            self.process = subprocess.Popen(
                [*self._command, *more],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def kill(self, *, driver_only: bool = False) -> None:
        """SIGKILL to the driver, and at once to all below it, or leave those to find out by themselves."""
        if self.process is None:
            return
        members = _family(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in members if not driver_only else []:
            _kill(pid)
        self._passed.update(members)
        if not driver_only:
            self._await_gone(members)
        self.process = None

    def _await_gone(self, members: list[int]) -> None:
        await_true(lambda: not any(map(_is_alive, members)), "the driver's processes did not end")

    @property
    def stragglers(self) -> list[int]:
        """Processes of killed drivers that are still there."""
        return [pid for pid in self._passed if _is_alive(pid)]

    def run_once(self) -> None:
        """Works through all there is, to the end."""
        self.start("--once")
        assert self.process is not None
        code = self.process.wait(PATIENCE * 2)
        self.process = None
        assert code == 0, self.text()

    def stop(self) -> int:
        """Ctrl-C: the batches are finished. Returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE)
        self.process = None
        return code

    def text(self) -> str:
        return self._output.read_text(errors="replace")[-6_000:]

    def position(self, stage: str) -> Position:
        done = self._batches(stage, "commits")
        return Position(done, max(done, self._batches(stage, "offsets")))

    def _batches(self, stage: str, log: str) -> int:
        folder = self._folder / stage / "spark" / log
        names = [file.name for file in folder.iterdir()] if folder.exists() else []
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def restarts(self, stage: str, committed: int) -> set[int]:
        """Batches at which the stage failed and was started again by this driver, begun after `committed`."""
        failed = set()
        with self._output.open("rb") as output:
            output.seek(self._began)
            for line in output:
                if line.startswith(b"{") and line.endswith(b"}\n"):
                    event = json.loads(line)
                    if event["stage"] == stage and event["phase"] == "restarting":
                        failed.add((committed if event["batch"] is None else event["batch"]) + 1)
        return failed

    def ranges(self, stage: str) -> dict[int, Ranges]:
        """By batch: the records it consists of. Spark keeps a hundred batches."""
        folder = Checkpoints(self._folder).stage(stage)
        ends: dict[int, dict[int, int]] = {}
        for batch in range(max(0, self.position(stage).planned - 90), self.position(stage).planned + 1):
            sources = folder.offsets_of(batch)
            if sources is not None:
                (source,) = sources.values()
                ends[batch] = {int(key): int(value) for key, value in source[self._topic].items()}
        return {
            batch: {key: (ends.get(batch - 1, {}).get(key, 0), end) for key, end in to.items()}
            for batch, to in ends.items()
            if batch == 0 or batch - 1 in ends
        }

    def await_progress(self, before: dict[str, Position], batches: int = 1) -> None:
        """Until every stage has so many batches more than before."""

        def is_further() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"the driver ended by itself:\n{self.text()}"
            return all(
                self.position(stage).committed >= position.committed + batches
                for stage, position in before.items()
            )

        await_true(is_further, f"no batch was finished since {before}", self.text)


def await_true(condition: Callable[[], bool], what: str, more: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}\n{more()}"
        time.sleep(0.02)


def _family(ancestor: int) -> list[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    family = [ancestor]
    for member in family:
        family += children.get(member, [])
    return family


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
