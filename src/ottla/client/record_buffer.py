"""The records that a consumer has read ahead, which of them the application has, and the positions that
follow.

A consumer reads in batches and hands out one record, or a few, at a time. The buffer knows three parts of
what was read, in this order: records that are finished (the application asked for the next ones), records
that are handed out, and records that wait. Finished records become positions: what at-least-once may commit.
Where a batch ends is known when it is read (`ends_of`), so a batch that is finished as a whole costs nothing
for each record; positions inside a batch are worked out when somebody asks for them. Records of a partition
that is revoked, or moved by a seek, leave the buffer, and those of a paused one are set aside until it is
resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.client.records import ConsumerRecord, Message, TopicPartition, messages_of


class Position(NamedTuple):
    """The offset of the next record of a partition, and the leader epoch of the one before it."""

    offset: int
    leader_epoch: int | None = None


Positions = dict[TopicPartition, Position]

_FEW_PARTITIONS = 8


class RecordBuffer:
    def __init__(self) -> None:
        self.records: Sequence[ConsumerRecord] = ()
        self.finished = 0
        """So many records at the front are finished."""
        self.out = 0
        """So many records after those are handed out."""
        self.settled = 0
        """Counts `settle`: a loop over the records begins anew when somebody else has asked for some."""
        self._left: Positions = {}
        """Of the finished records that have left the buffer, and of seeks."""
        self._ends: Positions = {}
        """Behind all records in the buffer, and those that were read with them and skipped."""
        self._aside: dict[TopicPartition, tuple[list[ConsumerRecord], Position]] = {}

    def add(self, records: Sequence[ConsumerRecord], ends: Mapping[TopicPartition, Position]) -> None:
        """Records that were read, and the positions behind all that was read, also what was skipped."""
        self.records = [*self.records, *records] if self.records else records
        self._ends.update(ends)

    def take(self, count: int) -> Sequence[ConsumerRecord]:
        """Hand out so many records, or all if there are fewer. What was handed out before must be settled."""
        taken = self.records[self.finished : self.finished + count]
        self.out = len(taken)
        return taken

    def settle(self) -> None:
        """What was handed out is finished."""
        self.settled += 1
        self.finished += self.out
        self.out = 0
        if self.finished >= len(self.records):
            self.records = ()
            self.finished = 0
            if self._ends:
                self._left.update(self._ends)
                self._ends.clear()

    def positions(self) -> Positions:
        """What may be committed: behind the records that are finished."""
        return self._behind(self.finished)

    def handed_out(self) -> Positions:
        """Positions as if all that the application has were finished."""
        return self._behind(self.finished + self.out)

    def read(self) -> Positions:
        """Positions behind all that was read."""
        aside = {partition: end for partition, (_, end) in self._aside.items()}
        return {**self._left, **self._ends, **aside}

    def _behind(self, count: int) -> Positions:
        if count >= len(self.records):
            return {**self._left, **self._ends}
        return {**self._left, **_behind(self.records[:count])}

    def move(self, partition: TopicPartition, position: Position) -> None:
        """The partition, of which there are no records here, is read from there on."""
        self._left[partition] = position

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions are not ours any more, or are read from elsewhere: drop their records and
        positions."""
        gone = set(partitions)
        self._compact()
        for partition in gone:
            self._left.pop(partition, None)
            self._ends.pop(partition, None)
            self._aside.pop(partition, None)
        out = [record for record in self.records[: self.out] if _of(record) not in gone]
        rest = [record for record in self.records[self.out :] if _of(record) not in gone]
        self.records, self.out = out + rest, len(out)

    def set_aside(self, partitions: Iterable[TopicPartition]) -> None:
        """Keep back what waits of these partitions."""
        paused = set(partitions)
        self._compact()
        out, kept = list(self.records[: self.out]), []
        aside: dict[TopicPartition, list[ConsumerRecord]] = {}
        for record in self.records[self.out :]:
            if (partition := _of(record)) in paused:
                aside.setdefault(partition, []).append(record)
            else:
                kept.append(record)
        behind = _behind(out)
        for partition, records in aside.items():
            end = self._ends.pop(partition)
            earlier = self._aside.get(partition, ([], end))[0]
            self._aside[partition] = earlier + records, end
            if partition in behind:
                self._ends[partition] = behind[partition]
        self.records = out + kept

    def take_back(self, partitions: Iterable[TopicPartition]) -> None:
        """What was set aside of these partitions waits again, before what was read since."""
        back: list[ConsumerRecord] = []
        for partition in partitions:
            if partition in self._aside:
                records, end = self._aside.pop(partition)
                back += records
                self._ends[partition] = max(end, self._ends.get(partition, end), key=_offset)
        if back:
            self._compact()
            self.records = [*self.records[: self.out], *back, *self.records[self.out :]]

    def holds_records(self) -> bool:
        """Whether there are records that are not finished, also of paused partitions."""
        return len(self.records) > self.finished or bool(self._aside)

    def clear(self) -> None:
        """Drop what is not finished."""
        self._compact()
        self.records, self.out, self._ends, self._aside = (), 0, {}, {}

    def _compact(self) -> None:
        """Finished records leave the buffer."""
        if self.finished:
            self._left.update(_behind(self.records[: self.finished]))
            self.records = self.records[self.finished :]
            self.finished = 0


def _of(record: ConsumerRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _behind(records: Sequence[ConsumerRecord]) -> Positions:
    return ends_of(messages_of(records))


def ends_of(messages: list[Message], *, one_topic: bool = False) -> Positions:
    """The positions behind these messages; `one_topic` if all are known to be of the same.

    It loops in C, because consumers call it for every batch that they read.
    """
    if not messages:
        return {}
    if one_topic:
        last = _last_of_partitions(messages)
    else:
        places = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        last = list(dict(zip(places, messages, strict=True)).values())
    return {place_of(each): Position((each.offset() or 0) + 1, each.leader_epoch()) for each in last}


def _last_of_partitions(messages: list[Message]) -> list[Message]:
    """The last message of each partition. Few partitions are found fastest by searching bytes, which hold
    numbers up to 255."""
    try:
        rest = numbers = bytes(map(Message.partition, messages))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return _last_of_many_partitions(messages)
    last: list[Message] = []
    while rest:
        if len(last) == _FEW_PARTITIONS:
            return _last_of_many_partitions(messages)
        last.append(messages[numbers.rindex(rest[-1])])
        rest = rest.translate(None, rest[-1:])
    return last


def _last_of_many_partitions(messages: list[Message]) -> list[Message]:
    return list(dict(zip(map(Message.partition, messages), messages, strict=True)).values())


def place_of(message: Message) -> TopicPartition:
    return TopicPartition(message.topic() or "", message.partition() or 0)


def _offset(position: Position) -> int:
    return position.offset
