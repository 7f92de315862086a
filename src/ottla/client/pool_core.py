"""Which record of a pool may be worked on next, and up to where a partition is done: plain state, without
threads.

Records are added in the order of their offsets. Those with the same key of the same partition are handed out
one after another, in order: the next one when the one before is done. Records without a key wait for nobody.
A record that failed and is tried again keeps its place, so the ones behind it wait.

A partition's position is the offset of its first record that is not done. Committing it, and nothing above,
is what makes any crash re-deliver the records that were under way, and lose none.

A partition that is taken away goes in two steps. `stop` hands out nothing more of it, while what runs may end
and still counts. `drop` forgets it: what ends later changes nothing, also not when the partition comes back.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from ottla.client.records import TopicPartition

Ordering = Literal["key", "partition", "none"]


class _Partition:
    """One time of owning a partition."""

    __slots__ = ("done", "end", "first", "held", "lost", "name", "running", "stopped", "unfinished")

    def __init__(self, name: TopicPartition, first: int) -> None:
        self.name = name
        self.first = first
        self.end = first
        self.unfinished: deque[int] = deque()
        self.done: set[int] = set()
        """Offsets above the first unfinished one that are done."""
        self.held = 0
        self.running = 0
        self.stopped = False
        self.lost = False

    @property
    def position(self) -> int:
        return self.unfinished[0] if self.unfinished else self.end


@dataclass(slots=True, eq=False)
class Work:
    """A record that is to be worked on. `attempts` counts how often it was handed out."""

    offset: int
    item: Any
    queue: tuple[TopicPartition, Any] | None
    partition: _Partition = field(repr=False)
    attempts: int = 0

    @property
    def lost(self) -> bool:
        """The partition is not ours any more: the outcome does not count."""
        return self.partition.lost


class KeyOrderedWork:
    """The records that a pool holds. `limit` is how many; callers must not add more than `free`."""

    def __init__(self, limit: int, ordering: Ordering = "key") -> None:
        self.limit = limit
        self.held = 0
        """Records that were added and are not done."""
        self._ordering = ordering
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._followers: dict[tuple[TopicPartition, Any], deque[Work]] = {}
        """Per key whose first record is ready, running or delayed: the ones behind it."""
        self._ready: deque[Work] = deque()
        self._delayed: list[tuple[float, int, Work]] = []
        self._numbers = count()
        self._full = False
        self._crowded: set[TopicPartition] = set()

    @property
    def free(self) -> int:
        return max(0, self.limit - self.held)

    def add(self, name: TopicPartition, offset: int, key: Any, item: Any) -> None:
        """One more record of a partition, with a higher offset than those before it."""
        partition = self._partitions.get(name)
        if partition is None:
            partition = self._partitions[name] = _Partition(name, offset)
        elif offset < partition.end:
            raise ValueError(f"{name} was added up to {partition.end}, and then {offset}")
        partition.end = offset + 1
        partition.unfinished.append(offset)
        partition.held += 1
        self.held += 1
        queue = self._queue_of(name, key)
        work = Work(offset, item, queue, partition)
        if queue is None:
            self._ready.append(work)
        elif queue in self._followers:
            self._followers[queue].append(work)
        else:
            self._followers[queue] = deque()
            self._ready.append(work)

    def _queue_of(self, name: TopicPartition, key: Any) -> tuple[TopicPartition, Any] | None:
        if self._ordering == "partition":
            return name, None
        return None if self._ordering == "none" or key is None else (name, key)

    # -- work ---------------------------------------------------------------------------------------------

    def take(self, now: float) -> Work | None:
        """The next record to work on, if one may be worked on now."""
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.append(heapq.heappop(self._delayed)[2])
        while self._ready:
            work = self._ready.popleft()
            if not work.partition.stopped:
                work.attempts += 1
                work.partition.running += 1
                return work
        return None

    @property
    def ready(self) -> int:
        """At least so many records could be taken, less those of stopped partitions."""
        return len(self._ready)

    def next_due(self) -> float | None:
        """When the first delayed record may be taken."""
        return self._delayed[0][0] if self._delayed else None

    def again(self, work: Work, at: float) -> None:
        """A record that was taken is to be taken again, not before `at`."""
        work.partition.running -= 1
        if not work.partition.stopped:
            heapq.heappush(self._delayed, (at, next(self._numbers), work))

    def give_up(self, work: Work) -> None:
        """A record that was taken stays undone: its key goes no further, and neither does the position."""
        work.partition.running -= 1

    def done(self, work: Work) -> None:
        """A record that was taken is done, and the next one of its key may be taken."""
        partition = work.partition
        partition.running -= 1
        if partition.lost:
            return
        partition.held -= 1
        self.held -= 1
        partition.done.add(work.offset)
        while partition.unfinished and partition.unfinished[0] in partition.done:
            partition.done.remove(partition.unfinished.popleft())
        if work.queue is not None and not partition.stopped:
            followers = self._followers[work.queue]
            if followers:
                self._ready.append(followers.popleft())
            else:
                del self._followers[work.queue]

    # -- partitions ---------------------------------------------------------------------------------------

    def positions(self) -> dict[TopicPartition, int]:
        """What may be committed: per partition the offset of the first record that is not done."""
        return {
            name: partition.position
            for name, partition in self._partitions.items()
            if partition.position > partition.first
        }

    def running(self, names: Iterable[TopicPartition]) -> int:
        """How many records of these partitions are being worked on."""
        return sum(partition.running for partition in self._of(names))

    def stop(self, names: Iterable[TopicPartition]) -> None:
        """Hand out no further record of these partitions; what runs may end and counts."""
        stopped = set(names)
        for partition in self._of(stopped):
            partition.stopped = True
        self._delayed = [entry for entry in self._delayed if not entry[2].partition.stopped]
        heapq.heapify(self._delayed)
        self._ready = deque(work for work in self._ready if not work.partition.stopped)
        for queue in [queue for queue in self._followers if queue[0] in stopped]:
            del self._followers[queue]

    def drop(self, names: Iterable[TopicPartition]) -> None:
        """Forget these partitions: what of them still runs will not count."""
        dropped = list(names)
        self.stop(dropped)
        for partition in list(self._of(dropped)):
            partition.lost = True
            self.held -= partition.held
            del self._partitions[partition.name]
        self._crowded.difference_update(dropped)

    def _of(self, names: Iterable[TopicPartition]) -> Iterator[_Partition]:
        return (self._partitions[name] for name in names if name in self._partitions)

    # -- the bound ----------------------------------------------------------------------------------------

    def share(self, partitions: int) -> int:
        """How many records one of so many partitions may hold: twice its part of the limit."""
        return self.limit if partitions <= 1 else max(1, min(self.limit // 2, 2 * self.limit // partitions))

    def pauses(self, assigned: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Which of the assigned partitions should not be read from now.

        All of them from when the limit is reached until half of it is done. One of several when it holds more
        than its share, so that a partition with a slow key leaves space to the others.
        """
        names = set(assigned)
        if not self._full:
            self._full = self.held >= self.limit
        elif self.held <= self.limit // 2:
            self._full = False
        if self._full:
            return names
        share = self.share(len(names))
        for name in names:
            partition = self._partitions.get(name)
            held = partition.held if partition is not None else 0
            if held >= share:
                self._crowded.add(name)
            elif held <= share // 2:
                self._crowded.discard(name)
        self._crowded &= names
        return set(self._crowded)
