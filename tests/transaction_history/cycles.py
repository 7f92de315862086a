"""Cycles of transactions, each of which has to come before the next (Adya's G0 and G1c).

* `ww`: one transaction's value is directly before the other's in a key;
* `wr`: the other one has polled a value of the first.

Kafka does not isolate writers: two transactions that are open at the same time may interleave in each of two
keys, in different orders, so cycles of `ww` between transactional ids are allowed. `interleaved` counts them.
The transactions of one transactional id follow one another, though, and a value can only be polled when its
transaction has committed. So cycles of `ww` within ids, and of these together with `wr`, are anomalies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise

from transaction_history.history import Anomaly, History, Outcome, Transaction

Edges = dict[str, set[str]]


def write_cycles(history: History) -> Iterator[Anomaly]:
    for cycle in components(_writes(history, within_ids=True)):
        yield Anomaly("write cycle", f"G0 of {', '.join(cycle)}")


def read_cycles(history: History) -> Iterator[Anomaly]:
    edges = _writes(history, within_ids=True)
    writes = {frozenset(cycle) for cycle in components(edges)}
    writers = history.writers()
    for transaction in _present(history):
        for read in transaction.reads:
            found = writers.get(read.value)
            if found is not None and found[0] is not transaction:
                edges[found[0].name].add(transaction.name)
    for cycle in components(edges):
        if frozenset(cycle) not in writes:
            yield Anomaly("read cycle", f"G1c of {', '.join(cycle)}")


def interleaved(history: History) -> int:
    """How many cycles of writes there are between transactional ids, which is allowed."""
    return len(components(_writes(history, within_ids=False)))


def _present(history: History) -> list[Transaction]:
    """The transactions that are committed, as far as anybody knows."""
    seen = {value for _, _, value in history.committed_reads()}
    return [
        each
        for each in history.transactions
        if each.outcome is Outcome.COMMITTED
        or (each.outcome is Outcome.UNKNOWN and any(send.value in seen for send in each.sends))
    ]


def _writes(history: History, *, within_ids: bool) -> Edges:
    places = {value: offset for poll in history.polls for offset, value in poll.records}
    logs: dict[object, list[tuple[int, str]]] = defaultdict(list)
    for transaction in _present(history):
        for send in transaction.sends:
            offset = places.get(send.value, send.offset)
            if offset is not None:
                place = (send.key, transaction.transactional_id if within_ids else "")
                logs[place].append((offset, transaction.name))
    edges: Edges = defaultdict(set)
    for log in logs.values():
        log.sort()
        for (_, one), (_, other) in pairwise(log):
            if one != other:
                edges[one].add(other)
    return edges


def components(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components with more than one member, each sorted: Tarjan's algorithm."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found = []
    for root in sorted(edges):
        if root in numbers:
            continue
        work: list[tuple[str, Iterator[str]]] = []

        def enter(node: str, work: list[tuple[str, Iterator[str]]] = work) -> None:
            numbers[node] = lowest[node] = len(numbers)
            stack.append(node)
            on_stack.add(node)
            work.append((node, iter(sorted(edges.get(node, ())))))

        enter(root)
        while work:
            node, others = work[-1]
            other = next(others, None)
            if other is None:
                work.pop()
                if work:
                    above = work[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == numbers[node]:
                    cut = stack.index(node)
                    members = stack[cut:]
                    del stack[cut:]
                    on_stack.difference_update(members)
                    if len(members) > 1:
                        found.append(sorted(members))
            elif other not in numbers:
                enter(other)
            elif other in on_stack:
                lowest[node] = min(lowest[node], numbers[other])
    return found
