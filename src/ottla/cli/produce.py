"""`ottla produce`: lines from stdin or files to a topic.

Lines are gathered into batches while they come fast and sent within a few milliseconds when they come
slowly, so that both a file of gigabytes and a person typing are served well. Memory stays bounded by one
batch buffer. Whatever was read is sent before the command ends, also at Ctrl-C.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failure import INTERRUPTED, Failure, as_failure, usage
from ottla.cli.interrupt import Interruptible
from ottla.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    Bootstrap,
    Json,
    Timeout,
    Topic,
    connect,
    no_such_topic,
    parse_pairs,
)
from ottla.cli.output import count_text, print_json, say
from ottla.cli.progress import Meter
from ottla.cli.record_lines import BadLine, InputFormat, LineReader

if TYPE_CHECKING:
    from ottla.protocol_client.produce import Producer, Rejected
    from ottla.protocol_client.wire import Wire

MAX_LINE = 64 << 20
"""The longest line that is read; a topic would have to be set up for records of this size anyway."""

_READ = 256 << 10
_LINGER_MS = 5
_NEW_TOPIC_PATIENCE = 3.0


class Compression(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class Acks(StrEnum):
    all = "all"
    leader = "1"
    none = "0"


def produce(
    topic: Topic,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="Split each line into key and value here."
        ),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of every record.")
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Write to this partition only."),
    ] = None,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="Compress the batches.")
    ] = Compression.none,
    acks: Annotated[Acks, typer.Option("--acks", help="Who must have a record before it counts.")] = Acks.all,
    form: Annotated[
        InputFormat, typer.Option("--format", help="What a line is; json has keys, headers and times.")
    ] = InputFormat.text,
    file: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="Read this file instead of stdin; - is stdin.")
    ] = None,
    empty_as_null: Annotated[
        bool,
        typer.Option("--empty-as-null", help="An empty value is null, a tombstone for a compacted topic."),
    ] = False,
    any_partition: Annotated[
        bool, typer.Option("--any-partition", help="Choose by key even where JSON names a partition.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create/--no-create", help="Let the broker create a topic that is missing.")
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Write lines to a topic, each line a record.

    Reads stdin until it ends. With --format json a line is an object like
    {"key": "k", "value": "v", "headers": {"h": "1"}, "timestamp": 1700000000000, "partition": 0},
    which is also what `ottla consume --format json` prints.
    """
    from ottla.protocol.compression import Codec
    from ottla.protocol.errors import ApiError
    from ottla.protocol_client.produce import Producer, Rejected
    from ottla.protocol_client.wire import BrokerUnreachable

    if key_separator == "":
        raise usage("--key-separator is empty")
    if key is not None and key_separator is not None:
        raise usage("--key and --key-separator exclude each other", "One key for all, or one in each line.")
    headers: list[tuple[str, bytes | None]] = [
        (name, value.encode())
        for name, value in (parse_pairs([h], "--header").popitem() for h in header or [])
    ]
    reader = LineReader(
        form,
        key=key,
        key_separator=_unescape(key_separator),
        headers=headers,
        partition=partition,
        any_partition=any_partition,
        empty_as_null=empty_as_null,
    )
    with connect(bootstrap, timeout) as wire, Interruptible() as interrupt:
        _require_topic(wire, topic, create, quiet)
        producer = Producer(
            wire,
            topic,
            acks=-1 if acks is Acks.all else int(acks.value),
            codec=Codec[compression.name.upper()],
            timeout=timeout,
        )
        if partition is not None and partition >= producer.partition_count:
            raise _no_such_partition("", partition, producer)
        typing = not file and sys.stdin.isatty()
        if typing and not quiet:
            say(f"Writing to {topic}. One record per line; Ctrl-D ends.")
        meter = Meter(visible=not (quiet or typing))
        failure: Failure | None = None
        interrupted = False
        try:
            try:
                _feed(producer, reader, file or [Path("-")], interrupt, meter)
            except KeyboardInterrupt:
                interrupted = True
            except Failure as error:
                failure = error
            producer.flush()
        except Rejected as error:
            failure = _refused(error, topic)
        except (ApiError, BrokerUnreachable) as error:
            failure = as_failure(error)
        meter.update(producer.acknowledged, producer.bytes_acknowledged)
        meter.clear()
        if as_json:
            print_json(_summary(topic, producer, meter))
        elif not quiet:
            say(_closing(topic, producer, meter, interrupted))
    if failure is not None:
        raise failure
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _feed(
    producer: Producer,
    reader: LineReader,
    files: list[Path],
    interrupt: Interruptible,
    meter: Meter,
) -> None:
    """All lines of all files into the producer."""
    for path in files:
        name = "stdin" if str(path) == "-" else str(path)
        descriptor, opened = _open(path)
        try:
            for number, line in enumerate(read_lines(descriptor, interrupt, producer.flush), 1):
                try:
                    record = reader.parse(line)
                except BadLine as error:
                    raise Failure(f"{name}, line {number}: {error}") from None
                if record is not None:
                    if (record.partition or 0) >= producer.partition_count:
                        raise _no_such_partition(f"{name}, line {number}: ", record.partition, producer)
                    producer.add(*record)
                    if not number & 0xFF:
                        meter.update(producer.acknowledged, producer.bytes_acknowledged)
                if interrupt.requested:
                    raise KeyboardInterrupt
        finally:
            if opened:
                os.close(descriptor)


