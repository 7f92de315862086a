"""`ottla transaction`: list, describe, abort, hanging."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.failure import Failure, usage
from ottla.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    Bootstrap,
    Json,
    Timeout,
    connect,
    find_topic,
    need_terminal_to_ask,
)
from ottla.cli.output import count_text, print_json, write
from ottla.printable import shown

if TYPE_CHECKING:
    from ottla.cli.blocks import Block
    from ottla.protocol_client.transactions import OpenTransaction, TransactionDescription
    from ottla.protocol_client.wire import Wire

app = typer.Typer(
    help="Look at transactions, and end those that hold up readers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_STATES = "Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort"
DEFAULT_SILENT = "15m"
"""How long a transaction may take at most, by the default of `transaction.max.timeout.ms`."""

Id = Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")]
Silent = Annotated[
    str,
    typer.Option("--silent", metavar="TIME", help="Only if their producers wrote nothing for so long."),
]


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only in this state, like Ongoing; repeatable."),
    ] = None,
    longer: Annotated[
        str | None,
        typer.Option("--longer-than", metavar="TIME", help="Only those that run for longer, like 5m."),
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """List the transactional ids with the state of their transactions."""
    from ottla.cli.output import Column, print_table
    from ottla.protocol_client.transactions import list_transactions

    longer_ms = -1 if longer is None else _span(longer, "--longer-than")
    with connect(bootstrap, timeout) as wire:
        try:
            found = list_transactions(wire, state or (), longer_ms)
        except ValueError as error:
            raise usage(f"--state: {error}; those there are: {_STATES}") from None
    if as_json:
        print_json(
            [
                {
                    "transactional_id": each.transactional_id,
                    "state": each.state,
                    "producer_id": each.producer_id,
                    "coordinator": each.coordinator,
                }
                for each in found
            ]
        )
    elif not found and sys.stdout.isatty():
        write("No transactions.\n")
    else:
        print_table(
            [
                Column("transactional id", style="bold"),
                Column("state"),
                Column("producer", number=True),
                Column("coordinator", number=True),
            ],
            [
                [shown(each.transactional_id), each.state, str(each.producer_id), str(each.coordinator)]
                for each in found
            ],
        )


@app.command()
def describe(
    transactional_id: Id,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show the state of a transactional id: its producer, and the partitions of its transaction."""
    from ottla.cli.blocks import Fields, Table, View, show
    from ottla.cli.moments import time_text
    from ottla.cli.output import Column, seconds_text

    with connect(bootstrap, timeout) as wire:
        found = _find(wire, transactional_id)
        host, port = wire.nodes[found.coordinator]
    document: dict[str, Any] = {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "began_ms": found.began_ms if found.began_ms >= 0 else None,
        "coordinator": found.coordinator,
        "partitions": [{"topic": topic, "partition": index} for topic, index in found.partitions],
    }
    began = "-"
    if found.began_ms >= 0:
        age = seconds_text(max(_now() - found.began_ms, 0) / 1000)
        began = f"{time_text(found.began_ms)}, {age} ago"
    fields = [
        ("Transactional id", shown(found.transactional_id)),
        ("State", found.state),
        ("Producer", f"{found.producer_id} with epoch {found.producer_epoch}"),
        ("Timeout", seconds_text(found.timeout_ms / 1000)),
        ("Began", began),
        ("Coordinator", f"broker {found.coordinator} at {host}:{port}"),
    ]
    blocks: list[Block] = [Fields(fields)]
    if found.partitions:
        columns = [Column("topic", style="bold"), Column("partition", number=True)]
        blocks.append(Table(columns, [[topic, str(index)] for topic, index in found.partitions]))
    show(View(document, blocks), as_json=as_json)


