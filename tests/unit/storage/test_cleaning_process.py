"""Compaction in another process, and the jobs that it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.storage.cleaning.job import CleaningJob, Outcomes, Progress
from ottla.storage.cleaning.worker import CleanerProcess
from ottla.storage.files import RealDisk
from unit.storage.compacted import Compacted
from unit.storage.logs import offsets, values


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
