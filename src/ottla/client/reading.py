"""From librdkafka's messages to records: deserializers, then interceptors, and what to do with bytes that
cannot be read.

Without deserializers and interceptors records are made when they are handed out, by loops in C. A record that
cannot be deserialized is bad: `on_bad_record` says whether reading stops there with an error that has its
place, it is skipped with a log line, or it is written to a dead-letter topic first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ottla.client.configuration import LOG
from ottla.client.dead_letters import DeadLetters
from ottla.client.errors import ClientError, ConfigurationError, DeserializationError
from ottla.client.interceptors import ConsumerInterceptor
from ottla.client.records import (
    ConsumerRecord,
    Message,
    ReceivedRecord,
    ReceivedRecords,
    TopicPartition,
    all_headers,
)
from ottla.client.serialization import DeserializerInput, deserializer_for
from ottla.client.serialization.resolving import Resolved

OnBadRecord = Literal["raise", "skip"] | DeadLetters


class RecordReader:
    def __init__(
        self,
        key_deserializer: DeserializerInput | None,
        value_deserializer: DeserializerInput | None,
        interceptors: Sequence[ConsumerInterceptor],
        on_bad_record: OnBadRecord,
    ) -> None:
        if on_bad_record not in ("raise", "skip") and not isinstance(on_bad_record, DeadLetters):
            raise ConfigurationError(
                f'on_bad_record is {on_bad_record!r}: choose "raise", "skip" or DeadLetters(topic)'
            )
        self._key = deserializer_for(key_deserializer, "key")
        self._value = deserializer_for(value_deserializer, "value")
        self._interceptors = list(interceptors)
        self._on_bad_record = on_bad_record
        self._is_plain = self._key is None and self._value is None and not self._interceptors

    def read(self, messages: list[Message]) -> tuple[Sequence[ConsumerRecord], int]:
        """The records, without those that were skipped, and how many messages were converted.

        Fewer than all are converted when one is bad and the error is to be raised: then it is the first of
        the rest, and if it is the first of all the error is raised.
        """
        if self._is_plain:
            return ReceivedRecords(messages), len(messages)
        records: list[ConsumerRecord] = []
        for number, message in enumerate(messages):
            try:
                record = self.read_one(message)
            except DeserializationError:
                if number:
                    return records, number
                raise
            if record is not None:
                records.append(record)
        return records, len(messages)

    def read_one(self, message: Message) -> ConsumerRecord | None:
        """One record, or None if it was skipped; a bad one raises if it is to be raised."""
        try:
            key = self._deserialize("key", self._key, message.key(), message)
            value = self._deserialize("value", self._value, message.value(), message)
        except DeserializationError as bad:
            if self._on_bad_record == "raise":
                raise
            self._put_away(message, bad)
            return None
        record = ReceivedRecord((value, message, key))
        return self._intercept(record) if self._interceptors else record

    @staticmethod
    def _deserialize(part: str, function: Resolved | None, data: bytes | None, message: Message) -> Any:
        if function is None or data is None:
            return data
        topic = message.topic() or ""
        try:
            return function(data, topic, list(all_headers(message)))
        except Exception as failure:
            partition, offset = message.partition() or 0, message.offset() or 0
            raise DeserializationError(
                f"the {part} of {topic}-{partition} at offset {offset} "
                f"cannot be read: {type(failure).__name__}: {failure}",
                topic=topic,
                partition=partition,
                offset=offset,
                field=part,
                data=data,
            ) from failure

    def _put_away(self, message: Message, bad: DeserializationError) -> None:
        if isinstance(self._on_bad_record, DeadLetters):
            self._on_bad_record.send(message, bad.__cause__ or bad, reason=str(bad), attempts=1)
            LOG.warning("%s; it was written to %s", bad, self._on_bad_record.topic_of(bad.topic))
        else:
            LOG.warning("%s; it is skipped", bad)

    # -- interceptors -------------------------------------------------------------------------------------

    def _intercept(self, record: ConsumerRecord) -> ConsumerRecord | None:
        place = record.topic, record.partition, record.offset
        for interceptor in self._interceptors:
            on_consume = getattr(interceptor, "on_consume", None)
            if on_consume is None:
                continue
            try:
                seen = on_consume(record)
            except Exception:  # noqa: BLE001 - code of the application
                LOG.exception("the interceptor %r failed at %s-%d, offset %d", interceptor, *place)
                continue
            if seen is None:
                return None
            if (seen.topic, seen.partition, seen.offset) != place:
                LOG.error(
                    "the interceptor %r moved %s-%d, offset %d; its record is ignored", interceptor, *place
                )
                continue
            record = seen
        return record

    def committed(self, offsets: Mapping[TopicPartition, int], error: ClientError | None) -> None:
        """Tell the interceptors of a commit."""
        for interceptor in self._interceptors:
            self._call(interceptor, "on_commit", offsets, error)

    def close(self) -> None:
        for interceptor in self._interceptors:
            self._call(interceptor, "close")

    @staticmethod
    def _call(interceptor: ConsumerInterceptor, method: str, *arguments: Any) -> None:
        function = getattr(interceptor, method, None)
        if function is None:
            return
        try:
            function(*arguments)
        except Exception:  # noqa: BLE001 - code of the application
            LOG.exception("the interceptor %r failed in %s", interceptor, method)
