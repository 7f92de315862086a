"""Where a consumer reads: positions, seeks by offset and time, pause and resume.

librdkafka moves only partitions that are being read, so a seek inside a rebalance callback is kept and
becomes the partition's first offset. Records of a moved partition that were read ahead are dropped, those of
a paused one kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime

from ottla.client.errors import ClientError, ConfigurationError, TimedOutError, error_from
from ottla.client.librdkafka import confluent_kafka
from ottla.client.record_buffer import Position, RecordBuffer
from ottla.client.records import TopicPartition

_TIMEOUT = 30.0
_BETWEEN = 0.02
"""Seconds between attempts to seek in a partition that is only just assigned."""


class Seeking:
    """The part of a consumer that moves it. `Incoming` is the only subclass."""

    def __init__(self, consumer: confluent_kafka.Consumer, buffer: RecordBuffer) -> None:
        self._consumer = consumer
        self._buffer = buffer
        self._assigned: set[TopicPartition] = set()
        self._one_topic = False
        """Whether all assigned partitions are of the same topic."""
        self._paused: set[TopicPartition] = set()
        self._first: dict[TopicPartition, int] = {}
        """Where reading of a partition began, if that was said, or a record was read."""
        self._moves = 0
        """Counts rebalances and seeks."""
        self._starts: dict[TopicPartition, int] | None = None
        """Seeks inside an assignment callback; None outside of one."""

    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads."""
        return set(self._assigned)

    def position(self, partition: TopicPartition) -> int | None:
        """The offset behind the last record that was handed out, or None if none was since the assignment."""
        known = self._buffer.handed_out().get(TopicPartition(*partition))
        return known.offset if known is not None else self._first.get(TopicPartition(*partition))

    def positions(self) -> dict[TopicPartition, int]:
        """`position` of all partitions of which a record was handed out."""
        return {name: known.offset for name, known in self._buffer.handed_out().items()}

    def first_offset(self, partition: TopicPartition) -> int | None:
        """Where reading of a partition began when it was assigned, if a record was read since."""
        return self._first.get(TopicPartition(*partition))

    def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """What the group has committed for these partitions, or the assigned ones; without those that have
        nothing."""
        asked = _confluent(partitions or self._assigned)
        try:
            answers = self._consumer.committed(asked, timeout=_TIMEOUT) if asked else []
        except confluent_kafka.KafkaException as failure:
            raise error_from(failure.args[0], "cannot ask for committed offsets") from failure
        return {
            TopicPartition(each.topic, each.partition): each.offset for each in answers if each.offset >= 0
        }

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets each assigned partition has behind the last record that was handed out."""
        lags = {}
        unknown = [partition for partition in self._assigned if self.position(partition) is None]
        committed = self.committed(*unknown) if unknown else {}
        for partition in self._assigned:
            low, high = self._watermarks(partition)
            position = self.position(partition)
            if position is None:
                position = committed.get(partition)
            lags[partition] = max(0, high - (low if position is None else position))
        return lags

    # -- moving -------------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read this partition from here on. In `on_assign` it says where reading of the partition begins."""
        name = self._ours(partition)
        if offset < 0:
            raise ConfigurationError(f"the offset {offset} cannot be: use seek_to_beginning or seek_to_end")
        if self._starts is not None:
            self._starts[name] = offset
            return
        paused = name in self._paused
        self._forget([name])
        self._moves += 1
        self._buffer.move(name, Position(offset))
        self._seek(name, offset)
        if paused:
            self._paused.add(name)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read these partitions, or all assigned ones, from their first record on."""
        for partition in partitions or self._to_move():
            self.seek(partition, self._watermarks(partition)[0])

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Skip all records that are there now of these partitions, or of all assigned ones."""
        for partition in partitions or self._to_move():
            self.seek(partition, self._watermarks(partition)[1])

    def seek_to_time(self, when: datetime | int, *partitions: TopicPartition) -> None:
        """Read from the first record whose time is `when` (or ms since 1970) or later; none: from the end
        on."""
        if isinstance(when, datetime):
            if when.tzinfo is None:
                raise ConfigurationError(f"the time {when} has no time zone")
            when = int(when.timestamp() * 1000)
        asked = [confluent_kafka.TopicPartition(*name, when) for name in partitions or self._to_move()]
        try:
            answers = self._consumer.offsets_for_times(asked, timeout=_TIMEOUT) if asked else []
        except confluent_kafka.KafkaException as failure:
            raise error_from(failure.args[0], "cannot ask for offsets by time") from failure
        for answer in answers:
            if answer.error is not None:
                raise error_from(answer.error, f"cannot ask for offsets of {answer.topic} by time")
            partition = TopicPartition(answer.topic, answer.partition)
            self.seek(partition, answer.offset if answer.offset >= 0 else self._watermarks(partition)[1])

    def _to_move(self) -> list[TopicPartition]:
        """All assigned partitions. Before the group has given any, a seek would be lost without a word."""
        if not self._assigned and self._starts is None:
            raise ClientError(
                "no partition is assigned to this consumer yet: seek in on_assign, or after the first record"
            )
        return sorted(self._assigned)

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        target = confluent_kafka.TopicPartition(*partition, offset)
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                self._consumer.seek(target)
                return
            except confluent_kafka.KafkaException as failure:
                # A partition that was assigned just now is not read yet, and cannot be moved for a moment.
                if failure.args[0].code() != confluent_kafka.KafkaError._STATE:
                    raise error_from(failure.args[0], f"cannot seek in {partition}") from failure
                if time.monotonic() > deadline:
                    raise TimedOutError(f"{partition} cannot be moved for {_TIMEOUT:g} s") from failure
                time.sleep(_BETWEEN)

    def _watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        asked = confluent_kafka.TopicPartition(*partition)
        try:
            answer = self._consumer.get_watermark_offsets(asked, timeout=_TIMEOUT)
        except confluent_kafka.KafkaException as failure:
            raise error_from(failure.args[0], f"cannot ask for the ends of {partition}") from failure
        if answer is None:
            raise TimedOutError(f"no answer on the ends of {partition} within {_TIMEOUT:g} s")
        return answer

    # -- pausing ------------------------------------------------------------------------------------------

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out no record of these partitions (all assigned ones) until `resume`. A rebalance ends it."""
        names = [self._ours(each) for each in partitions] or list(self._assigned)
        self._consumer.pause(_confluent(names))
        self._buffer.set_aside(names)
        self._paused.update(names)

    def resume(self, *partitions: TopicPartition) -> None:
        """Go on with these partitions, or all that are paused."""
        names = [TopicPartition(*each) for each in partitions or self._paused]
        paused = [name for name in names if name in self._paused]
        self._consumer.resume(_confluent(paused))
        self._paused.difference_update(paused)
        self._buffer.take_back(paused)

    def paused(self) -> set[TopicPartition]:
        return set(self._paused)

    def _set_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        self._assigned = set(partitions)
        self._one_topic = len({name.topic for name in self._assigned}) == 1

    def _ours(self, partition: TopicPartition) -> TopicPartition:
        name = TopicPartition(*partition)
        if name not in self._assigned:
            raise ClientError(
                f"{name.topic}-{name.partition} is not assigned to this consumer; a group assigns partitions "
                "while it is read from: seek in on_assign"
            )
        return name

    def _forget(self, partitions: list[TopicPartition]) -> None:
        self._buffer.forget(partitions)
        for partition in partitions:
            self._paused.discard(partition)


def _confluent(partitions: Iterable[TopicPartition]) -> list[confluent_kafka.TopicPartition]:
    return [confluent_kafka.TopicPartition(*partition) for partition in partitions]
