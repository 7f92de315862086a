"""The transaction coordinator of a broker: runs commands on the shard of a transactional id.

Transactional ids are spread over the partitions of `__transaction_state` by their hash, and the broker that
leads a partition coordinates its ids. Every answer tells committed state.

Every broker knows from its image which one that is. What comes after a decision to commit or abort is in
`endings`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ottla.clock import Clock
from ottla.completion import Completion, run_coroutine
from ottla.coordinator.partitioning import partition_of
from ottla.coordinator.runtime.effects import Reply
from ottla.coordinator.runtime.loading import InThread
from ottla.coordinator.runtime.runtime import CoordinatorRuntime
from ottla.coordinator.runtime.shard import Shard
from ottla.coordinator.transactions.endings import Endings, MarkersDue
from ottla.coordinator.transactions.records import TRANSACTION_RECORDS
from ottla.coordinator.transactions.shard import TransactionEffects, TransactionShard
from ottla.coordinator.transactions.transaction import (
    EPOCH_PER_TRANSACTION,
    PREPARED,
    TopicPartition,
    Transaction,
)
from ottla.coordinator.transactions.transitions import (
    NeedsProducerId,
    Producer,
    completed,
    ended,
    initialized,
    verified,
    with_partitions,
)
from ottla.printable import shown
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from ottla.scheduler import Scheduler
from ottla.storage.producer_state import fair_limit

logger = logging.getLogger("ottla.transactions")

TRANSACTION_TOPIC = "__transaction_state"
_AT_A_TIME = 1000
"""Of what the coordinator does by itself, before other work of the event loop is done."""
_PREPARED_AT_A_TIME = 20
"""The same of transactions that it has to end: most of their markers are written in between."""

T = TypeVar("T")
Errors = dict[TopicPartition, ErrorCode]
_Shard = Shard[TransactionShard]
_Command = Callable[[_Shard, TransactionShard, Reply, TransactionEffects], None]


class TransactionSettings(NamedTuple):
    """What may change while the broker runs, besides the clock."""

    commit_timeout_ms: Callable[[], int]
    expiration_ms: Callable[[], int]
    most_ids: Callable[[], int]
    """Transactional ids that this coordinator keeps."""
    server_version: Callable[[], int]
    """Of the feature `transaction.version`."""


class TransactionCoordinator:
    def __init__(
        self,
        settings: TransactionSettings,
        *,
        clock: Clock,
        scheduler: Scheduler,
        purgatory: Purgatory,
        in_thread: InThread,
        next_producer_id: Callable[[], Awaitable[int]],
        send_markers: Callable[[MarkersDue], None],
        may_be_replaced: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._scheduler = scheduler
        self._next_producer_id = next_producer_id
        self._endings = Endings(scheduler, send_markers)
        self._runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTION_TOPIC,
            TRANSACTION_RECORDS,
            partial(TransactionShard, clock),
            clock=clock,
            scheduler=scheduler,
            purgatory=purgatory,
            in_thread=in_thread,
            commit_timeout_ms=settings.commit_timeout_ms,
            on_loaded=self._finish_prepared,
            may_be_replaced=may_be_replaced,
        )

    # -- requests of producers ----------------------------------------------------------------------------

    def initialize(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None
    ) -> Completion[Producer]:
        """The id and epoch with which a producer begins. CONCURRENT_TRANSACTIONS while the transaction of the
        one before is being ended: the client asks again."""

        def attempt(new_id: int | None) -> Completion[Producer]:
            def command(
                shard: _Shard, state: TransactionShard, reply: Reply, effects: TransactionEffects
            ) -> None:
                after = initialized(
                    state.get(transactional_id),
                    transactional_id,
                    timeout_ms,
                    expected,
                    new_id=new_id,
                    server_version=self._settings.server_version(),
                    now_ms=effects.now_ms,
                )
                effects.write(after)
                if after.state in PREPARED:
                    self._endings.send_when_committed(shard, after, effects)
                    # An answer of its own kind: the records must be written, and the client refused.
                    effects.answer(reply, None)
                else:
                    effects.answer(reply, Producer(after.producer_id, after.producer_epoch))

            return self._run(transactional_id, command).map(_concurrent_if_none)

        return self._with_producer_id(attempt)

    def verify_or_add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        add: bool,
    ) -> Completion[Errors]:
        """For leaders: whether these partitions are part of the transaction, or make them so. Never fails."""
        producer = Producer(producer_id, producer_epoch)
        outcome: Completion[Errors]
        if add:
            added = self.add_partitions(
                transactional_id, producer, partitions, client_version=EPOCH_PER_TRANSACTION
            )
            outcome = added.map(lambda _: dict.fromkeys(partitions, ErrorCode.NONE))
        else:
            outcome = self._verify(transactional_id, producer, partitions)

        def refused(error: Exception) -> Errors:
            if isinstance(error, ApiError):
                return dict.fromkeys(partitions, error.code)
            raise error

        return outcome.map(lambda errors: errors, refused)

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        client_version: int = 0,
    ) -> Completion[None]:
        """CONCURRENT_TRANSACTIONS while the transaction before is not complete."""

        def command(_: _Shard, state: TransactionShard, reply: Reply, effects: TransactionEffects) -> None:
            # The record holds all partitions, so that a transaction with very many does not fit
            # (RECORD_LIST_TOO_LARGE); it goes on without those that were to be added.
            after = with_partitions(
                state.get(transactional_id),
                producer,
                partitions,
                client_version=client_version,
                now_ms=effects.now_ms,
            )
            if after is not None:
                effects.write(after)
            effects.answer(reply, None)

        return self._run(transactional_id, command)

    def add_partitions_soon(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> Completion[None]:
        """The same for clients of the first protocol, after a moment if the one before is being completed."""

        def attempt(_: None = None) -> Completion[None]:
            return self.add_partitions(transactional_id, producer, partitions)

        def again(error: Exception) -> Completion[None]:
            if isinstance(error, ApiError) and error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
                return self._endings.awaited(transactional_id).map(attempt)
            raise error

        return attempt().map(lambda _: None, again)

    def _verify(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> Completion[Errors]:
        def command(_: _Shard, state: TransactionShard, reply: Reply, effects: TransactionEffects) -> None:
            effects.answer(reply, verified(state.get(transactional_id), producer, partitions))

        return self._run(transactional_id, command)

    def end(
        self, transactional_id: str, producer: Producer, *, commit: bool, client_version: int
    ) -> Completion[Producer]:
        """Commit or abort: the id and epoch with which the producer goes on."""

        def attempt(new_id: int | None) -> Completion[Producer]:
            def command(
                shard: _Shard, state: TransactionShard, reply: Reply, effects: TransactionEffects
            ) -> None:
                current = state.get(transactional_id)
                after = ended(
                    current,
                    producer,
                    commit=commit,
                    client_version=client_version,
                    new_id=new_id,
                    now_ms=effects.now_ms,
                )
                if after is None:
                    assert current is not None
                    effects.answer(reply, Producer(current.producer_id, current.producer_epoch))
                    return
                effects.write(after)
                then = completed(after, effects.now_ms)
                effects.answer(reply, Producer(then.producer_id, then.producer_epoch))
                self._endings.send_when_committed(shard, after, effects)

            return self._run(transactional_id, command)

        return self._with_producer_id(attempt)

    # -- what tools ask -----------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Completion[Transaction]:
        """With the partitions that have no marker yet. TRANSACTIONAL_ID_NOT_FOUND if there is none."""

        def command(_: _Shard, state: TransactionShard, reply: Reply, effects: TransactionEffects) -> None:
            found = state.get(transactional_id)
            if found is None:
                raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
            effects.answer(reply, found)

        return self._run(transactional_id, command)

    def unmarked(self, transaction: Transaction) -> frozenset[TopicPartition]:
        """Its partitions, without those whose marker is written."""
        return self._endings.unmarked(transaction)

    def all_shards(self) -> list[Shard[TransactionShard]]:
        """For a request about all ids. COORDINATOR_LOAD_IN_PROGRESS while some are not known yet."""
        if self._runtime.is_loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._runtime.active_shards()

    # -- running commands ---------------------------------------------------------------------------------

    def _run(
        self,
        transactional_id: str,
        command: _Command,
    ) -> Completion[Any]:
        try:
            index = partition_of(transactional_id, max(self._runtime.partitions, 1))
            shard = self._runtime.shard(index)
        except ApiError as error:
            return Completion.failed(error)
        return shard.run(partial(command, shard))

    def _with_producer_id(self, attempt: Callable[[int | None], Completion[T]]) -> Completion[T]:
        """Most commands need no new producer id. One that does is run again when there is one."""

        async def again() -> Completion[T]:
            try:
                new_id = await self._next_producer_id()
            except ApiError as error:
                # Retriable for every client, which NOT_CONTROLLER and a storage error are not.
                raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message) from error
            return attempt(new_id)

        try:
            return attempt(None)
        except NeedsProducerId:
            return run_coroutine(again())

    # -- what it does by itself ---------------------------------------------------------------------------

    async def _finish_prepared(self, shard: Shard[TransactionShard]) -> None:
        """A shard is loaded: end what its coordinator before has begun to end."""
        for count, transaction in enumerate(shard.state.prepared(), 1):
            self._endings.begin_when_committed(shard, transaction)
            if count % _PREPARED_AT_A_TIME == 0:
                await asyncio.sleep(0)

    async def abort_overdue(self) -> None:
        """Abort transactions that ran out of time."""
        for shard in self._runtime.active_shards():
            for count, transaction in enumerate(shard.state.overdue(), 1):
                if shard.has_ended:
                    break
                self._abort(shard, transaction)
                if count % _AT_A_TIME == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)  # all transactions of the shard were looked at

    def _abort(self, shard: Shard[TransactionShard], transaction: Transaction) -> None:
        name = shown(transaction.transactional_id)
        if shard.state.get(transaction.transactional_id) is not transaction:
            return  # it has changed since it was looked for

        def command(state: TransactionShard, effects: TransactionEffects) -> None:
            aborted = state.abort(transaction, effects, self._settings.server_version())
            self._endings.send_when_committed(shard, aborted, effects)

        try:
            shard.execute(command)
        except ApiError as error:
            logger.warning("%r cannot abort the transaction of %s: %s; trying again", shard, name, error)
            return
        logger.info(
            "aborting the transaction of %s, producer %d epoch %d: it is open for longer than %d ms",
            name,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.timeout_ms,
        )

    async def forget_expired(self) -> None:
        """Forget transactional ids that were not used for `transactional.id.expiration.ms`."""
        expiration_ms = self._settings.expiration_ms()
        for shard in self._runtime.active_shards():
            await self._forget(shard, lambda state: state.expired(expiration_ms, _AT_A_TIME))

    async def forget_idlest(self) -> None:
        """Anybody can invent transactional ids. Beyond `transactional.id.max.per.broker` forget those that
        were not used for longest; one whose transaction is open is not forgotten."""
        shards = self._runtime.active_shards()
        most = self._settings.most_ids()
        before = sum(shard.state.weight for shard in shards)
        limit = fair_limit([shard.state.weight for shard in shards], most)
        if limit is None:
            return
        for shard in shards:
            await self._forget(shard, lambda state: state.idlest(state.weight - limit, _AT_A_TIME))
        after = sum(shard.state.weight for shard in shards)
        logger.warning(
            "%d transactional ids are known, transactional.id.max.per.broker allows %d: forgot %d that were "
            "not used for longest",
            before,
            most,
            before - after,
        )

    async def _forget(
        self, shard: Shard[TransactionShard], find: Callable[[TransactionShard], list[str]]
    ) -> None:
        """Forget what `find` finds until it finds no more, with other work of the event loop in between."""
        while not shard.has_ended and (found := find(shard.state)):
            try:
                shard.execute(partial(_remove, found))
            except ApiError as error:
                logger.warning("%r cannot forget transactional ids: %s; trying again later", shard, error)
                break
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    # -- leadership ---------------------------------------------------------------------------------------

    def follow(self, partitions: int, led: Iterable[Partition]) -> None:
        self._runtime.follow(partitions, led)
        self._endings.forget_unwanted()

    async def loading_done(self) -> None:
        await self._runtime.loading_done()

    async def stop(self) -> None:
        await self._runtime.stop()


def _remove(transactional_ids: list[str], _: TransactionShard, effects: TransactionEffects) -> None:
    for each in transactional_ids:
        effects.remove(each)


def _concurrent_if_none(producer: Producer | None) -> Producer:
    if producer is None:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return producer
