"""Where Ottla answers otherwise than Apache Kafka 4.3.1 on purpose. This is the only such list.

An entry says in which scenarios, which answers and which fields, and why. A scenario's test fails on a
difference that is not here, and on an entry that names the scenario but no longer occurs in it. Patterns are
globs in which `[0]` is an index and `*` is anything. An entry for many scenarios names one of them as its
witness, where its absence would be noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any


def _whatever(theirs: Any, ours: Any) -> bool:
    return True


@dataclass(frozen=True)
class Difference:
    """One wanted difference. `when` may look at the two values; `theirs` is Kafka's."""

    reason: str
    scenarios: Sequence[str]
    answers: Sequence[str] = ("*",)
    paths: Sequence[str] = ("*",)
    when: Callable[[Any, Any], bool] = _whatever
    witness: str | None = None

    def covers(self, scenario: str, answer: str, path: str, theirs: Any, ours: Any) -> bool:
        return (
            _any(self.scenarios, scenario)
            and _any(self.answers, answer)
            and _any(self.paths, path)
            and self.when(theirs, ours)
        )

    def must_occur_in(self, scenario: str) -> bool:
        """Whether a run of this scenario without an instance of this entry means that the entry is out of date."""
        return scenario == self.witness if self.witness else scenario in self.scenarios


def _any(patterns: Sequence[str], text: str) -> bool:
    return any(fnmatchcase(text, pattern.replace("[", "[[]")) for pattern in patterns)


def _we_say_more(theirs: Any, ours: Any) -> bool:
    return isinstance(ours, str) and bool(ours)


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "Messages for people are in our own words, and there are more of them: Kafka leaves many errors without.",
        scenarios=["*"],
        paths=["*error_message"],
        when=_we_say_more,
        witness="produce.a_wrong_crc",
    ),
)
