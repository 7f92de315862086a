"""What a run shows, on a terminal, in a pipe and to programs."""

from __future__ import annotations

import io
import json
import os

import pytest

from ottla.pipeline.running.display import (
    COLUMNS,
    JsonDisplay,
    PlainDisplay,
    cells,
    count_text,
    plain_line,
    span_text,
    table,
)
from ottla.pipeline.running.progress import Batch, Phase, StageProgress

WORKING = StageProgress(
    "clean",
    Phase.running,
    batch=Batch(12, 430, 0.35, state_rows=7),
    batches=13,
    rows=51_234,
    rows_per_second=1234.4,
    lag_records=17,
    lag_seconds=2.5,
    state_rows=7,
    bad=5,
    late=2,
)
FAILING = StageProgress(
    "score",
    Phase.restarting,
    note="again in 4 s",
    error="ValueError: boom (shop.py:16, in bad)",
    restarts=3,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def plain() -> tuple[PlainDisplay, Clock, io.StringIO, io.StringIO]:
    out, err, clock = io.StringIO(), io.StringIO(), Clock()
    display = PlainDisplay(out, err, every=10, idle_every=300, clock=clock, time_of_day=lambda: "12:00:00")
    return display, clock, out, err


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0"),
        (7, "7"),
        (2.5, "2.5"),
        (1234, "1,234"),
        (9_999_999, "9,999,999"),
        (12_300_000, "12.3M"),
    ],
)
def test_numbers_are_formatted_for_people(count: float | None, text: str) -> None:
    assert count_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.349, "0.35 s"),
        (59.6, "60 s"),
        (600, "10 min"),
        (9000, "2.5 h"),
        (400_000, "5 d"),
    ],
)
def test_durations_are_formatted_for_people(seconds: float | None, text: str) -> None:
    assert span_text(seconds) == text


def test_a_row_shows_rate_lag_and_state_of_a_stage() -> None:
    assert len(cells(WORKING)) == len(COLUMNS)
    found = dict(zip((title for title, _ in COLUMNS), cells(WORKING), strict=True))
    assert found == {
        "stage": "clean",
        "rows/s": "1,234",
        "rows": "51,234",
        "batch": "0.35 s",
        "lag": "17",
        "behind": "2.50 s",
        "state": "7",
        "bad": "5",
        "late": "2",
        "restarts": "-",
        "status": "running",
    }
    assert cells(FAILING)[-4:-2] == ["-", "-"]
    assert cells(FAILING)[-2:] == ["3", "restarting: again in 4 s: ValueError: boom (shop.py:16, in bad)"]


def test_the_table_has_one_line_per_stage_however_narrow_it_is() -> None:
    from rich.console import Console

    for width in (70, 100, 200):
        console = Console(width=width, file=io.StringIO(), color_system=None)
        console.print(table([WORKING, FAILING]))
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().rstrip().splitlines()
        assert len(lines) == 4, lines
        assert all(len(line) <= width for line in lines)
    assert "ValueError: boom" in lines[-1]


def test_a_past_error_stays_visible() -> None:
    recovered = StageProgress(
        "score", Phase.running, batch=Batch(1, 1, 0.1), batches=1, error="boom", restarts=1
    )
    assert plain_line(recovered).endswith("restarts 1; last error: boom")


def test_a_pipe_gets_one_line_per_stage_and_some_seconds() -> None:
    display, clock, out, _ = plain()
    for batches in range(1, 41):
        clock.now += 0.5
        display.show([StageProgress("clean", Phase.running, batch=Batch(batches, 1, 0.1), batches=batches)])
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("12:00:00 clean: ")


def test_an_idle_stage_is_mentioned_rarely() -> None:
    display, clock, out, _ = plain()
    for _ in range(1300):
        clock.now += 0.5
        display.show([WORKING])
    assert len(out.getvalue().splitlines()) == 3


def test_errors_go_to_stderr_at_once() -> None:
    display, _, out, err = plain()
    display.event(FAILING, "restarting")
    assert err.getvalue() == (
        "12:00:00 score: restarting: again in 4 s: ValueError: boom (shop.py:16, in bad)\n"
    )
    assert out.getvalue() == ""


def test_the_end_of_a_stage_is_reported_with_its_totals() -> None:
    display, _, out, _ = plain()
    done = StageProgress("clean", Phase.finished, batch=Batch(2, 5, 0.2), batches=3, rows=15, lag_records=0)
    display.event(done, "finished")
    assert "15 rows" in out.getvalue()
    assert out.getvalue().endswith("; finished\n")


def test_json_is_one_object_per_event() -> None:
    out = io.StringIO()
    display = JsonDisplay(out, io.StringIO())
    display.event(WORKING, "progress")
    display.event(FAILING, "restarting")
    display.show([WORKING])
    first, second = map(json.loads, out.getvalue().splitlines())
    assert first["event"] == "progress"
    assert first["stage"] == "clean"
    assert first["lag_records"] == 17
    assert second["error"].startswith("ValueError")
    assert os.linesep not in out.getvalue().splitlines()[0]
