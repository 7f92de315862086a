"""aiokafka as a conformance client; each call runs its own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from conformance.clients.model import (
    DEADLINE,
    DEFAULT,
    FETCH_BYTES,
    Cluster,
    Delivery,
    Message,
    Received,
    Refused,
    Start,
)
from conformance.clients.readers import Taking

T = TypeVar("T")


def _run(work: Awaitable[T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(work, DEADLINE)

    try:
        return asyncio.run(bounded())
    except KafkaError as error:
        raise Refused(getattr(error, "errno", None) or -1, str(error)) from error


class _Reader(Taking):
    def __init__(self, loop: asyncio.AbstractEventLoop, consumer: AIOKafkaConsumer) -> None:
        super().__init__()
        self._loop = loop
        self._consumer = consumer

    def poll(self, seconds: float) -> list[Received]:
        try:
            polled = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=int(seconds * 1000)))
        except KafkaError as error:
            raise Refused(getattr(error, "errno", None) or -1, str(error)) from error
        return [
            Received(r.partition, r.offset, r.key, r.value, tuple(r.headers), r.timestamp)
            for records in polled.values()
            for r in records
        ]


@contextmanager
def _reader_of(starting: Coroutine[Any, Any, AIOKafkaConsumer]) -> Iterator[_Reader]:
    loop = asyncio.new_event_loop()
    try:
        consumer = loop.run_until_complete(starting)
        try:
            yield _Reader(loop, consumer)
        finally:
            loop.run_until_complete(consumer.stop())
    finally:
        loop.close()


class AiokafkaClient:
    name = "aiokafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    features = frozenset(
        {
            "timestamps",
            "zero-partitions",
            "offsets",
            "idempotence",
            "admin",
            "broker-configs",
            "lookup",
        }
    )

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        acks: str = "all",
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[Delivery | None]:
        async def work() -> list[Delivery | None]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                acks=acks if acks == "all" else int(acks),
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                max_request_size=2_000_000,
                linger_ms=2,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        m.value,
                        m.key,
                        partition=partition,
                        timestamp_ms=m.timestamp,
                        headers=list(m.headers),
                    )
                    for m in messages
                ]
                results = await asyncio.gather(*sent)
            finally:
                await producer.stop()
            return [None if r is None else Delivery(r.partition, r.offset) for r in results]

        return _run(work())

    async def _assigned(self, topic: str, partition: int, start: Start, fetch_bytes: int) -> AIOKafkaConsumer:
        consumer = self._consumer(fetch_bytes)
        await consumer.start()
        where = TopicPartition(topic, partition)
        consumer.assign([where])
        if start.kind == "earliest":
            await consumer.seek_to_beginning(where)
        elif start.kind == "latest":
            await consumer.seek_to_end(where)
        elif start.kind == "offset":
            consumer.seek(where, start.number)
        elif start.kind == "timestamp":
            consumer.seek(where, (await consumer.offsets_for_times({where: start.number}))[where].offset)
        else:
            consumer.seek(where, max(0, (await consumer.end_offsets([where]))[where] - start.number))
        return consumer

    def _consumer(self, fetch_bytes: int = FETCH_BYTES) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=fetch_bytes,
            isolation_level="read_committed",
        )

    @contextmanager
    def reading(
        self, topic: str, partition: int, start: Start, *, fetch_bytes: int = FETCH_BYTES
    ) -> Iterator[_Reader]:
        with _reader_of(self._assigned(topic, partition, start, fetch_bytes)) as reader:
            yield reader

    @contextmanager
    def reading_all(self, topic: str, partitions: int) -> Iterator[_Reader]:
        async def assigned() -> AIOKafkaConsumer:
            consumer = self._consumer()
            await consumer.start()
            consumer.assign([TopicPartition(topic, n) for n in range(partitions)])
            await consumer.seek_to_beginning()
            return consumer

        with _reader_of(assigned()) as reader:
            yield reader

    def _ask(self, question: Callable[[AIOKafkaConsumer], Awaitable[T]]) -> T:
        async def work() -> T:
            consumer = self._consumer()
            await consumer.start()
            try:
                return await question(consumer)
            finally:
                await consumer.stop()

        return _run(work())

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        where = TopicPartition(topic, partition)
        found = self._ask(lambda consumer: consumer.offsets_for_times({where: timestamp}))[where]
        return None if found is None else found.offset

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        where = TopicPartition(topic, partition)
        low = self._ask(lambda consumer: consumer.beginning_offsets([where]))
        high = self._ask(lambda consumer: consumer.end_offsets([where]))
        return low[where], high[where]

    # -- admin --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    def _administer(self, call: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
        async def work() -> T:
            async with self._admin() as admin:
                return await call(admin)

        return _run(work())

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        config: Mapping[str, str] = {},
        replication_factor: int = DEFAULT,
        validate_only: bool = False,
    ) -> None:
        if replication_factor == DEFAULT:  # which aiokafka does not leave to the broker
            replication_factor = min(3, len(self.cluster().brokers))
        new = NewTopic(topic, partitions, replication_factor, topic_configs=dict(config))
        _expect_ok(self._administer(lambda admin: admin.create_topics([new], validate_only=validate_only)))

    def create_topic_on(self, topic: str, assignment: Sequence[Sequence[int]]) -> None:
        assignments = {index: list(replicas) for index, replicas in enumerate(assignment)}
        new = NewTopic(topic, -1, -1, replica_assignments=assignments)
        _expect_ok(self._administer(lambda admin: admin.create_topics([new])))

    def delete_topic(self, topic: str) -> None:
        answer = self._administer(lambda admin: admin.delete_topics([topic]))
        for _, code in answer.topic_error_codes:
            if code:
                raise Refused(code)

    def add_partitions(self, topic: str, total: int) -> None:
        self._administer(lambda admin: admin.create_partitions({topic: NewPartitions(total)}))

    def topics(self) -> set[str]:
        return set(self._administer(lambda admin: admin.list_topics()))

    def partition_count(self, topic: str) -> int:
        (found,) = self._administer(lambda admin: admin.describe_topics([topic]))
        if found["error_code"]:
            raise Refused(found["error_code"])
        return len(found["partitions"])

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._config(ConfigResource(ConfigResourceType.TOPIC, topic))

    def broker_config(self, broker: int) -> dict[str, str | None]:
        return self._config(ConfigResource(ConfigResourceType.BROKER, str(broker)))

    def _config(self, resource: ConfigResource) -> dict[str, str | None]:
        (answer,) = self._administer(lambda admin: admin.describe_configs([resource]))
        ((code, message, _, _, entries),) = answer.resources
        if code:
            raise Refused(code, message)
        return {entry[0]: entry[1] for entry in entries}

    def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        """aiokafka knows only the older call, which replaces the whole config of the topic."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(config))
        for answer in self._administer(lambda admin: admin.alter_configs([resource])):
            for code, message, *_ in answer.resources:
                if code:
                    raise Refused(code, message)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        where = TopicPartition(topic, partition)
        deleted = self._administer(lambda admin: admin.delete_records({where: RecordsToDelete(before)}))
        return int(deleted[where])

    def cluster(self) -> Cluster:
        described = self._administer(lambda admin: admin.describe_cluster())
        brokers = {b["node_id"]: (b["host"], b["port"]) for b in described["brokers"]}
        return Cluster(described.get("cluster_id"), described["controller_id"], brokers)


def _expect_ok(answer: Any) -> None:
    for _, code, *message in answer.topic_errors:
        if code:
            raise Refused(code, message[0] if message else "")
