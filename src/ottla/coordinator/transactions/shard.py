"""All transactional ids of one partition of `__transaction_state`, and what is asked about them.

State changes by replay of records alone, since a `Transaction` is a value and its record holds all of it.
What the commands decide is in `transitions`.

How long a transaction is open is measured by the monotonic clock of its coordinator. The wall clock is asked
once, when a coordinator loads a transaction that another one saw begin, and it grants at most the timeout: a
clock that was set back, or is behind that of the coordinator before, does not hold readers back for ever.

The same clock tells for how long a transactional id is not used. Of one that was not used since its
coordinator took over, only the wall clock knows, and it is not believed before `_LOADED_SECONDS` have passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ottla.clock import Clock
from ottla.coordinator.runtime.effects import Effects
from ottla.coordinator.transactions.records import Entry
from ottla.coordinator.transactions.transaction import IDLE, PREPARED, Transaction, TransactionState
from ottla.coordinator.transactions.transitions import completed, fenced

_SPARE_BYTES = 256
"""By so much the record that ends a transaction may be larger than the one that added the last partition."""
_GROWING = frozenset({TransactionState.EMPTY, TransactionState.ONGOING})
_LOADED_SECONDS = 3600.0
"""So long a coordinator keeps the ids that it has loaded: a clock that is ahead may be set right meanwhile,
and a producer that is alive has time to use its id."""
_LONG_ID = 250
"""Characters; so many more count as one more id, for the memory that they take."""
_LONG_IDS = 64 * 1024
"""Characters of transactional ids that are removed with one batch."""


class TransactionEffects(Effects[Entry]):
    def write(self, transaction: Transaction) -> None:
        """A transaction that grows has a limit. One that ends has none, or it would stay open for ever."""
        self.records.append((transaction.transactional_id, transaction))
        self.spare_bytes = _SPARE_BYTES if transaction.state in _GROWING else None

    def remove(self, transactional_id: str) -> None:
        self.records.append((transactional_id, None))


class TransactionShard:
    """Implements `ShardState`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.weight = 0
        """The number of transactional ids, of which long ones count several times."""
        self._transactions: dict[str, Transaction] = {}
        """Those that were used last come last."""
        # When each one was used last, in seconds of the monotonic clock, if it was since the log was loaded.
        self._used: dict[str, float] = {}
        self._loaded_at: float | None = None
        # When each one runs out of time, in seconds of the monotonic clock.
        self._ongoing: dict[str, float] = {}
        # A set in the order of time, which a hash is not: a simulated run has to repeat itself.
        self._prepared: dict[str, None] = {}

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def ids(self) -> list[str]:
        return list(self._transactions)

    def prepared(self) -> list[Transaction]:
        """Those whose outcome is decided and whose markers are not all written."""
        return [self._transactions[each] for each in self._prepared]

    def overdue(self) -> list[Transaction]:
        """Those that ran out of time."""
        now = self._clock.monotonic()
        return [self._transactions[each] for each, deadline in self._ongoing.items() if deadline < now]

    def _deadline(self, transaction: Transaction) -> float:
        remaining_ms = transaction.start_ms + transaction.timeout_ms - self._clock.now_ms()
        return self._clock.monotonic() + min(max(remaining_ms, 0), transaction.timeout_ms) / 1000

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

    def expired(self, expiration_ms: int, limit: int) -> list[str]:
        """Transactional ids that were not used for so long, at most `limit`, which fit in a batch."""
        now, before_ms = self._clock.monotonic(), self._clock.now_ms() - expiration_ms
        seconds = expiration_ms / 1000
        loaded = 0.0 if self._loaded_at is None else now - self._loaded_at
        is_believed = loaded >= min(_LOADED_SECONDS, seconds)

        def is_expired(transaction: Transaction) -> bool:
            if transaction.state not in IDLE:
                return False
            used = self._used.get(transaction.transactional_id)
            if used is not None:
                return now - used >= seconds
            return loaded >= seconds or (is_believed and transaction.update_ms <= before_ms)

        return _that_fit_in_a_batch(filter(is_expired, self._transactions.values()), limit)

    def idlest(self, weight: int, limit: int) -> list[str]:
        """The same of those that were not used for longest, without an open transaction, of this weight."""

        def idle() -> Iterator[Transaction]:
            left = weight
            for transaction in self._transactions.values():
                if left <= 0:
                    return
                if transaction.state in IDLE:
                    left -= _weight(transaction.transactional_id)
                    yield transaction

        return _that_fit_in_a_batch(idle(), limit)

    # -- as the runtime asks ------------------------------------------------------------------------------

    def new_effects(self, now_ms: int) -> TransactionEffects:
        return TransactionEffects(now_ms)

    def replay(self, offset: int, producer_id: int, producer_epoch: int, record: Entry) -> None:
        transactional_id, transaction = record
        deadline = self._ongoing.pop(transactional_id, None)
        self._prepared.pop(transactional_id, None)
        if self._transactions.pop(transactional_id, None) is not None:
            self.weight -= _weight(transactional_id)
        if transaction is None or transaction.state is TransactionState.DEAD:
            self._used.pop(transactional_id, None)
            return
        self._transactions[transactional_id] = transaction
        self.weight += _weight(transactional_id)
        if self._loaded_at is not None:
            self._used[transactional_id] = self._clock.monotonic()
        if transaction.state is TransactionState.ONGOING:
            # A partition that is added later gives no more time.
            self._ongoing[transactional_id] = self._deadline(transaction) if deadline is None else deadline
        elif transaction.state in PREPARED:
            self._prepared[transactional_id] = None

    def replay_end_transaction_marker(
        self, producer_id: int, producer_epoch: int, *, committed: bool
    ) -> None:
        """Nobody writes to this topic in a transaction."""

    def adopt(self, effects: TransactionEffects) -> None:
        """There are no drafts."""

    def settled(self, effects: TransactionEffects) -> None: ...

    def on_timer(self, timer: Any, effects: TransactionEffects) -> None:
        """No timers are set: what ran out of time is looked for now and then."""

    def resume(self, effects: TransactionEffects) -> None:
        self._loaded_at = self._clock.monotonic()

    def close(self) -> None:
        self.weight = 0
        self._transactions.clear()
        self._used.clear()
        self._ongoing.clear()
        self._prepared.clear()


def _weight(transactional_id: str) -> int:
    return 1 + len(transactional_id) // _LONG_ID


def _that_fit_in_a_batch(transactions: Iterable[Transaction], limit: int) -> list[str]:
    found: list[str] = []
    length = 0
    for transaction in transactions:
        if len(found) == limit or length > _LONG_IDS:
            break
        found.append(transaction.transactional_id)
        length += len(transaction.transactional_id)
    return found
