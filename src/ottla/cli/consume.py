"""`ottla consume`: a topic to stdout.

Reads by assignment, without a group: nothing is committed and no other consumer is affected. With --group it
is a member of that group: it reads its share, from where the group left off, and commits what it has printed.
Without --follow it reads up to the end as it was when the command started, and ends; with --follow it waits
for more.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failure import INTERRUPTED, Failure, usage
from ottla.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    Bootstrap,
    Json,
    Timeout,
    Topic,
    complete_group,
    connect,
    find_topic,
)
from ottla.cli.output import leave_quietly, say
from ottla.cli.output_format import Isolation, OutputFormat
from ottla.cli.progress import Meter

if TYPE_CHECKING:
    from ottla.cli.record_format import Render
    from ottla.protocol_client.consume import Consumer
    from ottla.protocol_client.group_consumer import GroupConsumer
    from ottla.protocol_client.offsets import Span
    from ottla.protocol_client.wire import Wire


def consume(
    topic: Topic,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="WHEN", help="beginning (default), end, a time, or a span back like -1h."
        ),
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option(
            "--offset", "-o", metavar="N", help="Start at this offset; -N is the last N of each partition."
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Read this partition only; repeatable."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Read as a member of this group, and commit.",
            autocompletion=complete_group,
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="End after so many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records until Ctrl-C.")
    ] = False,
    form: Annotated[
        OutputFormat, typer.Option("--format", help="How a record is printed.")
    ] = OutputFormat.text,
    key_separator: Annotated[
        str, typer.Option("--key-separator", "-K", metavar="TEXT", help="Between the columns of a line.")
    ] = "\\t",
    keys: Annotated[bool, typer.Option("--keys", "-k", help="Show keys.")] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Show headers.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Show the time of each record.")] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Show PARTITION:OFFSET.")] = False,
    isolation: Annotated[
        Isolation,
        typer.Option("--isolation", help="committed hides records of open and aborted transactions."),
    ] = Isolation.committed,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Print the records of a topic.

    Ends at the end of the topic as it was at the start; --follow waits for more. --json is --format json:
    one object per line, which `ottla produce --format json` reads back. With --group it goes on where the
    group left off; --from is for partitions in which the group has not read yet. Batches whose records
    cannot be read are named and skipped, and the command fails at its end.
    """
    from ottla.cli.record_format import Layout, renderer
    from ottla.protocol.errors import ApiError, ErrorCode
    from ottla.protocol_client.consume import Consumer, Damaged
    from ottla.protocol_client.group_consumer import GroupConsumer
    from ottla.protocol_client.offsets import spans

    if start is not None and offset is not None:
        raise usage("--from and --offset exclude each other")
    if group is not None and (offset is not None or partition):
        raise usage("--group decides which partitions are read from where: no --offset and no --partition")
    committed = isolation is Isolation.committed
    layout = Layout(
        topic=topic,
        keys=keys,
        offsets=offsets,
        timestamps=timestamps,
        headers=headers,
        separator=key_separator.replace("\\t", "\t").replace("\\0", "\0"),
        terminal=sys.stdout.isatty(),
    )
    render = renderer(OutputFormat.json if as_json else form, layout)
    with connect(bootstrap, timeout) as wire:
        known = sorted(p.partition_index for p in find_topic(wire, topic).partitions)
        chosen = _choose(topic, known, partition)
        held = spans(wire, topic, chosen, read_committed=committed)
        stop = None if follow else {p: span.end for p, span in held.items()}
        skipped: list[str] = []

        def skip(what: str) -> None:
            meter.clear()
            say(f"{what}; going on behind it")
            skipped.append(what)

        consumer: Consumer | GroupConsumer
        meter = Meter(visible=not quiet and not sys.stdout.isatty())
        if group is None:
            begin = _begin(wire, topic, held, start, offset)
            consumer = Consumer(
                wire, topic, begin, stop, read_committed=committed, timeout=timeout, notice=say, skip=skip
            )
        else:
            consumer = GroupConsumer(
                wire,
                topic,
                group,
                lambda new: _begin(wire, topic, spans(wire, topic, new), start, None),
                stop=stop,
                read_committed=committed,
                timeout=timeout,
                notice=(lambda text: None) if quiet else say,
                skip=skip,
            )
        try:
            if isinstance(consumer, GroupConsumer):
                signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave the group, as for Ctrl-C
                with consumer:
                    _print(consumer, render, count, flush=True, meter=meter)
            else:
                _print(consumer, render, count, flush=follow or sys.stdout.isatty(), meter=meter)
        except BrokenPipeError:
            leave_quietly()
        except ApiError as error:
            if group is None or error.code != ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                raise
            raise _other_protocol(group) from None
        except Damaged as error:
            meter.clear()
            raise Failure(str(error), "`ottla log inspect` on the broker's file shows more.") from None
        except KeyboardInterrupt:
            meter.clear()
            _close(meter, quiet)
            raise typer.Exit(INTERRUPTED) from None
        meter.clear()
        _close(meter, quiet)
        if committed and not quiet and meter.records != count:
            _tell_open_transactions(wire, topic, chosen)
        if skipped:
            batches = "a batch" if len(skipped) == 1 else f"{len(skipped)} batches"
            raise Failure(
                f"{batches} could not be read, the first one: {skipped[0]}",
                "Its producer sent what is no records. `ottla log inspect` on the broker's file shows more.",
            )


