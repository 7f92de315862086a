"""What readers of committed records see of transactions: all of a committed one, nothing of an aborted one.

* aborted read (G1a): a value of a transaction that was aborted, or that nobody sent to this key;
* intermediate read (G1b): a value that was read before its transaction was asked to commit;
* torn transaction: some values are seen, others were passed over;
* lost write: a committed value that nobody saw, though readers went past it;
* duplicate write: one value at two places;
* inconsistent offset: two values at one place, in what was read or acknowledged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from transaction_history.history import Anomaly, History, Key, Outcome, Poll, Send


def aborted_reads(history: History) -> Iterator[Anomaly]:
    writers = history.writers()
    for poll, offset, value in history.committed_reads():
        found = writers.get(value)
        if found is None or found[1].key != poll.key:
            detail = f"{poll.reader} read {value} at {_place(poll.key, offset)}, which nobody sent there"
            yield Anomaly("aborted read", detail)
        elif found[0].outcome is Outcome.ABORTED:
            detail = f"{poll.reader} read {value} of {found[0].name} at {_place(poll.key, offset)}"
            yield Anomaly("aborted read", detail)


def intermediate_reads(history: History) -> Iterator[Anomaly]:
    writers = history.writers()
    for poll, offset, value in history.committed_reads():
        found = writers.get(value)
        if found is None or found[0].outcome is Outcome.ABORTED:
            continue
        asked = found[0].commit_sent
        if asked is None or poll.at < asked:
            what = f"{value} of {found[0].name} at {_place(poll.key, offset)}"
            detail = f"{poll.reader} read {what} by {poll.at:.3f} s, its commit was asked for at {asked} s"
            yield Anomaly("intermediate read", detail)


class _Skipped(NamedTuple):
    """A reader of committed records went past a value without getting it."""

    poll: Poll
    send: Send
    offset: int

    def __str__(self) -> str:
        return f"{self.poll.reader} passed over {self.send.value} at {_place(self.send.key, self.offset)}"


def torn_and_lost(history: History) -> Iterator[Anomaly]:
    seen = {value: poll for poll, _, value in history.committed_reads()}
    skipped = _skipped(history)
    reached = _reached(history)
    for transaction in history.transactions:
        if transaction.outcome is Outcome.ABORTED:
            continue
        is_committed = transaction.outcome is Outcome.COMMITTED
        visible = [send for send in transaction.sends if send.value in seen]
        missing = [skipped[send.value] for send in transaction.sends if send.value in skipped]
        if missing and visible:
            there = f"{seen[visible[0].value].reader} read {visible[0].value} in {_name(visible[0].key)}"
            yield Anomaly("torn transaction", f"{missing[0]}; {there}; both are of {transaction.name}")
        elif missing and is_committed:
            yield Anomaly("lost write", f"{missing[0]} of {transaction.name}, which was committed")
        elif is_committed and not missing:
            for send in transaction.sends:
                if send.value not in seen and send.key in reached:
                    yield Anomaly(
                        "lost write", f"{send.value} of {transaction.name} is not in {_name(send.key)}"
                    )


def _skipped(history: History) -> dict[str, _Skipped]:
    """By value: who passed over it, where its place is known."""
    sends = {value: send for value, (_, send) in history.writers().items()}
    places: dict[Key, dict[int, Send]] = defaultdict(dict)
    for send in sends.values():
        if send.offset is not None:
            places[send.key][send.offset] = send
    for poll in history.polls:
        for offset, value in poll.records:
            if value in sends:
                places[poll.key][offset] = sends[value]
    known = {key: sorted(offsets) for key, offsets in places.items()}
    skipped = {}
    for poll in history.polls:
        if not poll.is_committed or poll.key not in known:
            continue
        offsets = known[poll.key]
        got = {offset for offset, _ in poll.records}
        for offset in offsets[bisect_left(offsets, poll.start) : bisect_left(offsets, poll.end)]:
            if offset not in got:
                send = places[poll.key][offset]
                skipped[send.value] = _Skipped(poll, send, offset)
    return skipped


def _reached(history: History) -> set[Key]:
    """The keys that a reader of committed records has read to the end."""
    return {
        poll.key
        for poll in history.polls
        if poll.is_committed and poll.key in history.ends and poll.end >= history.ends[poll.key].end
    }


def duplicate_writes(history: History) -> Iterator[Anomaly]:
    places: dict[str, tuple[Key, int]] = {}
    for poll in history.polls:
        for offset, value in poll.records:
            before = places.setdefault(value, (poll.key, offset))
            if before != (poll.key, offset):
                detail = f"{value} is at {_place(*before)} and at {_place(poll.key, offset)}"
                yield Anomaly("duplicate write", detail)


def inconsistent_offsets(history: History) -> Iterator[Anomaly]:
    values: dict[tuple[Key, int], tuple[str, str]] = {}

    def differing(key: Key, offset: int, value: str, who: str) -> Iterator[Anomaly]:
        before, said = values.setdefault((key, offset), (value, who))
        if before != value:
            detail = f"{_place(key, offset)} holds {before} for {said} and {value} for {who}"
            yield Anomaly("inconsistent offset", detail)

    for transaction, send in history.sends():
        if send.offset is not None:
            yield from differing(send.key, send.offset, send.value, transaction.name)
    for poll in history.polls:
        for offset, value in poll.records:
            yield from differing(poll.key, offset, value, poll.reader)


def _name(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


def _place(key: Key, offset: int) -> str:
    return f"{_name(key)} offset {offset}"
