"""Runs the `ottla` command in processes forked from one that has imported it already.

Most of the time of a short command goes into starting Python and importing modules: a fifth of a second of
processor time, some hundred times in a test run. A forked child is still a process of its own with its own
standard streams, environment and exit code. What depends on a start from nothing (signals at any moment,
terminals, how long a start takes, what is imported) is tested with real starts: `Command.start`.

The server is this file as a program. It reads one request after another from a socket: a line of JSON with
arguments, environment and folder, together with the descriptors of stdin, stdout and stderr. It answers with
the child's process id in a line, and when the child has ended with its exit code in another.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO, Any

_LONGEST = 1 << 20
_FOR_PIPELINES = ("ottla.cli.pipeline_reset", "ottla.cli.pipeline_status", "pyspark.sql.functions")
"""What is imported when the first command of a pipeline comes: it takes longer than all the rest."""


class ForkServer:
    """The client's side. Commands run one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._socket: socket.socket | None = None
        self._answers: IO[str] | None = None

    def run(
        self, arguments: list[str], environment: dict[str, str], streams: tuple[int, int, int], limit: float
    ) -> int:
        """Run `ottla` and return its exit code; `TimeoutExpired` after `limit` seconds."""
        with self._lock:
            sock, answers = self._connect()
            request = {"arguments": arguments, "environment": environment, "folder": str(Path.cwd())}
            socket.send_fds(sock, [json.dumps(request).encode() + b"\n"], streams)
            child = int(answers.readline())
            killer = threading.Timer(limit, os.kill, (child, signal.SIGKILL))
            killer.start()
            try:
                code = int(answers.readline())
            finally:
                expired = killer.finished.is_set()
                killer.cancel()
            if expired:
                raise subprocess.TimeoutExpired(["ottla", *arguments], limit)
            return code

    def _connect(self) -> tuple[socket.socket, IO[str]]:
        if self._socket is None or self._answers is None or self._owner != os.getpid():
            ours, theirs = socket.socketpair()
            with theirs:
                server = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
            self._owner, self._socket, self._answers = os.getpid(), ours, ours.makefile("r")
            atexit.register(server.wait)
            atexit.register(ours.shutdown, socket.SHUT_RDWR)
        return self._socket, self._answers


def _serve(sock: socket.socket) -> None:
    # What commands import when they run.
    import ottla.protocol_client.admin
    import ottla.protocol_client.consume
    import ottla.protocol_client.group_consumer
    import ottla.protocol_client.groups
    import ottla.protocol_client.lag
    import ottla.protocol_client.produce  # noqa: F401
    from ottla.cli import main

    while True:
        request, streams, _, _ = socket.recv_fds(sock, _LONGEST, 3)
        if not request:
            return
        while not request.endswith(b"\n"):
            request += sock.recv(_LONGEST)
        asked = json.loads(request)
        if asked["arguments"][0] == "pipeline":
            for module in _FOR_PIPELINES:
                importlib.import_module(module)
        child = os.fork()
        if not child:
            sock.close()
            os._exit(_run(main.main, asked, streams))
        for descriptor in streams:
            os.close(descriptor)
        sock.sendall(b"%d\n" % child)
        sock.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _run(main: Any, request: dict[str, Any], streams: list[int]) -> int:
    """In the child: the exit code with which Python would have ended."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.argv = ["ottla", *request["arguments"]]
    code: Any = 0
    try:
        main()
    except SystemExit as ending:
        code = ending.code
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return 120
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
