"""The `ottla` command in a process of its own, through pipes or at a pseudo-terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from conformance.fork_server import ForkServer

OTTLA = Path(sys.executable).with_name("ottla")
LIMIT = 60.0


_FORKED = {"cluster", "consume", "group", "log", "produce", "topic", "transaction"}
"""Commands that run in a process forked from one that has imported them; the others start from nothing."""
_FORKED_OF_PIPELINE = {"reset", "status"}
"""The same of `ottla pipeline`: those that start no Spark."""

_fork_server = ForkServer()


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Command:
    """Runs `ottla` against one broker."""

    limit = LIMIT
    """Seconds after which a command hangs."""

    def __init__(self, bootstrap: str) -> None:
        self.environment = {**os.environ, "OTTLA_BOOTSTRAP": bootstrap, "TZ": "UTC"}
        self.environment.pop("OTTLA_DATA", None)

    def __call__(self, *arguments: str, input: str | bytes = b"", **environment: str) -> Result:
        data = input.encode() if isinstance(input, str) else input
        if _is_forked(arguments) and not environment:
            return self._forked(list(arguments), data)
        done = subprocess.run(
            [OTTLA, *arguments],
            input=data,
            capture_output=True,
            env=self.environment | environment,
            timeout=self.limit,
            check=False,
        )
        return Result(done.returncode, done.stdout.decode("utf-8", "surrogateescape"), done.stderr.decode())

    def _forked(self, arguments: list[str], data: bytes) -> Result:
        pipes = [os.pipe() for _ in range(3)]
        (stdin, feed), (read_out, stdout), (read_err, stderr) = pipes
        with ThreadPoolExecutor(3) as threads:
            threads.submit(_write_all, feed, data)
            out, err = (threads.submit(_read_all, each) for each in (read_out, read_err))
            try:
                code = _fork_server.run(arguments, self.environment, (stdin, stdout, stderr), self.limit)
            finally:
                for descriptor in (stdin, stdout, stderr):
                    os.close(descriptor)
        return Result(code, out.result().decode("utf-8", "surrogateescape"), err.result().decode())

    def ok(self, *arguments: str, input: str | bytes = b"") -> Result:
        result = self(*arguments, input=input)
        assert result.code == 0, result
        return result

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """In the background; the test ends it."""
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("preexec_fn", _interruptible)
        return subprocess.Popen([OTTLA, *arguments], env=self.environment, **options)

    def at_terminal(self, *arguments: str, columns: int = 100) -> Terminal:
        terminal = Terminal([str(OTTLA), *arguments], self.environment | {"TERM": "xterm-256color"}, columns)
        terminal.limit = self.limit
        return terminal


def _is_forked(arguments: tuple[str, ...]) -> bool:
    match arguments:
        case ("pipeline", command, *_):
            return command in _FORKED_OF_PIPELINE
        case (command, *_):
            return command in _FORKED
    return False


def _write_all(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file, suppress(BrokenPipeError):  # a command need not read its input
        file.write(data)
        file.flush()


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def _interruptible() -> None:
    """A test run in the background ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _take_terminal() -> None:
    _interruptible()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches it


class Terminal:
    """A command whose stdin, stdout and stderr are a terminal. Use in a `with`; it is killed at the end."""

    limit = LIMIT

    def __init__(self, command: list[str], environment: dict[str, str], columns: int) -> None:
        self.screen = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(self.limit)
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        self.type("\x03")

    def wait_for(self, text: str) -> None:
        """Until `text` was on the screen."""
        self._read_until(lambda: text.encode() in self.screen, f"{text!r} on the screen")

    def wait_until(self, true: Callable[[], object], what: str) -> None:
        """Until it is true, reading on meanwhile: a program blocks when its terminal is not read."""
        self._read_until(lambda: bool(true()), what)

    def finish(self) -> tuple[int, str]:
        """Exit code and all that was written, line ends as in a file."""
        self._read_until(lambda: False, "")
        # A terminal throws away what is not shown yet when Ctrl-C is typed, in the middle of a character too.
        return self.process.wait(self.limit), self.screen.decode(errors="replace").replace("\r\n", "\n")

    def _read_until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.limit
        output = select.poll()  # which takes file descriptors above 1023, too
        output.register(self._master, select.POLLIN)
        while not done():
            if not output.poll(1000 * max(deadline - time.monotonic(), 0)):
                raise AssertionError(f"no {what or 'end'} within {self.limit:g} s: {self.screen!r}")
            try:
                data = os.read(self._master, 65_536)
            except OSError:  # how Linux reports that no process has the terminal open any more
                data = b""
            if not data:
                assert not what, f"ended without {what}: {self.screen!r}"
                return
            self.screen += data
