"""All transactional ids of one partition of `__transaction_state`, and what is asked about them.

State changes by replay of records alone, since a `Transaction` is a value and its record holds all of it.
What the commands decide is in `transitions`.
"""

from __future__ import annotations

from typing import Any

from ottla.coordinator.runtime.effects import Effects
from ottla.coordinator.transactions.records import Entry
from ottla.coordinator.transactions.transaction import IDLE, PREPARED, Transaction, TransactionState
from ottla.coordinator.transactions.transitions import completed, fenced


class TransactionEffects(Effects[Entry]):
    def write(self, transaction: Transaction) -> None:
        self.records.append((transaction.transactional_id, transaction))

    def remove(self, transactional_id: str) -> None:
        self.records.append((transactional_id, None))


class TransactionShard:
    """Implements `ShardState`."""

    def __init__(self) -> None:
        self._transactions: dict[str, Transaction] = {}
        self._ongoing: set[str] = set()
        self._prepared: set[str] = set()

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def ids(self) -> list[str]:
        return list(self._transactions)

    def prepared(self) -> list[Transaction]:
        """Those whose outcome is decided and whose markers are not all written."""
        return [self._transactions[each] for each in self._prepared]

    def overdue(self, now_ms: int) -> list[Transaction]:
        """Those that ran out of time."""
        ongoing = (self._transactions[each] for each in self._ongoing)
        return [each for each in ongoing if each.start_ms + each.timeout_ms < now_ms]

    # -- what the coordinator does by itself --------------------------------------------------------------

    def abort(
        self, transaction: Transaction, effects: TransactionEffects, server_version: int
    ) -> Transaction:
        """Abort it because it ran out of time."""
        aborted = fenced(transaction, server_version=server_version, now_ms=effects.now_ms)
        effects.write(aborted)
        return aborted

    def complete(self, transaction: Transaction, effects: TransactionEffects) -> None:
        """All its markers are written."""
        if self.get(transaction.transactional_id) is transaction:
            effects.write(completed(transaction, effects.now_ms))

    def expired(self, before_ms: int, limit: int) -> list[str]:
        """Transactional ids that were not used since `before_ms`, at most so many."""
        found = []
        for transaction in self._transactions.values():
            if transaction.state in IDLE and transaction.update_ms <= before_ms:
                found.append(transaction.transactional_id)
                if len(found) == limit:
                    break
        return found

    # -- as the runtime asks ------------------------------------------------------------------------------

    def new_effects(self, now_ms: int) -> TransactionEffects:
        return TransactionEffects(now_ms)

    def replay(self, offset: int, producer_id: int, producer_epoch: int, record: Entry) -> None:
        transactional_id, transaction = record
        self._ongoing.discard(transactional_id)
        self._prepared.discard(transactional_id)
        if transaction is None or transaction.state is TransactionState.DEAD:
            self._transactions.pop(transactional_id, None)
            return
        self._transactions[transactional_id] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._ongoing.add(transactional_id)
        elif transaction.state in PREPARED:
            self._prepared.add(transactional_id)

    def replay_end_transaction_marker(
        self, producer_id: int, producer_epoch: int, *, committed: bool
    ) -> None:
        """Nobody writes to this topic in a transaction."""

    def adopt(self, effects: TransactionEffects) -> None:
        """There are no drafts."""

    def settled(self, effects: TransactionEffects) -> None: ...

    def on_timer(self, timer: Any, effects: TransactionEffects) -> None:
        """No timers are set: what ran out of time is looked for now and then."""

    def resume(self, effects: TransactionEffects) -> None: ...

    def close(self) -> None:
        self._transactions.clear()
        self._ongoing.clear()
        self._prepared.clear()
