"""Lag is counted in records and in time, and says nothing where nothing is known."""

from __future__ import annotations

import pytest

from ottla.cli.group_views import behind_text, moves_text, places_text
from ottla.protocol.messages.explain_group import ExplainedMove
from ottla.protocol.records import Record, encode_batch
from ottla.protocol_client.lag import (
    PartitionLag,
    first_time,
    most_seconds,
    records_behind,
    seconds_behind,
    total_records,
)

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("committed", "end", "records"),
    [(5, 20, 15), (20, 20, 0), (25, 20, 0), (None, 20, None), (5, None, None), (0, 0, 0)],
)
def test_lag_in_records_is_the_distance_to_the_log_end(
    committed: int | None, end: int | None, records: int | None
) -> None:
    assert records_behind(committed, end) == records


@pytest.mark.parametrize(
    ("records", "oldest", "seconds"),
    [
        (3, NOW - 1500, 1.5),
        (0, None, 0.0),
        (3, None, None),
        (3, -1, None),
        (None, NOW, None),
        (3, NOW + 5000, 0.0),
    ],
)
def test_lag_in_time_is_the_age_of_the_first_unread_record(
    records: int | None, oldest: int | None, seconds: float | None
) -> None:
    assert seconds_behind(records, oldest, NOW) == seconds


def test_a_group_is_behind_by_the_sum_of_records_and_the_oldest_of_all() -> None:
    lags = [
        PartitionLag("t", 0, 5, 10, NOW - 4000),
        PartitionLag("t", 1, 10, 10),
        PartitionLag("t", 2, None, 10),
        PartitionLag("t", 3, 9, 10, NOW - 9000),
    ]
    assert total_records(lags) == 6
    assert most_seconds(lags, NOW) == 9.0
    assert total_records(lags[2:3]) is None
    assert most_seconds(lags[2:3], NOW) is None


def test_the_time_is_that_of_the_first_unread_record_not_of_its_batch() -> None:
    first = encode_batch([Record(i, NOW + i, None, b"v", []) for i in range(3)], base_offset=0)
    second = encode_batch([Record(i, NOW + 100 + i, None, b"v", []) for i in range(3, 6)], base_offset=3)
    data = bytes(first + second)
    assert first_time(data, 0) == NOW
    assert first_time(data, 2) == NOW + 2
    assert first_time(data, 3) == NOW + 103
    assert first_time(data, 6) is None
    assert first_time(data[: len(first) + 20], 4) is None


def test_partitions_are_written_as_ranges() -> None:
    assert places_text([("b", 1), ("a", 2), ("a", 0), ("a", 1), ("a", 5)]) == "a:0-2,5 b:1"
    assert places_text([]) == ""


def test_partitions_with_the_same_old_and_new_owner_share_a_line() -> None:
    moves = [
        ExplainedMove(topic="t", partition=p, before="a", after="b" if p < 2 else None) for p in range(4)
    ]
    assert moves_text(moves) == ["t:0-1 from a to b", "t:2-3 from a to unassigned"]


def test_a_long_list_of_moves_is_truncated() -> None:
    lines = moves_text(ExplainedMove(topic="t", partition=p, before=f"m{p}", after="b") for p in range(30))
    assert len(lines) == 10
    assert lines[-1] == "and 21 more; --json has all"


def test_lag_in_words() -> None:
    assert behind_text(None, None) == "not known: nothing is committed"
    assert behind_text(0, 0.0) == "none, everything is read"
    assert behind_text(1, 90.0) == "1 record, the oldest unread is 90 s old"
    assert behind_text(1200, None) == "1,200 records"
