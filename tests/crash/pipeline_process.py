"""`ottla pipeline run` as processes of its own, killed like the kernel or an operator would, and looked into.

The driver is a Python process with a JVM below it and Python workers below that; Spark moves the workers out
of the driver's process group, but all of them stay in the session that is begun here, so that is what is
killed. How far the stages are is read from their checkpoints, as they are on disk.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from broker_process import OTTLA
from ottla.pipeline.checkpoints import Checkpoints

PATIENCE = 300.0
"""A start of Spark takes 5 s alone and a minute beside other tests."""

Ranges = dict[int, tuple[int, int]]
"""By partition: the first offset and the one after the last."""


class Position(NamedTuple):
    """How far a stage is, and what it is at."""

    committed: int
    """The last batch that is done; -1 before the first."""
    planned: int
    """The last batch that was begun."""
    open: Ranges
    """The records of batches that were begun and are not done."""


class PipelineProcess:
    """The driver of a pipeline file; started, killed and started again."""

    def __init__(self, file: Path, bootstrap: str, checkpoints: Path, topic: str) -> None:
        self._output = file.with_suffix(".txt")
        self._topic = topic
        self._folder = checkpoints
        self._command = [
            *(str(OTTLA), "pipeline", "run", str(file), "--bootstrap", bootstrap),
            *("--checkpoints", str(checkpoints), "--master", "local[2]"),
            *("--set", "spark.driver.memory=1g", "--set", "spark.sql.shuffle.partitions=2"),
        ]
        self.process: subprocess.Popen[bytes] | None = None
        self._passed: set[int] = set()

    def __enter__(self) -> PipelineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, *more: str) -> None:
        # An archive of classes is used when there is one; making one takes a core for half a minute.
        environment = {**os.environ, "OTTLA_SPARK_ARCHIVE": "use", "TZ": "UTC"}
        with self._output.open("ab") as output:
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
        members = _session(self.process.pid)
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
        """Read until it is of one moment: the driver goes on meanwhile."""
        folder = Checkpoints(self._folder).stage(stage)
        offsets = self._folder / stage / "spark" / "offsets"
        while True:
            last = folder.last_committed()
            planned = max((int(file.name) for file in _files(offsets) if file.name.isdecimal()), default=-1)
            committed = -1 if last is None else last.batch_id
            if planned < committed:
                continue
            if planned == committed:
                return Position(committed, planned, {})
            try:
                ends = folder.offsets_of(planned)
            except ValueError:
                ends = None  # being written, or cut short by the kill: Spark plans it again
            if ends is not None:
                start = {} if last is None else self._offsets(last.offsets)
                return Position(
                    committed, planned, {p: (start.get(p, 0), end) for p, end in self._offsets(ends).items()}
                )
            if self.process is None:
                return Position(committed, planned, {})

    def _offsets(self, sources: dict[str, Any]) -> dict[int, int]:
        (source,) = sources.values()
        return {int(partition): int(offset) for partition, offset in source[self._topic].items()}

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


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _session(leader: int) -> list[int]:
    """All processes of the session that `leader` began."""
    members = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == leader:
            members.append(int(status.parent.name))
    return members


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
