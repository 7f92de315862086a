"""Opening what a crash or a clean stop left."""

from random import Random

import pytest

from ottla.protocol.batches import stamp
from ottla.storage import flushing
from ottla.storage.inspect import inspect_index
from ottla.storage.producer_state import DEFAULT_LIMIT
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from unit.storage.filled import FIRST, check, filled
from unit.storage.logs import Store, batch, from_producer, offsets, read_all, values


@pytest.mark.parametrize("file", [FIRST, "00000000000000000003"], ids=["same segment", "next segment"])
def test_a_batch_of_an_older_epoch_that_a_loss_of_power_brought_back_is_cut_off(file: str) -> None:
    """The log had been truncated there, and the truncation had not reached the disk."""
    store = Store()
    for _ in range(3):
        store.log.append(batch(1), 5)
    old = bytearray(batch(1))
    stamp(old, 0, 3, 4)
    store.log.flush()
    store.directory.abandon()
    log = store.disk.open(store.folder / f"{file}.log", create=True)
    log.write_at(log.size, bytes(old))
    log.sync()
    store.disk.sync_folder(store.folder)
    store.disk.lose_power(Random(0))
    store.crash()
    assert (store.log.end_offset, store.report.truncated_bytes) == (3, len(old))
    store.log.append(batch(1, value=b"new"), 6)
    assert offsets(store.crash()) == [0, 1, 2, 3]
    assert values(store.log)[-1] == b"new"


