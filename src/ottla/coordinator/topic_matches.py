"""Which topics match the expressions of all groups, matched once for each expression and each new topic.

Groups look their topics up after every change of the topics. Matching all names for each expression of each
group took 100 to 300 ms for 10,000 topics. Here the result for an expression is cached for all groups: when
topics are created or deleted, only new names are matched. Where there is much to match, at first or after
many topics were created, `prepare` does it with pauses, before the group looks them up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterable, Mapping
from typing import NamedTuple

from ottla.cluster.topic_rules import is_internal
from ottla.coordinator.re2_syntax import InvalidExpression
from ottla.coordinator.regex_subscriptions import compiled

MAX_KEPT = 1_000_000
"""Names in all cached results; the result that was not used for longest is dropped first."""
_PAUSE_AFTER = 50


class _Answer(NamedTuple):
    names: frozenset[str]
    """The topics that there were."""
    found: frozenset[str]
    """Those that match."""


class TopicMatches:
    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._kept = 0
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._topics: Mapping[str, object] | None = None
        self._names: frozenset[str] = frozenset()

    def matching(self, expression: str, topics: Mapping[str, object]) -> frozenset[str]:
        """The topics whose whole name matches, without internal ones."""
        names = self._names_of(topics)
        known = self._answers.get(expression)
        if known is not None and known.names is names:
            self._answers.move_to_end(expression)
            return known.found
        matches = compiled(expression).matches
        added = names if known is None else names - known.names
        return self._keep(expression, known, names, [name for name in added if matches(name)])

    def prepare(
        self, expressions: Iterable[str], topics: Mapping[str, object]
    ) -> Generator[None, None, None]:
        """Match these with pauses. Invalid expressions are passed over."""
        names = self._names_of(topics)
        for expression in expressions:
            known = self._answers.get(expression)
            if known is not None and known.names is names:
                continue
            try:
                program = compiled(expression)
            except InvalidExpression:
                continue
            found = []
            for number, name in enumerate(names if known is None else names - known.names):
                if program.is_large:
                    matches = yield from program.matches_in_slices(name)
                else:
                    matches = program.matches(name)
                if matches:
                    found.append(name)
                if not number % _PAUSE_AFTER:
                    yield
            self._keep(expression, known, names, found)

    def _names_of(self, topics: Mapping[str, object]) -> frozenset[str]:
        """An image that changes nothing about topics has the same mapping as the one before."""
        if topics is not self._topics:
            self._topics = topics
            names = frozenset(name for name in topics if not is_internal(name))
            if names != self._names:
                self._names = names
        return self._names

    def _keep(
        self, expression: str, known: _Answer | None, names: frozenset[str], new: list[str]
    ) -> frozenset[str]:
        found = frozenset(new) if known is None else (known.found & names).union(new)
        if known is not None and found == known.found:
            found = known.found
        before = self._answers.pop(expression, None)
        self._kept += len(found) - (len(before.found) if before is not None else 0)
        self._answers[expression] = _Answer(names, found)
        while self._kept > self._max_kept and len(self._answers) > 1:
            self._kept -= len(self._answers.popitem(last=False)[1].found)
        return found
