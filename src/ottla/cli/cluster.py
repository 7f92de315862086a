"""`ottla cluster`: how a whole cluster is, and how a single broker becomes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failure import FAILED, Failure
from ottla.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT, Bootstrap, Json, Timeout, connect
from ottla.cli.output import Column, count_text, print_fields, print_json, print_table, say, write

if TYPE_CHECKING:
    from ottla.cli.cluster_health import BrokerView, ClusterHealth, PartitionView
    from ottla.protocol.messages.describe_cluster import DescribeClusterResponse
    from ottla.protocol_client.wire import Wire

_USUAL_BROKERS = 3
_DISK_SECONDS = 2.0
"""So long a broker may take to say how its disk is. One that hangs is not waited for."""
_SHOWN = 50
"""So many partitions in trouble are listed for a person; JSON has all."""

app = typer.Typer(
    help="Look at the whole cluster, or make one of a single broker.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _cluster() -> None:
    """Look at the whole cluster, or make one of a single broker."""


@app.command()
def status(
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show the brokers, the partitions that are in trouble, and what to do.

    Exit code 1 when something needs attention.
    """
    from ottla.cli.cluster_health import ClusterHealth
    from ottla.cli.local_processes import broker_processes, supervisor_of
    from ottla.protocol_client.admin import describe_cluster

    with connect(bootstrap, timeout) as wire:
        described = describe_cluster(wire)
        health = ClusterHealth(_brokers(wire, described), _partitions(wire))
    pids = broker_processes({broker.id: broker.address for broker in health.brokers})
    supervisor = supervisor_of(pids.values())
    if as_json:
        print_json(_document(described, health, pids, supervisor))
    else:
        _show(described, health, supervisor)
    if not health.healthy:
        raise typer.Exit(FAILED)


@app.command()
def convert(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Data folder of a single broker.")],
    as_json: Json = False,
) -> None:
    """Make the folder of a stopped single broker that of a cluster, with its topics, groups and ids.

    It may be interrupted and run again. Then start the cluster with `ottla serve --brokers 3 --data DIR`.
    """
    from ottla.cli.convert_folder import convert as convert_folder

    folder = folder.expanduser().absolute()
    try:
        node_id, name = convert_folder(folder)
    except OSError as error:
        raise Failure(
            f"cannot convert {folder}: {error.strerror or error}",
            "Run the command again: it goes on from here.",
        ) from None
    if as_json:
        print_json({"data": str(folder), "broker": node_id, "folder": str(folder / name)})
    else:
        write(f"{folder} is the folder of a cluster now; broker {node_id} is in {name}\n")
        say(f"start it with: ottla serve --brokers {max(node_id, _USUAL_BROKERS)} --data {folder}")


def _brokers(wire: Wire, described: DescribeClusterResponse) -> list[BrokerView]:
    from ottla.cli.cluster_health import BrokerView
    from ottla.protocol_client.log_state import full_disks

    brokers = sorted(described.brokers, key=lambda each: each.broker_id)
    in_service = [broker.broker_id for broker in brokers if not broker.is_fenced]
    full = full_disks(wire, in_service, _DISK_SECONDS)
    return [
        BrokerView(
            broker.broker_id,
            _address(broker.host, broker.port),
            broker.rack,
            broker.is_fenced,
            broker.broker_id in full,
        )
        for broker in brokers
    ]


def _partitions(wire: Wire) -> list[PartitionView]:
    from ottla.cli.cluster_health import PartitionView
    from ottla.protocol_client.admin import min_in_sync_replicas

    topics = sorted(wire.metadata().topics, key=lambda topic: topic.name or "")
    replicated = [topic for topic in topics if any(len(each.replica_nodes) > 1 for each in topic.partitions)]
    least = min_in_sync_replicas(wire, [topic.name or "" for topic in replicated])
    return [
        PartitionView(
            topic.name or "",
            each.partition_index,
            each.leader_id,
            tuple(each.replica_nodes),
            tuple(each.isr_nodes),
            least.get(topic.name or "", 1),
            tuple(each.offline_replicas),
        )
        for topic in topics
        for each in sorted(topic.partitions, key=lambda each: each.partition_index)
    ]


