"""A transactional producer for the simulation, which speaks either protocol with our own codec.

It does what good clients do: it asks again after errors that may pass, with the same sequence; aborts after
others; and ends when it is fenced. What it learns goes into the `History`.

* The second protocol (`transaction.version` 2): Produce 12 and TxnOffsetCommit 5 add partitions and groups to
  the transaction, and EndTxn 5 answers with the epoch of the next transaction.
* The first: AddPartitionsToTxn and AddOffsetsToTxn do it, and the epoch stays. When the outcome of a batch is
  not known at an abort, the producer asks for a new epoch (KIP-360).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from ottla.peer.client import PeerUnreachable
from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.records import Record, encode_batch
from ottla.testing.simulation.virtual_time import START_MS
from simulation.transactions_network import LateNetwork
from simulation.transactions_readers import Committed
from transaction_history.history import History, Key, Outcome, Send, Source, Transaction

logger = logging.getLogger("ottla.simulation")

TIMEOUT = 3.0
PATIENCE = (0.5, 10.0, 10.0)
"""Seconds for one step of a transaction, one of these. Then the producer gives up, as clients do after
`delivery.timeout.ms`."""
_PAUSE = 0.05
_PRODUCE = {1: 11, 2: 12}
_END = {1: 4, 2: 5}
_COMMIT_OFFSETS = {1: 4, 2: 5}
_ADD_PARTITIONS, _ADD_OFFSETS, _INIT = 3, 4, 5


class Abortable(Exception):
    """The transaction cannot be committed."""


class Fenced(Exception):
    """The producer cannot go on."""


class TransactionalProducer:
    def __init__(
        self,
        name: str,
        transactional_id: str,
        network: LateNetwork,
        history: History,
        rng: Random,
        *,
        protocol: int,
        timeout_ms: int,
    ) -> None:
        self.name = name
        self.network = network
        self._id = transactional_id
        self._history = history
        self._rng = rng
        self._protocol = protocol
        self._timeout_ms = timeout_ms
        self._producer = (-1, -1)
        self._sequences: dict[Key, int] = {}
        self._added: set[Key | str] = set()
        self._has_begun = False
        self._is_unsure = False  # what the leaders have of its last batches
        self._patience = max(PATIENCE)
        self._count = 0

    # -- its life -------------------------------------------------------------------------------------

    async def initialize(self, *, go_on: bool = False) -> None:
        """Begin as a new instance, or `go_on` with a new epoch. Tries for ever, unless it is fenced."""
        known = self._producer if go_on else (-1, -1)
        request = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=known[0],
            producer_epoch=known[1],
        )
        while True:
            response = await self._answer(request, _INIT)
            if response is not None and not response.error_code:
                self._take(response.producer_id, response.producer_epoch)
                return
            if response is not None:
                self._check_fenced(error_of(response.error_code))
            await self._pause()

    def begin(self) -> Transaction:
        self._count += 1
        transaction = Transaction(f"{self.name}/{self._count}", self._id, self._producer)
        transaction.outcome = Outcome.ABORTED  # until a commit is asked for
        self._history.transactions.append(transaction)
        self._added.clear()
        self._has_begun = False
        self._patience = self._rng.choice(PATIENCE)
        return transaction

    def _take(self, producer_id: int, epoch: int) -> None:
        self._producer = (producer_id, epoch)
        self._sequences.clear()
        self._is_unsure = False
        logger.info("%s: producer %d epoch %d", self.name, producer_id, epoch)

    # -- records and offsets --------------------------------------------------------------------------

    async def send(
        self, transaction: Transaction, key: Key, values: Sequence[str], sources: Sequence[Source] = ()
    ) -> None:
        sends = [Send(key, value) for value in values]
        for send, source in zip(sends, sources, strict=False):
            send.source = source
        transaction.sends += sends
        self._has_begun = True
        if self._protocol == 1 and key not in self._added:
            await self._add_partition(key)
        sequence = self._sequences.get(key, 0)
        request = self._produce_request(key, values, sequence)
        self._is_unsure = True
        deadline = self._deadline()
        while True:
            response = await self._answer(request, _PRODUCE[self._protocol])
            if response is not None:
                result = response.responses[0].partition_responses[0]
                code = error_of(result.error_code)
                logger.info(
                    "%s: %s from sequence %d on in %s-%d: %s, offset %d",
                    transaction.name,
                    ", ".join(values),
                    sequence,
                    *key,
                    code.name,
                    result.base_offset,
                )
                if not code:
                    break
                if not code.retriable:
                    raise Abortable(code.name)
            await self._pause(deadline)
        self._is_unsure = False
        self._sequences[key] = sequence + len(values)
        for offset, send in enumerate(sends, result.base_offset):
            send.offset = offset

    def _produce_request(self, key: Key, values: Sequence[str], sequence: int) -> ProduceRequest:
        now = START_MS + int(asyncio.get_running_loop().time() * 1000)
        batch = encode_batch(
            [Record(n, now, None, value.encode(), []) for n, value in enumerate(values)],
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=sequence,
            transactional=True,
        )
        data = TopicProduceData(
            name=key[0], partition_data=[PartitionProduceData(index=key[1], records=batch)]
        )
        return ProduceRequest(transactional_id=self._id, acks=-1, timeout_ms=2000, topic_data=[data])

    async def _add_partition(self, key: Key) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer[0],
            v3_and_below_producer_epoch=self._producer[1],
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=key[0], partitions=[key[1]])],
        )

        def code_of(response: Any) -> int:
            return int(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

        await self._until_done(request, _ADD_PARTITIONS, code_of)
        self._added.add(key)

    async def commit_offsets(
        self,
        transaction: Transaction,
        group: str,
        member: tuple[str, int],
        offsets: Mapping[Key, Committed],
    ) -> None:
        """Where a group goes on, in the name of one of its members with its generation."""
        self._has_begun = True
        transaction.offsets.update({(group, key): committed.offset for key, committed in offsets.items()})
        if self._protocol == 1 and group not in self._added:
            request = AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=self._producer[0],
                producer_epoch=self._producer[1],
                group_id=group,
            )
            await self._until_done(request, _ADD_OFFSETS, lambda response: int(response.error_code))
            self._added.add(group)
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, index), committed in offsets.items():
            topics.setdefault(topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata="",
                )
            )
        commit = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=group,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            member_id=member[0],
            generation_id=member[1],
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=some) for name, some in topics.items()],
        )

        def code_of(response: Any) -> int:
            return next(
                (each.error_code for t in response.topics for each in t.partitions if each.error_code), 0
            )

        await self._until_done(commit, _COMMIT_OFFSETS[self._protocol], code_of)

    # -- the end --------------------------------------------------------------------------------------

    async def commit(self, transaction: Transaction) -> None:
        transaction.outcome = Outcome.UNKNOWN
        await self._end(transaction, commit=True)
        transaction.outcome = Outcome.COMMITTED
        transaction.ended = asyncio.get_running_loop().time()

    async def abort(self, transaction: Transaction) -> None:
        await self._end(transaction, commit=False)
        if self._protocol == 1 and self._is_unsure:
            await self.initialize(go_on=True)

    async def _end(self, transaction: Transaction, *, commit: bool) -> None:
        is_needed = self._has_begun if self._protocol == 2 else bool(self._added)
        if commit and transaction.commit_sent is None:
            transaction.commit_sent = asyncio.get_running_loop().time()
        if not is_needed:
            return
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            committed=commit,
        )
        deadline, is_first, copies = self._deadline(), True, self.network.copies
        while True:
            response = await self._answer(request, _END[self._protocol])
            if response is not None:
                code = error_of(response.error_code)
                logger.info("%s: %s: %s", transaction.name, "commit" if commit else "abort", code.name)
                if not code:
                    if self._protocol == 2:
                        self._take(response.producer_id, response.producer_epoch)
                    return
                if not code.retriable:
                    # The only request that there is was refused: nothing can commit the transaction.
                    if commit and is_first and copies == self.network.copies:
                        transaction.outcome = Outcome.ABORTED
                    raise Fenced(code.name)
            is_first = False
            try:
                await self._pause(deadline)
            except Abortable as late:
                raise Fenced(str(late)) from None

    # -- requests -------------------------------------------------------------------------------------

    async def _answer(self, request: Any, version: int) -> Any:
        """The response, or None."""
        try:
            return await self.network.call(request, timeout=TIMEOUT, version=version)
        except PeerUnreachable:
            return None

    async def _until_done(self, request: Any, version: int, code_of: Any) -> None:
        deadline = self._deadline()
        while True:
            response = await self._answer(request, version)
            if response is not None:
                code = error_of(code_of(response))
                if not code:
                    return
                if not code.retriable:
                    logger.info("%s: %s was refused: %s", self.name, type(request).__name__, code.name)
                    raise Abortable(code.name)
            await self._pause(deadline)

    def _check_fenced(self, code: ErrorCode) -> None:
        if not code.retriable:
            raise Fenced(code.name)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._patience

    async def _pause(self, deadline: float | None = None) -> None:
        if deadline is not None and asyncio.get_running_loop().time() > deadline:
            raise Abortable("it took too long")
        await asyncio.sleep(_PAUSE * self._rng.uniform(0.5, 2.0))