class TestCleanStop:
    def test_nothing_is_scanned_after_a_clean_stop(self) -> None:
        store = filled()
        check(store.reopen())
        assert store.report.clean
        assert (store.report.scanned_bytes, store.report.replayed_batches) == (0, 0)
        assert not store.report.is_remarkable

    def test_the_marker_is_there_only_while_the_broker_is_down(self) -> None:
        store = filled()
        store.directory.close()
        assert ".kafka_cleanshutdown" in store.disk.list(store.path)
        store.crash()
        assert ".kafka_cleanshutdown" not in store.disk.list(store.path)

    def test_an_idle_log_writes_no_files_at_a_stop(self) -> None:
        store = filled()
        store.reopen()
        before = {name: id(node) for name, node in store.disk._files.items() if "topic-0" in str(name)}
        store.reopen()
        assert before == {
            name: id(node) for name, node in store.disk._files.items() if "topic-0" in str(name)
        }

    def test_missing_indexes_are_rebuilt(self) -> None:
        store = filled()
        store.directory.close()
        for name in store.files("index"):
            store.disk.remove(store.folder / name)
        store.crash()
        check(store.log)
        assert len(store.report.rebuilt_indexes) == len(store.files("index")) == 6

    @pytest.mark.parametrize("suffix", [".index", ".timeindex"])
    def test_damaged_indexes_are_rebuilt_when_they_are_needed(self, suffix: str) -> None:
        store = filled()
        times = [store.log.offset_for_timestamp(record.timestamp) for record in read_all(store.log)]
        store.directory.close()
        for name, data in store.files(suffix).items():
            store.disk.replace(store.folder / name, b"\xff" * len(data), sync=True)
        store.crash()
        check(store.log)
        assert [store.log.offset_for_timestamp(r.timestamp) for r in read_all(store.log)] == times

    def test_a_changed_file_is_noticed_and_all_is_scanned(self) -> None:
        store = filled()
        last = list(store.files(".log"))[-1]
        store.directory.close()
        store.cut(last, -10)
        log = store.crash()
        assert log.failure is not None, "what was cut off had been synced"
        assert str(store.folder) in log.failure.message

    def test_a_missing_epoch_file_is_made_from_the_batches(self) -> None:
        store = filled()
        store.directory.close()
        store.disk.remove(store.folder / "leader-epoch-checkpoint")
        check(store.crash())

    def test_the_start_of_the_log_is_remembered(self) -> None:
        store = filled()
        store.log.delete_records_before(17)
        assert store.reopen().log_start_offset == 17
        assert offsets(store.log)[0] == 17

    def test_indexes_stay_valid_over_restarts_between_appends(self) -> None:
        store = filled(batches=3, segment_bytes=100_000)
        for number in range(3, 60):
            if number % 5 == 0:
                store.reopen()
            store.log.append(from_producer(number * 2, 2, value=b"%04d" % number), number // 10)
        check(store.reopen(), 60)


class TestCrash:
    def test_all_written_records_are_there_after_a_kill(self) -> None:
        store = filled()
        check(store.crash())
        assert not store.report.clean
        assert store.report.scanned_batches == 30

    def test_a_crash_during_the_recovery_of_a_crash_changes_nothing(self) -> None:
        store = filled()
        for _ in range(3):
            store.crash()
        check(store.log)

    def test_the_scan_begins_at_the_segment_of_the_recovery_point(self) -> None:
        store = filled()
        store.log.flush()
        store.directory.checkpoint()
        for number in range(30, 33):
            store.log.append(from_producer(number * 2, 2, value=b"%04d" % number), 3)
        check(store.crash(), 33)
        assert 3 <= store.report.scanned_batches <= 12

    def test_a_torn_tail_is_truncated(self) -> None:
        store = filled()
        last = list(store.files(".log"))[-1]
        size = store.disk.size(store.folder / last)
        store.disk.open(store.folder / last).write_at(size, bytes(batch(9))[:100])
        check(store.crash())
        assert store.report.truncated_bytes == 100
        assert store.disk.size(store.folder / last) == size
        assert "cut off 100 bytes" in str(store.report)

    def test_files_of_interrupted_deletions_and_writes_are_removed(self) -> None:
        store = filled()
        for name in (f"{FIRST}.log.deleted", "x.5.tmp", f"{FIRST}.log.cleaned", "00000000000000000777.index"):
            store.disk.replace(store.folder / name, b"stray", sync=True)
        check(store.crash())
        assert len(store.report.removed_files) == 4
        assert not {"x.5.tmp", "00000000000000000777.index"} & set(store.files())

    def test_indexes_after_a_crash_equal_those_without_a_crash(self) -> None:
        store = filled()
        crashed = filled()
        store.directory.close()
        crashed.crash()
        crashed.directory.close()
        assert crashed.files("index") == store.files("index")

    def test_a_damaged_snapshot_is_replaced_by_reading_the_log(self) -> None:
        store = filled()
        store.directory.close()
        for name, data in store.files(".snapshot").items():
            store.disk.replace(store.folder / name, data[:-1], sync=True)
        check(store.crash())
        assert store.report.replayed_batches == 30

    def test_a_damaged_epoch_file_is_made_from_the_batches(self) -> None:
        store = filled()
        store.log.flush()
        store.directory.checkpoint()
        store.disk.replace(store.folder / "leader-epoch-checkpoint", b"0\n1\nrubbish", sync=True)
        check(store.crash())

    def test_a_new_empty_segment_at_the_end_is_fine(self) -> None:
        store = filled()
        store.log.roll()
        check(store.crash())

    def test_a_segment_of_a_roll_that_failed_half_way_is_removed(self) -> None:
        store = filled(segment_bytes=100_000)
        store.disk.replace(store.folder / "00000000000000000008.log", b"", sync=True)
        check(store.crash())
        assert list(store.files(".log")) == [f"{FIRST}.log"]

    def test_producers_that_were_expired_stay_forgotten_after_a_clean_stop(self) -> None:
        store = filled()
        store.clock.advance(2 * 86_400_000)
        assert store.log.producers.expire(store.clock.now_ms(), 86_400_000) == 1
        store.log.append(batch(1), 3)
        assert len(store.reopen().producers) == 0

    def test_the_window_of_five_survives_a_roll_and_a_crash_right_behind_it(self) -> None:
        store = filled()
        store.log.roll()
        store.log.flush()
        store.directory.checkpoint()
        check(store.crash())
        assert store.report.scanned_batches == 0

    def test_a_snapshot_within_a_segment_shortens_the_scan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flushing, "SNAPSHOT_INTERVAL", 500)
        store = filled(batches=20, segment_bytes=100_000)
        store.log.flush()
        store.directory.checkpoint()
        for number in range(20, 30):
            store.log.append(from_producer(number * 2, 2, value=b"%04d" % number), number // 10)
        check(store.crash())
        assert store.report.scanned_batches == 10
        assert store.log.offset_for_timestamp(0) is not None

    def test_index_entries_after_the_snapshot_are_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flushing, "SNAPSHOT_INTERVAL", 500)
        disk = FaultyDisk(MemoryDisk())
        store = filled(disk, batches=20, segment_bytes=100_000)
        store.log.flush()
        store.directory.checkpoint()
        for number in range(20, 40):
            store.log.append(from_producer(number * 2, 2, value=b"%04d" % number), number // 10)
        disk.fail("write", name=".snapshot")
        store.log.flush()
        disk.heal()
        check(store.crash(), 40)
        assert store.report.scanned_batches == 20
        store.directory.close()
        entries = list(inspect_index(store.folder / f"{FIRST}.index", disk=disk))
        assert len(entries) == 19
        assert [entry for entry in entries if entry.problems] == []

    def test_a_damaged_index_makes_that_scan_begin_at_the_segment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flushing, "SNAPSHOT_INTERVAL", 500)
        store = filled(batches=20, segment_bytes=100_000)
        store.log.flush()
        store.directory.checkpoint()
        store.disk.replace(store.folder / f"{FIRST}.index", b"\xff" * 8, sync=True)
        check(store.crash(), 20)
        assert store.report.scanned_batches == 20


@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_segment_of_a_failed_roll_hides_no_record(clean: bool) -> None:
    store = Store(segment_bytes=500)
    for _ in range(5):
        store.log.append(batch(3), 0)
    last_of_first = store.log.segments[1].base_offset - 1
    store.disk.open(store.folder / f"{last_of_first:020d}.log", create=True)
    log = store.reopen() if clean else store.crash()
    assert log.failure is None
    assert offsets(log) == list(range(15))
    assert offsets(log, start=last_of_first) == list(range(last_of_first, 15))


