"""Where Ottla answers otherwise than Apache Kafka 4.3.1 on purpose. This is the only such list.

An entry says in which scenarios, which answers and which fields, and why. A scenario's test fails on a
difference that is not here, and on an entry of its own that no longer occurs. Patterns are globs in which
`[0]` is an index and `*` is anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Difference:
    """One wanted difference."""

    scenarios: Sequence[str]
    answers: Sequence[str]
    paths: Sequence[str]
    reason: str

    def covers(self, version: int, answer: str, path: str) -> bool:
        return any(_matches(p, answer) for p in self.answers) and any(_matches(p, path) for p in self.paths)


def _matches(pattern: str, text: str) -> bool:
    return fnmatchcase(text, pattern.replace("[", "[[]"))


DIFFERENCES: tuple[Difference, ...] = ()
