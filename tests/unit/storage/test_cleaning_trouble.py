"""Compaction that cannot go on: damaged batches, full disks, crashes in the middle."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from ottla.protocol.batches import headers
from ottla.protocol.records import Record, decode_batch, encode_batch
from ottla.protocol.varints import encode_records
from ottla.storage.cleaning.cleaner import Cleaner, clean_now
from ottla.storage.cleaning.job import CleaningJob, Outcomes, Progress, run
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.memory_disk import MemoryDisk
from unit.storage.compacted import Compacted
from unit.storage.logs import T0, Store, offsets, values


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
