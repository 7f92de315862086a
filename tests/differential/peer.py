"""One broker as the differential tests see it: an address that takes raw frames and gives answers.

A `Peer` is either Apache Kafka or Ottla; a scenario cannot tell which. It encodes requests with our codec,
sends them over plain sockets, and hands back decoded answers. Everything that real clients do for comfort is
left out: no retries, no version negotiation, no metadata cache. What a scenario says is what goes over the
wire.

The helpers at the end (`topic`, `produce`, `fetch`, ...) only shorten the common requests. They wait for a
new topic to be usable, because Kafka's controller answers CreateTopics before its broker knows the
topic.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from frame_stream import FrameStream
from ottla.protocol.apis import APIS
from ottla.protocol.frames import parse_response, request_frame
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, encode_batch
from ottla.protocol.schema import ZERO_UUID

ANSWER_DEADLINE = 30.0
CLIENT_ID = "differential"

EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -2, -1, -3, -4, -5, -6


class Closed:
    """The answer "the peer closed the connection"."""

    def __repr__(self) -> str:
        return "connection closed"


class Silence:
    """The answer "nothing was sent back", which is right for acks=0."""

    def __repr__(self) -> str:
        return "no answer"


CLOSED = Closed()
SILENCE = Silence()


class Connection:
    """One socket to the peer. Requests may be pipelined: `send` several, then `receive` each in order."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, ANSWER_DEADLINE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = FrameStream(self._socket)
        self._correlation = 0

    def close(self) -> None:
        self._socket.close()

    def give_up_after(self, seconds: float) -> None:
        """Raise TimeoutError when an answer takes longer than this."""
        self._socket.settimeout(seconds)

    def send(self, request: Any, version: int, client_id: str | None = CLIENT_ID) -> int:
        """Send without waiting; returns the correlation id that the answer must carry."""
        self._correlation += 1
        self._socket.sendall(b"".join(request_frame(request, version, self._correlation, client_id)))
        return self._correlation

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive_frame(self) -> bytes | Closed:
        """The next frame without its size, or CLOSED."""
        try:
            frame = self._frames.next()
        except ConnectionResetError:
            return CLOSED
        return CLOSED if frame is None else bytes(frame)

    def receive(self, api_key: int, version: int) -> tuple[int, Any] | Closed:
        """The next answer as (correlation id, message), or CLOSED."""
        frame = self.receive_frame()
        if isinstance(frame, Closed):
            return frame
        return parse_response(APIS[api_key], version, memoryview(frame))

    def call(self, request: Any, version: int, client_id: str | None = CLIENT_ID) -> Any:
        """Send and wait; the message, or CLOSED. A wrong correlation id is a broken peer, not an answer."""
        sent = self.send(request, version, client_id)
        received = self.receive(request.api_key, version)
        if isinstance(received, Closed):
            return received
        if received[0] != sent:
            raise AssertionError(f"answer {received[0]} to request {sent}")
        return received[1]


