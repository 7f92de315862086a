"""The mark of a committed batch counts for that batch of that query over those offsets, and nothing else."""

from __future__ import annotations

import pytest

from ottla.pipeline.topics.batch_marks import BatchMark, contradicts, digest_of, newest
from ottla.pipeline.topics.exact_writing import RepeatedTask, in_waves, merged

MARK = BatchMark("query", 7, digest_of({"0": {"clicks": {"0": 5}}}, {"0": {"clicks": {"0": 9}}}))


def test_a_mark_survives_as_metadata() -> None:
    assert BatchMark.from_metadata(MARK.as_metadata()) == MARK


def test_a_mark_fits_into_the_metadata_of_an_offset() -> None:
    longest = BatchMark("f" * 36, 1 << 62, digest_of(None, {"0": {"x" * 249: {"0": 1}}}))
    assert len(longest.as_metadata()) < 512


@pytest.mark.parametrize("text", ["", "{}", "7", "null", '{"query": 1, "batch": "2", "offsets": 3}', "\x00"])
def test_foreign_metadata_is_no_mark(text: str) -> None:
    assert BatchMark.from_metadata(text) is None


def test_the_newest_mark_of_the_query_counts() -> None:
    earlier, other = BatchMark("query", 3, "x"), BatchMark("another", 99, "x")
    assert newest([earlier, None, MARK, other], "query") == MARK
    assert newest([earlier, other, None], "a reset query") is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, False),
        (MARK, False),
        (BatchMark("query", 6, "x"), False),
        (BatchMark("query", 7, "other offsets"), True),
        (BatchMark("query", 8, "x"), True),
    ],
)
def test_a_checkpoint_older_than_the_topics_is_noticed(found: BatchMark | None, expected: bool) -> None:
    assert contradicts(found, MARK) is expected


def test_offsets_are_told_apart() -> None:
    begin, end = {"0": {"a": {"0": 1, "1": 2}}}, {"0": {"a": {"0": 3, "1": 4}}}
    reordered = {"0": {"a": {"1": 4, "0": 3}}}
    assert digest_of(begin, end) == digest_of(begin, reordered)
    assert digest_of(begin, end) != digest_of(end, end)
    assert digest_of(None, end) != digest_of(begin, end)


def test_waves_have_one_batch_of_each_partition_and_keep_its_order() -> None:
    order, starts = in_waves([0, 0, 1, 2, 2, 2])
    assert (order, starts) == ([0, 2, 3, 1, 4, 5], [0, 3, 5])
    assert in_waves([]) == ([], [])


def test_two_tasks_for_one_partition_fail_the_batch() -> None:
    assert merged([{"0": 5, "2": 1}, {}, {"1": 9}]) == {0: 5, 2: 1, 1: 9}
    with pytest.raises(RepeatedTask, match="partition 2"):
        merged([{"0": 5, "2": 1}, {"2": 1}])
