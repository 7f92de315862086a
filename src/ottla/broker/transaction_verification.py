"""Asks the coordinator of a transaction whether a partition is part of it, before records of it are written.

A leader takes the first records of a transaction only when the coordinator has said that the transaction is
open and has the partition (KIP-890). Otherwise a request that was delayed could begin a transaction that
nobody would ever end. Newer clients leave it to the leader to add the partition: then the same request adds
it. `VerificationGuard`s in the log (see `Partition.begin_verification`) tie the answer to the append.

The coordinator is asked in this process if it is here. For every other broker there is one request under way
at a time, and what comes meanwhile goes into the next one together: each transactional id once, since the
request has one entry for each.

Right after a transaction has ended its coordinator may still write markers, and answers
CONCURRENT_TRANSACTIONS to the first write of the next one. Such a write is tried again for a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from ottla.cluster.image import NO_LEADER, ClusterImage
from ottla.completion import Completion
from ottla.coordinator.partitioning import partition_of
from ottla.coordinator.transactions.coordinator import TRANSACTION_TOPIC
from ottla.peer.client import PeerClient, PeerUnreachable, UnsupportedByPeer
from ottla.protocol.errors import ApiError, ErrorCode, error_of
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.replication.partition import Partition
from ottla.storage.verification import UNCHECKED, VerificationGuard

logger = logging.getLogger("ottla.transactions")

Place = tuple[str, int]
"""A topic and a partition."""
Errors = dict[Place, ErrorCode]
"""By partition. Those that may be written to are not among them."""

VERIFICATION = "verification"
"""The connections that checks go by."""
_PRODUCE_ABORTABLE_SINCE, _PRODUCE_ADDS_SINCE = 11, 12
_COMMIT_ABORTABLE_SINCE, _COMMIT_ADDS_SINCE = 4, 5
MOST_VERIFICATIONS = 5
"""So often records are verified again because a marker came meanwhile, which ends a verification. It is that
of the transaction before, as a rule."""
_TIMEOUT_SECONDS = 10.0
_MOST_IN_REQUEST = 5_000
"""Partitions in one request to another broker, unless one transaction alone has more."""


class Retries(NamedTuple):
    """How a leader tries again to add its partition while the transaction before is being completed."""

    pause: float
    seconds: float
    """So long markers of the transaction before may take. Then the client tries again itself."""


class Abilities(NamedTuple):
    """What the client of a transaction can do, which the version of its request tells."""

    adds: bool
    """The leader adds the partition to the transaction, and the epoch rises with each transaction."""
    knows_abortable: bool
    """It knows TRANSACTION_ABORTABLE."""


class PartitionCheck(NamedTuple):
    """Whether these partitions may be written to in a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Collection[Place]
    adds: bool

    def joins(self, other: PartitionCheck) -> bool:
        """Whether one entry of a request can ask both."""
        return self[:3] == other[:3] and self.adds == other.adds


def of_producer(version: int) -> Abilities:
    """Of a client that sends this version of Produce."""
    return Abilities(adds=version >= _PRODUCE_ADDS_SINCE, knows_abortable=version >= _PRODUCE_ABORTABLE_SINCE)


def of_committer(version: int) -> Abilities:
    """Of a client that sends this version of TxnOffsetCommit."""
    return Abilities(adds=version >= _COMMIT_ADDS_SINCE, knows_abortable=version >= _COMMIT_ABORTABLE_SINCE)


def coordinator_of(image: ClusterImage, transactional_id: str) -> int | None:
    """The broker that coordinates a transactional id; None while there is none."""
    topic = image.topics.get(TRANSACTION_TOPIC)
    if topic is None:
        return None
    leader = topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader
    return None if leader == NO_LEADER else leader


class Verification(NamedTuple):
    """What is known when records of a transaction come in."""

    guard: VerificationGuard | None
    """For `Partition.append`."""
    is_open: bool
    """The coordinator has to be asked before."""


class LocalCoordinator(Protocol):
    """What is used of the coordinator in this broker."""

    def verify_or_add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[Place],
        add: bool,
    ) -> Completion[dict[Place, ErrorCode]]:
        """A code for each partition, NONE where it is part of the transaction."""


