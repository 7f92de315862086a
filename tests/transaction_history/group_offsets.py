"""Groups whose offsets are committed in the transactions of what was made from their records.

* offset read: the coordinator said where a group goes on, and no transaction that was asked to commit says
  so, or a transaction that was known to be committed before says more;
* transformed twice, not at all: of each record that readers of committed records see, there is one
  transformed record if the group has gone past it in the end, and none if it has not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from transaction_history.history import Anomaly, History, Key, Outcome, Source, Transaction

NOTHING = -1


def offset_reads(history: History) -> Iterator[Anomaly]:
    commits: dict[tuple[str, Key], list[tuple[int, Transaction]]] = defaultdict(list)
    for transaction in history.transactions:
        if transaction.outcome is not Outcome.ABORTED:
            for place, offset in transaction.offsets.items():
                commits[place].append((offset, transaction))
    for read in history.offset_reads:
        asked_for, known = {NOTHING}, NOTHING
        for offset, transaction in commits[read.group, read.key]:
            if transaction.commit_sent is not None and transaction.commit_sent <= read.answered:
                asked_for.add(offset)
            is_committed = transaction.outcome is Outcome.COMMITTED
            if is_committed and transaction.ended is not None and transaction.ended < read.asked:
                known = max(known, offset)
        where = f"{read.group} goes on at {read.offset} of {read.key[0]}-{read.key[1]}"
        if read.offset not in asked_for:
            yield Anomaly("offset read", f"{where}, which no transaction committed by {read.answered:.3f} s")
        elif read.offset < known:
            yield Anomaly("offset read", f"{where}, {known} was committed before")


def transformations(history: History) -> Iterator[Anomaly]:
    writers = history.writers()
    made: Counter[Source] = Counter()
    inputs: dict[Key, set[int]] = defaultdict(set)
    counted: set[str] = set()
    for poll, offset, value in history.committed_reads():
        inputs[poll.key].add(offset)
        found = writers.get(value)
        if found is not None and found[1].source is not None and value not in counted:
            counted.add(value)
            made[found[1].source] += 1
    for (group, key), end in history.final_offsets.items():
        for offset in sorted(inputs[key]):
            count, expected = made[Source(group, key, offset)], int(offset < end)
            if count != expected:
                kind = (
                    "offset missing" if not expected else "transformed twice" if count else "not transformed"
                )
                detail = f"{key[0]}-{key[1]} offset {offset} is in {count} records; {group} goes on at {end}"
                yield Anomaly(kind, detail)
