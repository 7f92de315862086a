"""`ottla topic`: create, list, describe, delete, alter, add-partitions, replicate, compact."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.failure import Failure, usage
from ottla.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    Bootstrap,
    Json,
    Timeout,
    Topic,
    Topics,
    connect,
    find_topic,
    need_terminal_to_ask,
    parse_pairs,
)
from ottla.cli.output import Column, count_text, print_fields, print_json, print_table, size_text, write

if TYPE_CHECKING:
    from ottla.protocol.messages.metadata import MetadataResponseTopic
    from ottla.protocol_client.wire import Wire

_REASSIGNED_AT_A_TIME = 1_000

app = typer.Typer(
    help="Create, look at, change and delete topics.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def create(
    topics: Topics,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", metavar="N", min=1, help="How many; else the broker's num.partitions."
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            metavar="N",
            min=1,
            help="Copies of each partition; else the broker's default.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="Configuration of the topic; repeatable."),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="No error when it exists.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Create topics."""
    from ottla.protocol.errors import ApiError, ErrorCode
    from ottla.protocol_client.admin import create_topic

    configs = parse_pairs(config or [], "--config")
    made: list[dict[str, Any]] = []
    with connect(bootstrap, timeout) as wire:
        for name in topics:
            try:
                result = create_topic(
                    wire,
                    name,
                    partitions=partitions or -1,
                    replication_factor=replication_factor or -1,
                    configs=configs,
                )
            except ApiError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                if not if_not_exists:
                    raise Failure(
                        f"topic {name!r} exists already", "--if-not-exists makes this no error."
                    ) from None
                made.append({"name": name, "created": False})
                if not as_json:
                    write(f"{name} exists already\n")
                continue
            made.append(
                {
                    "name": name,
                    "created": True,
                    "id": _id_text(result.topic_id),
                    "partitions": result.num_partitions,
                    "replication_factor": result.replication_factor,
                }
            )
            if not as_json:
                write(f"created {name}: {_shape(result.num_partitions, result.replication_factor)}\n")
    if as_json:
        print_json(made)


@app.command("list")
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Also the broker's own topics.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """List the topics with their partitions, replicas and size."""
    from ottla.protocol_client.admin import replica_sizes

    with connect(bootstrap, timeout) as wire:
        found = [t for t in wire.metadata().topics if internal or not t.is_internal]
        found.sort(key=lambda t: t.name or "")
        sizes = replica_sizes(wire) if found else {}
    rows = [_overview(topic, sizes) for topic in found]
    if as_json:
        print_json(rows)
    elif not rows and sys.stdout.isatty():
        write("No topics yet. `ottla topic create NAME` makes one.\n")
    else:
        print_table(
            [
                Column("topic", style="bold"),
                *(Column(t, number=True) for t in ("partitions", "replicas", "size")),
            ],
            [
                [
                    row["name"],
                    count_text(row["partitions"]),
                    str(row["replication_factor"]),
                    _size(row["size_bytes"]),
                ]
                for row in rows
            ],
        )