def _print(
    consumer: Consumer | GroupConsumer, render: Render, count: int | None, *, flush: bool, meter: Meter
) -> None:
    out = sys.stdout.buffer
    records = size = 0
    try:
        for partition, chunk in consumer.chunks():
            if count is not None:
                chunk = chunk[: count - records]
            records += len(chunk)
            for record in chunk:
                line = render(partition, record)
                size += len(line)
                out.write(line)
            if flush:
                out.flush()
            consumer.done(partition, chunk[-1].offset + 1)
            meter.update(records, size)
            if records == count:
                break
    finally:
        meter.records, meter.bytes = records, size
        out.flush()


def _tell_open_transactions(wire: Wire, topic: str, partitions: list[int]) -> None:
    """A topic that seems to end early: what comes behind an open transaction waits for its end."""
    from ottla.protocol_client.offsets import LATEST, list_offsets

    times = dict.fromkeys(partitions, LATEST)
    written = list_offsets(wire, topic, times)
    stable = list_offsets(wire, topic, times, read_committed=True)  # asked last, so less is less
    waiting = [p for p in partitions if stable[p] < written[p]]
    if waiting:
        say(
            f"partition {waiting[0]} of {topic!r} has more from offset {stable[waiting[0]]} on, written in a"
            f" transaction that is open{f'; so have {len(waiting) - 1} others' if waiting[1:] else ''}."
            " --isolation uncommitted shows it, `ottla transaction list` who writes."
        )


def _other_protocol(group: str) -> Failure:
    return Failure(
        f"group {group!r} has members that do not share partitions by range or roundrobin",
        "This command knows these two only. `ottla group describe` shows the members of the group.",
    )


def _choose(topic: str, known: list[int], wanted: list[int] | None) -> list[int]:
    for number in wanted or []:
        if number not in known:
            have = "0" if len(known) == 1 else f"0 to {known[-1]}"
            raise Failure(f"topic {topic!r} has no partition {number}, only {have}")
    return sorted(set(wanted)) if wanted else known


def _begin(
    wire: Wire, topic: str, held: dict[int, Span], start: str | None, offset: int | None
) -> dict[int, int]:
    """Where to start in each partition."""
    from ottla.cli.moments import parse_moment
    from ottla.protocol_client.offsets import EARLIEST, LATEST, list_offsets

    if offset is not None:
        return {p: _at(topic, p, span, offset, alone=len(held) == 1) for p, span in held.items()}
    try:
        moment = parse_moment(start or "beginning", time.time_ns() // 1_000_000)
    except ValueError as error:
        raise usage(f"--from: {error}") from None
    if moment == EARLIEST:
        return {p: span.start for p, span in held.items()}
    if moment == LATEST:
        return {p: span.end for p, span in held.items()}
    found = list_offsets(wire, topic, dict.fromkeys(held, moment))
    return {p: span.end if found[p] < 0 else found[p] for p, span in held.items()}


def _at(topic: str, partition: int, span: Span, offset: int, *, alone: bool) -> int:
    """The offset asked for, kept inside the partition; outside of the only one read it is an error."""
    if offset < 0:
        return max(span.start, span.end + offset)
    if alone and not span.start <= offset <= span.end:
        holds = (
            f"holds {span.start} to {span.end - 1}" if span.end > span.start else f"is empty at {span.end}"
        )
        raise Failure(f"offset {offset} is not in partition {partition} of {topic!r}, which {holds}")
    return min(max(offset, span.start), span.end)


def _close(meter: Meter, quiet: bool) -> None:
    if not quiet and sys.stderr.isatty():
        say(f"\x1b[2m{meter.final()}\x1b[0m" if meter.records else "\x1b[2mno records\x1b[0m")
