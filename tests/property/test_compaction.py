"""Compaction against a model: whatever is written, cleaned, interrupted and read, the latest value is right.

A world has a log on a disk in memory, producers with sequences, a model of every record ever appended and a
consumer that reads slowly. Seeds make it repeatable; a failing test prints its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from effort import examples
from ottla.clock import ManualClock
from ottla.protocol.batches import headers
from ottla.protocol.records import Record, decode_batch, encode_batch
from ottla.storage.cleaning.cleaner import Cleaner, CleanerSettings, clean_now
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory
from ottla.storage.results import FileSlice
from ottla.testing.memory_disk import MemoryDisk
from property.crashing_disk import Crash, CrashingDisk

T0 = 1_700_000_000_000
FOLDER = Path("/data")
TOPIC_ID = bytes(range(16))
RETENTION_MS = 1000  # of tombstones
MAX_SIZE = 1 << 20


@dataclass
class Consumer:
    """Reads a slice now and then, and holds on to the one it has: files may change under it."""

    position: int = 0
    began_ms: int = 0
    held: FileSlice | None = None


class World:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.clock = ManualClock(T0)
        self.disk = MemoryDisk(self.clock)
        self.config = LogConfig(
            cleanup_policy=("compact",),
            segment_bytes=rng.choice([600, 900, 2000, 10_000]),
            index_interval_bytes=rng.choice([1, 200]),
            delete_retention_ms=RETENTION_MS,
            message_timestamp_type=rng.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
            file_delete_delay_ms=rng.choice([0, 50]),
        )
        self.memory = rng.choice([24 * 64, 24 * 64, 1 << 20])
        self.keys = [b"k%d" % n for n in range(rng.choice([1, 3, 8, 40]))]
        self.codecs = rng.choice([[0], [0, 1, 2, 3, 4]])
        self.records: dict[int, Record] = {}  # all that was ever appended
        self.first_cleaned: dict[int, int] = {}  # offset of a tombstone -> when a pass first went over it
        self.sequences = {101: 0, 102: 0, 103: 0}
        self.last_batches: dict[int, tuple[bytes, int]] = {}
        self.consumer = Consumer()
        self.materialised: dict[bytes, bytes | None] = {}
        self.open(self.disk)

    def open(self, disk: Any) -> None:
        self.directory = LogDirectory(FOLDER, disk, self.clock, config_for=lambda _: self.config)
        self.directory.open()
        self.log: Log = self.directory.create("topic", 0, TOPIC_ID, self.config)
        self.cleaner = Cleaner(self.directory, disk, self.clock)
        self.cleaner.settings = CleanerSettings(memory=self.memory)

    # -- what happens --------------------------------------------------------------------------------

    def append(self) -> None:
        rng = self.rng
        count = rng.randrange(1, 7)
        now = self.clock.now_ms()
        rows = [
            Record(
                n,
                now - rng.randrange(50),
                rng.choice(self.keys),
                None if rng.random() < 0.2 else b"v%d" % rng.randrange(10**6) * rng.choice([1, 1, 9]),
                [("h", b"x")] if rng.random() < 0.2 else [],
            )
            for n in range(count)
        ]
        options: dict[str, Any] = {"codec": rng.choice(self.codecs)}
        producer = rng.choice([-1, *self.sequences])
        if producer >= 0:
            options |= {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": self.sequences[producer],
            }
        batch = bytes(encode_batch(rows, **options))
        info = self.log.append(memoryview(bytearray(batch)), 0)
        assert not info.duplicate
        if producer >= 0:
            self.sequences[producer] += count
            self.last_batches[producer] = batch, info.first_offset
        time = info.append_time_ms
        for row in rows:
            offset = info.first_offset + row.offset
            self.records[offset] = row._replace(offset=offset, timestamp=time if time >= 0 else row.timestamp)

    def clean(self) -> bool:
        candidate = self.cleaner.candidate(self.log, self.log.end_offset)
        assert candidate is not None
        before = candidate.cleanability
        for offset in range(before.first_uncleanable):
            if self.records[offset].value is None:
                self.first_cleaned.setdefault(offset, self.clock.now_ms())
        return clean_now(self.cleaner, self.log, self.log.end_offset)

    def retry_last_batches(self) -> None:
        """What a producer sends again because it got no answer must be known."""
        for batch, first_offset in self.last_batches.values():
            info = self.log.append(memoryview(bytearray(batch)), 0)
            assert info.duplicate
            assert info.first_offset == first_offset

    def lose_snapshots(self, disk: MemoryDisk) -> None:
        """Without them the producers are known only from the batches that are left."""
        for path in disk.files:
            if path.suffix == ".snapshot":
                disk.remove(path)

    def consume_a_bit(self) -> None:
        consumer, log = self.consumer, self.log
        if consumer.held is None:
            if consumer.position == 0:
                consumer.began_ms, self.materialised = self.clock.now_ms(), {}
            consumer.held = log.read(max(consumer.position, log.log_start_offset), 400, log.end_offset)
            if consumer.held is None:
                self.check_consumer_at_the_end()
                consumer.position = 0
            return
        data = consumer.held.read()
        consumer.held = None
        for position, header in headers(data):
            for record in decode_batch(memoryview(data)[position:], max_size=MAX_SIZE):
                if record.offset >= consumer.position:
                    assert record == self.records[record.offset]
                    assert record.key is not None
                    self.materialised[record.key] = record.value
            consumer.position = max(consumer.position, header.next_offset)

    # -- what must hold ------------------------------------------------------------------------------

    def latest(self) -> dict[bytes, Record]:
        return {record.key: record for record in self.records.values() if record.key is not None}

    def check_consumer_at_the_end(self) -> None:
        """Who read it all within the time that tombstones are kept knows the state of each key."""
        if self.clock.now_ms() - self.consumer.began_ms >= RETENTION_MS:
            return
        wanted = {key: record.value for key, record in self.latest().items() if record.value is not None}
        assert {key: value for key, value in self.materialised.items() if value is not None} == wanted

    def read_all(self) -> list[Record]:
        found: list[Record] = []
        offset = self.log.log_start_offset
        while (piece := self.log.read(offset, 10_000, self.log.end_offset)) is not None:
            data = piece.read()
            for position, header in headers(data):
                for record in decode_batch(memoryview(data)[position:], max_size=MAX_SIZE):
                    assert record.offset >= offset, "offsets must rise"
                    offset = record.offset + 1
                    found.append(record)
                assert header.next_offset >= offset
                offset = header.next_offset
        return found

    def check(self) -> None:
        assert self.log.failure is None
        found = self.read_all()
        by_key: dict[bytes, list[Record]] = {}
        for record in found:
            assert record == self.records[record.offset], "a record changed, or has another offset"
            assert record.key is not None
            by_key.setdefault(record.key, []).append(record)
        assert self.log.end_offset == len(self.records)
        now = self.clock.now_ms()
        for key, record in self.latest().items():
            held = by_key.get(key, [])
            if held and held[-1] == record:
                continue
            assert record.value is None, f"the latest value of {key!r} is lost"
            assert not held, f"{key!r} was deleted and is back"
            cleaned = self.first_cleaned.get(record.offset)
            assert cleaned is not None and now >= cleaned + RETENTION_MS, "a tombstone went too early"

    def check_every_offset(self) -> None:
        """Reading from any offset gives the first record at or behind it."""
        offsets = [record.offset for record in self.read_all()]
        for start in range(self.log.log_start_offset, self.log.end_offset):
            expected = next((offset for offset in offsets if offset >= start), None)
            first = None
            at = start
            while first is None and (piece := self.log.read(at, 500, self.log.end_offset)) is not None:
                for position, header in headers(piece.read()):
                    records = decode_batch(memoryview(piece.read())[position:], max_size=MAX_SIZE)
                    first = next((r.offset for r in records if r.offset >= start), None)
                    at = header.next_offset
                    if first is not None:
                        break
            assert first == expected


@pytest.mark.parametrize("seed", range(examples(20, 200)))
def test_the_latest_values_survive_any_mix_of_writes_compactions_and_restarts(seed: int) -> None:
    world = World(seed)
    rng = world.rng
    for _ in range(rng.choice([30, 80])):
        what = rng.random()
        if what < 0.55:
            world.append()
        elif what < 0.6:
            world.log.roll()
        elif what < 0.75:
            world.clean()
            world.check()
        elif what < 0.8:
            world.clock.advance(rng.choice([1, 100, RETENTION_MS]))
            world.directory.delete_pending()
        elif what < 0.83:
            world.directory.close()
            world.open(world.disk)
            world.check()
        elif what < 0.86:
            world.directory.abandon()
            world.lose_snapshots(world.disk)
            world.open(world.disk)
            world.check()
            world.retry_last_batches()
        else:
            world.consume_a_bit()
    world.log.roll()
    while world.clean():
        world.check()
    world.check_every_offset()
    world.retry_last_batches()
    survivors = [r for r in world.read_all() if r.offset < world.log.end_offset]
    assert len({r.key for r in survivors}) == len(survivors), "one record of each key is left"


@pytest.mark.parametrize("seed", range(examples(2, 8)))
@pytest.mark.parametrize("power", [False, True], ids=["the process dies", "the power goes"])
def test_a_crash_at_any_file_operation_of_a_cleaning_loses_nothing(seed: int, power: bool) -> None:
    world = World(1000 + seed)
    for _ in range(12):
        world.append()
    if seed % 2:
        world.clean()
        world.clock.advance(RETENTION_MS)
        for _ in range(8):
            world.append()
    world.log.roll()
    world.log.flush()
    world.directory.checkpoint()
    world.directory.abandon()
    before, cleaned_before = world.disk, dict(world.first_cleaned)
    at, sample, died = 1, 0, True
    while died:
        world.disk = before.copy()
        world.first_cleaned = dict(cleaned_before)
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
            world.disk.lose_power(Random(at * 100 + sample))
        elif died:
            world.disk = world.disk.copy()
        world.directory.abandon()
        world.lose_snapshots(world.disk)
        world.open(world.disk)
        world.check()
        world.clean()
        world.check()
        world.retry_last_batches()
        leftovers = [path.name for path in world.disk.files if path.suffix in (".cleaned", ".swap")]
        assert not leftovers
        world.directory.abandon()
        sample += 1
        if sample == (examples(2, 10) if power else 1):  # what a loss of power leaves is a matter of chance
            at, sample = at + 1, 0
    assert at > 20, "a cleaning changes more files than that"
