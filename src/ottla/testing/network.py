"""A network that can be cut: a relay before a broker, which holds back, loses or breaks what passes through.

    with ottla.testing.broker(network=True) as broker:
        ...                          # clients connect to broker.bootstrap_servers, and get no other address
        broker.network.cut()         # nothing passes any more, and neither side is told
        broker.network.mend()

It needs no rights: both of its ends are ordinary sockets of this machine.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

HOST = "127.0.0.1"
_PIECE = 1 << 16
_PATIENCE = 10.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: no time to say goodbye


class Network:
    """Leads from a port of its own to `port`. Threads are daemons, so a test that fails leaves nothing."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server((HOST, 0))
        self._target = port
        self._changed = threading.Condition()
        self._cut = False
        self._loses_answers = False
        self._ended = False
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        self.lost = 0
        """Bytes of answers that were lost."""
        self._start(self._accept)

    @property
    def address(self) -> str:
        """Where it begins: host:port."""
        return f"{HOST}:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Break all connections and take no more."""
        with self._changed:
            self._ended = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there
        self._listener.close()
        self.reset()
        for thread in self._threads:
            thread.join(_PATIENCE)

    def join(self, client: socket.socket) -> None:
        """Carry a connection that another listener accepted."""
        try:
            broker = socket.create_connection((HOST, self._target), _PATIENCE)
        except OSError:
            client.close()
            return
        for end in (client, broker):
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            self._pairs[client] = broker
        self._start(self._carry, client, broker, client, False)
        self._start(self._carry, broker, client, client, True)

    # -- what can happen ----------------------------------------------------------------------------------

    def cut(self) -> None:
        """Nothing passes in either direction; connections seem to be there, and new ones to succeed."""
        with self._changed:
            self._cut = True

    def lose_answers(self) -> None:
        """Requests arrive and are carried out, but their responses are lost."""
        with self._changed:
            self._loses_answers = True

    def mend(self) -> None:
        """All is well again. Connections that lost bytes are broken, as they would be."""
        with self._changed:
            if self._loses_answers:
                self._break_all()
            self._cut = self._loses_answers = False
            self._changed.notify_all()

    def reset(self) -> None:
        """Every connection breaks at once, in the middle of whatever it carries."""
        with self._changed:
            self._break_all()
            self._changed.notify_all()

    # -- how ----------------------------------------------------------------------------------------------

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="ottla-network", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.join(client)

    def _carry(self, source: socket.socket, target: socket.socket, client: socket.socket, back: bool) -> None:
        """From one end to the other, until one of them is gone."""
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                with self._changed:
                    self._changed.wait_for(lambda: not self._cut or self._ended or client not in self._pairs)
                    if self._ended or client not in self._pairs:
                        return
                    if back and self._loses_answers:
                        self.lost += len(data)
                        continue
                target.sendall(data)
        with self._changed:
            self._break(client)

    def _break_all(self) -> None:
        for client in list(self._pairs):
            self._break(client)

    def _break(self, client: socket.socket) -> None:
        broker = self._pairs.pop(client, None)
        if broker is None:
            return
        for end in (client, broker):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
            end.close()
