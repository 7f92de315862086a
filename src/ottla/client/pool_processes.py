"""A worker process of a pool: it gets records through a pipe and answers with None or the handler's error.

The pool has a thread for each process, which calls `ProcessHandle` like any handler. When the process dies,
the record that it had has failed with `WorkerDied`, and a new process is started for the next one. A process
ends when the pipe closes, so none outlives its pool, whatever happens to that. Ctrl-C is for the pool alone:
workers ignore it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from ottla.client.errors import ClientError
from ottla.client.records import ConsumerRecord

_END = 5.0
"""Seconds that a process has to end before it is killed."""


class WorkerDied(ClientError):
    """The worker process ended in the middle of a record."""


class RemoteError(ClientError):
    """An error of a handler that could not be sent from its process; the text has its class and traceback."""


class ProcessHandle:
    """Runs the handler for one record at a time in a process of its own."""

    def __init__(self, handler: Callable[[ConsumerRecord], Any]) -> None:
        self._handler = pickle.dumps(handler)
        # A fork of this process would have librdkafka's memory without its threads.
        methods = multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        self._process: Any = None
        self._pipe: Connection | None = None
        self._closed = False

    def __call__(self, record: ConsumerRecord) -> None:
        pipe = self._connect()
        message = pickle.dumps(record)
        try:
            pipe.send_bytes(message)
            answer = pipe.recv_bytes()
        except (EOFError, OSError) as failure:
            raise WorkerDied(f"the worker process {self._bury()}") from failure
        if answer:
            raise _unpacked(answer)

    def _connect(self) -> Connection:
        if self._closed:
            raise WorkerDied("the pool has ended")
        if self._pipe is None:
            ours, theirs = self._context.Pipe()
            self._process = self._context.Process(
                target=_serve, args=(theirs, self._handler), name="ottla-pool-worker", daemon=True
            )
            self._process.start()
            theirs.close()
            self._pipe = ours
        return self._pipe

    def _bury(self) -> str:
        """Forget the process, and say how it ended."""
        process, self._process = self._process, None
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()
        if process is None:
            return "was ended"
        process.join(_END)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = process.exitcode
        if code < 0:
            return f"{process.pid} was killed by {signal.Signals(-code).name}"
        return f"{process.pid} ended with {code}"

    def close(self) -> None:
        """End the process; a record that it has fails."""
        self._closed = True
        process = self._process
        if self._pipe is not None and process is not None:
            with contextlib.suppress(OSError):
                process.terminate()


def _serve(pipe: Connection, pickled: bytes) -> None:
    """The process: records in, outcomes out, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handler = pickle.loads(pickled)
    while True:
        try:
            data = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            handler(pickle.loads(data))
        except BaseException as error:  # noqa: BLE001 - also SystemExit: it must not look like a crash
            answer = _packed(error)
        else:
            answer = b""
        try:
            pipe.send_bytes(answer)
        except OSError:
            # The pool is gone. Threads of the handler must not keep this process.
            sys.stderr.flush()
            os._exit(1)


def _packed(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # noqa: BLE001 - an error's own pickling may do anything
        pickled = b""
    return pickle.dumps((pickled, text))


def _unpacked(answer: bytes) -> BaseException:
    pickled, text = pickle.loads(answer)
    if not pickled:
        return RemoteError(text)
    error: BaseException = pickle.loads(pickled)
    error.add_note(f"in the worker process:\n{text}")
    return error
