"""What is in the files of a log, for people: `ottla log inspect` prints it.

Reads files that no process has opened, or that a broker is writing at this moment, and changes nothing.
Batches are shown by their headers; records are opened only when asked for. A problem is shown where it is,
and the reading goes on as far as it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ottla.protocol.batches import HEADER_SIZE, MAGIC, BatchHeader, crc_matches, read_header
from ottla.protocol.compression import Codec
from ottla.protocol.records import CompressionError, InvalidRecords, Record, decode_batch
from ottla.storage.files import Disk, RealDisk
from ottla.storage.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from ottla.storage.producer_snapshot import ProducerState, decode_snapshot
from ottla.storage.scan import LARGEST_OFFSET, Damaged, walk
from ottla.storage.time_index import ENTRY as TIME_ENTRY
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex

_MAX_RECORDS_SIZE = 256 << 20


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One batch, or the place where there should be one (`header` is None)."""

    position: int
    size: int
    header: BatchHeader | None
    crc_ok: bool = False
    compression: str = ""
    problems: list[str] = field(default_factory=list)
    records: list[Record] | None = None


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One entry: of an offset index with a `position`, of a time index with a `timestamp`."""

    offset: int
    position: int | None
    timestamp: int | None
    problems: list[str] = field(default_factory=list)


def inspect_segment(path: Path, *, records: bool = False, disk: Disk | None = None) -> Iterator[BatchReport]:
    """The batches of a `.log` file, in order. Ends after the first place that is no batch."""
    file = (disk or RealDisk()).open(path)
    position, end = 0, file.size
    next_offset = base_offset_of(path)
    while position < end:
        head = file.read_at(position, HEADER_SIZE)
        problem = _not_a_batch(head, end - position)
        if problem is not None:
            yield BatchReport(position, end - position, None, problems=[problem])
            return
        header = read_header(head)
        data = file.read_at(position, header.size)
        problems = []
        crc_ok = crc_matches(data, 0, header)
        if not crc_ok:
            problems.append("the CRC is wrong: the batch was damaged after it was written")
        if next_offset is not None and header.base_offset < next_offset:
            problems.append(f"offset {header.base_offset} follows offset {next_offset - 1}")
        if header.record_count > header.last_offset_delta + 1:
            problems.append(f"{header.record_count} records in {header.last_offset_delta + 1} offsets")
        opened, trouble = _open(data) if records and crc_ok else (None, None)
        if trouble is not None:
            problems.append(trouble)
        codec = _codec_name(header.compression)
        yield BatchReport(position, header.size, header, crc_ok, codec, problems, opened)
        next_offset = header.next_offset
        position += header.size


def _not_a_batch(head: bytes, left: int) -> str | None:
    if len(head) < HEADER_SIZE:
        return f"{left} bytes at the end are too few for a batch: an unfinished write"
    header = read_header(head)
    if header.magic != MAGIC or header.size < HEADER_SIZE:
        return "there is no batch header"
    if header.size > left:
        return f"a batch of {header.size} bytes is cut off after {left}: an unfinished write"
    return None


def _open(data: bytes) -> tuple[list[Record] | None, str | None]:
    try:
        return decode_batch(data, max_size=_MAX_RECORDS_SIZE), None
    except (InvalidRecords, CompressionError) as problem:
        return None, str(problem)


def _codec_name(codec: int) -> str:
    try:
        return Codec(codec).name.lower()
    except ValueError:
        return f"unknown codec {codec}"


def inspect_index(path: Path, *, disk: Disk | None = None) -> Iterator[IndexEntry]:
    """The entries of an `.index` file, each checked against the batch it points to when the log is there."""
    disk = disk or RealDisk()
    base = base_offset_of(path) or 0
    data = disk.read(path)
    log = _batches(path.with_suffix(".log"), disk)
    previous = -1
    for at in range(0, len(data) - OFFSET_ENTRY_SIZE + 1, OFFSET_ENTRY_SIZE):
        relative = int.from_bytes(data[at : at + 4], "big", signed=True)
        position = int.from_bytes(data[at + 4 : at + 8], "big", signed=True)
        problems = []
        if relative <= previous:
            problems.append("offsets do not rise")
        if log is not None and log.get(position) != base + relative:
            problems.append(f"no batch that ends at offset {base + relative} begins at byte {position}")
        previous = relative
        yield IndexEntry(base + relative, position, None, problems)


def inspect_time_index(path: Path, *, disk: Disk | None = None) -> Iterator[IndexEntry]:
    """The entries of a `.timeindex` file."""
    base = base_offset_of(path) or 0
    data = (disk or RealDisk()).read(path)
    previous = (-1, -1)
    for timestamp, relative in TIME_ENTRY.iter_unpack(data[: len(data) - len(data) % TIME_ENTRY.size]):
        problems = []
        if timestamp <= previous[0] or relative < previous[1]:
            problems.append("entries do not rise")
        previous = timestamp, relative
        yield IndexEntry(base + relative, None, timestamp, problems)


def inspect_transaction_index(path: Path, *, disk: Disk | None = None) -> list[AbortedTransaction]:
    """The entries of a `.txnindex` file. CorruptIndex when it is damaged."""
    data = (disk or RealDisk()).read(path)
    return list(TransactionIndex.decode(data, base_offset_of(path) or 0, LARGEST_OFFSET))


def inspect_snapshot(path: Path, *, disk: Disk | None = None) -> list[ProducerState]:
    """The producers in a `.snapshot` file. CorruptSnapshot when it is damaged."""
    return decode_snapshot((disk or RealDisk()).read(path))


def _batches(path: Path, disk: Disk) -> dict[int, int] | None:
    """Where the batches of a log file begin and which offset they end with; None when it is not there."""
    found: dict[int, int] = {}
    try:
        file = disk.open(path)
        for position, header in walk(file, 0, file.size):
            found[position] = header.last_offset
    except FileNotFoundError:
        return None
    except Damaged:
        return found
    return found


def base_offset_of(path: Path) -> int | None:
    """The offset in a file's name."""
    stem = path.name.split(".", 1)[0]
    return int(stem) if stem.isdigit() else None
