"""What follows when the outcome of a transaction is decided: its markers, and its completion.

A transaction ends in two steps. EndTxn writes its outcome (PrepareCommit or PrepareAbort), and is answered
when that is committed: from then on the outcome stands, whatever fails. Only then the markers go out
(`MarkersDue`), and when all are written, the transaction is complete. A coordinator that takes over finds in
the log what is not complete and sends those markers again, since writing a marker twice changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial

from ottla.completion import Completion
from ottla.coordinator.runtime.effects import Reply
from ottla.coordinator.runtime.shard import Shard
from ottla.coordinator.transactions.shard import TransactionEffects, TransactionShard
from ottla.coordinator.transactions.transaction import TopicPartition, Transaction
from ottla.printable import shown
from ottla.protocol.errors import ApiError
from ottla.scheduler import Scheduler

logger = logging.getLogger("ottla.transactions")

_RETRY_SECONDS = 0.5
"""After which a step that the log did not take is tried again."""
_PATIENCE_SECONDS = 0.2
"""So long the next transaction of a producer waits for the markers of the one before. Clients that are told
to come again take a pause that is longer than markers do."""


class MarkersDue:
    """The markers of one transaction whose outcome is committed."""

    __slots__ = ("_done", "_shard", "remaining", "transaction")

    def __init__(
        self, shard: Shard[TransactionShard], transaction: Transaction, done: Callable[[], None]
    ) -> None:
        self._shard = shard
        self._done = done
        self.transaction = transaction
        self.remaining = set(transaction.partitions)
        """Those that have no marker yet."""

    @property
    def coordinator_epoch(self) -> int:
        return self._shard.leader_epoch

    @property
    def is_wanted(self) -> bool:
        """Whether this broker still coordinates the transaction."""
        return not self._shard.has_ended

    def settled(self, partitions: Collection[TopicPartition]) -> None:
        """These have their marker, or do not exist any more."""
        was_open = bool(self.remaining)
        self.remaining.difference_update(partitions)
        if was_open and not self.remaining and self.is_wanted:
            self._done()


class Endings:
    def __init__(self, scheduler: Scheduler, send_markers: Callable[[MarkersDue], None]) -> None:
        self._scheduler = scheduler
        self._send_markers = send_markers
        self._due: dict[str, MarkersDue] = {}
        self._waiting: dict[str, list[Completion[None]]] = {}

    def awaited(self, transactional_id: str) -> Completion[None]:
        """Resolved when the transaction is complete, or after a moment when that takes longer."""
        complete: Completion[None] = Completion()
        self._waiting.setdefault(transactional_id, []).append(complete)
        self._scheduler.call_later(_PATIENCE_SECONDS, self._give_up, transactional_id, complete)
        return complete

    def _give_up(self, transactional_id: str, complete: Completion[None]) -> None:
        waiting = self._waiting.get(transactional_id)
        if waiting is not None and complete in waiting:
            waiting.remove(complete)
            if not waiting:
                del self._waiting[transactional_id]
        complete.resolve(None)

    def send_when_committed(
        self, shard: Shard[TransactionShard], transaction: Transaction, effects: TransactionEffects
    ) -> None:
        """Send the markers as soon as the outcome cannot be lost any more."""
        committed: Reply = Completion()
        effects.answer(committed, None)
        committed.then(
            lambda _: self._begin_markers(shard, transaction),
            lambda _: self._begin_later(shard, transaction),
        )

    def _begin_later(self, shard: Shard[TransactionShard], transaction: Transaction) -> None:
        """The commit took too long, or replicas are missing. It has to be waited for, as long as we lead."""
        if not shard.has_ended:
            self._scheduler.call_later(_RETRY_SECONDS, self.begin_when_committed, shard, transaction)

    def begin_when_committed(self, shard: Shard[TransactionShard], transaction: Transaction) -> None:
        if shard.has_ended:
            return
        shard.run(lambda _, reply, effects: effects.answer(reply, None)).then(
            lambda _: self._begin_markers(shard, transaction),
            lambda _: self._begin_later(shard, transaction),
        )

    def _begin_markers(self, shard: Shard[TransactionShard], transaction: Transaction) -> None:
        if shard.has_ended:
            return
        if not transaction.partitions:
            self._scheduler.call_soon(self._complete, shard, transaction)
            return
        due = MarkersDue(shard, transaction, partial(self._complete, shard, transaction))
        self._due[transaction.transactional_id] = due
        self._scheduler.call_soon(self._send_markers, due)

    def _complete(self, shard: Shard[TransactionShard], transaction: Transaction) -> None:
        if shard.has_ended:
            return
        try:
            shard.execute(lambda state, effects: state.complete(transaction, effects))
        except ApiError as error:
            name = shown(transaction.transactional_id)
            logger.debug("%r cannot complete the transaction of %s: %s; trying again", shard, name, error)
            self._scheduler.call_later(_RETRY_SECONDS, self._complete, shard, transaction)
            return
        due = self._due.get(transaction.transactional_id)
        if due is not None and due.transaction is transaction:
            del self._due[transaction.transactional_id]
        for waiting in self._waiting.pop(transaction.transactional_id, ()):
            waiting.resolve(None)

    def unmarked(self, transaction: Transaction) -> frozenset[TopicPartition]:
        """Its partitions, without those whose marker is written."""
        due = self._due.get(transaction.transactional_id)
        if due is None or due.transaction is not transaction:
            return transaction.partitions
        return frozenset(due.remaining)

    def forget_unwanted(self) -> None:
        """This broker does not lead some partitions any more."""
        self._due = {key: due for key, due in self._due.items() if due.is_wanted}
