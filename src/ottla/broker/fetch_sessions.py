"""Fetch sessions (KIP-227): a consumer of many partitions sends only what changed, and gets only that back.

A session remembers which partitions its client reads and what was last sent for each. The epoch counts the
requests of a session, so that a lost or doubled one is noticed: 0 asks for a new session, -1 ends one, any
other number must be the next. A session error makes the client start over with a full request; sessions are a
saving, never a source of truth, so they may be forgotten at any time and are not kept over a restart.

What a session takes is accounted for (`client_memory`): the longest unused may be dropped to make way for
other things, and a client for whose session there is no memory sends full requests. The sessions of followers
are outside of these limits, one for each broker, so that clients cannot take their slots.

Pure state: time and randomness come in as arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ottla.broker.client_memory import FETCH_SESSIONS, ClientMemory, Holding
from ottla.protocol.errors import ErrorCode
from ottla.replication.partition import Partition

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1

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
            # A partition that gave records goes to the end, so that a small max_bytes starves none.
            self._partitions.move_to_end(key)
        return news


class FetchSessions:
    """All sessions of a broker, at most `limit`; the longest unused make way after `eviction_ms`."""

    def __init__(
        self,
        limit: int,
        random_int: Callable[[int, int], int],
        eviction_ms: int = 120_000,
        memory: ClientMemory | None = None,
    ) -> None:
        self.limit = limit
        self._memory = memory
        self._eviction_ms = eviction_ms
        self._random_int = random_int
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._of_brokers: dict[int, FetchSession] = {}
        """By broker id. A follower has one fetch loop for each leader, so a new session replaces the last."""

    def __len__(self) -> int:
        return len(self._sessions)

    def resume(self, id: int, epoch: int, by_id: bool, now_ms: int) -> FetchSession | ErrorCode:
        """The session that an incremental request belongs to, moved to its next epoch; or what is wrong."""
        session = self._sessions.get(id) or self._of_broker(id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_id != by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.epoch = 1 if epoch == 0x7FFFFFFF else epoch + 1
        session.last_used_ms = now_ms
        if id in self._sessions:
            self._sessions.move_to_end(id)
        if self._memory is not None and session.holding is not None:
            self._memory.touch(session.holding)
        return session

    def update(self, session: FetchSession, wanted: Sequence[Wanted], forgotten: Sequence[Key]) -> bool:
        """Let a session have what an incremental request changes; False when there is no memory for it.

        Then the session is over, and the client starts another.
        """
        memory, holding = self._memory, session.holding
        if memory is None or holding is None or not (wanted or forgotten):
            session.update(wanted, forgotten)
            return True
        more = size_of(wanted) if wanted else 0
        if more and not memory.admit(holding.address, holding.client, holding.kind, more):
            self.close(session.id)
            return False
        session.update(wanted, forgotten)
        memory.resize(holding, session.size())
        return True

    def open(
        self, by_id: bool, wanted: list[Wanted], now_ms: int, address: str = "", client: str = ""
    ) -> FetchSession | None:
        """A new session, or None when there is no free slot: the client then sends full requests."""
        if not self._make_room(now_ms):
            return None
        size = size_of(wanted) if self._memory is not None else 0
        if self._memory is not None and not self._memory.admit(address, client, FETCH_SESSIONS, size):
            return None
        id = self._new_id()
        session = self._sessions[id] = FetchSession(id, by_id, wanted, now_ms)
        if self._memory is not None:
            session.holding = self._memory.hold(
                address, client, FETCH_SESSIONS, size, lambda why: self.close(id)
            )
        return session

    def open_for_broker(
        self, broker_id: int, by_id: bool, wanted: Iterable[Wanted], now_ms: int
    ) -> FetchSession:
        session = self._of_brokers[broker_id] = FetchSession(self._new_id(), by_id, wanted, now_ms)
        return session

    def _new_id(self) -> int:
        id = self._random_int(1, 0x7FFFFFFF)
        while id in self._sessions or self._of_broker(id) is not None:
            id = self._random_int(1, 0x7FFFFFFF)
        return id

    def _of_broker(self, id: int) -> FetchSession | None:
        return next((session for session in self._of_brokers.values() if session.id == id), None)

    def close(self, id: int) -> None:
        self._of_brokers = {broker: each for broker, each in self._of_brokers.items() if each.id != id}
        session = self._sessions.pop(id, None)
        if session is not None and session.holding is not None and self._memory is not None:
            self._memory.release(session.holding)
            session.holding = None

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self.limit:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms < self._eviction_ms:
            return False
        self.close(oldest.id)
        return True
