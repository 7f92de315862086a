"""Every kind of file of a data folder, damaged in every way, after a clean and an unclean stop.

A data folder with an ordinary and a compacted topic is made once for each kind of stop. Each case damages one
file in a copy of it and opens the folder again. The outcome must be one of these:

* repaired: every record is there, where it was, and found by its offset and its time; the epochs are right,
  and an idempotent producer goes on where it was. Deleted records may be back when the file is lost that says
  where the log starts, and that is told in the log;
* one partition is offline, with an error that names the damaged file or its folder, or goes offline when the
  damaged part is read; or the reader itself is told by a checksum or an offset that cannot be right. All
  other partitions are as they were.

Not checked is the leader epoch that stands in a batch, which no checksum covers and no record depends on.

A quick run damages two files of each kind, the oldest of the first topic and the newest of the last, and
flips fewer bits; a thorough one damages them all.

What belongs to a broker as a whole (`meta.properties`, the registry) is damaged in `test_damaged_broker.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random

import pytest

from effort import THOROUGH
from ottla.clock import ManualClock
from ottla.protocol.batches import HEADER_SIZE, crc_matches, headers
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.records import Record, decode_batch, encode_batch
from ottla.protocol_client.fetched_batches import WrongOffsets, in_order
from ottla.storage.cleaning.cleaner import Cleaner, clean_now
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory
from ottla.testing.memory_disk import MemoryDisk
from unit.storage.logs import T0, from_producer

ROOT = Path("/data")
CONFIGS = {
    "plain": LogConfig(segment_bytes=1200, index_interval_bytes=150),
    "compacted": LogConfig(segment_bytes=1200, index_interval_bytes=150, cleanup_policy=("compact",)),
    "other": LogConfig(),
}
PARTITIONS = [("plain", 0), ("compacted", 0), ("other", 0)]
TIMES = [T0 + 1000 * step for step in range(-1, 32, 4)]


class Wrong(Exception):
    """A reader finds a batch whose checksum is wrong."""


def opened(disk: MemoryDisk) -> LogDirectory:
    clock = ManualClock(T0 + 10**6)
    directory = LogDirectory(ROOT, disk, clock, config_for=CONFIGS.__getitem__, max_open_files=8)
    directory.open()
    return directory


@cache
def folder_after(stop: str) -> MemoryDisk:
    """Records in several segments and epochs, some deleted, some compacted away; then stopped."""
    disk = MemoryDisk()
    directory = opened(disk)
    logs = {
        key: directory.create(*key, bytes([number]) * 16, CONFIGS[key[0]])
        for number, key in enumerate(PARTITIONS)
    }
    for number in range(30):
        time = T0 + 1000 * number
        value = b"%04d" % number
        logs["plain", 0].append(from_producer(number * 2, 2, value=value, timestamp=time), number // 9)
        row = [Record(0, time, b"key%d" % (number % 7), value, [])]
        logs["compacted", 0].append(memoryview(encode_batch(row)), number // 9)
        logs["other", 0].append(from_producer(number * 2, 2, value=value, timestamp=time), 0)
        if number == 20:
            log = logs["compacted", 0]
            log.roll()
            assert clean_now(Cleaner(directory, disk, ManualClock(T0)), log, log.end_offset)
        if number == 24:
            directory.checkpoint({key: log.end_offset for key, log in logs.items()})
    logs["plain", 0].delete_records_before(5)
    if stop == "clean":
        directory.close({key: log.end_offset for key, log in logs.items()})
    else:
        directory.checkpoint({key: log.end_offset for key, log in logs.items()})
        directory.abandon()
    return disk


def read(log: Log, max_bytes: int) -> list[Record]:
    """All records, by a consumer that checks what it can."""
    offset = log.log_start_offset
    found: list[Record] = []
    while (part := log.read(offset, max_bytes, log.end_offset)) is not None:
        data = part.read()
        before = offset
        for position, header in in_order(data, log.end_offset):
            if not crc_matches(data, position, header):
                raise Wrong(f"checksum at offset {header.base_offset}")
            batch = data[position : position + header.size]
            found += [r for r in decode_batch(batch, max_size=1 << 20) if r.offset >= offset]
            offset = max(offset, header.next_offset)
        if offset == before:
            raise Wrong(f"no whole batch at offset {offset}")
    return found


def state(log: Log, max_bytes: int) -> dict[str, object]:
    """All that can be asked of a log."""
    records = read(log, max_bytes)
    times = [log.offset_for_timestamp(time) for time in TIMES]
    newest = log.max_timestamp()
    return {
        "records": [(record.offset, record.key, record.value, record.timestamp) for record in records],
        "start": log.log_start_offset,
        "end": log.end_offset,
        "times": [found and found[:2] for found in times],
        "newest": newest and newest[:2],
        "ages": [segment.max_timestamp for segment in log.segments],
        "epochs": [log.leader_epochs.epoch_for(record.offset) for record in records],
        "from each offset": [first(log, offset) for offset in range(log.log_start_offset, log.end_offset, 4)],
    }


def first(log: Log, offset: int) -> int:
    """The offset of the first batch that a reader gets at `offset`."""
    part = log.read(offset, 1, log.end_offset)
    assert part is not None
    for _, header in headers(part.read()):
        return header.base_offset
    raise Wrong(f"no batch at offset {offset}")


@cache
def sound(stop: str) -> dict[tuple[str, int], dict[str, object]]:
    logs = opened(folder_after(stop).copy()).logs
    return {key: state(logs[key], 4000) for key in PARTITIONS}


def judge(stop: str, disk: MemoryDisk, path: Path, max_bytes: int, told: pytest.LogCaptureFixture) -> str:
    """Open the folder; the outcome, which is one of those that are allowed."""
    told.clear()
    directory = opened(disk)
    outcome = "repaired"
    for key in PARTITIONS:
        log = directory.logs.get(key)
        if log is None:
            assert path.parent.name == f"{key[0]}-{key[1]}", "the folder of another partition is gone"
            continue
        mine = path.parent == log.folder
        try:
            if log.failure is not None:
                raise log.failure
            if path.name == "log-start-offset-checkpoint" and log.log_start_offset == 0:
                assert str(path) in told.text
                log.delete_records_before(int(str(sound(stop)[key]["start"])))
            if mine or path.parent == ROOT:
                assert state(log, max_bytes) == sound(stop)[key], f"{path} {key}"
            if key[0] == "plain":
                check_producer(log)
        except ApiError as failure:
            assert failure.code == ErrorCode.KAFKA_STORAGE_ERROR
            assert mine or path.parent == ROOT, f"{path} took {key} offline: {failure.message}"
            assert path.name in failure.message or str(log.folder) in failure.message
            outcome = "offline"
        except (Wrong, WrongOffsets):
            assert mine
            outcome = "told to the reader"
    directory.abandon()
    return outcome


def check_producer(log: Log) -> None:
    for number in range(26, 30):
        info = log.append(from_producer(number * 2, 2), 9)
        assert (info.first_offset, info.duplicate) == (number * 2, True)
    with pytest.raises(ApiError) as refusal:
        log.append(from_producer(61), 9)
    assert refusal.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# -- the damages ------------------------------------------------------------------------------------------


def missing(disk: MemoryDisk, path: Path, rng: Random) -> None:
    disk.remove(path)


def empty(disk: MemoryDisk, path: Path, rng: Random) -> None:
    disk.open(path).truncate(0)


def cut(disk: MemoryDisk, path: Path, rng: Random) -> None:
    file = disk.open(path)
    file.truncate(rng.randrange(1, file.size) if file.size > 1 else 0)


def cut_by_an_entry(disk: MemoryDisk, path: Path, rng: Random) -> None:
    file = disk.open(path)
    entry = {".index": 8, ".timeindex": 12}.get(path.suffix, HEADER_SIZE)
    file.truncate(max(file.size - entry, 0))


def zeroed(disk: MemoryDisk, path: Path, rng: Random) -> None:
    file = disk.open(path)
    file.write_at(0, bytes(file.size))


def half_zeroed(disk: MemoryDisk, path: Path, rng: Random) -> None:
    file = disk.open(path)
    file.write_at(file.size // 2, bytes(file.size - file.size // 2))


def longer(disk: MemoryDisk, path: Path, rng: Random) -> None:
    file = disk.open(path)
    file.write_at(file.size, rng.randbytes(70))


WAYS = [missing, empty, cut, cut_by_an_entry, zeroed, half_zeroed, longer]


def kinds(stop: str) -> dict[str, list[Path]]:
    """The files of the folder by what they are."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder_after(stop).files):
        kind = path.suffix if path.parent != ROOT and path.stem.isdigit() else path.name
        if path.parent.name != "other-0" and kind not in (".lock",):
            found.setdefault(kind, []).append(path)
    return found


