"""Frames from a blocking socket, one at a time, for the raw clients and scripted brokers of the tests."""

from __future__ import annotations

import socket
from collections import deque

from ottla.protocol.framing import FrameReader

LARGEST = 2**31 - 1


class FrameStream:
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = FrameReader(LARGEST)
        self._whole: deque[memoryview] = deque()

    def next(self) -> memoryview | None:
        """The next frame without its size; None when the peer has closed the connection instead.

        The socket's own errors and timeouts are raised as they are.
        """
        while not self._whole:
            count = self._socket.recv_into(self._reader.buffer())
            if not count:
                return None
            self._whole.extend(self._reader.received(count))
        return self._whole.popleft()
