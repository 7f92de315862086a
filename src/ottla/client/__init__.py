"""A producer, a consumer and an admin client for any Kafka broker, on librdkafka.

librdkafka (through confluent-kafka) does the network, batches, compression, idempotence and the group
protocol; this package adds what Python programs want around it. It imports nothing of the broker. What needs
confluent-kafka is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ottla.client.admin_results import NewTopic
from ottla.client.errors import (
    AuthenticationError,
    AuthorizationError,
    ClientError,
    ClosedError,
    ConfigurationError,
    DeserializationError,
    FencedError,
    HandlerError,
    MissingDependencyError,
    QueueFullError,
    RecordTooLargeError,
    SendError,
    SerializationError,
    TimedOutError,
    TransactionAbortedError,
    TransactionError,
    UnknownTopicError,
)
from ottla.client.interceptors import ConsumerInterceptor, ProducerInterceptor
from ottla.client.partitioners import ByLocation, TopicLayout
from ottla.client.records import ConsumerRecord, ProducerRecord, RecordMetadata, TopicPartition
from ottla.client.serialization import Avro, Bytes, Json, Protobuf, SerializationContext, Text

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.async_admin import AsyncAdmin
    from ottla.client.async_consumer import AsyncConsumer
    from ottla.client.consumer import Consumer
    from ottla.client.database_offsets import DatabaseOffsets
    from ottla.client.dead_letters import DeadLetters
    from ottla.client.pool import Pool
    from ottla.client.producer import Producer
    from ottla.client.retries import Retry, RetryTopic

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AuthenticationError",
    "AuthorizationError",
    "Avro",
    "ByLocation",
    "Bytes",
    "ClientError",
    "ClosedError",
    "ConfigurationError",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "DatabaseOffsets",
    "DeadLetters",
    "DeserializationError",
    "FencedError",
    "HandlerError",
    "Json",
    "MissingDependencyError",
    "NewTopic",
    "Pool",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "Protobuf",
    "QueueFullError",
    "RecordMetadata",
    "RecordTooLargeError",
    "Retry",
    "RetryTopic",
    "SendError",
    "SerializationContext",
    "SerializationError",
    "Text",
    "TimedOutError",
    "TopicLayout",
    "TopicPartition",
    "TransactionAbortedError",
    "TransactionError",
    "UnknownTopicError",
]

_ON_FIRST_USE = {
    "Admin": "ottla.client.admin",
    "AsyncAdmin": "ottla.client.async_admin",
    "AsyncConsumer": "ottla.client.async_consumer",
    "Consumer": "ottla.client.consumer",
    "DatabaseOffsets": "ottla.client.database_offsets",
    "DeadLetters": "ottla.client.dead_letters",
    "Pool": "ottla.client.pool",
    "Producer": "ottla.client.producer",
    "Retry": "ottla.client.retries",
    "RetryTopic": "ottla.client.retries",
}
"""Names that need confluent-kafka, and their modules."""


def __getattr__(name: str) -> object:
    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module 'ottla.client' has no attribute {name!r}")
