"""One fetch session (KIP-227): which partitions its client reads, and what was last sent for each.

`fetch_sessions` keeps the sessions of all clients, and says what they are for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from ottla.broker.client_memory import Holding
from ottla.replication.partition import Partition

Key = tuple[bytes | str, int]
"""A partition as the client names it: topic id from version 13 on, topic name before."""


class Wanted(NamedTuple):
    """What a client wants of one partition."""

    topic: bytes | str
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


class _Told:
    """What was last sent to the client about a partition."""

    __slots__ = ("high_watermark", "log_start_offset", "partition", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.partition: Partition | None = None
        self.high_watermark = -1
        self.log_start_offset = -1


_SESSION_BYTES = 1000
_PARTITION_BYTES = 900
"""Of a partition in a session, and of the session itself; names come on top."""


def size_of(wanted: Iterable[Wanted]) -> int:
    """What a session of these partitions takes, about."""
    return _SESSION_BYTES + sum(_PARTITION_BYTES + len(want.topic) for want in wanted)


class FetchSession:
    __slots__ = ("_partitions", "by_id", "epoch", "holding", "id", "last_used_ms")

    def __init__(self, id: int, by_id: bool, wanted: Iterable[Wanted], now_ms: int) -> None:
        self.id = id
        self.by_id = by_id
        self.epoch = 1
        self.last_used_ms = now_ms
        self.holding: Holding | None = None
        self._partitions: OrderedDict[Key, _Told] = OrderedDict(
            ((w.topic, w.partition), _Told(w)) for w in wanted
        )

    def __len__(self) -> int:
        return len(self._partitions)

    def wanted(self) -> list[Wanted]:
        return [told.wanted for told in self._partitions.values()]

    def update(self, wanted: Iterable[Wanted], forgotten: Iterable[Key]) -> None:
        for want in wanted:
            told = self._partitions.get((want.topic, want.partition))
            if told is None:
                self._partitions[want.topic, want.partition] = _Told(want)
            else:
                if want.current_leader_epoch != told.wanted.current_leader_epoch:
                    # The client may have dropped what it was told in the epoch before.
                    told.high_watermark = told.log_start_offset = -1
                told.wanted, told.partition = want, None
        for key in forgotten:
            self._partitions.pop(key, None)

    def was_read(self, key: Key, partition: Partition) -> None:
        """A follower read from this partition; see `unchanged`."""
        told = self._partitions.get(key)
        if told is not None:
            told.partition = partition

    def unchanged(self, key: Key) -> Partition | None:
        """The partition that was read last time, if its offsets are those that the client was told then."""
        told = self._partitions.get(key)
        if told is None or (partition := told.partition) is None:
            return None
        if (
            told.high_watermark != partition.state.high_watermark
            or told.log_start_offset != partition.log.log_start_offset
        ):
            return None
        return partition

    def size(self) -> int:
        """What it takes, about."""
        return size_of(told.wanted for told in self._partitions.values())

    def worth_telling(
        self, key: Key, error: int, size: int, high_watermark: int, log_start_offset: int, diverging: bool
    ) -> bool:
        """True when the response must contain the partition: it has records, an error or a changed offset."""
        told = self._partitions.get(key)
        if told is None:
            return True
        news = (
            size > 0
            or diverging
            or told.high_watermark != high_watermark
            or told.log_start_offset != log_start_offset
        )
        if error or diverging:
            # Forget what was sent, so that the response after it contains the partition as well: a follower
            # that has to truncate its log learns no high watermark before.
            told.high_watermark = told.log_start_offset = -1
            return True
        told.high_watermark, told.log_start_offset = high_watermark, log_start_offset
        if size > 0:
            self.gave_records(key)
        return news

    def gave_records(self, key: Key) -> None:
        """The partition goes to the end, so that a small max_bytes starves none."""
        self._partitions.move_to_end(key)
