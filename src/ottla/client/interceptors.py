"""Interceptors: code of the application that sees every record on its way out or in.

Several may be given, they run in order. Subclass `ProducerInterceptor` or `ConsumerInterceptor` and override
what is needed; any object with some of these methods will do. One that raises is logged and skipped: the
record goes on as it was before that interceptor.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.client.errors import ClientError
from ottla.client.records import ConsumerRecord, ProducerRecord, RecordMetadata, TopicPartition


class ProducerInterceptor:
    """Sees records before they are serialized, and their results."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        """The record to send instead (`record.replace(...)`), the same one, or None to drop it.

        Called in the thread that sends, before the key and value are serialized.
        """
        return record

    def on_ack(
        self, record: ProducerRecord, metadata: RecordMetadata | None, error: ClientError | None
    ) -> None:
        """The record was written at `metadata`, or `error` says why not; exactly one of them is None.

        `record` is as the last interceptor left it. Called once for each record that was not dropped, in a
        thread of the producer, so it must not block for long.
        """

    def close(self) -> None:
        """The producer is closed; no further call comes."""


class ConsumerInterceptor:
    """Sees records after they are deserialized, before the application gets them, and commits."""

    def on_consume(self, record: ConsumerRecord) -> ConsumerRecord | None:
        """The record to hand out instead, the same one, or None to skip it."""
        return record

    def on_commit(self, offsets: Mapping[TopicPartition, int], error: ClientError | None) -> None:
        """These offsets were committed, or `error` says why not."""

    def close(self) -> None:
        """The consumer is closed; no further call comes."""
