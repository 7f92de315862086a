"""When a consumer commits and what it does when that fails.

Only positions of finished records come here. The automatic modes never commit a position a second time, and
none below what was committed before. A failed automatic commit is logged: its records may come again. A
commit that the application waits for raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ottla.client.configuration import LOG
from ottla.client.delivery import CommitMode
from ottla.client.errors import ClientError, error_from
from ottla.client.librdkafka import confluent_kafka
from ottla.client.record_buffer import Position
from ottla.client.records import TopicPartition

Positions = Mapping[TopicPartition, Position]
Told = Callable[[Mapping[TopicPartition, int], ClientError | None], None]
_NO_OFFSET = confluent_kafka.KafkaError._NO_OFFSET
_ATTEMPTS = 3
"""A synchronous commit is tried so often while its error is one that may pass."""


class Committer:
    def __init__(self, group_id: str | None, mode: CommitMode, interval: float, told: Told) -> None:
        """`told` is called after each commit with the offsets and None, or the error."""
        self._group_id = group_id
        self._mode = mode
        self._interval = interval
        self._told = told
        self._due: float | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._failed = False
        """The last asynchronous commit failed."""

    @property
    def is_automatic(self) -> bool:
        return self._mode != "manual" and self._group_id is not None

    def forget(self, partitions: list[TopicPartition]) -> None:
        """What was committed for these partitions says nothing any more: they are not ours, or read from
        elsewhere."""
        for partition in partitions:
            self._committed.pop(partition, None)

    # -- automatic ----------------------------------------------------------------------------------------

    def next_due(self, now: float) -> float:
        """When `batch_finished` is to be called at the latest."""
        if self._mode != "auto" or not self.is_automatic:
            return float("inf")
        if self._due is None:
            self._due = now + self._interval
        return self._due

    def is_due(self, now: float) -> bool:
        """Whether `batch_finished` has something to do."""
        return self.is_automatic and (self._mode != "auto" or now >= self.next_due(now))

    def batch_finished(self, consumer: confluent_kafka.Consumer, positions: Positions, now: float) -> None:
        """Records are finished, and no more wait; or the time of `next_due` has come."""
        if not self.is_due(now):
            return
        self._due = now + self._interval
        wait = self._mode == "sync" or (self._mode == "async-then-sync" and self._failed)
        self._automatic(consumer, positions, wait=wait)

    def revoked(self, consumer: confluent_kafka.Consumer, positions: Positions) -> None:
        """Partitions are about to be given away, or the consumer is closed: the last chance."""
        if self.is_automatic:
            self._automatic(consumer, positions, wait=self._mode != "async")

    def _automatic(self, consumer: confluent_kafka.Consumer, positions: Positions, *, wait: bool) -> None:
        new = {
            partition: position
            for partition, position in positions.items()
            if position.offset > self._committed.get(partition, -1)
        }
        if not new:
            return
        try:
            self.commit(consumer, new, wait=wait)
        except ClientError as error:
            LOG.warning("%s; records after the last commit may be read again", error)

    # -- told to ------------------------------------------------------------------------------------------

    def commit(self, consumer: confluent_kafka.Consumer, positions: Positions, *, wait: bool) -> None:
        """Commit these positions; with `wait` return when the broker has them, or raise."""
        offsets = [as_offset(partition, position) for partition, position in positions.items()]
        if not offsets:
            return
        self._committed.update((partition, position.offset) for partition, position in positions.items())
        attempt = 0
        while True:
            attempt += 1
            try:
                if not wait:
                    consumer.commit(offsets=offsets, asynchronous=True)
                    return
                answers = consumer.commit(offsets=offsets, asynchronous=False)
                break
            except confluent_kafka.KafkaException as failure:
                error = error_from(failure.args[0], "cannot commit offsets")
            if not (wait and error.retriable and attempt < _ATTEMPTS):
                self._has_failed(positions, error)
                raise error
        bad = next(((answer, answer.error) for answer in answers if answer.error is not None), None)
        if bad is not None:
            error = error_from(bad[1], f"cannot commit the offset of {bad[0].topic}-{bad[0].partition}")
            self._has_failed(positions, error)
            raise error
        self._failed = False
        self._told({partition: position.offset for partition, position in positions.items()}, None)

    def _has_failed(self, positions: Positions, error: ClientError) -> None:
        self._failed = True
        self.forget(list(positions))
        self._told({partition: position.offset for partition, position in positions.items()}, error)

    def answered(
        self, error: confluent_kafka.KafkaError | None, offsets: list[confluent_kafka.TopicPartition]
    ) -> None:
        """The outcome of an asynchronous commit, told by librdkafka during a poll."""
        if error is not None and error.code() == _NO_OFFSET:
            return
        failure = error or next((each.error for each in offsets if each.error is not None), None)
        names = [TopicPartition(each.topic, each.partition) for each in offsets]
        told = {name: each.offset for name, each in zip(names, offsets, strict=True)}
        if failure is None:
            self._failed = False
            self._told(told, None)
            return
        ours = error_from(failure, "cannot commit offsets")
        LOG.warning("%s; it was an asynchronous commit, the next one will cover it", ours)
        self._failed = True
        self.forget(names)
        self._told(told, ours)


def as_offset(partition: TopicPartition, position: Position) -> confluent_kafka.TopicPartition:
    if position.leader_epoch is None:
        return confluent_kafka.TopicPartition(partition.topic, partition.partition, position.offset)
    return confluent_kafka.TopicPartition(
        partition.topic, partition.partition, position.offset, leader_epoch=position.leader_epoch
    )
