"""What a run shows: a live table on a terminal, plain lines in a pipe, JSON for programs.

All three are told the same two things: an event (a stage started, finished a batch, failed) and, a few times
a second, the newest snapshot of all stages. The table is repainted in place. Plain lines come when something
happens and otherwise once in a while for each stage, so that a log that is kept for weeks stays readable.
JSON is one object per event.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, Protocol

from ottla.pipeline.running.progress import Phase, StageProgress

PLAIN_EVERY = 10.0
"""Seconds between two plain lines of a stage that works."""
IDLE_EVERY = 300.0
"""Seconds between two plain lines of a stage about which nothing is new."""

_TROUBLE = (Phase.restarting, Phase.failed)


class Display(Protocol):
    """How a run is shown."""

    def say(self, text: str) -> None:
        """A line about the run as a whole."""

    def event(self, progress: StageProgress, event: str) -> None:
        """Something happened to a stage. Called by the thread that watches over it."""

    def show(self, stages: Sequence[StageProgress]) -> None:
        """Where all stages stand now."""

    def close(self) -> None:
        """The run is over."""


def count_text(count: float | None) -> str:
    """1,234; large numbers short: 12.3M. `-` when it is not known."""
    if count is None:
        return "-"
    for limit, unit in ((1e9, "G"), (1e6, "M")):
        if count >= limit * 10:
            return f"{count / limit:,.1f}{unit}"
    return f"{count:,.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"


def span_text(seconds: float | None) -> str:
    """0.35 s, 12 s, 3 min, 2.5 h, 4 d; `-` when it is not known."""
    if seconds is None:
        return "-"
    if seconds == 0:
        return "0 s"
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def status_text(stage: StageProgress) -> str:
    """The phase, what it waits for, and the last error as long as it matters."""
    text = str(stage.phase)
    if stage.note:
        text += f": {stage.note}"
    if stage.error:
        text += f"; last error: {stage.error}" if stage.phase not in _TROUBLE else f": {stage.error}"
    return text


COLUMNS = (
    ("stage", False),
    ("rows/s", True),
    ("rows", True),
    ("batch", True),
    ("lag", True),
    ("behind", True),
    ("state", True),
    ("bad", True),
    ("late", True),
    ("restarts", True),
    ("status", False),
)
"""Titles of the table and whether they hold numbers."""


def cells(stage: StageProgress) -> list[str]:
    """One row of the table."""
    return [
        stage.stage,
        count_text(round(stage.rows_per_second, 1)),
        count_text(stage.rows),
        span_text(stage.batch.seconds if stage.batch else None),
        count_text(stage.lag_records),
        span_text(stage.lag_seconds),
        count_text(stage.state_rows),
        count_text(stage.bad or None),
        count_text(stage.late or None),
        str(stage.restarts) if stage.restarts else "-",
        status_text(stage),
    ]


def plain_line(stage: StageProgress) -> str:
    """A stage on one line, for a log."""
    if stage.batch is None:
        return f"{stage.stage}: {status_text(stage)}"
    parts = [
        f"{count_text(round(stage.rows_per_second, 1))} rows/s",
        f"batch {stage.batch.number} in {span_text(stage.batch.seconds)}",
        f"{count_text(stage.rows)} rows",
    ]
    if stage.lag_records is not None:
        parts.append(f"lag {count_text(stage.lag_records)} ({span_text(stage.lag_seconds)})")
    if stage.state_rows is not None:
        parts.append(f"state {count_text(stage.state_rows)}")
    if stage.bad:
        parts.append(f"bad {count_text(stage.bad)}")
    if stage.late:
        parts.append(f"late {count_text(stage.late)}")
    if stage.restarts:
        parts.append(f"restarts {stage.restarts}")
    text = f"{stage.stage}: {', '.join(parts)}"
    if stage.phase != Phase.running:
        text += f"; {status_text(stage)}"
    elif stage.error:
        text += f"; last error: {stage.error}"
    return text


class SilentDisplay:
    """Shows nothing; for programs that look at the outcome only."""

    def say(self, text: str) -> None:
        pass

    def event(self, progress: StageProgress, event: str) -> None:
        pass

    def show(self, stages: Sequence[StageProgress]) -> None:
        pass

    def close(self) -> None:
        pass


class PlainDisplay:
    """Lines into a pipe, a file or a journal."""

    def __init__(
        self,
        out: IO[str],
        err: IO[str],
        *,
        every: float = PLAIN_EVERY,
        idle_every: float = IDLE_EVERY,
        clock: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
    ) -> None:
        self._out, self._err = out, err
        self._every, self._idle_every = every, idle_every
        self._clock, self._time_of_day = clock, time_of_day
        self._last: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        self._print(self._err, text)

    def event(self, progress: StageProgress, event: str) -> None:
        if event == "progress":
            return
        if progress.phase in _TROUBLE or progress.note:
            self._print(self._err, f"{progress.stage}: {status_text(progress)}")
        elif progress.phase.over:
            self._print(self._out, plain_line(progress))
        else:
            self._print(self._out, f"{progress.stage}: {progress.phase}")

    def show(self, stages: Sequence[StageProgress]) -> None:
        now = self._clock()
        for stage in stages:
            if stage.phase != Phase.running:
                continue
            at, batches = self._last.get(stage.stage, (-self._idle_every, -1))
            news = stage.batches != batches
            if now - at >= (self._every if news else self._idle_every) and (news or stage.batches):
                self._last[stage.stage] = now, stage.batches
                if stage.batches:
                    self._print(self._out, plain_line(stage))

    def close(self) -> None:
        pass

    def _print(self, stream: IO[str], text: str) -> None:
        with self._lock:
            stream.write(f"{self._time_of_day()} {text}\n")
            stream.flush()


class JsonDisplay:
    """One object per event on stdout."""

    def __init__(self, out: IO[str], err: IO[str]) -> None:
        self._out, self._err = out, err
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        with self._lock:
            self._err.write(text + "\n")
            self._err.flush()

    def event(self, progress: StageProgress, event: str) -> None:
        self.write({"event": event, "time": round(time.time(), 3), **progress.document()})

    def write(self, document: dict[str, Any]) -> None:
        line = json.dumps(document, ensure_ascii=False)
        with self._lock:
            self._out.write(line + "\n")
            self._out.flush()

    def show(self, stages: Sequence[StageProgress]) -> None:
        pass

    def close(self) -> None:
        pass


class LiveDisplay:
    """A table that is repainted in place, with what was said above it."""

    def __init__(self, *, footer: str = "") -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self._footer = footer
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="ellipsis")
        self._live.start()

    def say(self, text: str) -> None:
        from rich.text import Text

        with self._lock:
            self._console.print(Text(text, style="dim"))

    def event(self, progress: StageProgress, event: str) -> None:
        if event == str(Phase.failed) or (event == str(Phase.restarting) and progress.error):
            self.say(f"{time.strftime('%H:%M:%S')} {progress.stage}: {status_text(progress)}")

    def show(self, stages: Sequence[StageProgress]) -> None:
        from rich.console import Group
        from rich.text import Text

        footer = f"{self._footer}{' · ' if self._footer else ''}{span_text(time.monotonic() - self._began)}"
        with self._lock:
            self._live.update(Group(table(stages), Text(footer, style="dim", no_wrap=True)), refresh=True)

    def close(self) -> None:
        with self._lock:
            self._live.stop()


def table(stages: Sequence[StageProgress]) -> Any:
    """The stages as a drawn table, one line for each."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, expand=True)
    for title, number in COLUMNS:
        if title == "status":
            drawn.add_column(title, ratio=1, no_wrap=True, overflow="ellipsis")
        else:
            drawn.add_column(title, justify="right" if number else "left", no_wrap=True)
    for stage in stages:
        row = [Text(text) for text in cells(stage)]
        row[0].stylize("bold")
        row[-1].stylize(_style(stage))
        drawn.add_row(*row)
    return drawn


def _style(stage: StageProgress) -> str:
    if stage.phase in _TROUBLE:
        return "red"
    if stage.phase in (Phase.waiting, Phase.stopping) or stage.error:
        return "yellow"
    return "green" if stage.phase in (Phase.running, Phase.finished) else "dim"


def display_for(*, as_json: bool, footer: str = "") -> Display:
    """What suits the place where stdout goes."""
    if as_json:
        return JsonDisplay(sys.stdout, sys.stderr)
    if sys.stdout.isatty():
        return LiveDisplay(footer=footer)
    return PlainDisplay(sys.stdout, sys.stderr)
