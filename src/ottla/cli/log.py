"""`ottla log`: look into the files of a partition's log, without a broker.

The files are Kafka's own format, so this reads the segments of an Apache Kafka broker as well. Nothing is
changed, and a broker may be running. What is found goes out row by row, because a segment may hold very many
batches; the exit code is 1 when anything is wrong with the files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.failure import FAILED, Failure, usage
from ottla.cli.output import count_text, json_text, leave_quietly, size_text

if TYPE_CHECKING:
    from ottla.cli.record_format import Render
    from ottla.storage.inspect import BatchReport, IndexEntry

app = typer.Typer(help="Look into log files on disk.", no_args_is_help=True, rich_markup_mode=None)

_KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_BATCH_ROW = "{:>10}  {:>15}  {:>7}  {:>7}  {:<6}  {:>5}  {:<14}  {:<5}  {:<23}  {}"
_BATCH_TITLES = _BATCH_ROW.format(
    "POSITION", "OFFSETS", "RECORDS", "SIZE", "CODEC", "EPOCH", "PRODUCER", "CRC", "LATEST TIMESTAMP", "NOTES"
)


@app.callback()
def _log() -> None:
    """Look into log files on disk."""


@app.command()
def inspect(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="A .log, .index, .timeindex, .txnindex or .snapshot file, or a partition's folder.",
        ),
    ],
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Open the batches and show the records.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")] = False,
) -> None:
    """Show what log files hold, and what is wrong with them.

    Batches with their offsets, times, checksums, compression and producers; entries of indexes; producers.
    In a folder, indexes are checked and only their problems are shown. Ends with exit code 1 when something
    is wrong.
    """
    from ottla.storage.inspect import inspect_index, inspect_segment, inspect_time_index
    from ottla.storage.offset_index import CorruptIndex
    from ottla.storage.producer_snapshot import CorruptSnapshot

    problems = 0
    for path, whole in _files(paths):
        printer = _Printer(path, as_json=as_json, records=records, brief=whole and path.suffix != ".log")
        try:
            if path.suffix == ".log":
                printer.batches(inspect_segment(path, records=records))
            elif path.suffix == ".index":
                printer.entries(inspect_index(path))
            elif path.suffix == ".timeindex":
                printer.entries(inspect_time_index(path))
            elif path.suffix == ".txnindex":
                printer.aborted()
            else:
                printer.producers()
            sys.stdout.flush()
        except (CorruptIndex, CorruptSnapshot) as error:
            printer.problem(str(error))
        except BrokenPipeError:
            leave_quietly()
        except OSError as error:
            raise Failure(f"cannot read {path}: {error.strerror}") from None
        problems += printer.problems
    if problems:
        if not as_json:
            print(f"{count_text(problems, 'problem')} found", file=sys.stderr)
        raise typer.Exit(FAILED)


def _files(paths: list[Path]) -> Iterator[tuple[Path, bool]]:
    """The files to look into, and whether each was found in a folder."""
    for path in paths:
        if path.is_dir():
            found = sorted(
                (p for p in path.iterdir() if p.suffix in _KINDS), key=lambda p: (p.stem, _rank(p))
            )
            if not found:
                partitions = sum(1 for p in path.iterdir() if p.is_dir() and any(p.glob("*.log")))
                raise usage(
                    f"{path} holds no log files",
                    f"It has {count_text(partitions, 'partition folder')}: name one of them."
                    if partitions
                    else "",
                )
            yield from ((p, True) for p in found)
        elif not path.exists():
            raise usage(f"there is no {path}")
        elif path.suffix not in _KINDS:
            raise usage(f"{path} is none of {', '.join(_KINDS)}, nor a folder")
        else:
            yield path, False


def _rank(path: Path) -> int:
    return _KINDS.index(path.suffix)


class _Printer:
    """Prints what one file holds and counts what is wrong with it."""

    def __init__(self, path: Path, *, as_json: bool, records: bool, brief: bool) -> None:
        self.path = path
        self.problems = 0
        self._json = as_json
        self._brief = brief
        self._records = records
        self._render: Render | None = None
        bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
        self._title: Callable[[str], str] = lambda text: f"{bold}{text}{plain}"
        self._bad = "\x1b[31m{}\x1b[0m" if sys.stdout.isatty() else "{}"

    def batches(self, reports: Iterator[BatchReport]) -> None:
        batches = count = size = 0
        first = last = None
        for report in reports:
            if not size:
                self._out(self._title(_BATCH_TITLES))
            size += report.size
            if report.header is not None:
                batches += 1
                count += report.header.record_count
                first = report.header.base_offset if first is None else first
                last = report.header.last_offset
            self._batch(report)
        offsets = "" if first is None else f", offsets {first} to {last}"
        self._summary(
            f"{count_text(batches, 'batch', 'batches')}, "
            f"{count_text(count, 'record')}{offsets}, {size_text(size)}"
        )

    def _batch(self, report: BatchReport) -> None:
        self.problems += len(report.problems)
        if self._json:
            self._document(_batch_document(report, self._records))
            return
        header = report.header
        if header is None:
            self._out(_BATCH_ROW.format(report.position, *["-"] * 8, "").rstrip())
        else:
            from ottla.cli.moments import time_text

            self._out(
                _BATCH_ROW.format(
                    report.position,
                    f"{header.base_offset}-{header.last_offset}",
                    header.record_count,
                    size_text(report.size),
                    report.compression,
                    header.leader_epoch,
                    _producer_text(report),
                    "ok" if report.crc_ok else "WRONG",
                    time_text(header.max_timestamp, zone=False),
                    ", ".join(_notes(report)),
                ).rstrip()
            )
        for text in report.problems:
            self._out(self._bad.format(f"{'':>10}  problem: {text}"))
        for record in report.records or []:
            if self._render is None:
                self._render = _record_renderer()
            sys.stdout.write("            " + self._render(0, record).decode("utf-8", "backslashreplace"))

    def entries(self, entries: Iterator[IndexEntry]) -> None:
        if not self._brief:
            title = "TIMESTAMP" if self.path.suffix == ".timeindex" else "POSITION"
            self._out(self._title(f"{'OFFSET':>12}  {title}"))
        count = 0
        for entry in entries:
            count += 1
            self.problems += len(entry.problems)
            if self._json:
                self._document(_entry_document(entry))
            elif not self._brief or entry.problems:
                self._out(f"{entry.offset:>12}  {_entry_text(entry)}")
                for text in entry.problems:
                    self._out(self._bad.format(f"{'':>12}  problem: {text}"))
        self._summary(count_text(count, "entry", "entries"))

    def aborted(self) -> None:
        from ottla.storage.inspect import inspect_transaction_index

        row = "{:>12}  {:>12}  {:>12}  {:>18}"
        entries = inspect_transaction_index(self.path)
        if not self._brief and entries:
            self._out(self._title(row.format("PRODUCER", "FIRST OFFSET", "MARKER", "LAST STABLE OFFSET")))
        for entry in entries:
            if self._json:
                self._document(entry._asdict())
            elif not self._brief:
                self._out(row.format(*entry))
        self._summary(count_text(len(entries), "aborted transaction"))

    def producers(self) -> None:
        from ottla.storage.inspect import inspect_snapshot

        states = inspect_snapshot(self.path)
        if not self._brief and states:
            self._out(
                self._title(f"{'PRODUCER':>12}  {'EPOCH':>5}  {'LAST SEQUENCE':>13}  {'LAST OFFSET':>12}")
            )
        for state in states:
            row = (state.producer_id, state.epoch, state.last_sequence, state.last_offset)
            if self._json:
                names = ("producer_id", "producer_epoch", "last_sequence", "last_offset")
                self._document(dict(zip(names, row, strict=True)))
            elif not self._brief:
                self._out("{:>12}  {:>5}  {:>13}  {:>12}".format(*row))
        self._summary(count_text(len(states), "producer"))

    def problem(self, text: str) -> None:
        self.problems += 1
        if self._json:
            self._document({"problems": [text]})
        else:
            self._out(self._bad.format(f"{self.path}: problem: {text}"))

    def _summary(self, text: str) -> None:
        wrong = self._bad.format(count_text(self.problems, "problem")) if self.problems else "no problems"
        self._out(f"{self.path}: {text}, {wrong}")

    def _document(self, document: dict[str, Any]) -> None:
        sys.stdout.write(json_text({"file": str(self.path), **document}) + "\n")

    def _out(self, line: str) -> None:
        if not self._json:
            sys.stdout.write(line + "\n")


def _record_renderer() -> Render:
    from ottla.cli.output_format import OutputFormat
    from ottla.cli.record_format import Layout, renderer

    layout = Layout(
        topic="", keys=True, timestamps=True, headers=True, separator="  ", terminal=sys.stdout.isatty()
    )
    show = renderer(OutputFormat.text, layout)
    return lambda partition, record: b"%d  " % record.offset + show(partition, record)


def _producer_text(report: BatchReport) -> str:
    header = report.header
    if header is None or not header.has_producer:
        return "-"
    return f"{header.producer_id}/{header.producer_epoch} seq {header.base_sequence}"


def _notes(report: BatchReport) -> list[str]:
    header = report.header
    if header is None:
        return []
    flags = [
        ("control", header.is_control),
        ("transactional", header.is_transactional),
        ("LogAppendTime", header.is_log_append_time),
    ]
    return [name for name, there in flags if there]


def _batch_document(report: BatchReport, records: bool) -> dict[str, Any]:
    document: dict[str, Any] = {"position": report.position, "size": report.size, "problems": report.problems}
    header = report.header
    if header is None:
        return document
    document |= {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "leader_epoch": header.leader_epoch,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "compression": report.compression,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": f"{header.crc:08x}",
        "crc_ok": report.crc_ok,
    }
    if records:
        from ottla.cli.record_format import document_of

        document["contents"] = [document_of(record) for record in report.records or []]
    return document


def _entry_document(entry: IndexEntry) -> dict[str, Any]:
    where = {"position": entry.position} if entry.timestamp is None else {"timestamp": entry.timestamp}
    return {"offset": entry.offset, **where, "problems": entry.problems}


def _entry_text(entry: IndexEntry) -> str:
    if entry.timestamp is None:
        return str(entry.position)
    from ottla.cli.moments import time_text

    return time_text(entry.timestamp)
