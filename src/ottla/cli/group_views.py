"""What `ottla group` shows: groups, members, lag and rebalances, as documents and as tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ottla.cli.blocks import Block, Fields, Table, View
from ottla.cli.moments import time_text
from ottla.cli.output import Column, count_text, seconds_text
from ottla.printable import shown

if TYPE_CHECKING:
    from ottla.protocol.messages.explain_group import ExplainedMove, ExplainedRebalance
    from ottla.protocol_client.groups import GroupDescription, ListedGroup, Place
    from ottla.protocol_client.lag import PartitionLag
    from ottla.protocol_client.wire import Wire

_LINE = 2_000
"""Characters of a line about a rebalance."""
SHOWN_MOVES = 10
"""Lines of moved partitions per rebalance; JSON has all."""


def list_view(wire: Wire, groups: Sequence[ListedGroup]) -> View:
    from ottla.protocol_client.group_offsets import committed_offsets_of
    from ottla.protocol_client.groups import member_counts
    from ottla.protocol_client.lag import lags, total_records

    members = member_counts(wire, groups)
    committed = committed_offsets_of(wire, groups)
    places: dict[Place, int | None] = {place: 0 for offsets in committed.values() for place in offsets}
    ends = {(lag.topic, lag.partition): lag for lag in lags(wire, places, times=False)}
    rows: list[dict[str, Any]] = []
    for group in groups:
        offsets = committed.get(group.group_id, {})
        rows.append(
            {
                "group": group.group_id,
                "state": group.state,
                "type": group.kind,
                "protocol_type": group.protocol_type,
                "members": members.get(group.group_id),
                "topics": sorted({topic for topic, _ in offsets}),
                "lag": total_records(
                    ends[place]._replace(committed=each.offset) for place, each in offsets.items()
                ),
            }
        )
    titles = (("group", False), ("state", False), ("type", False), ("members", True), ("lag", True))
    table = Table(
        [Column(title, number, "bold" if title == "group" else "") for title, number in titles],
        [
            [
                shown(row["group"]),
                row["state"] or "-",
                row["type"] or "-",
                _count(row["members"]),
                _count(row["lag"]),
            ]
            for row in rows
        ],
    )
    return View(rows, [table])


def describe_view(wire: Wire, group: GroupDescription) -> View:
    from ottla.protocol_client.lag import most_seconds, total_records

    now = _now()
    found = group_lags(wire, group)
    owners = group.owners()
    records, seconds = total_records(found), most_seconds(found, now)
    host, port = wire.nodes[group.coordinator]
    document = {
        "group": group.group_id,
        "type": group.kind,
        "state": group.state,
        "assignor": group.assignor or None,
        "coordinator": {"id": group.coordinator, "address": f"{host}:{port}"},
        "lag": records,
        "seconds": seconds,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "subscribed": list(member.subscribed),
                "assigned": _place_documents(member.assigned),
                "awaited": _place_documents(member.awaited),
            }
            for member in group.members
        ],
        "partitions": [
            lag_document(lag, now) | {"member_id": owner.member_id if owner is not None else None}
            for lag in found
            for owner in [owners.get((lag.topic, lag.partition))]
        ],
    }
    blocks: list[Block] = [
        Fields(
            [
                ("Group", shown(group.group_id)),
                ("State", group.state),
                ("Type", group.kind),
                ("Assignor", shown(group.assignor or "-")),
                ("Coordinator", f"broker {group.coordinator} at {host}:{port}"),
                ("Members", count_text(len(group.members))),
                ("Lag", behind_text(records, seconds)),
            ]
        )
    ]
    if group.members:
        blocks.append(
            Table(
                [Column("member", style="bold"), Column("client"), Column("host"), Column("reads")],
                [
                    [
                        shown(m.name),
                        shown(m.client_id or "-"),
                        m.host or "-",
                        _reads(m.assigned, m.awaited),
                    ]
                    for m in group.members
                ],
            )
        )
    if found:
        rows = [
            [*_lag_cells(lag, now), shown(owner.name) if owner is not None else "-"]
            for lag in found
            for owner in [owners.get((lag.topic, lag.partition))]
        ]
        blocks.append(Table([*_LAG_COLUMNS, Column("member")], rows))
    return View(document, blocks)


_LAG_COLUMNS = [
    Column("topic", style="bold"),
    *(Column(title, number=True) for title in ("partition", "committed", "end", "lag", "behind")),
]


def lag_view(found: Mapping[str, Sequence[PartitionLag]], now_ms: int) -> View:
    """`found` has the partitions of each group."""
    from ottla.protocol_client.lag import most_seconds, total_records

    documents: list[dict[str, Any]] = [
        {
            "group": group,
            "lag": total_records(lags),
            "seconds": most_seconds(lags, now_ms),
            "partitions": [lag_document(lag, now_ms) for lag in lags],
        }
        for group, lags in found.items()
    ]
    rows = [[shown(group), *_lag_cells(lag, now_ms)] for group, lags in found.items() for lag in lags]
    totals = "\n".join(f"{shown(d['group'])}: {behind_text(d['lag'], d['seconds'])}" for d in documents)
    blocks: list[Block] = [Table([Column("group", style="bold"), *_LAG_COLUMNS], rows)]
    return View(documents, [*blocks, totals] if totals else blocks)


def explain_view(group: GroupDescription, rebalances: Sequence[ExplainedRebalance]) -> View:
    document = {
        "group": group.group_id,
        "state": group.state,
        "type": group.kind,
        "members": len(group.members),
        "rebalances": [_rebalance_document(rebalance) for rebalance in rebalances],
    }
    head = f"{shown(group.group_id)} is {group.state}, with {count_text(len(group.members), 'member')}"
    if not rebalances:
        return View(document, [f"{head}. It has not rebalanced since its coordinator started."])
    texts = [_rebalance_text(rebalance) for rebalance in rebalances]
    return View(document, [f"{head}. Its last rebalances, the newest first:", *texts])


def _rebalance_document(rebalance: ExplainedRebalance) -> dict[str, Any]:
    return {
        "time": rebalance.began_ms,
        "duration_ms": rebalance.duration_ms,
        "generation": rebalance.generation,
        "causes": rebalance.causes,
        "assignor": rebalance.protocol,
        "leader": rebalance.leader,
        "members": [{"member": m.name, "partitions": m.partitions} for m in rebalance.members],
        "members_before": len(rebalance.members) - len(rebalance.joined) + len(rebalance.left),
        "members_after": len(rebalance.members),
        "joined": rebalance.joined,
        "left": rebalance.left,
        "moved": [
            {"topic": m.topic, "partition": m.partition, "from": m.before, "to": m.after}
            for m in rebalance.moves
        ],
        "idle": [
            {"member": m.name, "reason": m.idle_reason}
            for m in rebalance.members
            if m.idle_reason is not None
        ],
    }


def _rebalance_text(rebalance: ExplainedRebalance) -> str:
    after = len(rebalance.members)
    before = after - len(rebalance.joined) + len(rebalance.left)
    size = count_text(after, "member") if before == after else f"{before} -> {count_text(after, 'member')}"
    lines = [
        f"{time_text(rebalance.began_ms, zone=False)}  generation {rebalance.generation}, {size}, "
        f"took {seconds_text(rebalance.duration_ms / 1000)}"
    ]
    lines += _labelled("because", rebalance.causes or ["of no cause that was noted"])
    lines += _labelled("joined", rebalance.joined)
    lines += _labelled("left", rebalance.left)
    lines += _labelled("moved", moves_text(rebalance.moves))
    lines += _labelled(
        "idle", [f"{m.name}: {m.idle_reason}" for m in rebalance.members if m.idle_reason is not None]
    )
    return "\n".join(lines)


def _labelled(label: str, texts: Sequence[str]) -> list[str]:
    return [f"  {label if not index else '':<8}{shown(text, _LINE)}" for index, text in enumerate(texts)]


def moves_text(moves: Iterable[ExplainedMove]) -> list[str]:
    """Lines like `payments:0-2 from a to b`: what went the same way together."""
    ways: dict[tuple[str | None, str | None], list[tuple[str, int]]] = {}
    for move in moves:
        ways.setdefault((move.before, move.after), []).append((move.topic, move.partition))
    lines = [
        f"{places_text(places)} from {before or 'unassigned'} to {after or 'unassigned'}"
        for (before, after), places in ways.items()
    ]
    if len(lines) > SHOWN_MOVES:
        lines[SHOWN_MOVES - 1 :] = [f"and {len(lines) - SHOWN_MOVES + 1} more; --json has all"]
    return lines


def group_lags(wire: Wire, group: GroupDescription) -> list[PartitionLag]:
    """All partitions that the group has read or is given to read."""
    from ottla.protocol_client.group_offsets import committed_offsets
    from ottla.protocol_client.lag import lags

    committed: dict[Place, int | None] = dict.fromkeys(group.owners())
    committed |= {place: each.offset for place, each in committed_offsets(wire, group.group_id).items()}
    return lags(wire, committed)


def lag_document(lag: PartitionLag, now_ms: int) -> dict[str, Any]:
    return {
        "topic": lag.topic,
        "partition": lag.partition,
        "committed": lag.committed,
        "end": lag.end,
        "lag": lag.records,
        "seconds": lag.seconds(now_ms),
        "oldest_unread": lag.oldest_unread_ms,
    }


def _lag_cells(lag: PartitionLag, now_ms: int) -> list[str]:
    return [
        lag.topic,
        str(lag.partition),
        "-" if lag.committed is None else str(lag.committed),
        "-" if lag.end is None else str(lag.end),
        _count(lag.records),
        _seconds(lag.seconds(now_ms)),
    ]


def behind_text(records: int | None, seconds: float | None) -> str:
    if records is None:
        return "not known: nothing is committed"
    if not records:
        return "none, everything is read"
    age = f", the oldest unread is {_seconds(seconds)} old" if seconds is not None else ""
    return count_text(records, "record") + age


def places_text(places: Iterable[tuple[str, int]]) -> str:
    """`orders:1 payments:0-2,5`: partitions in few letters."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        topics.setdefault(topic, []).append(partition)
    return " ".join(f"{topic}:{_ranges(partitions)}" for topic, partitions in topics.items())


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _reads(assigned: Sequence[tuple[str, int]], awaited: Sequence[tuple[str, int]]) -> str:
    text = places_text(assigned) or "nothing"
    return f"{text}, waits for {places_text(awaited)}" if awaited else text


def _place_documents(places: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": partition} for topic, partition in places]


def _count(value: int | None) -> str:
    return "-" if value is None else count_text(value)


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return seconds_text(value) if value else "0 s"


def _now() -> int:
    return time.time_ns() // 1_000_000
