"""A port that stays ours while the broker that listens on it is down.

Tests stop brokers and start them again at the same address. In between the kernel may give the port to
any process, most likely to a client that tries to reach the missing broker: on the loopback a connection from
the port to itself succeeds, and the broker finds its address taken. So the port is held by a socket that is
bound to it but never listens. Linux lets the broker bind beside it, because both ask for SO_REUSEADDR, and
gives a port that is bound this way to no other process.
"""

from __future__ import annotations

import socket
import sys


class ReservedPort:
    def __init__(self, host: str = "127.0.0.1") -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self.host = host
        self.number: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            # Others refuse a second bind; there the port is free for a moment, and we take the risk.
            self._socket.close()

    def release(self) -> None:
        self._socket.close()
