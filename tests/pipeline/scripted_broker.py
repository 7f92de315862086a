"""A broker of canned answers, for what a real one cannot be brought to do on command.

It serves one partition from a list of batches: aborted transactions, control batches, gaps of compaction,
damaged or ancient bytes, leaders that have moved away. A script answers the first fetches in place of the
log: each entry is an error code, or `HANG_UP`. Everything is spoken over a real socket in the real protocol.
"""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from ottla.protocol.apis import APIS
from ottla.protocol.batches import read_header
from ottla.protocol.codec import decode, encode
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frames import parse_request_header, response_frame
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

HANG_UP = object()
"""In a script: close the connection instead of answering."""

TOPIC_ID = bytes(range(16))


@dataclass
class ScriptedBroker:
    """One topic with one partition. `batches` are whole batches in offset order."""

    batches: Sequence[bytes]
    aborted: Sequence[tuple[int, int, int]] = ()
    """(producer id, first offset, offset of the marker) of each aborted transaction."""
    log_start: int = 0
    log_end: int | None = None
    script: list[Any] = field(default_factory=list)
    batches_per_answer: int = 1_000
    fetched: list[int] = field(default_factory=list)
    """The offsets that were asked for."""
    metadata_asked: int = 0

    def __enter__(self) -> Self:
        broker = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                broker._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _serve(self, sock: Any) -> None:
        answers: dict[type, Callable[[Any], Any]] = {
            ApiVersionsRequest: self._versions,
            MetadataRequest: self._metadata,
            ListOffsetsRequest: self._offsets,
            FetchRequest: self._fetch,
        }
        try:
            while head := sock.recv(4, 0x100):  # MSG_WAITALL
                frame = memoryview(sock.recv(struct.unpack(">i", head)[0], 0x100))
                header = parse_request_header(frame)
                api = APIS[header.api_key]
                request = decode(api.request, header.api_version, frame, header.body_start)
                response = answers[api.request](request)
                if response is HANG_UP:
                    return
                parts = encode(response, header.api_version)
                sock.sendall(b"".join(response_frame(api, header.api_version, header.correlation_id, parts)))
        except ConnectionError:
            return

    def _versions(self, request: ApiVersionsRequest) -> ApiVersionsResponse:
        spoken = (ApiVersionsRequest, MetadataRequest, ListOffsetsRequest, FetchRequest)
        keys = [APIS[cls.api_key] for cls in spoken]
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=a.key, min_version=a.min_version, max_version=a.max_version) for a in keys
            ]
        )

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        self.metadata_asked += 1
        partition = MetadataResponsePartition(
            partition_index=0, leader_id=1, replica_nodes=[1], isr_nodes=[1]
        )
        topics = [
            MetadataResponseTopic(name=t.name, topic_id=TOPIC_ID, partitions=[partition])
            for t in request.topics or []
        ]
        node = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)
        return MetadataResponse(brokers=[node], controller_id=1, topics=topics)

    @property
    def _end(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.log_end is None else self.log_end

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        time = request.topics[0].partitions[0].timestamp
        found = ListOffsetsPartitionResponse(
            partition_index=0, offset=self.log_start if time == -2 else self._end
        )
        return ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(name=request.topics[0].name, partitions=[found])]
        )

    def _fetch(self, request: FetchRequest) -> Any:
        offset = request.topics[0].partitions[0].fetch_offset
        self.fetched.append(offset)
        step = self.script.pop(0) if self.script else None
        if step is HANG_UP:
            return HANG_UP
        error = step or 0
        if not error and not self.log_start <= offset <= self._end:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        sent = []
        if not error:
            sent = [b for b in self.batches if _next_offset(b) > offset][: self.batches_per_answer]
        end = _next_offset(sent[-1]) if sent else offset
        data = PartitionData(
            partition_index=0,
            error_code=int(error),
            high_watermark=self._end,
            last_stable_offset=self._end,
            aborted_transactions=[
                AbortedTransaction(producer_id=p, first_offset=first)
                for p, first, last in self.aborted
                if first < end and last >= offset
            ],
            records=b"".join(sent),
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])


def _next_offset(batch: bytes) -> int:
    if batch[16] < 2:  # the old message format: one offset
        return int(struct.unpack_from(">q", batch)[0]) + 1
    return read_header(batch).next_offset
