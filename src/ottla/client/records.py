"""The records that clients send and receive, and what the broker says of them.

A `ProducerRecord` is what an application sends and what interceptors see: it is immutable, so that an
interceptor that fails halfway leaves it as it was. A `RecordMetadata` is where a record was written. A
`ConsumerRecord` is what a consumer hands out. Times are milliseconds since 1970, as everywhere in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

from ottla.client.librdkafka import confluent_kafka

Message = confluent_kafka.Message
Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]
HeadersInput = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
"""What applications may write as headers: a mapping, or pairs where a name may occur twice. Text becomes
UTF-8.
"""
_NO_TIMESTAMP = confluent_kafka.TIMESTAMP_NOT_AVAILABLE
_CREATE_TIME = confluent_kafka.TIMESTAMP_CREATE_TIME


class TopicPartition(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to send, with key and value as the application has them, not yet serialized."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp: int | None = None
    headers: Headers = ()

    def replace(self, **changes: Any) -> ProducerRecord:
        """A copy with other values in some fields; `headers` may be anything that a send takes."""
        if "headers" in changes:
            changes["headers"] = as_headers(changes["headers"])
        return replace(self, **changes)

    def header(self, name: str) -> bytes | None:
        """The last header of this name, or None."""
        return find_header(self.headers, name)


class RecordMetadata(NamedTuple):
    """Where a record was written. The offset is -1 with `acks=0`: the broker does not answer then."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None = None

    @property
    def dropped(self) -> bool:
        """Whether an interceptor dropped the record: it was sent nowhere."""
        return self.partition < 0


class ConsumerRecord:
    """A record as a consumer got it. Key and value are what the deserializers made of the bytes.

    Consumers make a million of them in a second. So a record keeps librdkafka's message, and most fields are
    read from it when they are asked for.
    """

    __slots__ = ()

    value: Any
    key: Any
    _message: Message

    def __new__(
        cls,
        topic: str,
        partition: int,
        offset: int,
        key: Any = None,
        value: Any = None,
        timestamp: int | None = None,
        headers: Headers = (),
        leader_epoch: int | None = None,
    ) -> ConsumerRecord:
        message = Message(
            topic=topic,
            partition=partition,
            offset=offset,
            headers=list(headers),
            timestamp=(_NO_TIMESTAMP, 0) if timestamp is None else (_CREATE_TIME, timestamp),
            leader_epoch=-1 if leader_epoch is None else leader_epoch,
        )
        return ReceivedRecord((value, message, key))

    @property
    def topic(self) -> str:
        return self._message.topic() or ""

    @property
    def partition(self) -> int:
        return self._message.partition() or 0

    @property
    def offset(self) -> int:
        return self._message.offset() or 0

    @property
    def timestamp(self) -> int | None:
        kind, milliseconds = self._message.timestamp()
        return None if kind == _NO_TIMESTAMP else milliseconds

    @property
    def headers(self) -> Headers:
        return all_headers(self._message)

    @property
    def leader_epoch(self) -> int | None:
        return self._message.leader_epoch()

    def header(self, name: str) -> bytes | None:
        """The last header of this name, or None."""
        return find_header(self.headers, name)

    def replace(self, **changes: Any) -> ConsumerRecord:
        """A copy with other values in some fields, as interceptors return it."""
        if changes.keys() <= {"key", "value"}:
            return ReceivedRecord(
                (changes.get("value", self.value), self._message, changes.get("key", self.key))
            )
        return ConsumerRecord(**{**dict(zip(_FIELDS, self._fields(), strict=True)), **changes})

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _FIELDS)

    def __reduce__(self) -> tuple[Any, ...]:
        return ConsumerRecord, self._fields()


_FIELDS = ("topic", "partition", "offset", "key", "value", "timestamp", "headers", "leader_epoch")


class _Parts(NamedTuple):
    value: Any
    message: Message


class ReceivedRecord(tuple[Any, ...], ConsumerRecord):
    """Every `ConsumerRecord` is one of these: a tuple of value, message and, if that is not the message's
    own, key.

    `tuple` comes first and there is no `__new__` here, so that one is made without a call of Python code.
    """

    __slots__ = ()

    value = _Parts.value
    _message = _Parts.message

    @property
    def key(self) -> Any:
        return self[2] if len(self) > 2 else self[1].key()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConsumerRecord) and self._fields() == other._fields()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        fields = zip(_FIELDS, self._fields(), strict=True)
        return f"ConsumerRecord({', '.join(f'{name}={value!r}' for name, value in fields)})"


class ReceivedRecords(Sequence[ConsumerRecord]):
    """Records with keys and values as bytes, made of these messages when they are looked at.

    A record lives no longer than the application needs it: Python's garbage collector, which runs for every
    700 objects, would cost more than all the rest if the records of a batch were there at once.
    """

    __slots__ = ("messages",)

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return map(ReceivedRecord, zip(map(Message.value, self.messages), self.messages, strict=True))

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord: ...
    @overload
    def __getitem__(self, index: slice) -> ReceivedRecords: ...
    def __getitem__(self, index: int | slice) -> ConsumerRecord | ReceivedRecords:
        if isinstance(index, slice):
            whole = index.indices(len(self.messages)) == (0, len(self.messages), 1)
            return self if whole else ReceivedRecords(self.messages[index])
        message = self.messages[index]
        return ReceivedRecord((message.value(), message))

    def __repr__(self) -> str:
        return repr(list(self))


def messages_of(records: Sequence[ConsumerRecord]) -> list[Message]:
    return (
        records.messages if isinstance(records, ReceivedRecords) else [record._message for record in records]
    )


def all_headers(message: Message) -> Headers:
    headers: Any = message.headers()
    return tuple(headers) if headers else ()


def find_header(headers: Headers, name: str) -> bytes | None:
    return next((value for key, value in reversed(headers) if key == name), None)


def as_headers(headers: HeadersInput | None) -> Headers:
    """Headers in the one form that records carry."""
    if not headers:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)
