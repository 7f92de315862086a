"""The fetch session of a follower, in which idle partitions are at rest.

A follower names all partitions that it has of a leader in one session, and most of them are idle: it has all
of their records, is in sync, and was told so. Looking at each of them with every fetch would make one record
in one of a thousand partitions cost as much as a thousand. So an idle partition is put to rest: it is not
looked at again before something happens to it.

* The partition wakes its followers when its log end moves or the controller has changed something of it
  (`Partition.watching`). A fetch that waits for the session then looks at that partition alone.
* The follower wakes it by naming it with another position.
* Other changes, such as another log start or a disk that failed, wake nobody. They are found by looking at
  all partitions every `LOOK_AT_ALL_MS`. By that a follower also goes on to count as caught up, so it is done
  more often where `replica.lag.time.max.ms` is short.

Pure state: time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.fetch_session import FetchSession, Key, Wanted
from ottla.replication.partition import Partition

LOOK_AT_ALL_MS = 250
_SHARE_OF_LAG = 4
"""All are looked at at least so often within `replica.lag.time.max.ms`."""


class FollowerSession(FetchSession):
    """Of the broker `broker_id`."""

    __slots__ = ("_awake", "_broker_id", "_looked_ms", "_woken")

    def __init__(
        self, id: int, by_id: bool, wanted: Iterable[Wanted], now_ms: int, *, broker_id: int
    ) -> None:
        super().__init__(id, by_id, wanted, now_ms)
        self._broker_id = broker_id
        self._awake: dict[Key, None] = dict.fromkeys(self._partitions)
        self._woken: dict[Key, None] = {}
        self._looked_ms = now_ms

    # -- what is to be looked at --------------------------------------------------------------------------

    def due(self, now_ms: int, max_lag_ms: int) -> list[Wanted]:
        """What a fetch has to look at: the partitions that are awake, and from time to time all."""
        self._woken.clear()
        if now_ms - self._looked_ms >= min(LOOK_AT_ALL_MS, max_lag_ms // _SHARE_OF_LAG):
            self._looked_ms = now_ms
            return self.wanted()
        return [self._partitions[key].wanted for key in self._awake]

    def take_woken(self) -> list[Wanted]:
        """The partitions that woke since the fetch began, or since the last call."""
        woken, self._woken = self._woken, {}
        return [told.wanted for key in woken if (told := self._partitions.get(key)) is not None]

    # -- rest ---------------------------------------------------------------------------------------------

    def watch(self, key: Key, partition: Partition, *, idle: bool) -> None:
        """The partition was read, and wakes this session when something happens to it.

        One that is idle, with all its records committed, is at rest until then.
        """
        if key not in self._partitions:
            return
        partition.watching[self._broker_id] = self
        if idle and partition.high_watermark == partition.log.end_offset:
            self._awake.pop(key, None)
        else:
            self._awake[key] = None

    def woke(self, partition: Partition) -> None:
        """Called by the partition, once after each `watch`."""
        key: Key = (partition.topic_id if self.by_id else partition.topic), partition.index
        if key in self._partitions:
            self._awake[key] = self._woken[key] = None

    # -- what the client says and is told -----------------------------------------------------------------

    def update(self, wanted: Iterable[Wanted], forgotten: Iterable[Key]) -> None:
        wanted, forgotten = list(wanted), list(forgotten)
        super().update(wanted, forgotten)
        for want in wanted:
            self._awake[want.topic, want.partition] = None
        for key in forgotten:
            self._awake.pop(key, None)

    def gave_records(self, key: Key) -> None:
        super().gave_records(key)
        if key in self._awake:
            del self._awake[key]
            self._awake[key] = None
