"""The table of a run: one line per figure, both connectors, their ratio, the budget and the verdict.

A budget is on the ratio of ours to theirs, so that it holds on any machine: rates must reach it, times and
costs must stay below it. One budget is on our own figure: an idle stream may take some percent of a core,
whatever the other takes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """One figure. At most one of the three budgets is given."""

    title: str
    unit: str
    ours: float | None
    theirs: float | None
    at_least: float | None = None
    at_most: float | None = None
    own_at_most: float | None = None

    @property
    def ratio(self) -> float | None:
        if self.ours is None or not self.theirs:
            return None
        return self.ours / self.theirs

    @property
    def budget(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return "" if self.own_at_most is None else f"< {self.own_at_most:g} {self.unit}"

    @property
    def verdict(self) -> str:
        if not self.budget:
            return ""
        if self.own_at_most is not None:
            return "not measured" if self.ours is None else _word(self.ours < self.own_at_most)
        if self.ratio is None:
            return "not compared"
        if self.at_least is not None:
            return _word(self.ratio >= self.at_least)
        return _word(self.at_most is not None and self.ratio <= self.at_most)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "budget": self.budget, "verdict": self.verdict}


def render(table: list[Line], ours: str, theirs: str) -> str:
    """The table as Markdown, aligned so that it reads in a terminal too."""
    rows = [["Measured", ours, theirs, "ratio", "budget", ""]]
    for line in table:
        ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
        title = f"{line.title}, {line.unit}"
        rows.append([title, _number(line.ours), _number(line.theirs), ratio, line.budget, line.verdict])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([_row(rows[0], widths), rule, *(_row(row, widths) for row in rows[1:])])


def _word(holds: bool) -> str:
    return "pass" if holds else "FAIL"


def _row(cells: list[str], widths: list[int]) -> str:
    last = len(cells) - 1
    padded = [
        cell.ljust(width) if i in (0, last) else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join(padded) + " |"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
