"""Offsets as text, shares of a micro-batch, slices for tasks: arithmetic, without Spark or a broker."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline.topics.admission import HoldBack, admitted, share, within_bytes
from ottla.pipeline.topics.offsets import DataLost, json_of, places_of, ranges_between, report
from ottla.pipeline.topics.options import SourceOptions
from ottla.pipeline.topics.planning import SMALL, Range, Slice, slices
from ottla.protocol_client.offsets import Span

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


def test_offsets_are_written_in_order_because_spark_compares_the_text() -> None:
    offsets = {("b", 0): 1, ("a", 10): 2, ("a", 9): 3}
    assert json.dumps(json_of(offsets)) == '{"a": {"9": 3, "10": 2}, "b": {"0": 1}}'
    assert places_of(json_of(offsets)) == offsets


# Admission


def test_a_limit_is_shared_in_proportion_to_what_waits() -> None:
    ends = admitted({A0: 0, A1: 0, B0: 5}, {A0: 300, A1: 100, B0: 5}, max_offsets=40)
    assert ends == {A0: 30, A1: 10, B0: 5}


def test_every_waiting_partition_gets_a_share() -> None:
    assert share(10, {A0: 1_000_000, A1: 1}) == {A0: 9, A1: 1}


def test_without_limits_everything_is_admitted() -> None:
    assert admitted({A0: 3}, {A0: 9}) == {A0: 9}


def test_bytes_are_shared_by_what_an_offset_weighs() -> None:
    ends = admitted({A0: 0, A1: 0}, {A0: 100, A1: 100}, max_bytes=5_500, bytes_each={A0: 100.0, A1: 10.0})
    assert ends == {A0: 50, A1: 50}
    assert within_bytes(1, {A0: 5, A1: 5}, {A0: 100.0, A1: 10.0}) == {A0: 1, A1: 1}


def test_both_limits_hold() -> None:
    ends = admitted({A0: 0}, {A0: 100}, max_offsets=60, max_bytes=500, bytes_each={A0: 10.0})
    assert ends == {A0: 50}


@settings(deadline=None)
@given(
    st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), st.integers(0, 10**12), min_size=1),
    st.integers(1, 10**9),
)
def test_shares_never_exceed_what_waits_and_the_limit_by_no_more_than_one_each(
    amounts: dict[tuple[str, int], int], limit: int
) -> None:
    ends = admitted(dict.fromkeys(amounts, 7), {p: 7 + n for p, n in amounts.items()}, max_offsets=limit)
    taken = {place: end - 7 for place, end in ends.items()}
    assert all(0 <= taken[p] <= n for p, n in amounts.items())
    assert all(taken[p] >= 1 for p, n in amounts.items() if n)
    assert sum(taken.values()) <= limit + len(amounts)


def test_a_batch_waits_until_enough_is_there_or_long_enough_has_passed() -> None:
    hold = HoldBack(least=10, longest=60.0)
    assert not hold.waits(1, now=100.0), "the first batch never waits"
    assert hold.waits(9, now=110.0)
    assert hold.left(110.0) == 50.0
    assert not hold.waits(10, now=111.0)
    assert hold.waits(9, now=170.9)
    assert not hold.waits(1, now=171.0)


# Slices


def all_ranges(plan: list[Slice]) -> list[Range]:
    return [r for each in plan for r in each.ranges]


def test_small_ranges_make_one_task_and_large_ones_a_task_each() -> None:
    small = [Range("a", p, 0, 10) for p in range(8)]
    (one,) = slices(small)
    assert one.ranges == tuple(small)
    large = [Range("a", p, 0, SMALL) for p in range(3)]
    assert [s.ranges for s in slices(large)] == [(r,) for r in large]


def test_the_plan_is_the_same_whatever_the_order() -> None:
    ranges = [Range("b", 0, 0, 9_000), Range("a", 1, 0, 10), Range("a", 0, 5, 20), Range("c", 0, 3, 3)]
    plans = [[s.ranges for s in slices(order)] for order in (ranges, ranges[::-1])]
    assert plans[0] == plans[1]
    assert [r.topic for r in all_ranges(slices(ranges))] == ["a", "a", "b"]


def test_min_partitions_splits_the_large_ones() -> None:
    plan = slices([Range("a", 0, 0, 100), Range("a", 1, 0, 1)], min_partitions=5)
    assert [s.ranges[0] for s in plan] == [
        Range("a", 0, 0, 25),
        Range("a", 0, 25, 50),
        Range("a", 0, 50, 75),
        Range("a", 0, 75, 100),
        Range("a", 1, 0, 1),
    ]


def test_with_enough_partitions_min_partitions_changes_nothing() -> None:
    ranges = [Range("a", 0, 0, 5), Range("a", 1, 0, 5)]
    assert [s.ranges for s in slices(ranges, min_partitions=2)] == [(r,) for r in ranges]


def test_max_records_splits_each_range() -> None:
    plan = slices([Range("a", 0, 0, 10)], max_records=4)
    assert [r.size for r in all_ranges(plan)] == [3, 3, 4]
    assert len(slices([Range("a", 0, 0, 10)], min_partitions=8, max_records=5)) == 8


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10**6), st.integers(0, 2_000)), max_size=12),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 3_000),
)
def test_slices_cover_every_offset_exactly_once(
    shapes: list[tuple[int, int, int]], least: int | None, most: int | None
) -> None:
    wanted = {p: Range("a", p, start, start + size) for p, start, size in shapes}
    covered: dict[int, int] = {}
    for r in all_ranges(slices(wanted.values(), least, most)):
        assert r.start == covered.get(r.partition, wanted[r.partition].start)
        covered[r.partition] = r.end
        assert 0 < r.size <= (most or 10**6)
    assert covered == {p: r.end for p, r in wanted.items() if r.size}


def test_a_slice_travels_to_workers() -> None:
    sliced = Slice([Range("a", 0, 1, 2)])
    assert pickle.loads(pickle.dumps(sliced)).ranges == (Range("a", 0, 1, 2),)


# What lies between two offsets, and what is lost


def test_a_new_partition_is_read_from_its_start() -> None:
    plan = ranges_between({A0: 5}, {A0: 9, A1: 3}, {A0: Span(0, 9), A1: Span(0, 3)})
    assert plan == ([Range("a", 0, 5, 9), Range("a", 1, 0, 3)], [], False)


def test_what_retention_removed_is_named_with_its_offsets_and_left_out() -> None:
    plan = ranges_between({A0: 5}, {A0: 20}, {A0: Span(12, 20)})
    assert plan.ranges == [Range("a", 0, 12, 20)]
    assert plan.losses == [
        "partition 0 of topic 'a': offsets 5 to 11 were deleted before they were read "
        "(the partition now starts at 12)"
    ]


def test_a_completely_deleted_range_is_lost_up_to_its_end() -> None:
    plan = ranges_between({A0: 5}, {A0: 8}, {A0: Span(12, 20)})
    assert plan.ranges == []
    assert "offsets 5 to 7 were deleted" in plan.losses[0]


@pytest.mark.parametrize(
    ("start", "end", "spans", "words", "unsure"),
    [
        (
            {A0: 5, A1: 7},
            {A0: 5},
            {A0: Span(0, 5)},
            "partition 1 of topic 'a' does not exist any more",
            False,
        ),
        ({A0: 5}, {A0: 9}, {}, "offsets 5 to 8 had not been read", True),
        ({A0: 9}, {A0: 2}, {A0: Span(0, 2)}, "ends at offset 2, but had been read up to offset 9", False),
        ({}, {A0: 9}, {A0: Span(4, 9)}, "offsets 0 to 3 were deleted", False),
        ({A0: 5}, {A0: 9}, {A0: Span(0, 7)}, "offsets 7 to 8 cannot be read", True),
    ],
)
def test_other_kinds_of_data_loss_are_distinguished(
    start: dict[tuple[str, int], int],
    end: dict[tuple[str, int], int],
    spans: dict[tuple[str, int], Span],
    words: str,
    unsure: bool,
) -> None:
    plan = ranges_between(start, end, spans)
    assert words in " ".join(plan.losses)
    assert plan.unsure is unsure


def test_losses_end_the_query_with_what_to_do_or_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "a"}
    with pytest.raises(DataLost, match=r"something is gone.*failOnDataLoss to false.*retention.ms"):
        report(["something is gone"], SourceOptions.parse(given))
    report(["something is gone"], SourceOptions.parse({**given, "failOnDataLoss": "false"}))
    assert "something is gone; going on" in caplog.text
    report([], SourceOptions.parse(given))
