"""The verdicts of `make bench-pipeline`: what reaches a budget, what misses it, what was not compared."""

from __future__ import annotations

import pytest
from bench.pipeline.table import Line, render


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (Line("read", "rows/s", 110, 100, at_least=1.0), "pass"),
        (Line("read", "rows/s", 99, 100, at_least=1.0), "FAIL"),
        (Line("batch", "ms", 49, 100, at_most=0.5), "pass"),
        (Line("batch", "ms", 51, 100, at_most=0.5), "FAIL"),
        (Line("idle", "%", 4.9, 1.0, own_at_most=5.0), "pass"),
        (Line("idle", "%", 5.1, 50.0, own_at_most=5.0), "FAIL"),
        (Line("read", "rows/s", 110, None, at_least=1.0), "not compared"),
        (Line("idle", "%", None, 1.0, own_at_most=5.0), "not measured"),
        (Line("read", "MB/s", 1, 2), ""),
    ],
)
def test_a_line_is_judged_by_its_budget(line: Line, verdict: str) -> None:
    assert line.verdict == verdict
    assert line.as_json()["verdict"] == verdict


def test_the_table_reads_as_markdown() -> None:
    rows = render([Line("Read", "rows/s", 1_234_567, 1_000_000, at_least=1.0)], "ours", "theirs").splitlines()
    assert len({len(row) for row in rows}) == 1
    assert rows[2].split("|")[1:7] == [
        " Read, rows/s ",
        " 1,234,567 ",
        " 1,000,000 ",
        "  1.23 ",
        "   >= 1 ",
        " pass ",
    ]
