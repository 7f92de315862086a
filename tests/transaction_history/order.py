"""The order in which clients see what they sent and read.

* poll order: the offsets of one poll rise, and each poll of an assignment begins where the one before ended;
* poll skip: a reader of all records went past one that was acknowledged;
* nonmonotonic send: what a producer sent later to a key is before what it sent earlier. The instances of one
  transactional id count as one producer, since each fences those before it: they follow in the order of their
  epochs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from transaction_history.history import Anomaly, History, Key, Poll


def poll_order(history: History) -> Iterator[Anomaly]:
    positions: dict[tuple[str, int, Key], int] = {}
    for poll in history.polls:
        place = (poll.reader, poll.assignment, poll.key)
        expected = positions.get(place, poll.start)
        if poll.start != expected:
            kind = "poll skip" if poll.start > expected else "nonmonotonic poll"
            yield Anomaly(kind, f"{_who(poll)} went on at {poll.start} where it had reached {expected}")
        positions[place] = poll.end
        offsets = [offset for offset, _ in poll.records]
        if offsets != sorted(set(offsets)):
            yield Anomaly("nonmonotonic poll", f"{_who(poll)} got offsets {offsets}")
        elif offsets and not poll.start <= offsets[0] <= offsets[-1] < poll.end:
            yield Anomaly("nonmonotonic poll", f"{_who(poll)} got {offsets}, not from {poll.start}")


def poll_skips(history: History) -> Iterator[Anomaly]:
    acknowledged: dict[Key, dict[int, str]] = defaultdict(dict)
    for _, send in history.sends():
        if send.offset is not None:
            acknowledged[send.key][send.offset] = send.value
    known = {key: sorted(offsets) for key, offsets in acknowledged.items()}
    for poll in history.polls:
        if poll.is_committed or poll.key not in known:
            continue
        offsets, got = known[poll.key], {offset for offset, _ in poll.records}
        for offset in offsets[bisect_left(offsets, poll.start) : bisect_left(offsets, poll.end)]:
            if offset not in got:
                value = acknowledged[poll.key][offset]
                yield Anomaly("poll skip", f"{_who(poll)} passed over {value} at {offset}")


def nonmonotonic_sends(history: History) -> Iterator[Anomaly]:
    last: dict[tuple[str, Key], tuple[int, str]] = {}
    for transaction in sorted(history.transactions, key=lambda each: (each.transactional_id, each.producer)):
        for send in transaction.sends:
            if send.offset is None:
                continue
            place = (transaction.transactional_id, send.key)
            before, value = last.get(place, (-1, ""))
            if send.offset <= before:
                yield Anomaly(
                    "nonmonotonic send",
                    f"{transaction.transactional_id} sent {send.value} after {value} to "
                    f"{send.key[0]}-{send.key[1]}; they are at {send.offset} and {before}",
                )
            last[place] = (send.offset, send.value)


def _who(poll: Poll) -> str:
    kind = "committed" if poll.is_committed else "all"
    return f"{poll.reader} ({kind}, assignment {poll.assignment}) of {poll.key[0]}-{poll.key[1]}"
