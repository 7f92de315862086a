"""Which transactional producers are being verified: does their transaction include this partition (KIP-890)?

Before the first batch of a transaction is appended, the transaction coordinator is asked. Meanwhile a marker
may end that transaction, and the producer begin another one that does not know the partition: then the answer
says nothing about the batch. So a verification begins with a guard of its own, which is handed in with the
batch. A marker, and the first batch of a transaction, end the verification; its guard is worth nothing then.

While it runs, the smallest sequence that asked is remembered. Of several batches in flight the one with that
sequence must be the first, or records would be missing.

Clients can invent producers, and none may end the verification of another client by asking for many. So a
guard belongs to the requests that hold it. As long as one does, its verification stays, and there are no more
of these than requests under way. One that nobody holds is kept for its sequence, since a request that failed
is sent again; of these there are at most `limit`, and the oldest are forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from weakref import ref

DEFAULT_LIMIT = 10_000
_LOOKS = 16
"""Verifications that are looked at for one to forget: those in use are passed over."""


class VerificationGuard:
    """What a verification is known by. No two are equal."""

    __slots__ = ("__weakref__",)


UNCHECKED = VerificationGuard()
"""For what needs none: `transaction.partition.verification.enable` is off, or the broker itself writes."""


class Verification:
    """One producer while it is being verified."""

    __slots__ = ("_guard", "began_ms", "bumps_epoch", "epoch", "lowest_sequence")

    def __init__(self, epoch: int, sequence: int, bumps_epoch: bool, now_ms: int) -> None:
        self._guard: ref[VerificationGuard] | None = None
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.bumps_epoch = bumps_epoch  # a client for which each transaction has an epoch of its own
        self.began_ms = now_ms

    @property
    def guard(self) -> VerificationGuard | None:
        """None when no request holds it any more."""
        return None if self._guard is None else self._guard()

    def held(self) -> VerificationGuard:
        """The guard, for a request that holds it."""
        guard = self.guard
        if guard is None:
            guard = VerificationGuard()
            self._guard = ref(guard)
        return guard

    def asked_again(self, epoch: int, sequence: int) -> None:
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


class Verifications:
    """Of one partition."""

    __slots__ = ("_by_id", "_limit")

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._by_id: OrderedDict[int, Verification] = OrderedDict()
        self._limit = limit

    def __len__(self) -> int:
        return len(self._by_id)

    def begin(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, bumps_epoch: bool
    ) -> VerificationGuard:
        """The guard of the verification that runs for the producer, or begins now."""
        known = self._by_id.get(producer_id)
        if known is not None:
            known.asked_again(epoch, sequence)
            return known.held()
        if len(self._by_id) >= self._limit:
            self._forget_some()
        begun = self._by_id[producer_id] = Verification(epoch, sequence, bumps_epoch, now_ms)
        return begun.held()

    def _forget_some(self) -> None:
        """Of those that nobody holds, the oldest that are found soon."""
        for _ in range(_LOOKS):
            producer_id, oldest = next(iter(self._by_id.items()))
            if oldest.guard is None:
                del self._by_id[producer_id]
                if len(self._by_id) < self._limit:
                    return
            else:
                self._by_id.move_to_end(producer_id)

    def get(self, producer_id: int) -> Verification | None:
        return self._by_id.get(producer_id)

    def end(self, producer_id: int) -> None:
        self._by_id.pop(producer_id, None)

    def expire(self, before_ms: int) -> None:
        """Forget those that began at that time or before: they were given up."""
        for producer_id in [each for each, one in self._by_id.items() if one.began_ms <= before_ms]:
            del self._by_id[producer_id]

    def clear(self) -> None:
        self._by_id.clear()