class TransactionVerification:
    def __init__(
        self,
        node_id: int,
        coordinator_of: Callable[[str], int | None],
        local: LocalCoordinator,
        peer: Callable[[int], PeerClient],
        now: Callable[[], float],
        is_enabled: Callable[[], bool],
        retries: Callable[[], Retries],
    ) -> None:
        """`coordinator_of` tells the broker that coordinates a transactional id. What `is_enabled` says
        concerns clients that add partitions to transactions themselves."""
        self._node_id = node_id
        self._coordinator_of = coordinator_of
        self._local = local
        self._peer = peer
        self._now = now
        self._is_enabled = is_enabled
        self._retries = retries
        self._queues: dict[int, _Queue] = {}

    def begin(
        self, partition: Partition, producer_id: int, producer_epoch: int, sequence: int, client: Abilities
    ) -> Verification:
        """Records of a transaction came in for this partition. ApiError if it refuses them already."""
        if not client.adds and not self._is_enabled():
            return Verification(UNCHECKED, is_open=False)
        guard = partition.begin_verification(producer_id, producer_epoch, sequence, bumps_epoch=client.adds)
        return Verification(guard, is_open=guard is not None)

    async def errors(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[Place],
        client: Abilities,
    ) -> Errors:
        """Why partitions may not be written to, in terms that the producer's client knows."""
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        retries = self._retries()
        end = self._now() + retries.seconds
        found: Errors = {}
        left = partitions
        while True:
            check = PartitionCheck(transactional_id, producer_id, producer_epoch, left, client.adds)
            codes = await self._ask(check)
            found.update((place, code) for place, code in codes.items() if code)
            left = [place for place in left if codes.get(place) is ErrorCode.CONCURRENT_TRANSACTIONS]
            if not left or not client.adds or self._now() >= end:
                return {place: _for_client(code, client) for place, code in found.items()}
            for place in left:
                del found[place]
            await asyncio.sleep(retries.pause)

    async def _ask(self, check: PartitionCheck) -> Mapping[Place, ErrorCode]:
        broker_id = self._coordinator_of(check.transactional_id)
        if broker_id is None:
            return _all(check, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if broker_id == self._node_id:
            return await self._local.verify_or_add(*check).as_future()
        queue = self._queues.get(broker_id)
        if queue is None:
            queue = self._queues[broker_id] = _Queue(lambda: self._peer(broker_id))
        return await queue.ask(check)

    async def stop(self) -> None:
        """Whoever waits gets an error that makes clients try again."""
        queues = list(self._queues.values())
        self._queues.clear()
        for queue in queues:
            await queue.stop()


def _for_client(code: ErrorCode, client: Abilities) -> ErrorCode:
    """Producers know PRODUCER_FENCED from coordinators alone, and older ones no TRANSACTION_ABORTABLE."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not client.knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _all(check: PartitionCheck, code: ErrorCode) -> Errors:
    return dict.fromkeys(check.partitions, code)


class _Waiting(NamedTuple):
    check: PartitionCheck
    answer: asyncio.Future[Mapping[Place, ErrorCode]]


class _Queue:
    """Checks to one other broker."""

    def __init__(self, peer: Callable[[], PeerClient]) -> None:
        self._peer = peer
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    async def ask(self, check: PartitionCheck) -> Mapping[Place, ErrorCode]:
        waiting = _Waiting(check, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send_all())
        return await waiting.answer

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._answer_rest()

    async def _send_all(self) -> None:
        under_way: list[_Waiting] = []
        try:
            while self._waiting:
                under_way = _next_questions(self._waiting)
                await self._send(under_way)
        finally:
            self._task = None
            for each in under_way:
                _answer(each, _all(each.check, ErrorCode.NETWORK_EXCEPTION))
            self._answer_rest()

    async def _send(self, checks: list[_Waiting]) -> None:
        try:
            response = await self._peer().call(_request(checks), timeout=_TIMEOUT_SECONDS)
        except (PeerUnreachable, UnsupportedByPeer, ApiError) as error:
            logger.info("the coordinator of %d transactions cannot be asked: %s", len(checks), error)
            for each in checks:
                _answer(each, _all(each.check, ErrorCode.NETWORK_EXCEPTION))
            return
        for each, codes in zip(checks, _codes(response, checks), strict=True):
            _answer(each, codes)

    def _answer_rest(self) -> None:
        while self._waiting:
            each = self._waiting.popleft()
            _answer(each, _all(each.check, ErrorCode.NETWORK_EXCEPTION))


def _answer(waiting: _Waiting, codes: Mapping[Place, ErrorCode]) -> None:
    """The first answer counts, and nobody may be waiting any more."""
    if not waiting.answer.done():
        waiting.answer.set_result(codes)


def _next_questions(waiting: deque[_Waiting]) -> list[_Waiting]:
    """Take out what one request can ask. A check about a transaction that is in it already with another
    epoch waits for the next request, as do all later checks about that transaction."""
    taken: list[_Waiting] = []
    left: list[_Waiting] = []
    entries: dict[str, PartitionCheck | None] = {}
    partitions = 0
    while waiting:
        each = waiting.popleft()
        check = each.check
        entry = entries.setdefault(check.transactional_id, check)
        is_full = bool(taken) and partitions + len(check.partitions) > _MOST_IN_REQUEST
        if is_full or entry is None or not entry.joins(check):
            entries[check.transactional_id] = None
            left.append(each)
        else:
            taken.append(each)
            partitions += len(check.partitions)
    waiting.extend(left)
    return taken


def _request(checks: Collection[_Waiting]) -> AddPartitionsToTxnRequest:
    transactions: dict[str, AddPartitionsToTxnTransaction] = {}
    topics: dict[str, dict[str, dict[int, None]]] = {}
    for check, _ in checks:
        name = check.transactional_id
        if name not in transactions:
            transactions[name] = AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=check.producer_id,
                producer_epoch=check.producer_epoch,
                verify_only=not check.adds,
            )
        of_transaction = topics.setdefault(name, {})
        for topic, index in check.partitions:
            of_transaction.setdefault(topic, {})[index] = None
    for name, transaction in transactions.items():
        transaction.topics = [
            AddPartitionsToTxnTopic(name=topic, partitions=list(indexes))
            for topic, indexes in topics[name].items()
        ]
    return AddPartitionsToTxnRequest(transactions=list(transactions.values()))


def _codes(response: AddPartitionsToTxnResponse, checks: Collection[_Waiting]) -> list[Errors]:
    """The answer to each check. What the response leaves out is not known."""
    whole = error_of(response.error_code)
    if whole:
        return [_all(check, whole) for check, _ in checks]
    found = {
        (transaction.transactional_id, topic.name, each.partition_index): error_of(each.partition_error_code)
        for transaction in response.results_by_transaction
        for topic in transaction.topic_results
        for each in topic.results_by_partition
    }
    return [
        {
            place: found.get((check.transactional_id, *place), ErrorCode.NETWORK_EXCEPTION)
            for place in check.partitions
        }
        for check, _ in checks
    ]
