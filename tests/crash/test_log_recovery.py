"""A log after a crash, for every place where the crash can hit: whole batches are there, torn ones are not.

The first tests stop time instead of the process: the disk is in memory and is copied as it is at every single
write, or cut and damaged at every byte. The last one kills real processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from effort import examples
from ottla.protocol.batches import headers
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.storage import flushing
from ottla.storage.files import RealDisk
from ottla.storage.inspect import inspect_index, inspect_time_index
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from unit.storage.logs import Store, from_producer, read_all

LAST = "00000000000000000000.log"


def workload(store: Store, count: int, rng: Random) -> Iterator[int]:
    """Appends of one producer with rolls, flushes and checkpoints between; yields the end offset of each."""
    sequence = 0
    for _ in range(count):
        records = rng.randrange(1, 4)
        store.log.append(from_producer(sequence, records, value=b"%05d" % sequence * 4), sequence // 40)
        sequence += records
        yield sequence
        chance = rng.random()
        if chance < 0.08:
            store.log.roll()
        elif chance < 0.16:
            store.log.flush()
        elif chance < 0.24:
            store.directory.checkpoint()


def check(store: Store, at_least: int, context: str) -> None:
    """The log is whole up to `at_least` or beyond, and its producer can go on exactly where it was."""
    log = store.log
    assert log.failure is None, f"{context}: {log.failure}"
    assert log.end_offset >= at_least, f"{context}: lost {at_least - log.end_offset} acknowledged records"
    found = read_all(log, max_bytes=100_000)
    assert [record.offset for record in found] == list(range(log.end_offset)), context
    bases = []
    position: int = 0
    while (part := log.read(position, 1 << 30, log.end_offset)) is not None:
        for _, header in headers(part.read()):
            bases.append((header.base_offset, header.record_count))
            position = header.next_offset
    assert [r.value for r in found] == [b"%05d" % base * 4 for base, count in bases for _ in range(count)], (
        context
    )
    for base, count in bases[-5:]:
        retried = log.append(from_producer(base, count), 99)
        assert (retried.duplicate, retried.first_offset) == (True, base), context
    if bases:
        with pytest.raises(ApiError) as refusal:
            log.append(from_producer(log.end_offset + 1), 99)
        assert refusal.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(from_producer(log.end_offset), 99).first_offset == len(found), context
    store.directory.close()
    for name in store.files(".index"):
        for entry in inspect_index(store.folder / name, disk=store.disk):
            assert entry.problems == [], f"{context}: {name}"
    for name in store.files(".timeindex"):
        for entry in inspect_time_index(store.folder / name, disk=store.disk):
            assert entry.problems == [], f"{context}: {name}"


@pytest.fixture
def frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "SNAPSHOT_INTERVAL", 700)


@pytest.mark.parametrize("seed", range(examples(3, 6)))
@pytest.mark.usefixtures("frequent_snapshots")
def test_a_kill_before_any_file_operation_loses_no_acknowledged_record(seed: int) -> None:
    memory = MemoryDisk()
    disk = FaultyDisk(memory)
    store = Store(disk, segment_bytes=1500, index_interval_bytes=100)
    moments: list[tuple[int, MemoryDisk]] = []
    acknowledged = 0
    disk.before_write = lambda path: moments.append((acknowledged, memory.copy()))
    for end_offset in workload(store, 60, Random(seed)):
        acknowledged = end_offset
    disk.before_write = None
    assert len(moments) > 60
    for number, (end_offset, left) in enumerate(moments):
        check(Store(left), end_offset, f"seed {seed}, write {number}")


@pytest.mark.usefixtures("frequent_snapshots")
def test_a_log_cut_at_any_byte_recovers_exactly_its_whole_batches() -> None:
    store = Store(segment_bytes=100_000, index_interval_bytes=100)
    ends = {0: 0}
    for end_offset in workload_without_flush(store, examples(6, 12)):
        ends[store.log.size] = end_offset
    for size in range(store.log.size + 1):
        disk = store.disk.copy()
        disk.open(store.folder / LAST).truncate(size)
        whole = max(each for each in ends if each <= size)
        after = Store(disk)
        assert (after.log.end_offset, after.log.size) == (ends[whole], whole), f"cut at {size}"
        assert after.report.truncated_bytes == size - whole
        check(after, ends[whole], f"cut at {size}")


def workload_without_flush(store: Store, count: int) -> Iterator[int]:
    sequence = 0
    for number in range(count):
        records = number % 3 + 1
        store.log.append(from_producer(sequence, records, value=b"%05d" % sequence * 4), 0)
        sequence += records
        yield sequence


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_wrong_byte_anywhere_behind_the_recovery_point_is_noticed(power_lost: bool) -> None:
    """A process that is killed damages nothing, so the partition goes offline; a loss of power may damage all
    that was not synced, so the log ends there."""
    store = Store(segment_bytes=100_000)
    for _ in workload_without_flush(store, 6):
        pass
    store.log.flush()
    store.directory.checkpoint()
    synced, flushed = store.log.size, store.log.end_offset
    ends = [(synced, flushed)]
    for number in range(6):
        info = store.log.append(from_producer(flushed + number, value=b"%05d" % (flushed + number) * 4), 0)
        ends.append((store.log.size, info.last_offset + 1))
    rng = Random(5)
    for position in range(synced, store.log.size):
        disk = store.disk.copy()
        byte = disk.open(store.folder / LAST).read_at(position, 1)[0]
        disk.open(store.folder / LAST).write_at(position, bytes([byte ^ rng.randrange(1, 256)]))
        size, end_offset = max(each for each in ends if each[0] <= position)
        if power_lost:
            disk._boots += 1
        after = Store(disk)
        # The epoch stands before the CRC. A wrong one is noticed when a smaller one follows.
        in_epoch = 12 <= position - size < 16
        if in_epoch:
            continue
        if power_lost:
            assert (after.log.size, after.log.end_offset) == (size, end_offset), f"byte {position}"
            check(after, end_offset, f"byte {position}")
        elif after.log.failure is None:
            # The length of the very last batch cannot be told from that of an unfinished write.
            assert (position - size, end_offset) in [(at, ends[-2][1]) for at in range(8, 12)], position
        else:
            assert LAST in after.log.failure.message, f"byte {position}"


@pytest.mark.parametrize("seed", range(examples(12, 30)))
@pytest.mark.usefixtures("frequent_snapshots")
def test_lost_or_damaged_indexes_and_snapshots_are_rebuilt(seed: int) -> None:
    rng = Random(seed)
    store = Store(segment_bytes=1500, index_interval_bytes=100)
    *_, end_offset = workload(store, 60, rng)
    disk = store.disk.copy()
    for path in [path for path in disk.files if path.suffix in (".index", ".timeindex", ".snapshot")]:
        chance = rng.random()
        file = disk.open(path)
        if chance < 0.3:
            disk.remove(path)
        elif chance < 0.6 and file.size:
            file.truncate(rng.randrange(file.size))
        elif chance < 0.8 and path.suffix == ".snapshot":
            file.write_at(rng.randrange(file.size), b"\xff")
    check(Store(disk), end_offset, f"seed {seed}")


@pytest.mark.parametrize("seed", range(examples(16, 40)))
@pytest.mark.usefixtures("frequent_snapshots")
def test_power_loss_at_any_moment_keeps_flushed_records(seed: int) -> None:
    rng = Random(seed)
    store = Store(segment_bytes=9000, index_interval_bytes=500)
    flushed = 0
    steps = rng.randrange(1, 120)
    for _ in workload(store, steps, rng):
        flushed = max(flushed, store.log.recovery_point)
    flushed = max(flushed, store.log.recovery_point)
    disk = store.disk
    disk.lose_power(rng)
    check(Store(disk), flushed, f"seed {seed}")


CHILD = """
import sys
from pathlib import Path
from ottla.storage.files import RealDisk
from unit.storage.logs import Store, from_producer

store = Store(RealDisk(), Path(sys.argv[1]), segment_bytes=60_000, index_interval_bytes=500)
sequence = store.log.end_offset
while True:
    print(sequence, flush=True)
    for _ in range(20):
        store.log.append(from_producer(sequence, value=b"%05d" % sequence * 4), 0)
        sequence += 1
    if sequence % 500 == 0:
        store.directory.checkpoint()
"""


def test_killed_processes_lose_nothing_they_acknowledged(tmp_path: Path) -> None:
    rng = Random(11)
    acknowledged = 0
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    for _ in range(examples(3, 6)):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert child.stdout is not None
        try:
            began = int(child.stdout.readline())
            assert began >= acknowledged
            patience = time.monotonic() + rng.uniform(0.05, 0.3)
            while time.monotonic() < patience:
                acknowledged = int(child.stdout.readline())
        finally:
            child.send_signal(signal.SIGKILL)
            rest, _ = child.communicate()
        # What it still printed before it died was acknowledged too; the last line may be torn.
        acknowledged = max([acknowledged, *(int(line) for line in rest.splitlines()[:-1])])
    store = Store(RealDisk(), tmp_path)
    assert acknowledged > 1000
    check(store, acknowledged, "after six kills")
