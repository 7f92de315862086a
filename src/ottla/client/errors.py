"""The errors of the clients: one hierarchy, each with what happened and what to do about it.

Everything that the clients raise on purpose is a `ClientError`. Errors that come from librdkafka or from a
broker keep its code and name (`error.name == "UNKNOWN_TOPIC_OR_PART"`), whether trying again may help
(`retriable`) and whether the client is of no use any more (`fatal`); `error_from` chooses the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


class ClientError(Exception):
    """The base of all errors of Ottla's clients."""

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        name: str | None = None,
        retriable: bool = False,
        fatal: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.retriable = retriable
        self.fatal = fatal


class MissingDependencyError(ClientError, ImportError):
    """A package that an optional feature needs is not installed."""

    def __init__(self, feature: str, package: str, requirement: str) -> None:
        super().__init__(f'{feature} need the package {package}: pip install "{requirement}"')


class ConfigurationError(ClientError, ValueError):
    """An argument or a configuration key that cannot be."""


class ClosedError(ClientError):
    """The client was closed, or belongs to the process that forked this one."""


class SerializationError(ClientError):
    """A key or value could not be turned into bytes. Nothing was sent."""


class DeserializationError(ClientError):
    """The bytes of a key or value could not be read: `data`, at `topic`, `partition` and `offset`."""

    def __init__(
        self,
        message: str,
        *,
        topic: str = "",
        partition: int = -1,
        offset: int = -1,
        field: str = "value",
        data: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.field = field
        self.data = data


class HandlerError(ClientError):
    """The handler of a pool failed for the record at this place, and nothing says what else to do with it."""

    def __init__(self, message: str, *, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class TimedOutError(ClientError, TimeoutError):
    """The time allowed was over before an answer came. What was asked for may still happen."""


class QueueFullError(TimedOutError):
    """The producer's buffer stayed full for `max_block_ms`: records come faster than the broker takes
    them.
    """


class SendError(ClientError):
    """A record was not written, or it is not known whether it was."""


class UnknownTopicError(SendError):
    """The topic or partition does not exist, and the broker did not create it."""


class RecordTooLargeError(SendError):
    """The record is larger than the producer or the topic allows."""


class AuthenticationError(ClientError):
    """The broker did not accept the credentials, or the connection's encryption."""


class AuthorizationError(ClientError):
    """The broker knows the client and does not allow what it asked for."""


class TransactionError(ClientError):
    """A transaction did not commit."""


class TransactionAbortedError(TransactionError):
    """The transaction was aborted: none of its records count. The producer may begin a new one."""


class FencedError(TransactionError):
    """A newer producer has the same `transactional_id`: this one must be closed."""


_UNKNOWN_TOPIC = "create the topic first, or let the broker do it (auto.create.topics.enable)"
_TOO_LARGE = "send less at once, or raise max_request_size here and max.message.bytes of the topic"
_CREDENTIALS = "check security.protocol, sasl.mechanism and the credentials in config={...}"
_ACL = "ask for an ACL that allows it"
_UNREACHABLE = "check bootstrap_servers, and that a broker listens there"
_FENCED = "close this producer; if nobody else should have its transactional_id, find who does"

_KINDS: dict[str, tuple[type[ClientError], str]] = {
    "UNKNOWN_TOPIC_OR_PART": (UnknownTopicError, _UNKNOWN_TOPIC),
    "_UNKNOWN_TOPIC": (UnknownTopicError, _UNKNOWN_TOPIC),
    "UNKNOWN_TOPIC_ID": (UnknownTopicError, "the topic was deleted or created anew: send again"),
    "_UNKNOWN_PARTITION": (UnknownTopicError, "the topic has fewer partitions: see Admin.describe_topics"),
    "TOPIC_EXCEPTION": (
        UnknownTopicError,
        "a topic's name has at most 249 of the characters a-z A-Z 0-9 . _ -",
    ),
    "MSG_SIZE_TOO_LARGE": (RecordTooLargeError, _TOO_LARGE),
    "RECORD_LIST_TOO_LARGE": (RecordTooLargeError, _TOO_LARGE),
    "_QUEUE_FULL": (QueueFullError, "send more slowly, or raise max_block_ms or buffer_memory"),
    "_MSG_TIMED_OUT": (SendError, "the brokers did not answer within delivery_timeout_ms: are they up?"),
    "_TIMED_OUT": (TimedOutError, "allow more time, or see whether the brokers are up"),
    "_TIMED_OUT_QUEUE": (TimedOutError, _UNREACHABLE),
    "REQUEST_TIMED_OUT": (TimedOutError, "allow more time, or see whether the brokers are up"),
    "_PURGE_QUEUE": (SendError, "the producer was closed before the record was sent"),
    "_PURGE_INFLIGHT": (SendError, "the producer was closed before the broker answered"),
    "NOT_ENOUGH_REPLICAS": (
        SendError,
        "fewer replicas are in sync than min.insync.replicas: are brokers down?",
    ),
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": (SendError, "fewer replicas are in sync than min.insync.replicas"),
    "_AUTHENTICATION": (AuthenticationError, _CREDENTIALS),
    "SASL_AUTHENTICATION_FAILED": (AuthenticationError, _CREDENTIALS),
    "UNSUPPORTED_SASL_MECHANISM": (AuthenticationError, _CREDENTIALS),
    "_SSL": (AuthenticationError, "check the ssl.* keys in config={...}"),
    "TOPIC_AUTHORIZATION_FAILED": (AuthorizationError, _ACL),
    "GROUP_AUTHORIZATION_FAILED": (AuthorizationError, _ACL),
    "CLUSTER_AUTHORIZATION_FAILED": (AuthorizationError, _ACL),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (AuthorizationError, _ACL),
    "PRODUCER_FENCED": (FencedError, _FENCED),
    "_FENCED": (FencedError, _FENCED),
    "INVALID_PRODUCER_EPOCH": (FencedError, _FENCED),
    "_ALL_BROKERS_DOWN": (ClientError, _UNREACHABLE),
    "_TRANSPORT": (ClientError, _UNREACHABLE),
    "_RESOLVE": (ClientError, _UNREACHABLE),
}


def error_from(error: KafkaError, doing: str, kind: type[ClientError] = ClientError) -> ClientError:
    """The exception for an error of librdkafka or a broker; `kind` where no closer class is known."""
    name = error.name()
    known, advice = _KINDS.get(name, (kind, ""))
    message = f"{doing}: {error.str()} ({name})"
    return (kind if issubclass(kind, known) else known)(
        f"{message}; {advice}" if advice else message,
        code=error.code(),
        name=name,
        retriable=error.retriable(),
        fatal=error.fatal(),
    )
