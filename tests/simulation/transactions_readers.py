"""Readers of simulated partitions: of all records, or of committed ones only. They note what they get."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from ottla.protocol.batches import headers
from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from ottla.protocol.records import decode_batch
from simulation.clients import FETCH_VERSION, MAX_SIZE, OFFSETS_VERSION, Caller, answered
from simulation.cluster_clients import ClusterClient
from simulation.history import Violation
from transaction_history.history import History, Key, LogEnd, OffsetRead, Poll

_ABORT = 0
_LATEST = -1
_LIST_VERSION = 6
_RESTART = 0.02


class Fetched(NamedTuple):
    end: int
    records: tuple[tuple[int, str], ...]
    leader_epoch: int = -1
    """Of the last batch."""


class Committed(NamedTuple):
    offset: int
    leader_epoch: int


async def fetch(client: Caller, key: Key, start: int, *, committed: bool, max_wait_ms: int) -> Fetched:
    """What one fetch gives; nothing if the broker refuses it for now."""
    wanted = FetchPartition(partition=key[1], fetch_offset=start, partition_max_bytes=16 * 1024)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=16 * 1024,
        isolation_level=int(committed),
        session_epoch=-1,
        topics=[FetchTopic(topic=key[0], partitions=[wanted])],
    )
    response = await answered(client, request, FETCH_VERSION)
    data = response.responses[0].partitions[0]
    error = error_of(data.error_code)
    if error and not error.retriable:
        raise Violation(f"a reader of {key} at {start} was refused with {error.name}")
    return Fetched(start, ()) if error else opened(data, start, committed=committed)


def opened(data: PartitionData, start: int, *, committed: bool) -> Fetched:
    """The records that a consumer hands to its user, and where it goes on."""
    aborted = sorted((each.first_offset, each.producer_id) for each in data.aborted_transactions or ())
    aborting: set[int] = set()
    found: list[tuple[int, str]] = []
    view, end, leader_epoch = memoryview(data.records or b""), start, -1
    for position, header in headers(view):
        while aborted and aborted[0][0] <= header.last_offset:
            aborting.add(aborted.pop(0)[1])
        batch = decode_batch(view[position : position + header.size], max_size=MAX_SIZE)
        end, leader_epoch = max(end, header.next_offset), header.leader_epoch
        if header.is_control:
            kind = batch[0].key or b""
            if int.from_bytes(kind[2:4], "big") == _ABORT:
                aborting.discard(header.producer_id)
        elif not (committed and header.is_transactional and header.producer_id in aborting):
            found += [(each.offset, (each.value or b"").decode()) for each in batch if each.offset >= start]
    return Fetched(end, tuple(found), leader_epoch)


class Reader:
    """Keeps a position in each key. From time to time it begins anew, as a consumer that was restarted."""

    def __init__(self, name: str, client: ClusterClient, history: History, *, committed: bool) -> None:
        self._name = name
        self._client = client
        self._history = history
        self._committed = committed
        self._assignment = 0
        self._positions: dict[Key, int] = {}
        self._leader_epochs: dict[Key, int] = {}

    def assign(self, positions: dict[Key, Committed]) -> None:
        """Go on at what was committed, but not with a leader that may not have it yet (KIP-320)."""
        self._assignment += 1
        self._positions = {key: max(committed.offset, 0) for key, committed in positions.items()}
        self._leader_epochs = {key: committed.leader_epoch for key, committed in positions.items()}
        for key, leader_epoch in self._leader_epochs.items():
            self._client.has_seen(key, leader_epoch)

    async def poll(self, key: Key, max_wait_ms: int = 0) -> tuple[tuple[int, str], ...]:
        start, assignment = self._positions.setdefault(key, 0), self._assignment
        found = await fetch(self._client, key, start, committed=self._committed, max_wait_ms=max_wait_ms)
        if (self._assignment, self._positions.get(key)) != (assignment, start):
            return ()  # another task has polled or moved this reader meanwhile
        if found.end > start or found.records:
            now = asyncio.get_running_loop().time()
            poll = Poll(
                self._name, self._assignment, self._committed, key, start, found.end, found.records, now
            )
            self._history.polls.append(poll)
            self._positions[key], self._leader_epochs[key] = found.end, found.leader_epoch
        return found.records

    def position(self, key: Key) -> int:
        return self._positions.get(key, 0)

    def to_commit(self, key: Key) -> Committed:
        return Committed(self.position(key), self._leader_epochs.get(key, -1))

    async def run(self, keys: Sequence[Key], rng: Random, pause: float) -> None:
        while True:
            for key in keys:
                await self.poll(key)
            if rng.random() < _RESTART:
                self.assign({})
            await asyncio.sleep(pause * rng.uniform(0.5, 1.5))

    async def read_to(self, ends: dict[Key, LogEnd]) -> None:
        """Everything, from the start on, as far as the logs are stable."""
        self.assign({})
        for key, end in ends.items():
            goal = end.stable if self._committed else end.end
            while (before := self.position(key)) < goal:
                await self.poll(key)
                if self.position(key) == before:
                    await asyncio.sleep(0.1)


async def log_end(client: Caller, key: Key) -> LogEnd:
    stable, end = [await _end(client, key, committed=committed) for committed in (True, False)]
    return LogEnd(stable, end)


async def _end(client: Caller, key: Key, *, committed: bool) -> int:
    asked = ListOffsetsPartition(partition_index=key[1], timestamp=_LATEST)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(committed),
        topics=[ListOffsetsTopic(name=key[0], partitions=[asked])],
    )
    while True:
        response = await answered(client, request, version=_LIST_VERSION)
        found = response.topics[0].partitions[0]
        error = error_of(found.error_code)
        if not error:
            return int(found.offset)
        if not error.retriable:
            raise Violation(f"{key} has no offsets: {error.name}")
        await asyncio.sleep(0.1)


async def stable_offsets(
    client: Caller, group: str, keys: Sequence[Key], history: History
) -> dict[Key, Committed]:
    """Where the group goes on, -1 where nothing is committed. Waits for the end of open transactions."""
    loop = asyncio.get_running_loop()
    topics: dict[str, list[int]] = {}
    for topic, index in keys:
        topics.setdefault(topic, []).append(index)
    request = OffsetFetchRequest(
        group_id=group,
        require_stable=True,
        topics=[OffsetFetchRequestTopic(name=name, partition_indexes=some) for name, some in topics.items()],
    )
    while True:
        asked = loop.time()
        response = await answered(client, request, OFFSETS_VERSION)
        answers = [(t.name, each) for t in response.topics for each in t.partitions]
        codes = {error_of(code) for code in (response.error_code, *(each.error_code for _, each in answers))}
        codes.discard(ErrorCode.NONE)
        if not codes:
            found = {
                (topic, each.partition_index): Committed(each.committed_offset, each.committed_leader_epoch)
                for topic, each in answers
            }
            for key, committed in found.items():
                history.offset_reads.append(OffsetRead(group, key, committed.offset, asked, loop.time()))
            return found
        for code in codes:
            if not code.retriable:
                raise Violation(f"the offsets of {group} are refused: {code.name}")
        await asyncio.sleep(0.2)
