"""What happens to a record in Python before librdkafka gets it: interceptors, serializers, the partitioner.

The steps are separate, because the producer's async form must wait for a topic's layout in another way than
the blocking one. A record that failed on its way is reported to the interceptors as one that a broker
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ottla.client.configuration import LOG
from ottla.client.deliveries import metadata_of, send_error
from ottla.client.errors import ClientError, ConfigurationError, SendError, SerializationError
from ottla.client.librdkafka import confluent_kafka
from ottla.client.log_throttle import LogThrottle
from ottla.client.partitioners import Partitioner, TopicLayout
from ottla.client.records import Header, HeadersInput, ProducerRecord, as_headers
from ottla.client.serialization import SerializerInput, serializer_for

Callback = Callable[[Any, Any], None]
"""librdkafka's delivery callback: an error or None, and the message."""

Arguments = tuple[Any, ...]
"""The arguments of confluent-kafka's `produce`, by position: topic, value, key, partition, callback, None,
timestamp, headers.
"""


class Outgoing:
    def __init__(
        self,
        key_serializer: SerializerInput | None,
        value_serializer: SerializerInput | None,
        interceptors: Iterable[object],
        partitioner: Partitioner | None,
    ) -> None:
        self._serialize_key = serializer_for(key_serializer, "key")
        self._serialize_value = serializer_for(value_serializer, "value")
        self._interceptors = list(interceptors)
        self._on_send = [(each, each.on_send) for each in self._interceptors if hasattr(each, "on_send")]
        self._on_ack = [(each, each.on_ack) for each in self._interceptors if hasattr(each, "on_ack")]
        for each in self._interceptors:
            if isinstance(each, type) or not (hasattr(each, "on_send") or hasattr(each, "on_ack")):
                raise ConfigurationError(f"{each!r} is no interceptor: give an object with on_send or on_ack")
        self._logs: dict[tuple[int, str], LogThrottle] = {}
        self._partitioner = partitioner
        self.does_nothing = not (
            self._serialize_key or self._serialize_value or self._interceptors or self._partitioner
        )

    def record(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: HeadersInput | None,
    ) -> ProducerRecord | None:
        """The record as the interceptors leave it; None if one of them dropped it."""
        try:
            record = ProducerRecord(topic, value, key, partition, timestamp, as_headers(headers))
        except (TypeError, ValueError) as failure:
            raise SendError(f"cannot send to {topic!r}: {failure}") from failure
        for interceptor, on_send in self._on_send:
            try:
                changed = on_send(record)
            except Exception:  # noqa: BLE001 - the application's code may raise anything
                self._log_failure(interceptor, "on_send", "the record goes on as it was")
                continue
            if changed is None:
                return None
            if isinstance(changed, ProducerRecord):
                record = changed
            else:
                LOG.error(
                    "%r returned %r from on_send, which is no record", interceptor, type(changed).__name__
                )
        return record

    def needs_layout(self, record: ProducerRecord) -> bool:
        return self._partitioner is not None and record.partition is None

    def arguments(
        self, record: ProducerRecord, layout: TopicLayout | None, callback: Callback | None
    ) -> Arguments:
        """Serialize and place the record."""
        headers = list(record.headers)
        key = _serialized(self._serialize_key, record.key, "key", record, headers)
        value = _serialized(self._serialize_value, record.value, "value", record, headers)
        partition = record.partition
        if partition is None:
            partition = -1 if layout is None else self._place(record, key, layout)
        if self._on_ack:
            callback = partial(self._acked, record, callback)
        return record.topic, value, key, partition, callback, None, record.timestamp or 0, headers or None

    def _place(self, record: ProducerRecord, key: bytes | str | None, layout: TopicLayout) -> int:
        assert self._partitioner is not None
        try:
            partition = self._partitioner(record, key.encode() if isinstance(key, str) else key, layout)
        except Exception as failure:
            raise SendError(
                f"the partitioner failed for a record to {record.topic!r}: {failure!r}"
            ) from failure
        if not isinstance(partition, int) or not 0 <= partition < len(layout):
            raise SendError(
                f"the partitioner chose {partition!r} for a record to {record.topic!r}, of {len(layout)} "
                "partition(s)"
            )
        return partition

    def _acked(
        self,
        record: ProducerRecord,
        callback: Callback | None,
        error: confluent_kafka.KafkaError | None,
        message: confluent_kafka.Message,
    ) -> None:
        """Called by librdkafka in place of `callback`, when there are interceptors."""
        try:
            if callback is not None:
                callback(error, message)
        finally:  # also on Ctrl-C
            if error is None:
                self._tell(record, metadata_of(message), None)
            else:
                self._tell(record, None, send_error(error, record.topic))

    def failed(self, record: ProducerRecord, error: ClientError) -> None:
        """The record did not even get into the buffer."""
        self._tell(record, None, error)

    def _tell(self, record: ProducerRecord, metadata: Any, error: ClientError | None) -> None:
        interrupt: BaseException | None = None
        for interceptor, on_ack in self._on_ack:
            try:
                on_ack(record, metadata, error)
            except Exception:  # noqa: BLE001 - the application's code may raise anything
                self._log_failure(interceptor, "on_ack", "the others are told")
            except BaseException as raised:  # noqa: BLE001 - Ctrl-C, or an exit: when all are told
                interrupt = raised
        if interrupt is not None:
            raise interrupt

    def _log_failure(self, interceptor: object, call: str, consequence: str) -> None:
        """Within an `except`: the traceback is logged, but not for every record."""
        throttle = self._logs.setdefault((id(interceptor), call), LogThrottle())
        if count := throttle.times():
            LOG.exception("%r failed in %s, %d time(s); %s", interceptor, call, count, consequence)

    def close(self) -> None:
        for interceptor in self._interceptors:
            try:
                getattr(interceptor, "close", lambda: None)()
            except Exception:  # noqa: BLE001 - the application's code may raise anything
                LOG.exception("%r failed in close", interceptor)


def _serialized(
    serialize: Callable[[Any, str, list[Header]], Any] | None,
    value: Any,
    part: str,
    record: ProducerRecord,
    headers: list[Header],
) -> Any:
    if value is None:
        return None
    if serialize is None:
        if isinstance(value, (bytes, str)):
            return value
        raise SerializationError(no_serializer(part, value, record.topic))
    try:
        data = serialize(value, record.topic, headers)
    except Exception as failure:
        raise SerializationError(
            f"cannot serialize the {part} of a record to {record.topic!r}: {failure}"
        ) from failure
    if data is None or isinstance(data, (bytes, str)):
        return data
    raise SerializationError(
        f"the {part} serializer for {record.topic!r} gave {type(data).__name__}, which is not bytes"
    )


def no_serializer(part: str, value: object, topic: str) -> str:
    return (
        f"the {part} of a record to {topic!r} is a {type(value).__name__}, not bytes or str: "
        f'give {part}_serializer=, for example "json"'
    )