class TestFirstSegmentLostWithThePower:
    """A machine without power may forget the name of a first segment that was never synced."""

    def restarted_without_first(self, *, flushed: bool, power_lost: bool) -> Store:
        store = filled()
        if flushed:
            store.log.flush()
        store.directory._offsets.write_recovery_points()
        store.directory.checkpoint_log_starts()
        store.directory.abandon()
        store.disk.remove(store.folder / f"{FIRST}.log")
        if power_lost:
            store.disk._boots += 1
        store._open()
        store.log = store.directory.logs["topic", 0]
        return store

    def test_a_log_torn_at_its_start_by_power_loss_continues_empty(self) -> None:
        store = self.restarted_without_first(flushed=False, power_lost=True)
        assert store.log.failure is None
        assert (store.log.log_start_offset, store.log.end_offset) == (0, 0)
        assert store.report.truncated_bytes > 0
        assert store.log.append(from_producer(0), 9).first_offset == 0

    @pytest.mark.parametrize(("flushed", "power_lost"), [(True, True), (False, False), (True, False)])
    def test_a_missing_synced_segment_is_damage(self, flushed: bool, power_lost: bool) -> None:
        store = self.restarted_without_first(flushed=flushed, power_lost=power_lost)
        assert store.log.failure is not None
        assert "is missing" in store.log.failure.message

    def test_a_snapshot_of_lost_segments_does_not_prevent_opening(self) -> None:
        """Nothing was checkpointed before the loss, so nothing was deleted: what is left is no beginning."""
        store = filled()
        store.directory.abandon()
        names = sorted(store.files(".log"))
        for name in names[:-1]:
            store.disk.remove(store.folder / name)
        for name in sorted(store.files(".snapshot"))[1:]:
            store.disk.remove(store.folder / name)
        store.disk._boots += 1
        store._start()
        store.log.recovery_point = store.log.end_offset
        store.directory._offsets.write_recovery_points()
        log = store.crash()
        assert log.failure is None
        assert (log.log_start_offset, log.end_offset) == (0, 0)


@pytest.mark.parametrize("way", ["crash", "reopen"])
def test_the_configured_number_of_producers_is_remembered_over_a_start(way: str) -> None:
    """More of them than the default, so that a retry of each is still known as one."""
    count = DEFAULT_LIMIT + 500
    store = Store(producer_id_max_per_partition=2 * count)
    for producer in range(count):
        store.log.append(from_producer(0, producer=producer), 0)
    log = getattr(store, way)()
    assert len(log.producers) == count
    for producer in (0, 1, count // 2, count - 1):
        info = log.append(from_producer(0, producer=producer), 0)
        assert (info.first_offset, info.duplicate) == (producer, True)


@pytest.mark.parametrize("way", ["crash", "reopen"])
def test_after_a_start_the_producers_that_wrote_last_are_kept(way: str) -> None:
    store = Store(producer_id_max_per_partition=80)
    for producer in range(80):
        store.log.append(from_producer(0, producer=producer), 0)
    for sequence in range(1, 20):
        for producer in range(5):  # the first to come are the busiest
            store.log.append(from_producer(sequence, producer=producer), 0)
    log = getattr(store, way)()
    log.append(from_producer(0, producer=1000), 0)  # one too many
    assert len(log.producers) < 80
    assert [log.producers.get(producer) is not None for producer in (0, 4, 5, 9, 79)] == [
        True,
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("flushed", [0, 12])
def test_a_power_loss_always_leaves_a_prefix_of_the_log(flushed: int) -> None:
    """Of segments that were not synced any may be missing, empty or hold zeros. What was synced is there."""
    written = [b"value %d" % number for number in range(30)]
    lengths = set()
    for seed in range(150):
        store = Store(segment_bytes=600, index_interval_bytes=0)
        for number, value in enumerate(written, start=1):
            store.log.append(batch(1, value=value), 0)
            if number == flushed:
                store.log.flush()
                store.directory.checkpoint()
        store.directory.abandon()
        store.disk.lose_power(Random(seed))
        log = store.crash()
        assert log.failure is None, f"seed {seed}: {log.failure}"
        found = values(log)
        assert found == written[: len(found)], f"seed {seed}"
        assert len(found) >= flushed, f"seed {seed}"
        lengths.add(len(found))
    assert len(lengths) > 2, "power was lost in the same place each time"


@pytest.mark.parametrize("seed", range(20))
def test_what_was_cut_does_not_come_back_with_a_loss_of_power(seed: int) -> None:
    """Not even where the segments that were written since survived it."""
    store = Store(segment_bytes=400)
    for _ in range(12):
        store.log.append(batch(1, value=b"old"), 1)
    store.log.flush()
    store.log.truncate_to(2)
    for _ in range(20):
        store.log.append(batch(1, value=b"new"), 2)
    store.directory.abandon()
    store.disk.lose_power(Random(seed))
    found = values(store.crash())
    assert found[:2] == [b"old"] * 2 and set(found[2:]) <= {b"new"}
