"""Cleaning in a process of its own, so that the loops over records take nothing from the event loop.

A thread would not do: it holds the interpreter's lock while it loops, and each request would wait for it.
The process is started when there is work, gets jobs and tells progress and results as lines of text over its
standard input and output, and is let go, with the memory it took, when there was no work for a while. It runs
with lower priority, and ends with the broker however that ends: then its input is closed.

    job as JSON           ->
                          <-  progress BYTES TOTAL
                          <-  segment {cleaned}
    go | stop             ->
                          <-  done {result}  |  uncleanable REASON  |  failed ERRNO REASON
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ottla.storage.cleaning.job import (
    CleanedSegment,
    CleaningJob,
    CleaningResult,
    Outcomes,
    Progress,
    Uncleanable,
    run,
)
from ottla.storage.files import RealDisk

_NICENESS = 5
_PROGRESS_BYTES = 8 << 20  # between two reports


class CleanerProcess:
    """The broker's side. `run` blocks: one thread at a time uses it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._closing = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Of the process that is there, if one is."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def run(self, job: CleaningJob, progress: Progress) -> Outcomes:
        """Have the job done. Uncleanable and OSError as if it had been done here."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(job.encode() + "\n")
            process.stdin.flush()
            for line in process.stdout:
                kind, _, rest = line.rstrip("\n").partition(" ")
                if kind == "progress":
                    done, total = rest.split()
                    try:
                        progress(int(done), int(total))
                    except Exception:
                        process.kill()  # it would go on with a job that is not wanted any more
                        raise
                elif kind == "segment":
                    try:
                        yield CleanedSegment(**json.loads(rest))
                    except GeneratorExit:
                        self._tell(process, "stop")
                        raise
                    self._tell(process, "go")
                elif kind == "done":
                    yield CleaningResult.decode(rest)
                    return
                elif kind == "uncleanable":
                    raise Uncleanable(rest)
                elif kind == "failed":
                    number, _, reason = rest.partition(" ")
                    raise OSError(int(number), reason)
        except BrokenPipeError:
            pass  # told below, with how it ended
        code = process.wait()
        raise OSError(errno.EIO, f"the process that compacts {job.name} ended with status {code}")

    def _tell(self, process: subprocess.Popen[str], word: str) -> None:
        assert process.stdin is not None
        with suppress(
            BrokenPipeError, ValueError
        ):  # it has ended, which the next line read from it will tell
            process.stdin.write(word + "\n")
            process.stdin.flush()

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._closing:
                raise OSError(errno.ECANCELED, "the broker is stopping")
            process = self._process
            if process is not None and process.poll() is None:
                return process
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": _import_path()},
            )
            return self._process

    def interrupt(self) -> None:
        """End the job that runs, if one does: its caller gets an OSError. Does not block."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()

    def retire(self) -> None:
        """Let the process go; the next job starts another. Only while no job runs."""
        with self._lock:
            self._end()

    def close(self) -> None:
        """End the process, in the middle of its work if need be: what it wrote is worth nothing yet."""
        with self._lock:
            self._closing = True
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            try:
                process.stdin.close()
            except BrokenPipeError:
                process.kill()
        process.wait()


def _import_path() -> str:
    """Where this process finds the package; the other one may have been started with less."""
    here = str(Path(__file__).parents[3])
    known = os.environ.get("PYTHONPATH")
    return f"{here}{os.pathsep}{known}" if known else here


def main() -> None:
    """The process's side."""
    os.nice(_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is for the broker
    disk = RealDisk()
    while text := sys.stdin.readline():
        reported = 0

        def report(done: int, total: int) -> None:
            nonlocal reported
            if done - reported >= _PROGRESS_BYTES or done < reported:
                reported = done
                _say(f"progress {done} {total}")

        try:
            for outcome in run(CleaningJob.decode(text), disk, progress=report):
                if isinstance(outcome, CleaningResult):
                    _say(f"done {outcome.encode()}")
                    break
                _say(f"segment {json.dumps(asdict(outcome))}")
                if sys.stdin.readline() != "go\n":
                    break
        except Uncleanable as problem:
            _say(f"uncleanable {_one_line(problem)}")
        except OSError as problem:
            _say(f"failed {problem.errno or errno.EIO} {_one_line(problem)}")
        except MemoryError:
            _say(f"failed {errno.ENOMEM} no memory for log.cleaner.dedupe.buffer.size bytes of keys")
        except Exception as problem:  # noqa: BLE001 - the broker reports it, and tries again later
            _say(f"failed {errno.EIO} {type(problem).__name__}: {_one_line(problem)}")


def _one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())


def _say(line: str) -> None:
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The broker is gone. Nothing more may be written to its folder, not even at the end of this process.
        os._exit(1)


if __name__ == "__main__":
    main()
