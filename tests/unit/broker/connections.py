"""One connection and its client, with a function in place of the dispatcher."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.broker.answer_sender import Parts
from ottla.broker.buffers import Lease, RequestMemory, UnsentAnswers
from ottla.broker.client_memory import ClientMemory
from ottla.broker.connection import Connection
from ottla.broker.page_cache import Done, PageReader
from ottla.broker.sockets import SystemSockets
from ottla.completion import Completion
from ottla.log_lines import ClientLog
from ottla.storage.files import File

Reply = Callable[[bytes], "Parts | Completion[Any] | None"]


class Host:
    """A server of one connection whose dispatch is a plain function."""

    def __init__(self, reply: Reply, memory: int = 1 << 20, scratch: int = 1024) -> None:
        self.loop = asyncio.get_running_loop()
        self.memory = RequestMemory(memory)
        self.unsent = UnsentAnswers(memory)
        self.client_memory = ClientMemory(1 << 20, 1 << 19, self.loop.time, lambda: self.client_log)
        self._scratch_size = scratch
        self._receive_buffer = bytearray(scratch)
        self.scratch = memoryview(self._receive_buffer)
        self.answer_scratch = memoryview(bytearray(65_536))
        self.on_read_error = lambda: None
        self.page_reader = PageReader()
        self.max_frame = 1 << 22
        self.send_file: Any = SystemSockets().send_file
        self.client_log = ClientLog()
        self.reply = reply
        self.seen: list[bytes] = []
        self.gone: list[Connection] = []

    def hand_over_scratch(self, address: str) -> Lease:
        lease = self.memory.hand_over(self._receive_buffer, address)
        self._receive_buffer = bytearray(self._scratch_size)
        self.scratch = memoryview(self._receive_buffer)
        return lease

    def dispatch(self, connection: Connection, frame: memoryview) -> Parts | Completion[Any] | None:
        self.seen.append(bytes(frame))
        return self.reply(self.seen[-1])

    def closed(self, connection: Connection) -> None:
        self.gone.append(connection)

    def now(self) -> float:
        return self.loop.time()

    def read_ahead(self, file: File, position: int, length: int, done: Done) -> None:
        self.page_reader.read(self.loop, file, position, length, done)


class Client:
    def __init__(self, reply: Reply, host: Host | None = None, **options: int) -> None:
        self.host = host or Host(reply, **options)
        ours, self.sock = socket.socketpair()
        ours.setblocking(False)
        self.sock.setblocking(False)
        self.connection = Connection(self.host, ours, "127.0.0.1", "127.0.0.1:1")

    async def send(self, data: bytes) -> None:
        await self.host.loop.sock_sendall(self.sock, data)

    async def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = await asyncio.wait_for(self.host.loop.sock_recv(self.sock, size - len(data)), 5)
            if not more:
                break
            data += more
        return data


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


def echo(body: bytes) -> Parts:
    return [b"<" + body[:8] + b">"]
