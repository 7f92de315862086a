"""Fetch sessions (KIP-227): a consumer of many partitions sends only what changed, and gets only that back.

A session remembers which partitions its client reads and what was last sent for each (`fetch_session`;
`follower_session` for those of other brokers). The epoch counts the requests of a session, so that a lost or
doubled one is noticed: 0 asks for a new session, -1 ends one, any other number must be the next. A session
error makes the client start over with a full request; sessions are a saving, never a source of truth, so they
may be forgotten at any time and are not kept over a restart.

What a session takes is accounted for (`client_memory`): the longest unused may be dropped to make way for
other things, and a client for whose session there is no memory sends full requests. The sessions of followers
are outside of these limits, one for each broker, so that clients cannot take their slots.

Pure state: time and randomness come in as arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from ottla.broker.client_memory import FETCH_SESSIONS, ClientMemory
from ottla.broker.fetch_session import FetchSession, Key, Wanted, size_of
from ottla.broker.follower_session import FollowerSession
from ottla.protocol.errors import ErrorCode

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1


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
        self._of_brokers: dict[int, FollowerSession] = {}
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
    ) -> FollowerSession:
        session = FollowerSession(self._new_id(), by_id, wanted, now_ms, broker_id=broker_id)
        self._of_brokers[broker_id] = session
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
