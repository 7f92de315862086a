"""What the storage tests share: batches, logs on a disk in memory, and reading a log back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ottla.clock import ManualClock
from ottla.protocol.batches import headers
from ottla.protocol.records import Record, decode_batch, encode_batch
from ottla.storage.files import Disk
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory
from ottla.storage.recovery_report import RecoveryReport
from ottla.testing.memory_disk import MemoryDisk

T0 = 1_700_000_000_000
ROOT = Path("/data")
TOPIC_ID = bytes(range(16))
MAX_SIZE = 1 << 20


def batch(
    count: int = 1,
    *,
    value: bytes = b"value",
    key: bytes | None = b"key",
    timestamp: int = T0,
    step: int = 1,
    **options: Any,
) -> memoryview:
    """A producer's batch of `count` records, one `step` of milliseconds apart."""
    rows = [Record(i, timestamp + i * step, key, value, []) for i in range(count)]
    return memoryview(encode_batch(rows, **options))


def from_producer(
    sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0, **more: Any
) -> memoryview:
    """A batch of an idempotent producer."""
    return batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **more)


class Store:
    """A data folder with one partition, made when it is not there, to be closed, killed and opened again."""

    def __init__(self, disk: Disk | None = None, path: Path = ROOT, **config: Any) -> None:
        self.disk: Any = disk or MemoryDisk()
        self.path = path
        self.clock = ManualClock(T0)
        self.config = LogConfig(**config)
        self.reports: list[RecoveryReport] = []
        self._open()
        known = self.directory.logs.get(("topic", 0))
        self.log = known or self.directory.create("topic", 0, TOPIC_ID, self.config)

    def _open(self) -> None:
        self.directory = LogDirectory(
            self.path, self.disk, self.clock, config_for=lambda _: self.config, max_open_files=8
        )
        self.reports = self.directory.open()

    @property
    def report(self) -> RecoveryReport:
        """What the last opening of the partition took."""
        return self.reports[0]

    @property
    def folder(self) -> Path:
        return self.path / "topic-0"

    def reopen(self) -> Log:
        """Stop cleanly and start."""
        self.directory.close()
        return self._start()

    def crash(self) -> Log:
        """Kill the process: what was written is there, nothing more happens to it. Then start."""
        self.directory.abandon()
        return self._start()

    def _start(self) -> Log:
        self._open()
        self.log = self.directory.logs["topic", 0]
        return self.log

    def files(self, suffix: str = "") -> dict[str, bytes]:
        """The partition's files by name."""
        names = sorted(name for name in self.disk.list(self.folder) if name.endswith(suffix))
        return {name: self.disk.read(self.folder / name) for name in names}

    def damage(self, name: str, position: int, data: bytes = b"\xff\xff\xff\xff") -> None:
        """Overwrite bytes of one of the partition's files; a negative position counts from the end."""
        file = self.disk.open(self.folder / name)
        file.write_at(position if position >= 0 else file.size + position, data)

    def cut(self, name: str, size: int) -> None:
        """Cut a file; a negative size cuts that many bytes off the end."""
        file = self.disk.open(self.folder / name)
        file.truncate(size if size >= 0 else file.size + size)


def read_all(
    log: Log, start: int | None = None, *, max_bytes: int = 1000, limit: int | None = None
) -> list[Record]:
    """All records from `start` on, as a consumer that fetches again and again sees them."""
    offset = log.log_start_offset if start is None else start
    limit = log.end_offset if limit is None else limit
    records: list[Record] = []
    while (found := log.read(offset, max_bytes, limit)) is not None:
        data = found.read()
        assert len(data) == len(found)
        before = offset
        for position, header in headers(data):
            batch_records = decode_batch(memoryview(data)[position:], max_size=MAX_SIZE)
            records += [record for record in batch_records if record.offset >= offset]
            offset = max(offset, header.next_offset)
        assert offset > before, "a slice must hold at least one whole batch"
    return records


def values(log: Log, **options: Any) -> list[bytes | None]:
    return [record.value for record in read_all(log, **options)]


def offsets(log: Log, **options: Any) -> list[int]:
    return [record.offset for record in read_all(log, **options)]
