"""A broker of a few lines whose every answer a test decides, for what a real one rarely does.

    broker = ScriptedBroker()
    broker.answer(MetadataRequest, lambda request, version: MetadataResponse(...))
    with broker: ...

An answer may be a response, `CLOSE` to hang up, or bytes to send as they are. Requests are kept in `seen`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

from frame_stream import FrameStream
from ottla.protocol.apis import APIS
from ottla.protocol.codec import decode, encode
from ottla.protocol.frames import parse_request_header, response_frame
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.schema import Request

CLOSE = object()
NODE = 1


class ScriptedBroker:
    def __init__(self, topic: str = "t", partitions: int = 1) -> None:
        self.topic = topic
        self.partitions = partitions
        self.topic_id = b"\x07" * 16
        self.versions = {api.key: (api.min_version, api.max_version) for api in APIS.values()}
        self.seen: list[tuple[Any, int]] = []
        self._answers: dict[int, Callable[[Any, int], Any]] = {
            ApiVersionsRequest.api_key: self._api_versions,
            MetadataRequest.api_key: self._metadata,
        }
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._clients: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def answer(self, request: type[Request], how: Callable[[Any, int], Any]) -> None:
        self._answers[request.api_key] = how

    def of(self, request: type[Request]) -> list[Any]:
        """The requests of one kind that came so far."""
        return [r for r, _ in self.seen if isinstance(r, request)]

    def __enter__(self) -> ScriptedBroker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._clients:
            client.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            frames = FrameStream(client)
            while (frame := self._next(frames)) is not None:
                header = parse_request_header(frame)
                api = APIS[header.api_key]
                request = decode(api.request, header.api_version, frame, header.body_start)
                self.seen.append((request, header.api_version))
                answer = self._answers[header.api_key](request, header.api_version)
                if answer is CLOSE:
                    client.shutdown(socket.SHUT_RDWR)
                    return
                if answer is None:
                    continue
                if not isinstance(answer, bytes):
                    version = header.api_version
                    if isinstance(answer, ApiVersionsResponse) and answer.error_code:
                        version = 0
                    parts = response_frame(api, version, header.correlation_id, encode(answer, version))
                    answer = b"".join(bytes(part) for part in parts)
                client.sendall(answer)

    def _next(self, frames: FrameStream) -> memoryview | None:
        try:
            return frames.next()
        except OSError:
            return None

    def _api_versions(self, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        low, high = self.versions[ApiVersionsRequest.api_key]
        if not low <= version <= high:
            known = [ApiVersion(api_key=ApiVersionsRequest.api_key, min_version=low, max_version=high)]
            return ApiVersionsResponse(error_code=35, api_keys=known)
        keys = [ApiVersion(api_key=k, min_version=a, max_version=b) for k, (a, b) in self.versions.items()]
        return ApiVersionsResponse(api_keys=keys)

    def _metadata(self, request: MetadataRequest, version: int) -> MetadataResponse:
        return self.metadata()

    def metadata(self, error: int = 0, leader: int = NODE) -> MetadataResponse:
        """This one broker, and the topic with all its partitions on it."""
        partitions = [
            MetadataResponsePartition(
                partition_index=index,
                leader_id=leader,
                leader_epoch=0,
                replica_nodes=[NODE],
                isr_nodes=[NODE],
            )
            for index in range(0 if error else self.partitions)
        ]
        topic = MetadataResponseTopic(
            error_code=error, name=self.topic, topic_id=self.topic_id, partitions=partitions
        )
        node = MetadataResponseBroker(node_id=NODE, host="127.0.0.1", port=self.port)
        return MetadataResponse(brokers=[node], controller_id=NODE, topics=[topic])
