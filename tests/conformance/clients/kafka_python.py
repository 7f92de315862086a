"""kafka-python as a conformance client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError
from kafka.protocol.consumer import OffsetSpec

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


@contextmanager
def _refusals() -> Iterator[None]:
    """The library's exceptions, as what the broker answered."""
    try:
        yield
    except KafkaError as error:
        raise Refused(getattr(error, "errno", None) or -1, str(error)) from error


class _Reader(Taking):
    def __init__(self, consumer: KafkaConsumer) -> None:
        super().__init__()
        self._consumer = consumer

    def poll(self, seconds: float) -> list[Received]:
        with _refusals():
            polled = self._consumer.poll(timeout_ms=int(seconds * 1000))
        return [
            Received(r.partition, r.offset, r.key, r.value, tuple(r.headers), r.timestamp)
            for records in polled.values()
            for r in records
        ]


class KafkaPythonClient:
    name = "kafka-python"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    features = frozenset(
        {
            "timestamps",
            "zero-partitions",
            "offsets",
            "idempotence",
            "admin",
            "broker-configs",
            "incremental-configs",
            "list-offsets",
            "lookup",
            "log-dirs",
            "describe-partitions",
            "describe-producers",
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
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks=acks if acks == "all" else int(acks),
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            max_request_size=2_000_000,
            linger_ms=2,
            delivery_timeout_ms=int(DEADLINE * 1000),
            request_timeout_ms=int(DEADLINE * 500),
        )
        with closing(producer):
            sent = [
                producer.send(
                    topic,
                    m.value,
                    m.key,
                    headers=list(m.headers),
                    partition=partition,
                    timestamp_ms=m.timestamp,
                )
                for m in messages
            ]
            producer.flush(DEADLINE)
            with _refusals():
                results = [future.get(DEADLINE) for future in sent]
        return [Delivery(r.partition, r.offset) for r in results]

    @contextmanager
    def _consumer(self, fetch_bytes: int = FETCH_BYTES) -> Iterator[KafkaConsumer]:
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=fetch_bytes,
        )
        with closing(consumer):
            yield consumer

    @contextmanager
    def reading(
        self, topic: str, partition: int, start: Start, *, fetch_bytes: int = FETCH_BYTES
    ) -> Iterator[_Reader]:
        with self._consumer(fetch_bytes) as consumer:
            where = TopicPartition(topic, partition)
            consumer.assign([where])
            if start.kind == "earliest":
                consumer.seek_to_beginning(where)
            elif start.kind == "latest":
                consumer.seek_to_end(where)
                consumer.position(where)
            elif start.kind == "offset":
                consumer.seek(where, start.number)
            elif start.kind == "timestamp":
                consumer.seek(where, consumer.offsets_for_times({where: start.number})[where].offset)
            else:
                consumer.seek(where, max(0, consumer.end_offsets([where])[where] - start.number))
            yield _Reader(consumer)

    @contextmanager
    def reading_all(self, topic: str, partitions: int) -> Iterator[_Reader]:
        with self._consumer() as consumer:
            consumer.assign([TopicPartition(topic, n) for n in range(partitions)])
            consumer.seek_to_beginning()
            yield _Reader(consumer)

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        with self._consumer() as consumer:
            where = TopicPartition(topic, partition)
            found = consumer.offsets_for_times({where: timestamp})[where]
            return None if found is None else found.offset

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        with self._consumer() as consumer:
            where = TopicPartition(topic, partition)
            return consumer.beginning_offsets([where])[where], consumer.end_offsets([where])[where]

    # -- admin --------------------------------------------------------------------------------------

    @contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        with closing(KafkaAdminClient(bootstrap_servers=self.bootstrap)) as admin, _refusals():
            yield admin

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        config: Mapping[str, str] = {},
        replication_factor: int = DEFAULT,
        validate_only: bool = False,
    ) -> None:
        options = {
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "configs": dict(config),
        }
        with self.admin() as admin:
            admin.create_topics({topic: options}, validate_only=validate_only)

    def create_topic_on(self, topic: str, assignment: Sequence[Sequence[int]]) -> None:
        assignments = {index: list(replicas) for index, replicas in enumerate(assignment)}
        with self.admin() as admin:
            admin.create_topics({topic: {"assignments": assignments}})

    def delete_topic(self, topic: str) -> None:
        with self.admin() as admin:
            admin.delete_topics([topic])

    def add_partitions(self, topic: str, total: int) -> None:
        with self.admin() as admin:
            admin.create_partitions({topic: total})

    def topics(self) -> set[str]:
        with self.admin() as admin:
            return set(admin.list_topics())

    def partition_count(self, topic: str) -> int:
        with self.admin() as admin:
            (found,) = admin.describe_topics([topic])
        if found["error_code"]:
            raise Refused(found["error_code"])
        return len(found["partitions"])

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._config(ConfigResource(ConfigResourceType.TOPIC, topic))

    def broker_config(self, broker: int) -> dict[str, str | None]:
        return self._config(ConfigResource(ConfigResourceType.BROKER, str(broker)))

    def _config(self, resource: ConfigResource) -> dict[str, str | None]:
        with self.admin() as admin:
            found = admin.describe_configs([resource], config_filter="all")
        ((_, by_name),) = found.items()
        ((_, entries),) = by_name.items()
        return {name: entry["value"] for name, entry in entries.items()}

    def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        self._alter(ConfigResource(ConfigResourceType.TOPIC, topic, dict(config)))

    def reset_topic_config(self, topic: str, name: str) -> None:
        with self.admin() as admin:
            _expect_ok(admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {name: None})]))

    def _alter(self, resource: ConfigResource) -> None:
        with self.admin() as admin:
            _expect_ok(admin.alter_configs([resource], raise_on_unknown=False))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        where = TopicPartition(topic, partition)
        with self.admin() as admin:
            return int(admin.delete_records({where: before})[where]["low_watermark"])

    def cluster(self) -> Cluster:
        with self.admin() as admin:
            described = admin.describe_cluster()
        return Cluster(
            described["cluster_id"],
            described["controller_id"],
            {b["broker_id"]: (b["host"], b["port"]) for b in described["brokers"]},
        )

    def list_offset(self, topic: str, partition: int, spec: str | int) -> tuple[int, int]:
        asked = {
            "earliest": OffsetSpec.EARLIEST,
            "latest": OffsetSpec.LATEST,
            "max-timestamp": OffsetSpec.MAX_TIMESTAMP,
        }
        where = TopicPartition(topic, partition)
        wanted = spec if isinstance(spec, int) else asked[spec]
        with self.admin() as admin:
            found = admin.list_partition_offsets({where: wanted})[where]
        return found.offset, found.timestamp


def _expect_ok(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Config changes are answered with a text per resource; the text of an error begins with its code."""
    for by_name in results.values():
        for outcome in by_name.values():
            if outcome != "OK":
                code = str(outcome).partition("]")[0].removeprefix("[Error ")
                raise Refused(int(code) if code.isdigit() else -1, str(outcome))