@app.command()
def hanging(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only in this topic; repeatable.")
    ] = None,
    silent: Silent = DEFAULT_SILENT,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Find transactions that no coordinator will end.

    Readers of committed records do not get past them. `abort --partition` ends one.
    """
    from ottla.cli.moments import time_text
    from ottla.cli.output import Column, print_table
    from ottla.protocol_client.transactions import hanging_transactions

    since = _now() - _span(silent, "--silent")
    with connect(bootstrap, timeout) as wire:
        for name in topic or ():
            find_topic(wire, name)
        found = hanging_transactions(wire, topic, silent_since_ms=since)
    if as_json:
        print_json([_open_document(each) for each in found])
        return
    if not found and sys.stdout.isatty():
        write("No transaction hangs.\n")
        return
    columns = [Column("topic", style="bold"), Column("partition", number=True), Column("start", number=True)]
    columns += [Column("producer", number=True), Column("epoch", number=True), Column("last written")]
    print_table(
        columns,
        [
            [
                each.topic,
                str(each.partition),
                str(each.start_offset),
                str(each.producer_id),
                str(each.producer_epoch),
                time_text(each.last_ms),
            ]
            for each in found
        ],
    )


@app.command()
def abort(
    transactional_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The transactional id; or --partition.")
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option("--partition", metavar="TOPIC:NUMBER", help="End one that hangs in this partition."),
    ] = None,
    start: Annotated[
        int | None,
        typer.Option("--start", metavar="OFFSET", min=0, help="Where it starts, as `hanging` shows it."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Abort a transaction, after asking.

    With ID its producer is fenced: it cannot go on, also if it is alive. With --partition and --start a
    transaction is ended that no coordinator knows (see `hanging`).
    """
    if (transactional_id is None) == (partition is None) or (partition is None) != (start is None):
        raise usage("either ID is wanted, or --partition with --start")
    with connect(bootstrap, timeout) as wire:
        if transactional_id is not None:
            document = _abort_by_id(wire, transactional_id, yes)
        else:
            assert partition is not None and start is not None
            document = _abort_in_partition(wire, partition, start, yes)
    if as_json:
        print_json(document)
    else:
        write("aborted\n")


def _abort_by_id(wire: Wire, transactional_id: str, yes: bool) -> dict[str, Any]:
    from ottla.protocol_client.transactions import abort_transaction

    found = _find(wire, transactional_id)
    if not yes:
        need_terminal_to_ask("aborting")
        where = count_text(len(found.partitions), "partition")
        question = f"Abort {shown(transactional_id)} ({found.state}, {where}) and fence its producer?"
        typer.confirm(question, abort=True, err=True)
    abort_transaction(wire, transactional_id, found.timeout_ms)
    return {"transactional_id": transactional_id, "was": found.state, "aborted": True}


def _abort_in_partition(wire: Wire, partition: str, start: int, yes: bool) -> dict[str, Any]:
    from ottla.protocol_client.transactions import abort_open, open_transactions

    topic, colon, number = partition.rpartition(":")
    if not colon or not number.isdecimal():
        raise usage(f"--partition {partition!r}: TOPIC:NUMBER is wanted, like payments:0")
    find_topic(wire, topic)
    place = topic, int(number)
    there = [each for each in open_transactions(wire, [topic]) if (each.topic, each.partition) == place]
    found = next((each for each in there if each.start_offset == start), None)
    if found is None:
        starts = ", ".join(str(each.start_offset) for each in there) or "none"
        raise Failure(
            f"no open transaction of {topic}:{number} starts at offset {start}",
            f"Those that are open there start at: {starts}.",
        )
    if not yes:
        need_terminal_to_ask("aborting")
        question = f"Abort the transaction of producer {found.producer_id} in {partition}?"
        typer.confirm(question, abort=True, err=True)
    abort_open(wire, found)
    return {**_open_document(found), "aborted": True}


def _find(wire: Wire, transactional_id: str) -> TransactionDescription:
    from difflib import get_close_matches

    from ottla.protocol.errors import ApiError, ErrorCode
    from ottla.protocol_client.transactions import describe_transaction, list_transactions

    try:
        return describe_transaction(wire, transactional_id)
    except ApiError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
    names = [each.transactional_id for each in list_transactions(wire)]
    near = get_close_matches(transactional_id, names, n=1, cutoff=0.6)
    advice = f"Did you mean {near[0]!r}?" if near else "`ottla transaction list` shows those there are."
    raise Failure(f"there is no transactional id {transactional_id!r}", advice)


def _open_document(each: OpenTransaction) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "start_offset": each.start_offset,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "last_ms": each.last_ms,
    }


def _span(text: str, option: str) -> int:
    from ottla.cli.moments import span_ms

    found = span_ms(text.strip().lower())
    if found is None:
        raise usage(f"{option} {text!r}: a time like 30s, 15m or 1h is wanted")
    return found


def _now() -> int:
    return time.time_ns() // 1_000_000
