"""What attacks do to others: a probe client's longest wait and the broker's memory, on both sides.

Every attack of `tests/attacks` runs against a fresh Ottla, and against a fresh Apache Kafka where it takes
the same bytes. A line has no ratio and no budget: the bounds are in `make test`, generous, and here one reads
how far a quiet machine stays below them. Kafka's heap is fixed and mostly touched from the start, so its peak
memory tells little; it is there for what grows beyond it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from bench.sides import Side, kafka_side, ottla_side

_TESTS = Path(__file__).resolve().parent.parent / "tests"
if str(_TESTS) not in sys.path:
    sys.path.insert(0, str(_TESTS))

from attacks.attack import MB, Attack, Outcome, Target, carry_out  # noqa: E402
from attacks.catalogue import ATTACKS  # noqa: E402

_MOST_WAIT_MS = 50.0
"""What no attack may cost others on a quiet machine; those that cost more are counted below the table."""

_Start = Callable[[Path, Mapping[str, str]], AbstractContextManager[Side]]


class Row:
    """One attack with its outcome on both sides; None where it did not run, a text where it failed."""

    def __init__(self, attack: Attack, ours: Outcome | str, theirs: Outcome | str | None) -> None:
        self.attack = attack
        self.ours = ours
        self.theirs = theirs

    def as_json(self) -> dict[str, object]:
        return {"attack": self.attack.name, "ours": _json(self.ours), "theirs": _json(self.theirs)}


def measure(
    folder: Path, *, with_kafka: bool, say: Callable[[str], None], only: str = "", most: int | None = None
) -> list[Row]:
    """Run the attacks whose names hold `only`, at most `most` of them."""
    chosen = [attack for attack in ATTACKS if only.lower() in attack.name.lower()][:most]
    rows = []
    for number, attack in enumerate(chosen):
        say(f"attacks, {number + 1} of {len(chosen)}: {attack.name}")
        ours = _outcome(attack, folder / f"attack-{number}", ottla_side)
        theirs = None
        if with_kafka and attack.kafka_takes_it:
            theirs = _outcome(attack, folder / f"attack-{number}-kafka", _kafka)
        rows.append(Row(attack, ours, theirs))
    return rows


def _kafka(data: Path, settings: Mapping[str, str]) -> AbstractContextManager[Side]:
    return kafka_side(data, extra=settings)


def _outcome(attack: Attack, data: Path, start: _Start) -> Outcome | str:
    settings = {"auto.create.topics.enable": "true"} | {k: str(v) for k, v in attack.settings.items()}
    try:
        with start(data, settings) as side:
            return carry_out(attack, Target(side.bootstrap, side.pid))
    except (AssertionError, OSError, RuntimeError, ValueError) as problem:
        return f"failed: {type(problem).__name__}"


def render(rows: list[Row], ours: str, theirs: str) -> str:
    """A table: for each attack the longest wait of the probe, its p99, and the broker's peak memory."""
    titles = [f"{side}: {what}" for side in (ours, theirs) for what in ("longest wait", "p99", "peak memory")]
    lines = ["| " + " | ".join(["Attack", *titles]) + " |", "|---|" + "--:|" * len(titles)]
    lines += [
        "| " + " | ".join([row.attack.name, *_cells(row.ours), *_cells(row.theirs)]) + " |" for row in rows
    ]
    slow = [
        row for row in rows if isinstance(row.ours, Outcome) and row.ours.longest_wait * 1000 > _MOST_WAIT_MS
    ]
    lines.append(f"\n{len(slow)} of {len(rows)} made others wait for more than {_MOST_WAIT_MS:.0f} ms.")
    return "\n".join(lines)


def _cells(outcome: Outcome | str | None) -> list[str]:
    if not isinstance(outcome, Outcome):
        return [outcome or "", "", ""]
    return [
        f"{outcome.longest_wait * 1000:.0f} ms",
        f"{outcome.p99 * 1000:.1f} ms",
        f"{outcome.peak_memory / MB:.0f} MB",
    ]


def _json(outcome: Outcome | str | None) -> object:
    return vars(outcome) if isinstance(outcome, Outcome) else outcome