@app.command()
def describe(
    topic: Topic,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show a topic's partitions, offsets, sizes, compaction and settings."""
    from ottla.cli.compaction import print_states, state_document
    from ottla.protocol_client.admin import DEFAULT_SOURCE, SOURCES, replica_sizes, topic_settings
    from ottla.protocol_client.log_state import log_states

    with connect(bootstrap, timeout) as wire:
        found = find_topic(wire, topic)
        settings = [s for s in topic_settings(wire, topic) if s.source != DEFAULT_SOURCE]
        sizes = replica_sizes(wire)
        partitions = _partitions(wire, found, sizes)
        states = log_states(wire, found)
    for partition in partitions:
        partition |= state_document(states.partitions.get(partition["partition"]))
    document = _overview(found, sizes) | {
        "configs": {s.name: {"value": s.value, "source": SOURCES.get(s.source, "unknown")} for s in settings},
        "partitions": partitions,
    }
    if as_json:
        print_json(document)
        return
    records = sum(p["end_offset"] - p["start_offset"] for p in partitions if p["end_offset"] is not None)
    configs = [
        f"{s.name}={s.value}" + ("" if s.source == 1 else f"  ({SOURCES.get(s.source, 'unknown')})")
        for s in settings
    ]
    print_fields(
        [
            ("Topic", topic),
            ("Id", document["id"] or "-"),
            ("Partitions", _shape(len(partitions), document["replication_factor"])),
            ("Offsets", f"{count_text(records)} in all, {_size(document['size_bytes'])}"),
            ("Configuration", configs[0] if configs else "all defaults"),
            *(("", line) for line in configs[1:]),
        ]
    )
    write("\n")
    titles = ("partition", "leader", "epoch", "replicas", "in sync", "start", "end", "size", "segments")
    print_table(
        [Column(t, number=t not in ("replicas", "in sync")) for t in titles],
        [_partition_row(p) for p in partitions],
    )
    print_states(states)


@app.command()
def delete(
    topics: Topics,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Delete topics and all their records, after asking."""
    from ottla.protocol_client.admin import delete_topic, replica_sizes

    with connect(bootstrap, timeout) as wire:
        found = [find_topic(wire, name) for name in dict.fromkeys(topics)]
        if not yes:
            need_terminal_to_ask()
            sizes = replica_sizes(wire)
            for topic in found:
                row = _overview(topic, sizes)
                parts = count_text(row["partitions"], "partition")
                typer.confirm(
                    f"Delete {topic.name} ({parts}, {_size(row['size_bytes'])})?", abort=True, err=True
                )
        for topic in found:
            delete_topic(wire, topic.name or "")
            if not as_json:
                write(f"deleted {topic.name}\n")
    if as_json:
        print_json([{"name": topic.name, "deleted": True} for topic in found])


@app.command()
def alter(
    topic: Topic,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set this; repeatable.")
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", "-u", metavar="KEY", help="Back to the default; repeatable."),
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Change a topic's configuration; it takes effect at once."""
    from ottla.protocol_client.admin import SOURCES, alter_topic, topic_settings

    settings = parse_pairs(set_ or [], "--set")
    names = list(dict.fromkeys([*settings, *(unset or [])]))
    if not names:
        raise usage("nothing to change", "Give --set KEY=VALUE or --unset KEY.")
    both = settings.keys() & set(unset or [])
    if both:
        raise usage(f"{sorted(both)[0]} is both set and unset")
    with connect(bootstrap, timeout) as wire:
        find_topic(wire, topic)
        alter_topic(wire, topic, settings, unset or [])
        now = {s.name: s for s in topic_settings(wire, topic, wire.controller())}
    changed = [now[name] for name in names if name in now]
    if as_json:
        values = {s.name: {"value": s.value, "source": SOURCES.get(s.source, "unknown")} for s in changed}
        print_json({"name": topic, "configs": values})
        return
    for setting in changed:
        where = "" if setting.source == 1 else f"  ({SOURCES.get(setting.source, 'unknown')})"
        write(f"{topic}: {setting.name}={setting.value}{where}\n")


@app.command()
def replicate(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Names of topics.", show_default=False)
    ] = None,
    factor: Annotated[
        int, typer.Option("--factor", "-f", metavar="N", min=1, help="So many replicas of each partition.")
    ] = 3,
    every: Annotated[bool, typer.Option("--all", help="All topics, the broker's own included.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Raise the number of replicas of topics. Partitions that have as many stay as they are.

    New replicas catch up from the leader; `ottla cluster status` shows when they are in sync. Until then a
    partition may have fewer in-sync replicas than min.insync.replicas, and refuse acks=all.
    """
    from ottla.cli.replication import TooFewBrokers, raised
    from ottla.protocol_client.admin import describe_cluster, reassign

    if bool(topics) == every:
        raise usage("name the topics, or give --all")
    with connect(bootstrap, timeout) as wire:
        known = wire.metadata().topics
        wanted = known if every else [find_topic(wire, name) for name in topics or []]
        names = sorted({topic.name or "" for topic in wanted})
        replicas = {
            (topic.name or "", each.partition_index): each.replica_nodes
            for topic in known
            for each in topic.partitions
        }
        brokers = describe_cluster(wire).brokers
        racks = {each.broker_id: each.rack for each in brokers if not each.is_fenced}
        chosen = sorted(each for each in replicas if each[0] in names)
        try:
            plan = raised(replicas, chosen, racks, factor)
        except TooFewBrokers as error:
            raise Failure(str(error), "Start more brokers, or give a smaller --factor.") from None
        steps = list(plan.items())
        for start in range(0, len(steps), _REASSIGNED_AT_A_TIME):
            reassign(wire, dict(steps[start : start + _REASSIGNED_AT_A_TIME]))
    if as_json:
        print_json(
            [{"topic": name, "partition": index, "replicas": to} for (name, index), to in plan.items()]
        )
        return
    for name in names:
        grown = sum(topic == name for topic, _ in plan)
        if grown:
            noun = "partition" if grown == 1 else "partitions"
            write(
                f"{name}: {count_text(grown)} {noun} with {factor} replicas now; new ones are catching up\n"
            )
        else:
            write(f"{name} has {factor} replicas or more already\n")


@app.command("add-partitions")
def add_partitions(
    topic: Topic,
    count: Annotated[int | None, typer.Argument(metavar="COUNT", min=1, help="How many to add.")] = None,
    total: Annotated[
        int | None, typer.Option("--to", metavar="N", min=1, help="How many there shall be in all.")
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Add partitions to a topic.

    Keys written from now on may go to other partitions than before; what is written stays where it is.
    """
    from ottla.protocol_client.admin import grow_topic

    if (count is None) == (total is None):
        raise usage("say how many: either COUNT to add or --to TOTAL")
    with connect(bootstrap, timeout) as wire:
        before = len(find_topic(wire, topic).partitions)
        wanted = total if total is not None else before + (count or 0)
        if wanted <= before:
            raise Failure(
                f"topic {topic!r} has {count_text(before, 'partition')} already",
                "Partitions can be added but not taken away.",
            )
        grow_topic(wire, topic, wanted)
    if as_json:
        print_json({"name": topic, "partitions": wanted, "added": wanted - before})
    else:
        write(f"{topic} has {count_text(wanted, 'partition')} now, {wanted - before} of them new\n")


@app.command()
def compact(
    topic: Topic,
    now: Annotated[
        bool, typer.Option("--now", help="Also what is young and what is being written; needed.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until it is done.")] = True,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Compact a topic now, to the latest record of each key, and show the progress.

    The broker does so by itself when enough of the topic is dirty (min.cleanable.dirty.ratio).
    """
    from ottla.cli.compaction import compact_now

    if not now:
        raise usage("the broker compacts by itself when it is worth while", "--now does it at once.")
    with connect(bootstrap, timeout) as wire:
        compact_now(wire, find_topic(wire, topic), wait=wait, as_json=as_json)


def _overview(topic: MetadataResponseTopic, sizes: dict[tuple[int, str, int], int]) -> dict[str, Any]:
    name = topic.name or ""
    known = [
        sizes[p.leader_id, name, p.partition_index]
        for p in topic.partitions
        if (p.leader_id, name, p.partition_index) in sizes
    ]
    return {
        "name": name,
        "id": _id_text(topic.topic_id),
        "internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replication_factor": max((len(p.replica_nodes) for p in topic.partitions), default=0),
        "size_bytes": sum(known) if known else None,
    }


def _partitions(
    wire: Wire, topic: MetadataResponseTopic, sizes: dict[tuple[int, str, int], int]
) -> list[dict[str, Any]]:
    from ottla.protocol_client.offsets import spans

    name = topic.name or ""
    led = [p.partition_index for p in topic.partitions if p.leader_id >= 0]
    held = spans(wire, name, led)
    rows = []
    for partition in sorted(topic.partitions, key=lambda p: p.partition_index):
        span = held.get(partition.partition_index)
        rows.append(
            {
                "partition": partition.partition_index,
                "leader": partition.leader_id if partition.leader_id >= 0 else None,
                "leader_epoch": partition.leader_epoch,
                "replicas": partition.replica_nodes,
                "isr": partition.isr_nodes,
                "offline_replicas": partition.offline_replicas,
                "start_offset": span.start if span else None,
                "end_offset": span.end if span else None,
                "size_bytes": sizes.get((partition.leader_id, name, partition.partition_index)),
            }
        )
    return rows


def _partition_row(partition: dict[str, Any]) -> list[str]:
    return [
        str(partition["partition"]),
        _or_dash(partition["leader"]),
        _or_dash(partition["leader_epoch"]),
        ",".join(map(str, partition["replicas"])),
        ",".join(map(str, partition["isr"])) or "-",
        _or_dash(partition["start_offset"]),
        _or_dash(partition["end_offset"]),
        _size(partition["size_bytes"]),
        _or_dash(partition.get("segments")),
    ]


def _shape(partitions: int, replication_factor: int) -> str:
    if partitions < 0:  # the broker is too old to report it
        return "done"
    return f"{count_text(partitions, 'partition')}, replication factor {replication_factor}"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _size(size: int | None) -> str:
    return "-" if size is None else size_text(size)


def _id_text(topic_id: bytes) -> str | None:
    """A topic id as Kafka's tools write it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=") if any(topic_id) else None
