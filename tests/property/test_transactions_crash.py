"""A log with transactions after a crash at any change of a file: what was appended is decided as before."""

from __future__ import annotations

from random import Random

import pytest

from effort import examples
from ottla.protocol.errors import ApiError
from ottla.testing.memory_disk import MemoryDisk
from property.crashing_disk import Crash, CrashingDisk
from unit.storage.committed import Entry, Transactions, read_committed
from unit.storage.logs import Store, batch, from_producer


class Life:
    """A short life of a log, the same for one seed, with a model of what it was given."""

    def __init__(self, disk: CrashingDisk, seed: int) -> None:
        self.rng = Random(seed)
        self.model = Transactions()
        self.flushed = 0
        self.being_written: list[Entry] = []
        self.being_cut_to: int | None = None
        self.store = Store(disk, segment_bytes=700, index_interval_bytes=100)

    def live(self) -> None:
        for number in range(40):
            action = self.rng.random()
            log, producer = self.store.log, self.rng.randint(1, 3)
            if action < 0.15:
                log.flush()
                self.flushed = log.recovery_point
            elif action < 0.2:
                self.store.reopen()
            elif action < 0.25:
                log.roll()
            elif action < 0.3 and log.end_offset > 2:
                end = self.rng.randint(max(1, log.end_offset - 4), log.end_offset)
                self.being_cut_to, self.flushed = end, min(self.flushed, end)
                log.truncate_to(end)
                self.being_cut_to = None
                self.model.entries = [entry for entry in self.model.entries if entry.offset < end]
            else:
                self.append(producer, b"%04d" % number, action)

    def append(self, producer: int, value: bytes, action: float) -> None:
        log = self.store.log
        if action < 0.45:
            commit = self.rng.random() < 0.4
            self.being_written = [Entry(log.end_offset, producer, b"", commit)]
            log.append_marker(producer, 0, 0, commit=commit, coordinator_epoch=1)
        elif action < 0.6:
            self.being_written = [Entry(log.end_offset, -1, value)]
            log.append(batch(value=value), 0)
        else:
            known = log.producers.get(producer)
            sequence = known.last_sequence + 1 if known else 0
            self.being_written = [Entry(log.end_offset, producer, value)]
            log.append(from_producer(sequence, producer=producer, value=value, transactional=True), 0)
        self.model.entries += self.being_written
        self.being_written = []


def check(life: Life, disk: MemoryDisk, *, power: bool) -> None:
    """Open the log again, and compare it with the model as far as it reaches."""
    try:
        log = Store(disk, segment_bytes=700, index_interval_bytes=100).log
    except ApiError as refusal:
        raise AssertionError(f"the log cannot be opened: {refusal.message}") from refusal
    assert log.failure is None, log.failure
    model = life.model
    if life.being_written and log.end_offset > life.being_written[0].offset:
        model.entries += life.being_written  # it had reached the file
    written = model.entries[-1].offset + 1 if model.entries else 0
    least = written if life.being_cut_to is None else life.being_cut_to
    assert (life.flushed if power else least) <= log.end_offset <= written
    model.entries = [entry for entry in model.entries if entry.offset < log.end_offset]
    stable = model.last_stable_offset(0, log.end_offset)
    assert log.last_stable_offset(log.end_offset) == stable
    assert read_committed(log, max_bytes=300) == model.committed(0, stable)
    assert log.aborted_transactions(0, log.end_offset) == model.aborted()
    for producer in (1, 2, 3):  # what is open can be ended, and then all is decided
        log.append_marker(producer, 0, 0, commit=False, coordinator_epoch=1)
        model.entries.append(Entry(log.end_offset - 1, producer, b"", False))
    assert read_committed(log, max_bytes=300) == model.committed(0, log.end_offset)


@pytest.mark.parametrize("seed", range(examples(3, 40)))
@pytest.mark.parametrize("power", [False, True], ids=["the process dies", "the power goes"])
def test_transactions_are_as_they_were_after_a_crash_at_any_change_of_a_file(seed: int, power: bool) -> None:
    rng = Random(seed)
    total = CrashingDisk(MemoryDisk())
    Life(total, seed).live()
    assert total.changes > 40
    step = 1 if examples(0, 1) else 3
    for at in range(1 + rng.randrange(step), total.changes, step):
        crashing = CrashingDisk(MemoryDisk(), at)
        try:
            life = Life(crashing, seed)
        except Crash:
            continue  # there is no log yet
        with pytest.raises(Crash):
            life.live()
        disk = crashing.disk.copy()
        if power:
            disk.lose_power(Random(at))
        check(life, disk, power=power)


def test_a_crash_while_several_segments_are_cut_off_leaves_no_gap() -> None:
    at, died = 1, True
    while died:
        disk = CrashingDisk(MemoryDisk())
        store = Store(disk)
        for number in range(5):
            store.log.append(batch(value=b"%d" % number), 0)
            store.log.roll()
        store.log.flush()
        disk.changes, disk.at, died = 0, at, False
        try:
            store.log.truncate_to(1)
        except Crash:
            died = True
        log = Store(disk.disk.copy()).log
        assert log.failure is None, log.failure
        assert read_committed(log) == [b"%d" % number for number in range(log.end_offset)]
        at += 1
    assert at > 10
