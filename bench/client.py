"""The clients of `ottla.client` beside plain confluent-kafka and aiokafka, in one run: `python -m
bench.client`.

    python -m bench.client [--quick] [--only TEXT]

`make bench` has the short form of it (`--quick` here). Every program runs in a process of its own against one
broker of Ottla, the two of a row in turn, the order turned round each round. A row's ratio is our time to
theirs, the median of the rounds; its budget is the most that may be. CPU is that of the client's process.
The line below the table has the machine's load: on a busy machine only the ratios say something.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench import client_consuming as consuming
from bench import client_producing as producing
from bench.client_producing import Figures
from bench.sides import Side, ottla_side, topic_on

_ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT = 900.0
PARTITIONS = 6
ROUNDS = 3
Program = Callable[..., Figures]
"""(servers, topic, size, count) -> figures; run by its module and name, in a process of its own."""


@dataclass(frozen=True)
class Comparison:
    """Two programs that do the same."""

    title: str
    ours: Program
    theirs: Program
    size: int
    count: int
    budget: float
    reads: bool = False
    """The topic is filled before."""
    short: int = 10
    """The short form has so many times fewer records."""


def _sends(size: int, count: int) -> list[Comparison]:
    text = "1 KB" if size == 1_000 else f"{size} B"
    return [
        Comparison(f"send, {text}, {name}", ours, theirs, size, count, 1.3)
        for name, ours, theirs in (
            ("beside produce and poll", producing.ottla_send, producing.confluent_send),
            ("beside produce, polled rarely", producing.ottla_send, producing.confluent_send_polling_rarely),
            (
                "results unseen, beside produce and poll",
                producing.ottla_unreported,
                producing.confluent_unreported,
            ),
            (
                "results unseen, beside produce, polled rarely",
                producing.ottla_unreported,
                producing.confluent_unreported_polling_rarely,
            ),
        )
    ]


def _reads(title: str, ours: Program, theirs: Program, size: int, count: int, budget: float) -> Comparison:
    return Comparison(title, ours, theirs, size, count, budget, reads=True)


def _pool(title: str, ours: Program, theirs: Program) -> Comparison:
    return Comparison(title, ours, theirs, 100, 32_000, round(1 / 0.9, 2), reads=True, short=4)


COMPARISONS = [
    *_sends(1_000, 2_000_000),
    *_sends(100, 3_000_000),
    Comparison(
        "asubmit, 100 B, beside aiokafka's send",
        producing.ottla_async,
        producing.aiokafka_async,
        100,
        300_000,
        0.5,
    ),
    Comparison(
        "asend, 100 B, beside aiokafka's send_and_wait",
        producing.ottla_awaited,
        producing.aiokafka_awaited,
        100,
        200_000,
        0.5,
    ),
    _reads(
        "iterator, 100 B, beside poll",
        consuming.ottla_iterator,
        consuming.confluent_poll,
        100,
        3_000_000,
        1.2,
    ),
    _reads(
        "iterator, 1 KB, beside poll",
        consuming.ottla_iterator,
        consuming.confluent_poll,
        1_000,
        1_000_000,
        1.2,
    ),
    _reads(
        "batches, 100 B, beside consume",
        consuming.ottla_batches,
        consuming.confluent_batches,
        100,
        3_000_000,
        1.2,
    ),
    _reads(
        "batches, 1 KB, beside consume",
        consuming.ottla_batches,
        consuming.confluent_batches,
        1_000,
        2_000_000,
        1.2,
    ),
    _reads(
        "async iterator, 100 B, beside aiokafka's",
        consuming.ottla_async_iterator,
        consuming.aiokafka_iterator,
        100,
        1_000_000,
        0.5,
    ),
    _reads(
        "async batches, 100 B, beside aiokafka's getmany",
        consuming.ottla_async_batches,
        consuming.aiokafka_batches,
        100,
        1_000_000,
        0.5,
    ),
    _pool("pool of 32 threads, beside what is possible", consuming.pool_threads, consuming.pool_bound),
    _pool(
        "pool of 32 threads, beside threads that only sleep",
        consuming.pool_threads,
        consuming.sleeping_threads,
    ),
    _pool("pool of 32 tasks, beside tasks that only sleep", consuming.pool_tasks, consuming.sleeping_tasks),
]


@dataclass
class Row:
    comparison: Comparison
    ours: list[Figures] = field(default_factory=list)
    theirs: list[Figures] = field(default_factory=list)

    def of(self, figures: list[Figures], name: str) -> float:
        return median(each[name] for each in figures)

    @property
    def ratio(self) -> float:
        return self._ratio("seconds")

    @property
    def cpu_ratio(self) -> float | None:
        """None where the other side is a calculation."""
        return self._ratio("cpu") if self.of(self.theirs, "cpu") else None

    def _ratio(self, name: str) -> float:
        """Of each round, since the machine may be busier in the next."""
        return median(ours[name] / theirs[name] for ours, theirs in zip(self.ours, self.theirs, strict=True))

    @property
    def verdict(self) -> str:
        return "pass" if self.ratio <= self.comparison.budget else "FAIL"

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.comparison.title,
            "ours": self.ours,
            "theirs": self.theirs,
            "budget": self.comparison.budget,
            "ratio": self.ratio,
            "cpu_ratio": self.cpu_ratio,
            "verdict": self.verdict,
        }


def measure(folder: Path, *, quick: bool, say: Callable[[str], None], only: str = "") -> list[Row]:
    rows = [Row(each) for each in COMPARISONS if only in each.title]
    with ottla_side(folder / "clients") as side:
        for number, row in enumerate(rows):
            say(f"client: {row.comparison.title}")
            _compare(side, row, f"client-{number}", quick=quick)
            say(f"client: {row.comparison.title}: time ratio {row.ratio:.2f} of {row.comparison.budget:g}")
    return rows


def _compare(side: Side, row: Row, name: str, *, quick: bool) -> None:
    case = row.comparison
    count = case.count // case.short if quick else case.count
    with ExitStack() as stack:
        if case.reads:
            topic = stack.enter_context(topic_on(side, name, PARTITIONS))
            consuming.fill(side.bootstrap, topic, case.size, count)
        for attempt in range(ROUNDS):
            with ExitStack() as round_stack:
                if not case.reads:
                    topic = round_stack.enter_context(topic_on(side, f"{name}-{attempt}", PARTITIONS))
                pair = [(case.ours, row.ours), (case.theirs, row.theirs)]
                for program, figures in pair if attempt % 2 == 0 else pair[::-1]:
                    found = _run(program, side, topic, case.size, count)
                    rate, cpu = count / found["seconds"], found["cpu"] / count * 1e6
                    figures.append({**found, "rate": rate, "cpu": cpu})


def _run(program: Program, side: Side, topic: str, size: int, count: int) -> Figures:
    arguments = json.dumps({"servers": side.bootstrap, "topic": topic, "size": size, "count": count})
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.client",
            "--program",
            f"{program.__module__}:{program.__name__}",
            "--arguments",
            arguments,
        ],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program.__name__} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def render(rows: list[Row]) -> str:
    titles = [
        "Client",
        "ours, records/s",
        "theirs, records/s",
        "ours, CPU us",
        "theirs, CPU us",
        "CPU ratio",
        "time ratio",
        "budget",
    ]
    lines = ["| " + " | ".join([*titles, ""]) + " |", "|---|" + "--:|" * (len(titles) - 1) + "---|"]
    for row in rows:
        rates = [f"{row.of(side, 'rate'):,.0f}" for side in (row.ours, row.theirs)]
        costs = [f"{row.of(side, 'cpu'):.2f}" for side in (row.ours, row.theirs)]
        cells = [
            row.comparison.title,
            *rates,
            *costs,
            "" if row.cpu_ratio is None else f"{row.cpu_ratio:.2f}",
            f"{row.ratio:.2f}",
            f"{row.comparison.budget:g}",
            row.verdict,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.client", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the short form: a tenth of the records")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose title has this")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--arguments", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program:
        module, _, program = arguments.program.partition(":")
        __import__(module)
        print(json.dumps(getattr(sys.modules[module], program)(**json.loads(arguments.arguments))))
        return 0
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="ottla-bench-", ignore_cleanup_errors=True) as folder:
        rows = measure(
            Path(folder),
            quick=arguments.quick,
            say=lambda text: print(f"bench: {text}", file=sys.stderr, flush=True),
            only=arguments.only,
        )
    print(render(rows))
    loads = " and ".join(f"{load:.1f}" for load in (before, os.getloadavg()[0]))
    print(f"\n{os.cpu_count()} cores; the load average was {loads} before and after.")
    return 1 if any(row.verdict == "FAIL" for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
