"""Compaction of one log: what stays of it, batch by batch, and what it does when it cannot go on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from ottla.protocol.batches import BatchHeader, headers
from ottla.protocol.compression import Codec
from ottla.protocol.records import Record, decode_batch, encode_batch
from ottla.protocol.varints import encode_records
from ottla.storage.cleaning.cleaner import Cleaner, CleanerSettings, clean_now
from ottla.storage.cleaning.job import CleaningJob, Outcomes, Progress, run
from ottla.storage.cleaning.key_map import KeyMap
from ottla.storage.cleaning.throttle import Throttle
from ottla.storage.cleaning.worker import CleanerProcess
from ottla.storage.files import RealDisk
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from unit.storage.logs import T0, Store, offsets, read_all, values

DAY = 24 * 3_600_000


class Compacted(Store):
    """A store whose log is compacted on demand."""

    def __init__(self, *arguments: Any, run_job: Any = None, **config: Any) -> None:
        super().__init__(*arguments, cleanup_policy=("compact",), **config)
        self.cleaner = Cleaner(self.directory, self.disk, self.clock, run_job=run_job)

    def write(self, *pairs: tuple[bytes | None, bytes | None], **options: Any) -> None:
        """One batch of keys and values."""
        rows = [Record(n, T0 + n, key, value, []) for n, (key, value) in enumerate(pairs)]
        self.log.append(memoryview(encode_batch(rows, **options)), 0)

    def clean(self) -> bool:
        """All that was written, the active segment included."""
        self.log.roll()
        return clean_now(self.cleaner, self.log, self.log.end_offset)

    def batches(self) -> list[BatchHeader]:
        return [header for data in self.files(".log").values() for _, header in headers(data)]

    @property
    def state(self) -> Any:
        return self.cleaner.state(self.log)


def test_the_latest_record_of_each_key_keeps_its_offset() -> None:
    store = Compacted()
    store.write((b"a", b"1"), (b"b", b"1"))
    store.write((b"a", b"2"), (b"c", b"1"))
    assert store.clean()
    assert [(r.offset, r.key, r.value) for r in read_all(store.log)] == [
        (1, b"b", b"1"),
        (2, b"a", b"2"),
        (3, b"c", b"1"),
    ]
    assert read_all(store.log)[0].timestamp == T0 + 1
    assert [offsets(store.log, start=n)[0] for n in range(4)] == [1, 1, 2, 3]


def test_a_batch_that_loses_no_records_is_copied_unchanged() -> None:
    store = Compacted()
    store.write((b"a", b"1"), (b"b", b"1"), codec=Codec.ZSTD)
    (before,) = store.files(".log").values()
    store.clean()
    assert next(iter(store.files(".log").values())) == before


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_that_loses_records_keeps_codec_offsets_and_producer(codec: Codec) -> None:
    store = Compacted()
    producer = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 40}
    store.write(
        (b"a", b"1" * 50), (b"b", b"2" * 50), (b"a", b"3" * 50), (b"c", b"4"), codec=codec, **producer
    )
    store.write((b"c", b"5"))
    store.clean()
    header = store.batches()[0]
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 3, 2)
    assert header.compression == codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 40)
    assert header.last_sequence == 43
    assert header.max_timestamp == T0 + 2
    assert values(store.log) == [b"2" * 50, b"3" * 50, b"5"]


def test_records_without_a_key_are_removed() -> None:
    """They come from a time when the topic was not compacted."""
    store = Compacted()
    store.log.configure(store.log.config.__class__(cleanup_policy=("delete",)))
    store.write((None, b"old"), (b"a", b"1"))
    store.log.configure(store.config)
    store.clean()
    assert values(store.log) == [b"1"]


class TestTombstones:
    def test_tombstones_are_removed_after_delete_retention_ms(self) -> None:
        store = Compacted(delete_retention_ms=1000)
        store.write((b"a", b"1"), (b"a", None), (b"b", b"1"))
        store.clean()
        assert [(r.offset, r.value) for r in read_all(store.log)] == [(1, None), (2, b"1")]
        store.clock.advance(999)
        store.write((b"c", b"1"))
        store.clean()
        assert values(store.log) == [None, b"1", b"1"]
        store.clock.advance(1)
        store.write((b"c", b"2"))
        store.clean()
        assert values(store.log) == [b"1", b"2"]

    def test_the_delete_horizon_is_in_the_batch_header_and_timestamps_are_unchanged(self) -> None:
        store = Compacted(delete_retention_ms=1000)
        store.write((b"a", b"1"), (b"b", b"1"), (b"a", None))
        before = read_all(store.log)[1:]
        store.clean()
        header = store.batches()[0]
        assert header.attributes & 0x40
        assert header.base_timestamp == T0 + 1000
        assert read_all(store.log) == before
        assert header.max_timestamp == T0 + 2

    def test_a_delete_horizon_does_not_change_once_set(self) -> None:
        store = Compacted(delete_retention_ms=1000)
        store.write((b"a", None), (b"b", b"1"))
        store.clean()
        store.clock.advance(500)
        store.write((b"b", b"2"))
        store.clean()
        assert store.batches()[0].base_timestamp == T0 + 1000


class TestProducers:
    def test_the_header_of_the_last_batch_of_a_known_producer_is_kept(self) -> None:
        store = Compacted()
        producer = {"producer_id": 7, "producer_epoch": 0}
        store.write((b"a", b"1"), **producer, base_sequence=0)
        store.write((b"a", b"2"), (b"a", b"3"), **producer, base_sequence=1)
        store.write((b"a", b"4"))
        store.clean()
        assert [(h.base_offset, h.record_count) for h in store.batches()] == [(1, 0), (3, 1)]
        assert store.batches()[0].last_sequence == 2
        assert values(store.log) == [b"4"]

    def test_a_replay_of_the_compacted_log_restores_producer_sequences(self) -> None:
        store = Compacted()
        producer = {"producer_id": 7, "producer_epoch": 0}
        store.write((b"a", b"1"), **producer, base_sequence=0)
        store.write((b"a", b"2"))
        store.clean()
        for name in store.files(".snapshot"):
            store.disk.remove(store.folder / name)
        store.crash()
        store.write((b"a", b"3"), **producer, base_sequence=1)
        assert store.log.producers.get(7).last_sequence == 1  # type: ignore[union-attr]

    def test_no_empty_batch_is_kept_for_an_expired_producer(self) -> None:
        store = Compacted()
        store.write((b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0)
        store.write((b"a", b"2"))
        store.log.producers.expire(T0 + 10 * DAY, DAY)
        store.clean()
        assert [h.base_offset for h in store.batches()] == [1]


class TestSegments:
    def test_small_segments_are_merged_with_valid_indexes(self) -> None:
        store = Compacted(segment_bytes=2000, index_interval_bytes=100)
        for number in range(60):
            store.write((b"k%d" % (number % 30), b"v" * 60))
        assert len(store.files(".log")) == 4
        store.clean()
        bases = [int(name[:20]) for name, data in store.files(".log").items() if data]
        assert bases == [0, 45], "as many as there are bytes for, and the first begins where it did"
        assert [r.offset for r in read_all(store.log)] == list(range(30, 60))
        for start in range(60):
            assert offsets(store.log, start=start)[0] == max(start, 30)
        assert store.log.offset_for_timestamp(T0).offset == 30  # type: ignore[union-attr]

    def test_replaced_files_are_removed_after_the_delete_delay(self) -> None:
        store = Compacted(file_delete_delay_ms=1000)
        store.write((b"a", b"1"))
        store.write((b"a", b"2"))
        store.clean()
        assert "00000000000000000000.log.replaced.deleted" in store.files()
        store.clock.advance(1000)
        store.directory.delete_pending()
        assert not store.files(".deleted")

    def test_a_slice_of_a_replaced_file_stays_readable(self) -> None:
        store = Compacted()
        store.write((b"a", b"1"))
        store.write((b"a", b"2"))
        held = store.log.read(0, 1000, 2)
        store.clean()
        store.clock.advance(DAY)
        store.directory.delete_pending()
        data = held.read()  # type: ignore[union-attr]
        assert [r.value for r in decode_batch(memoryview(data), max_size=1000)] == [b"1"]

    def test_the_checkpoint_is_as_kafka_writes_it_and_survives_a_restart(self) -> None:
        store = Compacted()
        store.write((b"a", b"1"), (b"a", b"2"))
        store.clean()
        assert store.disk.read(store.path / "cleaner-offset-checkpoint") == b"0\n1\ntopic 0 2\n"
        store.reopen()
        assert store.directory.cleaned_offsets == {("topic", 0): 2}

    def test_a_log_truncated_during_compaction_is_not_replaced(self) -> None:
        store = Compacted()

        def cut_meanwhile(job: CleaningJob, progress: Progress) -> Outcomes:
            for outcome in run(job, store.disk, progress=progress):
                store.log.truncate_to(1)
                store.write((b"b", b"new"))
                store.log.roll()
                yield outcome

        store.cleaner = Cleaner(store.directory, store.disk, store.clock, run_job=cut_meanwhile)
        store.write((b"a", b"1"))
        store.write((b"a", b"2"))
        assert not store.clean()
        assert values(store.log) == [b"1", b"new"]
        assert not store.files(".swap") and not store.files(".cleaned")


class TestMemory:
    def test_more_keys_than_fit_into_the_map_take_several_passes(self) -> None:
        store = Compacted(segment_bytes=5000)
        store.cleaner.settings = CleanerSettings(memory=24 * 64)
        for number in range(400):
            store.write((b"k%d" % (number % 150), b"%d" % number))
        passes = 0
        while store.clean():
            passes += 1
            assert [r.value for r in read_all(store.log)][-150:] == [b"%d" % n for n in range(250, 400)]
        assert passes > 2
        assert offsets(store.log) == list(range(250, 400))

    def test_the_key_map_finds_every_key_that_was_added(self) -> None:
        keys = KeyMap(24 * 5000, 0.9, 1000)
        assert 4000 < keys.capacity <= 4500
        keys.extend(1000 + 2 * keys.capacity)
        rng = random.Random(3)
        latest: dict[bytes, int] = {}
        for offset in range(1000, 1000 + 2 * keys.capacity):
            key = rng.randbytes(3)
            if key in latest or keys.free_slots:
                latest[key] = offset
                keys.put(key, offset)
        assert keys.size == len(latest) == keys.capacity
        assert all(keys.latest(key) == offset for key, offset in latest.items())
        assert keys.latest(b"never") == -1
        last = max(latest.values())
        assert keys.count_latest(1000, last) == len(latest)
        assert {o for o in range(1000, last + 1) if keys.is_latest(o)} == set(latest.values())

    def test_a_batch_with_more_records_than_the_key_map_holds_is_reported(self) -> None:
        store = Compacted()
        store.cleaner.settings = CleanerSettings(memory=24 * 64)
        store.write(*[(b"k%d" % n, b"v") for n in range(100)])
        assert not store.clean()
        assert "log.cleaner.dedupe.buffer.size" in store.state.uncleanable


class TestTrouble:
    def test_a_batch_that_cannot_be_read_marks_the_partition_and_changes_nothing(self) -> None:
        store = Compacted()
        store.write((b"a", b"1"), (b"a", b"2"))
        store.write((b"a", b"3"))
        store.log.roll()
        store.damage("00000000000000000000.log", 64)
        files = store.files(".log")
        assert not store.clean()
        assert "wrong CRC at byte 0 of" in store.state.uncleanable
        assert store.files(".log") == files
        assert not store.files(".cleaned")
        assert store.cleaner.candidate(store.log, store.log.end_offset) is None, "it is left alone"

    def test_damage_in_one_partition_keeps_no_other_from_being_compacted(self) -> None:
        store = Compacted()
        other = store.directory.create("topic", 1, bytes(range(16)), store.config)
        for log in (store.log, other):
            for value in (b"1", b"2"):
                log.append(memoryview(encode_batch([Record(0, T0, b"k", value, [])])), 0)
            log.roll()
        store.damage("00000000000000000000.log", 64)
        logs = [(store.log, 2), (other, 2)]
        seen = set()
        while (chosen := store.cleaner.choose(logs)) is not None:
            seen.add(chosen[0].name)
            clean_now(store.cleaner, *chosen)
        assert seen == {"topic-0", "topic-1"}
        assert values(other) == [b"2"]
        assert store.state.uncleanable

    def test_damage_met_while_looking_for_work_takes_that_partition_offline_and_no_other(self) -> None:
        store = Compacted(max_compaction_lag_ms=10**9)  # so that the age of the first batch is looked up
        other = store.directory.create("topic", 1, bytes(range(16)), store.config)
        for log in (store.log, other):
            for value in (b"1", b"2"):
                log.append(memoryview(encode_batch([Record(0, T0, b"k", value, [])])), 0)
            log.roll()
        store.reopen()
        other = store.directory.logs["topic", 1]
        cleaner = Cleaner(store.directory, store.disk, store.clock)
        store.damage("00000000000000000000.log", 8, b"\x40")
        chosen = cleaner.choose([(store.log, 2), (other, 2)])
        assert chosen is not None and chosen[0] is other
        assert store.log.failure is not None
        assert "00000000000000000000.log" in store.log.failure.message

    def test_an_unexpected_error_is_logged_and_the_log_is_tried_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        broken = True

        def run_job(job: CleaningJob, progress: Progress) -> Outcomes:
            if broken:
                raise ZeroDivisionError("a defect")
            return run(job, store.disk, progress=progress)

        store = Compacted(run_job=run_job)
        store.write((b"a", b"1"))
        store.write((b"a", b"2"))
        assert not store.clean()
        assert "ZeroDivisionError" in caplog.text
        assert (store.state.failures, store.state.uncleanable) == (1, None)
        store.clock.advance(61_000)
        broken = False
        assert store.cleaner.candidate(store.log, 2) is not None
        assert clean_now(store.cleaner, store.log, 2)
        assert values(store.log) == [b"2"]

    @pytest.mark.parametrize("delta", [-1, -3, 1, 5, 1_000_000])
    def test_offsets_that_records_cannot_have_delete_no_other_record(self, delta: int) -> None:
        """A record that claims the offset of another, or one of another batch."""
        store = Compacted()
        store.write((b"a", b"1"), (b"b", b"1"))
        rows = [Record(0, T0, b"c", b"1", []), Record(1, T0, b"d", b"1", [])]
        strange = encode_batch(rows)
        body = encode_records([(0, T0, b"c", b"1", []), (delta, T0, b"d", b"1", [])], 0, T0)
        strange[61:] = body
        strange[8:12] = (len(strange) - 12).to_bytes(4, "big")
        strange[17:21] = crc32c(bytes(strange[21:])).to_bytes(4, "big")
        strange[:8] = store.log.end_offset.to_bytes(8, "big")
        strange[12:16] = store.log.leader_epochs.latest.to_bytes(4, "big")
        store.log.append_replicated(memoryview(strange))  # a leader would have refused it
        store.write((b"d", b"2"), (b"d", b"3"))
        before = read_all_whole(store)
        done = store.clean()
        assert {(b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"d", b"3")} <= set(read_all_whole(store))
        if delta != 1:
            assert not done
            assert "offset 2" in store.state.uncleanable
            assert read_all_whole(store) == before

    def test_a_log_recreated_during_a_pass_is_not_touched(self) -> None:
        store = Compacted()
        store.write((b"a", b"1"))
        store.write((b"a", b"2"))
        store.log.roll()
        steps = store.cleaner.clean(store.log, 2)
        work = next(steps)
        while work.__class__.__name__ != "partial":  # until the pass itself
            work = steps.send(work())
        cleaned = work()
        store.directory.delete("topic", 0)
        store.log = store.directory.create("topic", 0, bytes(15) + b"\1", store.config)
        store.write((b"a", b"new"))
        with pytest.raises(StopIteration) as end:
            work = steps.send(cleaned)
            while True:
                work = steps.send(work())
        assert end.value.value is False
        assert not store.files(".swap")
        assert values(store.crash()) == [b"new"]

    def test_a_full_disk_leaves_the_log_as_it_was_and_it_is_tried_again(self) -> None:
        disk = FaultyDisk(MemoryDisk())
        store = Compacted(disk)
        store.write((b"a", b"1"), (b"a", b"2" * 500))
        store.log.roll()
        disk.free_bytes = 100
        assert not store.clean()
        assert store.state.uncleanable is None and "space" in store.state.problem.lower()
        disk.heal()
        assert not store.files(".cleaned")
        assert store.clean()
        assert values(store.log) == [b"2" * 500]

    def test_a_log_whose_compaction_failed_is_tried_after_the_others(self) -> None:
        store = Compacted()
        other = store.directory.create("topic", 1, bytes(range(16)), store.config)
        for log in (store.log, other):
            log.append(memoryview(encode_batch([Record(0, T0, b"k", b"v", [])])), 0)
            log.roll()

        def fails_for_one(job: CleaningJob, progress: Progress) -> Outcomes:
            if job.name == "topic-0":
                raise OSError(5, "the disk is unwell")
            yield from run(job, store.disk, progress=progress)

        store.cleaner = Cleaner(store.directory, store.disk, store.clock, run_job=fails_for_one)
        logs = [(store.log, 1), (other, 1)]
        tried = []
        while (chosen := store.cleaner.choose(logs)) is not None:
            tried.append(chosen[0].name)
            clean_now(store.cleaner, *chosen)
        assert sorted(tried) == ["topic-0", "topic-1"], "each once"
        store.clock.advance(60_000)
        assert store.cleaner.choose(logs) == (store.log, 1), "and later again"

    def test_a_pass_that_may_not_fit_the_disk_is_not_started(self) -> None:
        store = Compacted()
        store.write((b"a", b"1" * 500))
        store.log.roll()
        store.cleaner.free_space = lambda: 100
        assert not store.clean()
        assert "100 are free" in store.state.problem
        store.cleaner.free_space = lambda: 1000
        assert store.clean()

    def test_a_log_larger_than_the_free_space_is_compacted_segment_by_segment(self) -> None:
        disk = FaultyDisk(MemoryDisk())
        store = Compacted(disk, segment_bytes=2000, file_delete_delay_ms=0)
        for number in range(100):
            store.write((b"k%d" % number, b"v" * 100))
        store.log.roll()
        store.log.flush()
        disk.free_bytes = 6000

        def freeing(job: CleaningJob, progress: Progress) -> Outcomes:
            for outcome in run(job, store.disk, progress=progress):
                yield outcome
                store.directory.delete_pending()

        store.cleaner = Cleaner(store.directory, store.disk, store.clock, run_job=freeing)
        store.cleaner.free_space = lambda: disk.free_bytes
        assert store.log.size > 2 * 6000
        assert clean_now(store.cleaner, store.log, 100)
        assert offsets(store.log) == list(range(100))

    @pytest.mark.parametrize("name", ["00000000000000000000.log", ".swap"])
    def test_a_disk_that_refuses_a_rename_loses_nothing_and_the_swap_is_finished_later(
        self, name: str
    ) -> None:
        disk = FaultyDisk(MemoryDisk())
        store = Compacted(disk)
        store.write((b"a", b"1"), (b"a", b"2"))
        store.log.roll()
        disk.fail("rename", name=name)
        assert not store.clean()
        assert values(store.log)[-1] == b"2"
        disk.heal()
        store.write((b"a", b"3"))
        assert store.clean()
        assert values(store.log) == [b"3"]
        assert not store.files(".swap")
        store.crash()
        assert values(store.log) == [b"3"]


def read_all_whole(store: Store) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of all records, whatever their offsets."""
    return [
        (record.key, record.value)
        for data in store.files(".log").values()
        for position, header in headers(data)
        for record in decode_batch(data[position : position + header.size], max_size=1 << 20)
    ]