def _state(broker: BrokerView) -> str:
    if broker.fenced:
        return "fenced"
    return "full" if broker.full else "alive"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _document(
    described: DescribeClusterResponse,
    health: ClusterHealth,
    pids: Mapping[int, int],
    supervisor: int | None,
) -> dict[str, object]:
    from ottla.cli.cluster_health import BELOW_MIN_ISR, OFFLINE, UNDER_REPLICATED

    def named(trouble: str) -> list[dict[str, object]]:
        return [
            {
                "topic": each.topic,
                "partition": each.index,
                "leader": each.leader,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
                "min_isr": each.min_isr,
            }
            for each in health.troubled
            if each.trouble == trouble
        ]

    return {
        "cluster_id": described.cluster_id,
        "controller": described.controller_id,
        "healthy": health.healthy,
        "supervisor": supervisor,
        "brokers": [
            {
                "id": broker.id,
                "address": broker.address,
                "pid": pids.get(broker.id),
                "rack": broker.rack,
                "state": _state(broker),
                "leads": health.leads(broker.id),
                "replicas": health.replicas(broker.id),
            }
            for broker in health.brokers
        ],
        "missing_brokers": health.missing,
        "partitions": len(health.partitions),
        "offline": named(OFFLINE),
        "below_min_isr": named(BELOW_MIN_ISR),
        "under_replicated": named(UNDER_REPLICATED),
        "advice": health.advice(),
    }


def _show(described: DescribeClusterResponse, health: ClusterHealth, supervisor: int | None) -> None:
    from ottla.cli.cluster_health import TROUBLES

    counts = [f"{count_text(health.count(trouble))} {trouble}" for trouble in TROUBLES]
    print_fields(
        [
            ("Cluster", described.cluster_id),
            ("Controller", f"broker {described.controller_id}" if described.controller_id >= 0 else "none"),
            ("Partitions", f"{count_text(len(health.partitions))} in all: {', '.join(counts)}"),
            *([("Supervisor", f"process {supervisor}")] if supervisor is not None else []),
        ]
    )
    write("\n")
    rows = [
        [
            str(broker.id),
            _state(broker),
            broker.address,
            broker.rack or "-",
            count_text(health.leads(broker.id)),
            count_text(health.replicas(broker.id)),
        ]
        for broker in health.brokers
    ]
    rows += [
        [str(node), "missing", "-", "-", count_text(health.leads(node)), count_text(health.replicas(node))]
        for node in health.missing
    ]
    print_table(
        [
            Column("broker", number=True),
            Column("state", style="bold"),
            Column("address"),
            Column("rack"),
            Column("leads", number=True),
            Column("replicas", number=True),
        ],
        rows,
    )
    troubled = health.troubled
    if troubled:
        write("\n")
        _show_partitions(troubled[:_SHOWN])
        if len(troubled) > _SHOWN:
            write(f"and {count_text(len(troubled) - _SHOWN)} more; --json has all\n")
    advice = health.advice()
    if advice:
        write("\n" + "".join(f"{line}\n" for line in advice))


def _show_partitions(partitions: Sequence[PartitionView]) -> None:
    print_table(
        [
            Column("partition", style="bold"),
            Column("trouble"),
            Column("leader", number=True),
            Column("replicas"),
            Column("in sync"),
            Column("min ISR", number=True),
        ],
        [
            [
                each.name,
                each.trouble or "",
                str(each.leader) if each.leader >= 0 else "none",
                ",".join(map(str, each.replicas)),
                ",".join(map(str, each.isr)) or "-",
                str(each.min_isr),
            ]
            for each in partitions
        ],
    )