def chosen(stop: str, kind: str) -> list[Path]:
    """The files of a kind that are damaged."""
    paths = kinds(stop)[kind]
    return paths if THOROUGH else sorted({paths[0], paths[-1]})


def names_of_kinds() -> list[tuple[str, str]]:
    return [(stop, kind) for stop in ("clean", "unclean") for kind in kinds(stop)]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize(("stop", "kind"), names_of_kinds())
def test_a_damaged_file_is_repaired_or_reported(
    stop: str,
    kind: str,
    way: Callable[[MemoryDisk, Path, Random], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number, path in enumerate(chosen(stop, kind)):
        disk = folder_after(stop).copy()
        way(disk, path, Random(number))
        judge(stop, disk, path, 4000, caplog)


def bits(size: int, rng: Random) -> Iterator[tuple[int, int]]:
    """Bytes and one bit of each: all of a small file, and chosen ones of a large one."""
    if not THOROUGH and size > 16:
        positions = sorted({*rng.sample(range(min(size, 22)), 8), *rng.sample(range(size), 8)})
    else:
        positions = list(range(size)) if size <= 40 else sorted({*range(22), *rng.sample(range(size), 25)})
    for position in positions:
        yield position, 1 << rng.randrange(8)


@pytest.mark.parametrize(("stop", "kind"), names_of_kinds())
def test_a_flipped_bit_is_repaired_or_reported(
    stop: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    rng = Random(f"{stop} {kind}")
    for path in chosen(stop, kind):
        for position, mask in bits(folder_after(stop).open(path).size, rng):
            disk = folder_after(stop).copy()
            file = disk.open(path)
            file.write_at(position, bytes([file.read_at(position, 1)[0] ^ mask]))
            judge(stop, disk, path, rng.choice([1, 300, 4000]), caplog)
