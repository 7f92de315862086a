"""reset-offsets goes where people say, and never out of the partition."""

from __future__ import annotations

import pytest

from ottla.cli.offset_plan import NothingToShift, Step, Target, parse_target, parse_topic, plan_step
from ottla.protocol_client.offsets import EARLIEST, LATEST, Span

NOW = 1_800_000_000_000
HELD = Span(10, 100)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Target(moment=EARLIEST)),
        ("Latest", Target(moment=LATEST)),
        ("42", Target(offset=42)),
        ("1700000000000", Target(offset=1_700_000_000_000)),
        ("+5", Target(shift=5)),
        ("-5", Target(shift=-5)),
        ("shift -5", Target(shift=-5)),
        ("-1h", Target(moment=NOW - 3_600_000)),
        ("90s", Target(moment=NOW - 90_000)),
        ("2023-11-14T22:13:20Z", Target(moment=1_700_000_000_000)),
        ("2023-11-14T23:13:20+01:00", Target(moment=1_700_000_000_000)),
    ],
)
def test_a_target_is_parsed(text: str, expected: Target) -> None:
    assert parse_target(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "somewhere", "-", "+1h", "1.5", "--5"])
def test_an_invalid_target_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(ValueError, match="wanted: earliest, latest"):
        parse_target(text, NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("payments", ("payments", None)),
        ("payments:0", ("payments", [0])),
        ("payments:5-7,0,6", ("payments", [0, 5, 6, 7])),
    ],
)
def test_topics_and_partitions_are_distinguished(text: str, expected: tuple[str, list[int] | None]) -> None:
    assert parse_topic(text) == expected


@pytest.mark.parametrize("text", [":0", "payments:", "payments:x", "payments:1-", "payments:-1"])
def test_invalid_partitions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is wanted"):
        parse_topic(text)


@pytest.mark.parametrize(
    ("target", "before", "at_moment", "to", "note"),
    [
        (Target(moment=EARLIEST), 50, -1, 10, ""),
        (Target(moment=LATEST), None, -1, 100, ""),
        (Target(offset=42), None, -1, 42, ""),
        (Target(offset=3), 50, -1, 10, "3 is before the start"),
        (Target(offset=101), 50, -1, 100, "101 is past the end"),
        (Target(shift=7), 50, -1, 57, ""),
        (Target(shift=-70), 50, -1, 10, "-20 is before the start"),
        (Target(moment=NOW), 50, 77, 77, ""),
        (Target(moment=NOW), 50, -1, 100, "nothing that late: the end"),
    ],
)
def test_a_shift_stays_within_the_offsets_of_the_partition(
    target: Target, before: int | None, at_moment: int, to: int, note: str
) -> None:
    assert plan_step(target, "t", 3, before, HELD, at_moment) == Step("t", 3, before, to, note)


def test_a_shift_without_a_committed_offset_is_refused() -> None:
    with pytest.raises(NothingToShift, match="partition 3 of 't'"):
        plan_step(Target(shift=1), "t", 3, None, HELD)
