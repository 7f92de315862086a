"""Compaction of a log with transactions: committed values survive, aborted ones never show, at any crash."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from effort import examples
from ottla.clock import ManualClock
from ottla.protocol.records import Record, encode_batch
from ottla.storage.cleaning.cleaner import Cleaner, CleanerSettings, clean_now
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory
from ottla.testing.memory_disk import MemoryDisk
from property.crashing_disk import Crash, CrashingDisk
from unit.storage.committed import committed_records
from unit.storage.logs import ROOT, T0, TOPIC_ID

KEYS = [b"a", b"b", b"c", b"d"]
RETENTION_MS = 1000
CONFIG = LogConfig(
    cleanup_policy=("compact",),
    segment_bytes=900,
    index_interval_bytes=100,
    delete_retention_ms=RETENTION_MS,
    min_cleanable_dirty_ratio=0.0,
)


class World:
    """A compacted log, three transactional producers, and what readers of committed records should see."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = MemoryDisk()
        self.clock = ManualClock(T0)
        self.number = 0
        self.committed: list[tuple[int, bytes, bytes]] = []  # offset, key, value
        self.written: dict[int, list[tuple[int, bytes, bytes]]] = {}  # in open transactions, by producer
        self.open(self.disk)

    def open(self, disk: Any) -> None:
        self.directory = LogDirectory(ROOT, disk, self.clock, config_for=lambda _: CONFIG, max_open_files=8)
        self.directory.open()
        known = self.directory.logs.get(("topic", 0))
        self.log = known or self.directory.create("topic", 0, TOPIC_ID, CONFIG)
        self.cleaner = Cleaner(self.directory, disk, self.clock)
        self.cleaner.settings = CleanerSettings(memory=1 << 16)
        assert self.log.failure is None

    def append(self) -> None:
        """A batch of a transaction, one outside of any, or a marker."""
        producer = self.rng.randint(0, 3)
        if producer and self.rng.random() < 0.4:
            self.end(producer, commit=self.rng.random() < 0.5)
            return
        rows, base = [], self.log.end_offset
        for index in range(self.rng.randint(1, 3)):
            self.number += 1
            key, value = self.rng.choice(KEYS), b"%06d" % self.number
            rows.append(Record(index, self.clock.now_ms(), key, value, []))
            self.written.setdefault(producer, []).append((base + index, key, value))
        options: dict[str, Any] = {}
        if producer:
            known = self.log.producers.get(producer)
            sequence = known.last_sequence + 1 if known else 0
            options = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": sequence,
                "transactional": True,
            }
        self.log.append(memoryview(encode_batch(rows, **options)), 0)
        if not producer:
            self.committed += self.written.pop(0)

    def end(self, producer: int, *, commit: bool) -> None:
        self.log.append_marker(producer, 0, 0, commit=commit, coordinator_epoch=0)
        written = self.written.pop(producer, [])
        if commit:
            self.committed += written

    def clean(self) -> bool:
        self.log.roll()
        return clean_now(self.cleaner, self.log, self.log.last_stable_offset(self.log.end_offset))

    def check(self) -> None:
        """The last committed value of each key is there, and nothing that was aborted is."""
        log = self.log
        assert log.failure is None
        stable = log.last_stable_offset(log.end_offset)
        assert stable == min([log.end_offset, *(w[0][0] for w in self.written.values() if w)])
        latest: dict[bytes, tuple[int, bytes]] = {}
        for offset, key, value in self.committed:
            if offset < stable and offset >= latest.get(key, (-1, b""))[0]:
                latest[key] = offset, value
        all_committed = {value for _, _, value in self.committed}
        for start in (log.log_start_offset, self.rng.randint(log.log_start_offset, log.end_offset)):
            found: dict[bytes, tuple[int, bytes]] = {}
            for record in committed_records(log, start, max_bytes=self.rng.choice([1, 300, 5000])):
                assert record.value in all_committed
                found[record.key or b""] = record.offset, record.value or b""
            assert found == {key: at for key, at in latest.items() if at[0] >= start}

    def lose_snapshots(self, disk: MemoryDisk) -> None:
        """So that producers and open transactions have to be read from the batches."""
        if self.rng.random() < 0.5:
            for path in [path for path in disk.files if path.suffix == ".snapshot"]:
                disk.remove(path)


@pytest.mark.parametrize("seed", range(examples(12, 200)))
def test_readers_see_the_latest_committed_values_after_any_compaction(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        action = world.rng.random()
        if action < 0.75:
            world.append()
        elif action < 0.9:
            world.clean()
            world.clock.advance(world.rng.choice([0, RETENTION_MS + 1]))
        elif action < 0.95:
            world.directory.close({})
            world.open(world.disk)
        else:
            world.directory.abandon()
            world.lose_snapshots(world.disk)
            world.open(world.disk)
        world.check()
    for producer in (1, 2, 3):
        world.end(producer, commit=True)
    for _ in range(4):
        world.clean()
        world.check()
        world.clock.advance(RETENTION_MS + 1)
        world.log.append(memoryview(encode_batch([Record(0, world.clock.now_ms(), b"z", b"z", [])])), 0)
        world.committed.append((world.log.end_offset - 1, b"z", b"z"))
    left = sum(info.size for info in world.log.segments)
    assert left < 2500, f"{left} bytes are left: markers of nothing are removed in the end"
    aborted = world.log.aborted_transactions(0, world.log.end_offset)
    assert len(aborted) <= 3, "those stay whose last batch tells the sequence of their producer"


@pytest.mark.parametrize("seed", range(examples(2, 8)))
@pytest.mark.parametrize("power", [False, True], ids=["the process dies", "the power goes"])
def test_a_crash_at_any_file_operation_of_a_cleaning_shows_no_aborted_record(seed: int, power: bool) -> None:
    world = World(5000 + seed)
    for _ in range(30):
        world.append()
    if seed % 2:
        world.clean()
        world.clock.advance(RETENTION_MS)
        for _ in range(10):
            world.append()
    for producer in (1, 2, 3):  # an open transaction would keep the rest from being cleaned
        world.end(producer, commit=world.rng.random() < 0.5)
    world.log.roll()
    world.log.flush()
    world.directory.checkpoint()
    world.directory.abandon()
    before = world.disk
    assert any(path.suffix == ".txnindex" for path in before.files)
    at, died = 1, True
    while died:
        world.disk = before.copy()
        crashing = CrashingDisk(world.disk)
        world.open(crashing)
        crashing.changes, crashing.at = 0, at
        try:
            world.clean()
        except Crash:
            died = True
        else:
            died = False
        if power:
            world.disk.lose_power(Random(at))
        elif died:
            world.disk = world.disk.copy()
        world.directory.abandon()
        world.lose_snapshots(world.disk)
        world.open(world.disk)
        world.check()
        world.clean()
        world.check()
        assert not [path.name for path in world.disk.files if path.suffix in (".cleaned", ".swap")]
        world.directory.abandon()
        at += 1
    assert at > 20, "a cleaning changes more files than that"
