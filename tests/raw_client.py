"""A client that sends exactly the bytes a test wants and shows exactly what comes back.

Well-behaved clients hide what the limits are about: here a test can pipeline, stop in the middle of a
frame, never read, or lie about a size.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Any

from frame_stream import FrameStream
from ottla.protocol.apis import APIS
from ottla.protocol.frames import parse_response, request_frame
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, encode_batch
from ottla.protocol.schema import Request

PRODUCE_VERSION = 9
FETCH_VERSION = 12


class RawClient:
    def __init__(
        self, address: str, *, source: str = "", timeout: float = 10.0, receive_buffer: int | None = None
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        self.socket.settimeout(timeout)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if source:
            self.socket.bind((source, 0))
        self.socket.connect((host, int(port)))
        self._frames = FrameStream(self.socket)
        self._next = 0
        self._sent: deque[tuple[int, type[Request], int]] = deque()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def frame(self, request: Request, version: int) -> bytes:
        """The bytes of a request, size included; its answer is the next one to `receive`."""
        self._next += 1
        self._sent.append((self._next, type(request), version))
        return b"".join(bytes(part) for part in request_frame(request, version, self._next, "raw"))

    def send(self, request: Request, version: int) -> None:
        self.socket.sendall(self.frame(request, version))

    def receive(self) -> Any:
        """The answer to the oldest request without one; fails if the answer belongs to another."""
        frame = self.receive_frame()
        expected, kind, version = self._sent.popleft()
        correlation_id, response = parse_response(APIS[kind.api_key], version, frame)
        assert correlation_id == expected, f"answer {correlation_id} came where {expected} was due"
        return response

    def receive_frame(self) -> memoryview:
        frame = self._frames.next()
        if frame is None:
            raise ConnectionResetError("closed by the broker")
        return frame

    def call(self, request: Request, version: int) -> Any:
        self.send(request, version)
        return self.receive()

    def produce(self, topic: str, value: bytes, *, partition: int = 0, acks: int = -1) -> Any:
        """Writes one record and returns the answer about its partition."""
        answer = self.call(produce_request(topic, [value], partition=partition, acks=acks), PRODUCE_VERSION)
        return answer.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, **options: int) -> Any:
        answer = self.call(fetch_request(topic, offset, **options), FETCH_VERSION)
        return answer.responses[0].partitions[0]

    def is_closed(self, within: float) -> bool:
        """True when the broker ends the connection within so many seconds; what it sends is dropped."""
        deadline = time.monotonic() + within
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                if not self.socket.recv(65536):
                    return True
            except TimeoutError:
                return False
            except OSError:
                return True
        return False


def produce_request(topic: str, values: list[bytes], *, partition: int = 0, acks: int = -1) -> ProduceRequest:
    now = time.time_ns() // 1_000_000
    batch = encode_batch([Record(n, now, None, value, []) for n, value in enumerate(values)])
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[data])


def fetch_request(
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
) -> FetchRequest:
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
