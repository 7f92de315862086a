"""The table a run prints: one line per figure, with both sides, the ratio, the budget and the verdict.

The budgets are ratios to Apache Kafka in the same run, so they hold on any machine. A line without a budget
is there to be read. For CPU per GB produced the budget is on the mean of the four ratios; for CPU per GB
consumed it is asked of each line. Lines that begin with dots are late passes (bench.measure says of what).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from bench.measure import BULKS, Bench


@dataclass(frozen=True)
class Line:
    """One figure of both sides. `ratio` is ours to theirs; a budget is the most the ratio may be."""

    title: str
    unit: str
    ours: float | None
    theirs: float | None
    budget: float | None = None
    given_ratio: float | None = None

    @property
    def ratio(self) -> float | None:
        if self.given_ratio is not None:
            return self.given_ratio
        if self.ours is None or not self.theirs:
            return None
        return self.ours / self.theirs

    @property
    def verdict(self) -> str:
        if self.budget is None:
            return ""
        if self.ratio is None:
            return "not compared"
        return "pass" if self.ratio <= self.budget else "FAIL"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "verdict": self.verdict}


def lines(bench: Bench, ours: str, theirs: str) -> list[Line]:
    """All lines for which at least our side has a figure: second passes first, then what is not judged."""

    def line(title: str, unit: str, measure: str, budget: float | None = None) -> Line:
        return Line(title, unit, bench.figure(ours, measure), bench.figure(theirs, measure), budget)

    def per_gb(late: str, budgets: dict[str, tuple[float | None, float | None]]) -> list[Line]:
        found: list[Line] = []
        for role, (each, all_four) in budgets.items():
            title = f"CPU to {role}, " if not late else f"... CPU to {role}, "
            four = [line(title + b.title, "s/GB", f"{late}{role} {b.name} cpu", each) for b in BULKS]
            ratios = [ratio for one in four if (ratio := one.ratio) is not None]
            found += four
            if len(ratios) == len(four):
                found.append(Line(title + "mean of the ratios", "", None, None, all_four, mean(ratios)))
        return found

    out = per_gb("", {"produce": (None, 0.4), "consume": (0.8, 0.8)})
    for role in ("produce", "consume"):
        for b in BULKS:
            out.append(line(f"{role}, {b.title}", "MB/s", f"{role} {b.name} MB/s"))
            out.append(line(f"{role}, {b.title}", "records/s", f"{role} {b.name} records/s"))
    memory = "loaded memory"
    out += [
        line("Single record, acks=all, p50", "us", "single p50", 1.0),
        line("Single record, acks=all, p99", "us", "single p99", 0.5),
        line("Single record, acks=all, p999", "us", "single p999"),
        line("Single record, CPU per request", "us", "single cpu", 0.5),
        line("End to end at 500/s, p50", "us", "end-to-end p50", 0.8),
        line("End to end at 500/s, p99", "us", "end-to-end p99", 0.5),
        line("End to end at 500/s, CPU per record", "us", "end-to-end cpu"),
        line("Start-up", "s", "start-up", 0.15),
        line("Idle memory", "MB", "idle memory", 0.15),
        Line("Loaded memory (highest)", "MB", bench.most(ours, memory), bench.most(theirs, memory), 0.12),
        line("Idle CPU", "%", "idle cpu", 0.2),
    ]
    out += per_gb("late ", {"produce": (None, None), "consume": (None, None)})
    out += [
        line("... single record, p50", "us", "late single p50"),
        line("... single record, p99", "us", "late single p99"),
        line("... single record, CPU per request", "us", "late single cpu"),
        line("... end to end, p50", "us", "late end-to-end p50"),
        line("... end to end, p99", "us", "late end-to-end p99"),
        line("... end to end, CPU per record", "us", "late end-to-end cpu"),
    ]
    return [one for one in out if one.ours is not None or one.given_ratio is not None]


def render(table: list[Line], ours: str, theirs: str) -> str:
    """The table as Markdown, aligned so that it reads in a terminal too."""
    rows = [["Measured", ours, theirs, "ratio", "budget", ""]]
    for one in table:
        title = f"{one.title}, {one.unit}" if one.unit else one.title
        budget = "" if one.budget is None else f"{one.budget:g}"
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
        rows.append([title, _number(one.ours), _number(one.theirs), ratio, budget, one.verdict])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    out = [_row(rows[0], widths), "|" + "|".join("-" * (w + 2) for w in widths) + "|"]
    return "\n".join(out + [_row(row, widths) for row in rows[1:]])


def _row(cells: list[str], widths: list[int]) -> str:
    first, *rest = [
        cell.ljust(width) if i in (0, len(cells) - 1) else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join([first, *rest]) + " |"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
