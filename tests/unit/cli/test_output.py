"""Numbers and tables read well."""

from __future__ import annotations

import pytest

from ottla.cli.output import Column, count_text, plain_table, seconds_text, size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1.0 KB"),
        (1536, "1.5 KB"),
        (20 << 20, "20 MB"),
        (3 << 50, "3.0 PB"),
        (5000 << 50, "5000 PB"),
    ],
)
def test_sizes_are_formatted_with_units(size: int, text: str) -> None:
    assert size_text(size) == text


def test_counts_are_formatted() -> None:
    assert count_text(1, "record") == "1 record"
    assert count_text(0, "record") == "0 records"
    assert count_text(1234567, "record") == "1,234,567 records"
    assert count_text(1234567) == "1,234,567"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.041, "0.04 s"), (12.4, "12 s"), (150, "2 min 30 s"), (7260, "2 h 1 min")]
)
def test_durations_are_formatted(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_a_plain_table_is_aligned_and_has_no_trailing_blanks() -> None:
    table = plain_table(
        [Column("topic"), Column("size", number=True), Column("note")],
        [["a", "10 B", ""], ["long", "1 B", "x"]],
    )
    assert table == "TOPIC  SIZE  NOTE\na      10 B\nlong    1 B  x\n"
