"""--from takes times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ottla.cli.moments import parse_moment, time_text
from ottla.protocol_client.offsets import EARLIEST, LATEST

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", EARLIEST),
        ("Earliest", EARLIEST),
        ("end", LATEST),
        ("now", LATEST),
        ("-1h", NOW - 3_600_000),
        ("1h", NOW - 3_600_000),
        ("90s", NOW - 90_000),
        ("1h30m", NOW - 5_400_000),
        ("2d ago", NOW - 172_800_000),
        ("250ms", NOW - 250),
        ("1700000000000", 1_700_000_000_000),
        ("1700000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14 22:13:20+00:00", 1_700_000_000_000),
        ("2023-11-14T23:13:20.500+01:00", 1_700_000_000_500),
    ],
)
def test_a_moment_is_parsed(text: str, expected: int) -> None:
    assert parse_moment(text, NOW) == expected


def test_a_date_without_a_zone_is_local_time() -> None:
    assert parse_moment("2023-11-14T22:13:20", NOW) == int(
        datetime(2023, 11, 14, 22, 13, 20).timestamp() * 1000
    )


def test_a_span_that_reaches_before_1970_starts_there() -> None:
    assert parse_moment("9999w", 1000) == 0


@pytest.mark.parametrize("text", ["yesterday", "1x", "", "-", "2023-13-45", "1h foo"])
def test_an_invalid_moment_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(ValueError, match="wanted: beginning, end"):
        parse_moment(text, NOW)


def test_a_small_number_gets_a_hint_to_the_offset_option() -> None:
    with pytest.raises(ValueError, match="--offset 5"):
        parse_moment("5", NOW)


def test_a_formatted_time_can_be_parsed_again() -> None:
    assert parse_moment(time_text(1_700_000_000_123), NOW) == 1_700_000_000_123
    assert datetime.fromisoformat(time_text(1_700_000_000_123)) == datetime.fromtimestamp(
        1_700_000_000.123, UTC
    )


def test_missing_and_out_of_range_timestamps_are_formatted() -> None:
    assert time_text(-1) == "-"
    assert time_text(2**62) == str(2**62)