class Peer:
    """A broker under comparison, and the names that it has given to things (topic ids, producer ids)."""

    def __init__(self, name: str, host: str, port: int, prefix: str, now: int) -> None:
        self.name = name
        self.address = (host, port)
        self.now = now
        """A scripted moment, equal on both peers and one hour before the run, so that it is never the real
        time.
        """
        self.topic_ids: dict[str, bytes] = {}
        self.producer_ids: list[int] = []
        self.prefix = prefix
        self._connection: Connection | None = None

    # -- raw calls -----------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection of its own, for scenarios about connections."""
        connection = Connection(self.address)
        try:
            yield connection
        finally:
            connection.close()

    def call(self, request: Any, version: int, client_id: str | None = CLIENT_ID) -> Any:
        """One request and its answer on the scenario's shared connection; CLOSED reopens it for the next."""
        if self._connection is None:
            self._connection = Connection(self.address)
        answer = self._connection.call(request, version, client_id)
        if isinstance(answer, Closed):
            self.close()
        return answer

    def call_or_silence(self, request: Any, version: int, seconds: float = 1.5) -> Any:
        """Like `call`, for requests that Kafka is known never to answer: SILENCE after a short while."""
        with self.connection() as connection:
            connection.give_up_after(seconds)
            try:
                return connection.call(request, version)
            except TimeoutError:
                return SILENCE

    def frame(self, payload: bytes) -> bytes | Closed:
        """Send one frame of any bytes on a connection of its own; the frame that comes back, or CLOSED."""
        with self.connection() as connection:
            connection.send_bytes(len(payload).to_bytes(4, "big") + payload)
            return connection.receive_frame()

    # -- names ---------------------------------------------------------------------------------------------

    def named(self, short: str) -> str:
        """A topic name that no other scenario uses and that is the same on both peers."""
        return f"{self.prefix}-{short}"

    def topic_id(self, topic: str) -> bytes:
        return self.topic_ids.get(topic, ZERO_UUID)

    # -- shortened requests --------------------------------------------------------------------------------

    def topic(self, short: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic and wait until the broker leads all its partitions; its name."""
        name = self.named(short)
        settings = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
        answer = self.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
        if answer.topics[0].error_code:
            raise AssertionError(f"{self.name}: {name} not created: {answer.topics[0].error_message}")
        self.settle(name, partitions)
        return name

    def settle(self, topic: str, partitions: int) -> None:
        """Wait until the broker knows the topic, leads its partitions and answers for them; learn its id."""

        def ready() -> bool:
            metadata = self.metadata(topic)
            if metadata.error_code or len(metadata.partitions) != partitions:
                return False
            self.topic_ids[topic] = metadata.topic_id
            offsets = self.list_offsets(topic, dict.fromkeys(range(partitions), LATEST), 7)
            return not any(p.error_code for p in offsets.topics[0].partitions)

        self.until(ready, f"topic {topic} to be usable")

    def metadata(self, topic: str) -> Any:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        return self.call(request, 12).topics[0]

    def until(self, condition: Any, what: str) -> None:
        """Poll for a state that the peer reaches on its own; fails the scenario after the deadline."""
        deadline = time.monotonic() + ANSWER_DEADLINE
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.name}: waited in vain for {what}")
            time.sleep(0.005)

    def let_time_pass(self) -> None:
        """Wait until the clock shows another millisecond, so that two stamps of the broker differ."""
        began = time.time_ns() // 1_000_000
        self.until(lambda: time.time_ns() // 1_000_000 > began + 2, "the clock to move")

    def producer_id(self) -> int:
        """A producer id from the peer, remembered so that answers can be compared by order of allocation."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = self.call(request, 4)
        if answer.error_code:  # a broker that has just started may have no ids yet
            self.until(lambda: not self.call(request, 4).error_code, "producer ids")
            answer = self.call(request, 4)
        self.producer_ids.append(answer.producer_id)
        return int(answer.producer_id)

    def produce_request(
        self,
        topic: str,
        records: Mapping[int, Any] | Any,
        *,
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> ProduceRequest:
        parts = records if isinstance(records, Mapping) else {0: records}
        return ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(
                    name=topic,
                    topic_id=self.topic_id(topic),
                    partition_data=[PartitionProduceData(index=i, records=r) for i, r in parts.items()],
                )
            ],
        )

    def produce(self, topic: str, records: Any, version: int, **settings: Any) -> Any:
        return self.call(self.produce_request(topic, records, **settings), version)

    def fill(self, topic: str, count: int, *, partition: int = 0, size: int = 10, each: int = 1) -> None:
        """Put `count` batches of `each` records into a partition, one millisecond between records."""
        for i in range(count):
            answer = self.produce(topic, {partition: self.batch(each, size=size, start=i * each)}, 9)
            code = answer.responses[0].partition_responses[0].error_code
            if code:
                raise AssertionError(f"{self.name}: setting up {topic}: error {code}")

    def batch(self, count: int = 1, *, size: int = 10, start: int = 0, **settings: Any) -> bytearray:
        """A batch of numbered records whose times rise by a millisecond from the scripted moment."""
        return encode_batch(self.records(count, size=size, start=start), **settings)

    def records(self, count: int, *, size: int = 10, start: int = 0) -> list[Record]:
        return [
            Record(
                i, self.now + start + i, b"k%d" % (start + i), (b"%d-" % (start + i)).ljust(size, b"x"), []
            )
            for i in range(count)
        ]

    def list_offsets(
        self,
        topic: str,
        timestamps: Mapping[int, int],
        version: int,
        *,
        isolation_level: int = 0,
        current_leader_epoch: int = -1,
        replica_id: int = -1,
    ) -> Any:
        partitions = [
            ListOffsetsPartition(partition_index=i, timestamp=t, current_leader_epoch=current_leader_epoch)
            for i, t in timestamps.items()
        ]
        request = ListOffsetsRequest(
            replica_id=replica_id,
            isolation_level=isolation_level,
            timeout_ms=5_000,
            topics=[ListOffsetsTopic(name=topic, partitions=partitions)],
        )
        return self.call(request, version)

    def fetch_request(
        self,
        offsets: Mapping[str, Mapping[int, int]],
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 0x7FFFFFFF,
        partition_max_bytes: int = 1_048_576,
        isolation_level: int = 0,
        session_id: int = 0,
        session_epoch: int = -1,
        forgotten: Mapping[str, Sequence[int]] | None = None,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        log_start_offset: int = -1,
        rack_id: str = "",
    ) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=[
                FetchTopic(
                    topic=topic,
                    topic_id=self.topic_id(topic),
                    partitions=[
                        FetchPartition(
                            partition=index,
                            fetch_offset=offset,
                            partition_max_bytes=partition_max_bytes,
                            current_leader_epoch=current_leader_epoch,
                            last_fetched_epoch=last_fetched_epoch,
                            log_start_offset=log_start_offset,
                        )
                        for index, offset in partitions.items()
                    ],
                )
                for topic, partitions in offsets.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic=topic, topic_id=self.topic_id(topic), partitions=list(partitions))
                for topic, partitions in (forgotten or {}).items()
            ],
            rack_id=rack_id,
        )

    def fetch(self, topic: str, offsets: Mapping[int, int] | int, version: int, **settings: Any) -> Any:
        parts = offsets if isinstance(offsets, Mapping) else {0: offsets}
        return self.call(self.fetch_request({topic: parts}, **settings), version)