def test_the_throttle_sleeps_after_reading_too_fast() -> None:
    slept: list[float] = []
    throttle = Throttle(1000.0, monotonic=lambda: sum(slept), sleep=slept.append)
    for _ in range(10):
        throttle.spent(500)
    assert sum(slept) == pytest.approx(5.0)


class TestAnotherProcess:
    @pytest.fixture
    def process(self) -> Any:
        process = CleanerProcess()
        yield process
        process.close()

    def test_the_cleaner_process_leaves_the_same_files_as_an_inline_pass(
        self, tmp_path: Path, process: CleanerProcess
    ) -> None:
        seen: list[tuple[int, int]] = []

        def run_there(job: CleaningJob, progress: Progress) -> Outcomes:
            return process.run(job, lambda *step: seen.append(step))

        store = Compacted(RealDisk(), tmp_path, run_job=run_there)
        for number in range(100):
            store.write((b"k%d" % (number % 10), b"v" * 100_000))
        assert store.clean()
        assert offsets(store.log, max_bytes=1 << 20) == list(range(90, 100))
        first = process.pid
        assert first is not None
        assert seen and all(done <= total for done, total in seen)
        store.write((b"k0", b"again"))
        assert store.clean()
        assert process.pid == first, "one process serves many jobs"
        process.retire()
        assert process.pid is None
        store.directory.close()

    def test_an_unreadable_batch_is_reported_by_the_cleaner_process(
        self, tmp_path: Path, process: CleanerProcess
    ) -> None:
        store = Compacted(RealDisk(), tmp_path, run_job=process.run)
        store.write((b"a", b"1"))
        store.log.roll()
        store.damage("00000000000000000000.log", 64)
        assert not store.clean()
        assert "wrong CRC" in store.state.uncleanable
        store.directory.close()

    def test_the_cleaner_process_takes_the_next_job_after_a_cancelled_one(
        self, tmp_path: Path, process: CleanerProcess
    ) -> None:
        store = Compacted(RealDisk(), tmp_path, run_job=process.run, segment_bytes=2000)
        for number in range(60):
            store.write((b"k%d" % number, b"v" * 100))
        store.log.roll()
        job = store.cleaner.plan(store.log, 60)
        assert job is not None
        outcomes = process.run(job, lambda done, total: None)
        next(outcomes)
        pid = process.pid
        outcomes.close()
        assert store.clean()
        assert process.pid == pid
        assert offsets(store.log) == list(range(60))
        store.directory.close()

    def test_ending_the_cleaner_process_leaves_the_log_unchanged(
        self, tmp_path: Path, process: CleanerProcess
    ) -> None:
        store = Compacted(RealDisk(), tmp_path, run_job=process.run)
        store.write((b"a", b"1"), (b"a", b"2"))
        process.close()
        assert not store.clean()
        assert values(store.log) == [b"1", b"2"]
        store.directory.close()


def test_a_job_and_its_result_round_trip_as_text() -> None:
    store = Compacted(segment_bytes=12345)
    store.write((b"a", b"1"), producer_id=9, producer_epoch=0, base_sequence=0)
    store.log.roll()
    job = store.cleaner.plan(store.log, 1)
    assert job is not None
    assert CleaningJob.decode(job.encode()) == job
