"""confluent-kafka (librdkafka) as a conformance client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

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

OFFSET_TAIL_BASE = -2000
"""librdkafka's way to say "the last n records": this minus n."""


class _Reader(Taking):
    def __init__(self, consumer: Consumer) -> None:
        super().__init__()
        self._consumer = consumer

    def poll(self, seconds: float) -> list[Received]:
        first = self._consumer.poll(seconds)  # consume() would wait until it has as many as asked
        received = []
        for message in [] if first is None else [first, *self._consumer.consume(500, 0)]:
            error = message.error()
            if error is not None:
                raise Refused(error.code(), error.str())
            partition, offset, headers = message.partition(), message.offset(), message.headers() or []
            assert partition is not None and offset is not None and isinstance(headers, list)
            received.append(
                Received(
                    partition,
                    offset,
                    message.key(),
                    message.value(),
                    tuple(cast("list[tuple[str, bytes | None]]", headers)),
                    message.timestamp()[1],
                )
            )
        return received


class ConfluentClient:
    name = "confluent-kafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    features = frozenset(
        {
            "timestamps",
            "offsets",
            "idempotence",
            "admin",
            "broker-configs",
            "incremental-configs",
            "list-offsets",
            "lookup",
            "null-headers",
            "config-reset",
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
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": acks,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "message.max.bytes": 2_000_000,
                "linger.ms": 2,
                "message.timeout.ms": int(DEADLINE * 1000),
            }
        )
        deliveries: list[Delivery | None] = [None] * len(messages)
        refused: list[Refused] = []

        def delivered(index: int, error: Any, message: Any) -> None:
            if error is not None:
                refused.append(Refused(error.code(), error.str()))
            else:
                deliveries[index] = Delivery(message.partition(), message.offset())

        for index, m in enumerate(messages):
            stamp: dict[str, Any] = {} if m.timestamp is None else {"timestamp": m.timestamp}
            producer.produce(
                topic,
                m.value,
                m.key,
                partition=partition,
                headers=list(m.headers),
                on_delivery=partial(delivered, index),
                **stamp,
            )
        left = producer.flush(DEADLINE)
        assert left == 0, f"{left} records had no delivery report"
        if refused:
            raise refused[0]
        return deliveries

    @contextmanager
    def reading(
        self, topic: str, partition: int, start: Start, *, fetch_bytes: int = FETCH_BYTES
    ) -> Iterator[_Reader]:
        with self._consumer(fetch_bytes) as consumer:
            consumer.list_topics(topic, timeout=DEADLINE)  # else it waits half a second by itself
            offset = {
                "earliest": OFFSET_BEGINNING,
                "latest": OFFSET_END,
                "offset": start.number,
                "tail": OFFSET_TAIL_BASE - start.number,
            }.get(start.kind)
            if offset is None:
                asked = TopicPartition(topic, partition, start.number)
                offset = consumer.offsets_for_times([asked], timeout=DEADLINE)[0].offset
            consumer.assign([TopicPartition(topic, partition, offset)])
            yield _Reader(consumer)

    @contextmanager
    def reading_all(self, topic: str, partitions: int) -> Iterator[_Reader]:
        with self._consumer() as consumer:
            consumer.list_topics(topic, timeout=DEADLINE)
            consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(partitions)])
            yield _Reader(consumer)

    @contextmanager
    def _consumer(self, fetch_bytes: int = FETCH_BYTES) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "assign-only",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.message.max.bytes": fetch_bytes,
                "fetch.wait.max.ms": 100,
                "isolation.level": "read_committed",
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        with self._consumer() as consumer:
            asked = TopicPartition(topic, partition, timestamp)
            (found,) = consumer.offsets_for_times([asked], timeout=DEADLINE)
            return None if found.offset == OFFSET_END else found.offset

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        with self._consumer() as consumer:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=DEADLINE)
            return low, high

    # -- admin --------------------------------------------------------------------------------------

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        config: Mapping[str, str] = {},
        replication_factor: int = DEFAULT,
        validate_only: bool = False,
    ) -> None:
        new = NewTopic(topic, partitions, replication_factor, config=dict(config))
        _result(self._admin.create_topics([new], validate_only=validate_only))

    def create_topic_on(self, topic: str, assignment: Sequence[Sequence[int]]) -> None:
        new = NewTopic(topic, len(assignment), replica_assignment=[list(replicas) for replicas in assignment])
        _result(self._admin.create_topics([new]))

    def delete_topic(self, topic: str) -> None:
        _result(self._admin.delete_topics([topic]))

    def add_partitions(self, topic: str, total: int) -> None:
        _result(self._admin.create_partitions([NewPartitions(topic, total)]))

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=DEADLINE).topics)

    def partition_count(self, topic: str) -> int:
        return len(_result(self._admin.describe_topics(TopicCollection([topic]))).partitions)

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._config(ConfigResource(ResourceType.TOPIC, topic))

    def broker_config(self, broker: int) -> dict[str, str | None]:
        return self._config(ConfigResource(ResourceType.BROKER, str(broker)))

    def _config(self, resource: ConfigResource) -> dict[str, str | None]:
        entries = _result(self._admin.describe_configs([resource]))
        return {name: entry.value for name, entry in entries.items()}

    def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        self._alter(ResourceType.TOPIC, topic, AlterConfigOpType.SET, config)

    def reset_topic_config(self, topic: str, name: str) -> None:
        self._alter(ResourceType.TOPIC, topic, AlterConfigOpType.DELETE, {name: ""})

    def _alter(self, kind: ResourceType, name: str, op: AlterConfigOpType, config: Mapping[str, str]) -> None:
        entries = [ConfigEntry(key, value, incremental_operation=op) for key, value in config.items()]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        _result(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        asked = TopicPartition(topic, partition, before)
        return int(_result(self._admin.delete_records([asked])).low_watermark)

    def cluster(self) -> Cluster:
        described = self._admin.describe_cluster().result(DEADLINE)
        return Cluster(
            described.cluster_id,
            described.controller.id,
            {node.id: (node.host, node.port) for node in described.nodes},
        )

    def list_offset(self, topic: str, partition: int, spec: str | int) -> tuple[int, int]:
        """Offset and timestamp of earliest, latest, max-timestamp or a timestamp."""
        asked: dict[str, Callable[[], OffsetSpec]] = {
            "earliest": OffsetSpec.earliest,
            "latest": OffsetSpec.latest,
            "max-timestamp": OffsetSpec.max_timestamp,
        }
        wanted = OffsetSpec.for_timestamp(spec) if isinstance(spec, int) else asked[spec]()
        found = _result(
            self._admin.list_offsets(
                {TopicPartition(topic, partition): wanted}, isolation_level=IsolationLevel.READ_UNCOMMITTED
            )
        )
        return found.offset, found.timestamp


def _result(futures: Mapping[Any, Future[Any]]) -> Any:
    """The one result of an admin call about one thing, with the broker's error as `Refused`."""
    (future,) = futures.values()
    try:
        return future.result(DEADLINE)
    except KafkaException as error:
        raise Refused(error.args[0].code(), error.args[0].str()) from error


def await_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Returns when the topic is known with all its partitions led: Kafka creates topics in the background."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + DEADLINE
    while True:
        found = admin.list_topics(timeout=DEADLINE).topics.get(topic)
        led = (
            []
            if found is None
            else [p for p in found.partitions.values() if p.leader >= 0 and p.error is None]
        )
        if len(led) == partitions:
            return
        assert time.monotonic() < deadline, f"topic {topic} did not come up: {found}"
