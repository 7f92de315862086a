"""Committed offsets: how far each group has read each partition.

Pure: `Offsets` changes by `replay` alone, everything else looks or says which records would make a change.
Offsets belong to a group's id, whatever kind the group is, and to nobody's membership: a simple consumer that
assigned its partitions itself commits under an id that has no members.

An offset goes when it is deleted, when its topic is, or when it has been of no use for the retention time:
its group is empty, or does not read the topic any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from ottla.coordinator.group import Group
from ottla.coordinator.records import Entry, OffsetCommitKey, OffsetCommitValue
from ottla.protocol.schema import ZERO_UUID

NO_OFFSET = -1


class Committed(NamedTuple):
    """An offset to go on from, as a group left it."""

    offset: int
    leader_epoch: int = -1
    """Of the last record read; -1 if the client did not say."""
    metadata: str = ""
    committed_ms: int = -1
    expires_ms: int = -1
    """Old clients say how long they want it kept; -1 leaves it to the broker."""
    topic_id: bytes = ZERO_UUID


ByTopic = Mapping[str, Mapping[int, Committed]]


class Offsets:
    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, Committed]]] = {}

    def __len__(self) -> int:
        return sum(len(p) for topics in self._groups.values() for p in topics.values())

    def groups(self) -> list[str]:
        return list(self._groups)

    def of(self, group_id: str) -> ByTopic:
        """All offsets of a group by topic and partition."""
        return self._groups.get(group_id, {})

    def get(self, group_id: str, topic: str, partition: int) -> Committed | None:
        return self._groups.get(group_id, {}).get(topic, {}).get(partition)

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        if value is not None:
            self._groups.setdefault(key.group, {}).setdefault(key.topic, {})[key.partition] = Committed(
                value.offset,
                value.leader_epoch,
                value.metadata,
                value.commit_timestamp,
                value.expire_timestamp,
                value.topic_id,
            )
            return
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

    def deletion_of_topics(self, topics: Collection[str]) -> Iterator[Entry]:
        """Records that remove what any group has of these topics."""
        for group_id, by_topic in self._groups.items():
            for topic in topics:
                for partition in by_topic.get(topic, ()):
                    yield tombstone(group_id, topic, partition)

    def deletion_of_stale(self, topic_id: Callable[[str], bytes | None]) -> Iterator[Entry]:
        """Records that remove offsets of topics that are gone, or are others by the same name."""
        for group_id, by_topic in self._groups.items():
            for topic, partitions in by_topic.items():
                present = topic_id(topic)
                for partition, committed in partitions.items():
                    if present is None or committed.topic_id not in (present, ZERO_UUID):
                        yield tombstone(group_id, topic, partition)

    def expired(self, group: Group, retention_ms: int, now_ms: int) -> list[Entry]:
        """Records that remove what `group` has not needed for the retention time."""
        gone = []
        for topic, partitions in self.of(group.group_id).items():
            for partition, committed in partitions.items():
                since = group.offsets_unused_since(topic, committed.committed_ms)
                if since is None:
                    continue
                due = committed.expires_ms if committed.expires_ms >= 0 else since + retention_ms
                if now_ms >= due:
                    gone.append(tombstone(group.group_id, topic, partition))
        return gone

    def count(self, group_id: str) -> int:
        return sum(map(len, self.of(group_id).values()))


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