def read_lines(descriptor: int, interrupt: Interruptible, on_idle: Callable[[], None]) -> Iterator[bytes]:
    """Lines without their ends. `on_idle` is called whenever the input pauses, before waiting for more."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    rest = bytearray()
    while True:
        with interrupt.waiting():
            idle = not poll.poll(_LINGER_MS)
        if idle:
            on_idle()
            with interrupt.waiting():
                poll.poll()
        data = os.read(descriptor, _READ)
        if not data:
            break
        if b"\n" not in data:
            rest += data
            if len(rest) > MAX_LINE:
                raise Failure(f"a line is longer than {MAX_LINE >> 20} MB", "Is the input made of lines?")
            continue
        lines = (bytes(rest) + data).split(b"\n") if rest else data.split(b"\n")
        rest = bytearray(lines.pop())
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield bytes(rest)


def _open(path: Path) -> tuple[int, bool]:
    if str(path) == "-":
        return sys.stdin.fileno(), False
    try:
        return os.open(path, os.O_RDONLY), True
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}") from None


def _require_topic(wire: Wire, topic: str, create: bool, quiet: bool) -> None:
    """See that the topic exists, or have it created and say so."""
    from ottla.protocol.errors import ApiError, ErrorCode

    try:
        wire.topic(topic)
        return
    except ApiError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        if not create:
            raise no_such_topic(wire, topic) from None
    try:
        made = wire.topic(topic, create=True, patience=_NEW_TOPIC_PATIENCE)
    except ApiError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise no_such_topic(wire, topic) from None
    if not quiet:
        say(f"Created topic {topic} with {count_text(len(made.partitions), 'partition')}.")


def _no_such_partition(where: str, partition: int | None, producer: Producer) -> Failure:
    have = f"0 to {producer.partition_count - 1}" if producer.partition_count > 1 else "0"
    return Failure(
        f"{where}topic {producer.topic!r} has no partition {partition}, only {have}",
        "--any-partition chooses the partition by key instead." if where else "",
    )


def _refused(error: Rejected, topic: str) -> Failure:
    from ottla.protocol.errors import ErrorCode

    many = f" and {count_text(error.count - 1, 'more')}" if error.count > 1 else ""
    advice = ""
    if error.code == ErrorCode.MESSAGE_TOO_LARGE:
        advice = f"`ottla topic alter {topic} --set max.message.bytes=N` raises the topic's limit."
    return Failure(f"record {error.number}{many} refused: {error.message} ({error.code.name})", advice)


def _closing(topic: str, producer: Producer, meter: Meter, interrupted: bool) -> str:
    lost = producer.added - producer.acknowledged
    remarks = ([f"{count_text(lost)} not written"] if lost else []) + (["interrupted"] if interrupted else [])
    return f"{meter.final()} to {topic}" + (f" ({', '.join(remarks)})" if remarks else "")


def _summary(topic: str, producer: Producer, meter: Meter) -> dict[str, object]:
    return {
        "topic": topic,
        "records": producer.acknowledged,
        "bytes": producer.bytes_acknowledged,
        "seconds": round(meter.seconds, 3),
        "partitions": {
            str(p): {"first_offset": first, "last_offset": last}
            for p, (first, last) in sorted(producer.offsets.items())
        },
    }


def _unescape(separator: str | None) -> str | None:
    """`\\t` typed in a shell means a tab."""
    return None if separator is None else separator.replace("\\t", "\t").replace("\\0", "\0")
