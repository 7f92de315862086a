"""Committed offsets: how far each group has read each partition.

Pure: `Offsets` changes by `replay` and `end_transaction` alone; everything else reads, or returns the records
that would make a change. Offsets belong to the id of a group, whatever its kind, and not to its members: a
consumer that assigns its partitions itself commits under an id that has no members.

An offset that was committed in a transaction is pending until the transaction ends. It becomes visible with
the commit marker and is dropped with the abort marker. If there were other commits of the same partition, the
one with the larger offset in the log counts.

An offset is removed when it is deleted, when its topic is, or when it was not needed for the retention time:
its group is empty, or does not read the topic any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from ottla.coordinator.group import Group
from ottla.coordinator.records import Entry, OffsetCommitKey, OffsetCommitValue
from ottla.protocol.batches import NO_PRODUCER_ID
from ottla.protocol.schema import ZERO_UUID

NO_OFFSET = -1


class Committed(NamedTuple):
    """The position of a group in a partition."""

    offset: int
    leader_epoch: int = -1
    """Of the last record read; -1 if the client did not send it."""
    metadata: str = ""
    committed_ms: int = -1
    expires_ms: int = -1
    """Set by old clients, which say how long they want it kept; -1 leaves it to the broker."""
    topic_id: bytes = ZERO_UUID
    record_offset: int = -1
    """Of the commit in the log of its shard."""


GroupOffsets: TypeAlias = Mapping[str, Mapping[int, Committed]]
"""The offsets of one group, by topic and partition."""


class Offsets:
    """The offsets of all groups of one shard."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, Committed]]] = {}
        self._pending = PendingOffsets()

    def __len__(self) -> int:
        return sum(len(p) for topics in self._groups.values() for p in topics.values())

    def groups(self) -> list[str]:
        """Those that have offsets, committed or pending."""
        return [*self._groups, *(group for group in self._pending.groups() if group not in self._groups)]

    def of(self, group_id: str) -> GroupOffsets:
        """All offsets of a group. Those of open transactions are not among them."""
        return self._groups.get(group_id, {})

    def get(self, group_id: str, topic: str, partition: int) -> Committed | None:
        return self._groups.get(group_id, {}).get(topic, {}).get(partition)

    def count(self, group_id: str) -> int:
        return sum(map(len, self.of(group_id).values()))

    def exists(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether there is an offset, committed or pending."""
        committed = self.get(group_id, topic, partition) is not None
        return committed or self.is_pending(group_id, topic, partition)

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has committed an offset of this partition."""
        return (topic, partition) in self._pending.of(group_id)

    def has_pending(self, group_id: str) -> bool:
        return bool(self._pending.of(group_id))

    def pending_of(self, group_id: str) -> frozenset[tuple[str, int]]:
        """The partitions of which open transactions have committed an offset."""
        return frozenset(self._pending.of(group_id))

    # -- changes ------------------------------------------------------------------------------------------

    def replay(
        self, offset: int, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue | None
    ) -> None:
        """Apply a record. `producer_id` is that of a transaction, or NO_PRODUCER_ID."""
        if value is None:
            self._remove(key)
            self._pending.remove(key.group, key.topic, key.partition)
            return
        committed = Committed(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            offset,
        )
        if producer_id == NO_PRODUCER_ID:
            self._put(key.group, key.topic, key.partition, committed)
        else:
            self._pending.put(producer_id, key.group, key.topic, key.partition, committed)

    def end_transaction(self, producer_id: int, *, committed: bool) -> set[str]:
        """The groups whose offsets it has committed, or not."""
        ended = self._pending.end(producer_id)
        for (group_id, topic, partition), pending in ended.items():
            present = self.get(group_id, topic, partition)
            if committed and (present is None or pending.record_offset > present.record_offset):
                self._put(group_id, topic, partition, pending)
        return {group_id for group_id, _, _ in ended}

    def _put(self, group_id: str, topic: str, partition: int, committed: Committed) -> None:
        self._groups.setdefault(group_id, {}).setdefault(topic, {})[partition] = committed

    def _remove(self, key: OffsetCommitKey) -> None:
        topics = self._groups.get(key.group, {})
        partitions = topics.get(key.topic, {})
        partitions.pop(key.partition, None)
        if not partitions:
            topics.pop(key.topic, None)
        if not topics:
            self._groups.pop(key.group, None)

    # -- records that would change it ---------------------------------------------------------------------

    def deletion(self, group_id: str) -> Iterator[Entry]:
        """Records that remove all offsets of a group."""
        for topic, partitions in self.of(group_id).items():
            for partition in partitions:
                yield tombstone(group_id, topic, partition)
        for topic, partition in self._only_pending(group_id):
            yield tombstone(group_id, topic, partition)

    def of_topics(self, group_id: str, topics: Collection[str]) -> Iterator[Entry]:
        """Records that remove the offsets that a group has of these topics."""
        by_topic = self.of(group_id)
        for topic in topics:
            for partition in by_topic.get(topic, ()):
                yield tombstone(group_id, topic, partition)
        for topic, partition in self._only_pending(group_id):
            if topic in topics:
                yield tombstone(group_id, topic, partition)

    def stale(self, group_id: str, topic_id: Callable[[str], bytes | None]) -> Iterator[Entry]:
        """Records that remove offsets of topics that are gone, or are others by the same name."""
        for topic, partitions in self.of(group_id).items():
            present = topic_id(topic)
            for partition, committed in partitions.items():
                if present is None or committed.topic_id not in (present, ZERO_UUID):
                    yield tombstone(group_id, topic, partition)
        for topic, partition in self._only_pending(group_id):
            if topic_id(topic) is None:
                yield tombstone(group_id, topic, partition)

    def _only_pending(self, group_id: str) -> Iterator[tuple[str, int]]:
        """Partitions of which transactions alone have committed offsets. A tombstone removes either kind."""
        for topic, partition in self._pending.of(group_id):
            if self.get(group_id, topic, partition) is None:
                yield topic, partition

    def expired(self, group: Group, retention_ms: int, now_ms: int) -> Iterator[Entry]:
        """Records that remove what `group` has not needed for the retention time."""
        group_id = group.group_id
        for topic, partitions in self.of(group_id).items():
            for partition, committed in partitions.items():
                since = group.offsets_unused_since(topic, committed.committed_ms)
                if since is None or self.is_pending(group_id, topic, partition):
                    continue
                due = committed.expires_ms if committed.expires_ms >= 0 else since + retention_ms
                if now_ms >= due:
                    yield tombstone(group_id, topic, partition)


class PendingOffsets:
    """Offsets that open transactions have committed, by the ids of their producers."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[tuple[str, str, int], Committed]] = {}
        self._producers: dict[str, dict[tuple[str, int], set[int]]] = {}

    def groups(self) -> Collection[str]:
        return self._producers.keys()

    def of(self, group_id: str) -> Collection[tuple[str, int]]:
        """The partitions of which a group has pending offsets."""
        return self._producers.get(group_id, ())

    def put(self, producer_id: int, group_id: str, topic: str, partition: int, committed: Committed) -> None:
        self._by_producer.setdefault(producer_id, {})[group_id, topic, partition] = committed
        places = self._producers.setdefault(group_id, {})
        places.setdefault((topic, partition), set()).add(producer_id)

    def remove(self, group_id: str, topic: str, partition: int) -> None:
        """The offset is deleted, whichever transactions have committed it."""
        for producer_id in list(self._producers.get(group_id, {}).get((topic, partition), ())):
            offsets = self._by_producer[producer_id]
            del offsets[group_id, topic, partition]
            if not offsets:
                del self._by_producer[producer_id]
            self._forget(producer_id, group_id, topic, partition)

    def end(self, producer_id: int) -> Mapping[tuple[str, str, int], Committed]:
        """What the transaction of a producer has committed; it is not pending any more."""
        ended = self._by_producer.pop(producer_id, {})
        for group_id, topic, partition in ended:
            self._forget(producer_id, group_id, topic, partition)
        return ended

    def _forget(self, producer_id: int, group_id: str, topic: str, partition: int) -> None:
        places = self._producers[group_id]
        producers = places[topic, partition]
        producers.discard(producer_id)
        if not producers:
            del places[topic, partition]
        if not places:
            del self._producers[group_id]


def commit(group_id: str, topic: str, partition: int, committed: Committed) -> Entry:
    """The record of a commit."""
    return (
        OffsetCommitKey(group=group_id, topic=topic, partition=partition),
        OffsetCommitValue(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            commit_timestamp=committed.committed_ms,
            expire_timestamp=committed.expires_ms,
            topic_id=committed.topic_id,
        ),
    )


def tombstone(group_id: str, topic: str, partition: int) -> Entry:
    return OffsetCommitKey(group=group_id, topic=topic, partition=partition), None
