"""Which log is compacted next, how far, and which segments become one: decided without a disk."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.storage.cleaning.decisions import (
    Candidate,
    Cleanability,
    CleanableSegment,
    Written,
    choose,
    first_dirty_offset,
    joins,
    measure,
)
from ottla.storage.log_config import LogConfig

NOW = 1_000_000


def segment(base: int, size: int = 100, *, age: int = 0, **more: Any) -> CleanableSegment:
    return CleanableSegment(base, size, NOW - age, NOW - age, **more)


def where(segments: list[CleanableSegment], first_dirty: int = 0, stable: int = 10**9, **config: Any) -> Any:
    return measure(segments, LogConfig(**config), first_dirty=first_dirty, stable_offset=stable, now_ms=NOW)


ROW = [segment(0), segment(10), segment(20), segment(30)]


class TestHowFar:
    def test_all_segments_but_the_active_one_are_dirty_at_first(self) -> None:
        assert where(ROW) == Cleanability(0, 30, 0, 300, False)

    def test_compacted_segments_count_as_clean(self) -> None:
        assert where(ROW, first_dirty=20) == Cleanability(20, 30, 200, 100, False)
        assert where(ROW, first_dirty=20).dirty_ratio == pytest.approx(1 / 3)

    def test_a_segment_that_was_compacted_in_part_is_dirty(self) -> None:
        assert where(ROW, first_dirty=15) == Cleanability(15, 30, 100, 200, False)

    def test_records_above_the_last_stable_offset_are_not_compacted(self) -> None:
        assert where(ROW, stable=20).first_uncleanable == 20
        assert where(ROW, stable=17).first_uncleanable == 17

    def test_a_log_with_one_segment_has_nothing_to_clean(self) -> None:
        assert where([segment(0)]).dirty_bytes == 0

    def test_records_within_min_compaction_lag_and_all_after_them_are_not_compacted(self) -> None:
        row = [segment(0, age=500), segment(10, age=50), segment(20, age=500), segment(30)]
        assert where(row, min_compaction_lag_ms=100) == Cleanability(0, 10, 0, 100, False)

    def test_a_requested_cleaning_does_not_wait_for_the_dirty_ratio(self) -> None:
        row = [segment(0, age=50), segment(10)]
        config = LogConfig(min_compaction_lag_ms=100)
        asked = measure(row, config, first_dirty=0, stable_offset=99, now_ms=NOW, ignore_lag=True)
        assert asked.first_uncleanable == 10

    def test_records_beyond_max_compaction_lag_are_overdue(self) -> None:
        row = [segment(0, age=500), segment(10, age=50), segment(20)]
        assert where(row, max_compaction_lag_ms=400).overdue
        assert not where(row, max_compaction_lag_ms=600).overdue
        assert not where(row, first_dirty=10, max_compaction_lag_ms=400).overdue

    @pytest.mark.parametrize(("checkpoint", "first"), [(None, 5), (3, 5), (7, 7), (20, 20), (21, 5)])
    def test_a_cleaner_checkpoint_outside_of_the_log_is_ignored(
        self, checkpoint: int | None, first: int
    ) -> None:
        assert first_dirty_offset(checkpoint, 5, 20) == first


class TestWhichLog:
    def candidate(self, name: str, dirty: int, **more: Any) -> Candidate:
        overdue = more.pop("overdue", False)
        return Candidate(name, Cleanability(0, 9, 100 - dirty, dirty, overdue), 0.5, **more)

    def chosen(self, *candidates: Candidate) -> str | None:
        best = choose(candidates)
        return best.name if best else None

    def test_the_dirtiest_log_is_compacted_first(self) -> None:
        assert self.chosen(self.candidate("a", 60), self.candidate("b", 80)) == "b"

    def test_no_log_is_compacted_below_its_dirty_ratio(self) -> None:
        assert self.chosen(self.candidate("a", 50)) is None

    def test_an_overdue_log_is_compacted_before_a_dirtier_one(self) -> None:
        assert self.chosen(self.candidate("a", 90), self.candidate("b", 1, overdue=True)) == "b"

    def test_a_requested_log_is_compacted_before_all_others(self) -> None:
        late = self.candidate("late", 99, overdue=True)
        assert self.chosen(late, self.candidate("asked", 1, asked_for=True)) == "asked"

    def test_a_log_without_dirty_segments_is_compacted_only_on_request(self) -> None:
        assert self.chosen(self.candidate("a", 0, overdue=True)) is None
        assert self.chosen(self.candidate("a", 0, asked_for=True)) == "a"


class TestJoining:
    def test_a_segment_is_merged_if_all_of_it_fits(self) -> None:
        written = Written(0, 150, 0, 0)
        assert joins(written, segment(10, 50), 20, LogConfig(segment_bytes=200))
        assert not joins(written, segment(10, 51), 20, LogConfig(segment_bytes=200))

    def test_a_segment_is_merged_only_if_its_indexes_fit(self) -> None:
        config = LogConfig(segment_index_bytes=100)
        assert joins(Written(0, 0, 60, 60), segment(10, index_size=40, time_index_size=40), 20, config)
        assert not joins(Written(0, 0, 60, 60), segment(10, index_size=41), 20, config)
        assert not joins(Written(0, 0, 60, 60), segment(10, time_index_size=41), 20, config)

    def test_offsets_within_a_segment_fit_into_31_bits(self) -> None:
        written = Written(5, 0, 0, 0)
        assert joins(written, segment(10), 5 + 2**31, LogConfig())
        assert not joins(written, segment(10), 6 + 2**31, LogConfig())
