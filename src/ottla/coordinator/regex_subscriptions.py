"""Which topics a regular expression subscribes to, found in linear time.

A member of a group may subscribe to all topics that match an expression, and the broker matches them. An
expression comes from a client, so it must not be able to block the broker. Python's own `re` can take
exponential time; here a match costs one pass over the name, whatever the expression is.

How it works: the expression becomes a program of states (Thompson's construction). Matching keeps the set of
all states that the name so far can have led to, as the bits of one integer. Where a set leads on a character
is cached, so that the names of many topics are matched by table look-ups.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import NamedTuple

from ottla.coordinator.re2_syntax import EMPTY, WORD, InvalidExpression, Node, parse

MAX_LENGTH = 10_000
"""Characters of an expression."""
MAX_STATES = 10_000
"""Size of its program."""
MAX_VISITS = 300_000
"""From state to state without a character, over the whole program; this bounds what a match costs."""
_MAX_REMEMBERED = 10_000
"""Steps kept per expression; when there are more, the memory starts anew."""

_LARGE = 500
"""States from which on an expression is matched in slices."""

_ACCEPT = 0


@lru_cache(maxsize=256)
def compiled(expression: str) -> Expression:
    """The expression, ready to match. InvalidExpression if it is not one of RE2's, or too large."""
    if len(expression) > MAX_LENGTH:
        raise InvalidExpression("expression too long")
    return Expression(parse(expression))


class _Place(NamedTuple):
    """Where in a name an assertion is looked at: what stands before and after.

    Either is "edge" (of the name), "word" or "other"."""

    before: str
    after: str

    def holds(self, kind: str) -> bool:
        if kind == "begin":
            return self.before == "edge"
        if kind == "end":
            return self.after == "edge"
        at_boundary = (self.before == "word") != (self.after == "word")
        return at_boundary == (kind == "word")


_NOWHERE = _Place("edge", "edge")
"""The place of expressions that never look."""


def _kind(character: str) -> str:
    return "word" if ord(character) < 128 and WORD >> ord(character) & 1 else "other"


class Expression:
    """A compiled expression."""

    def __init__(self, tree: Node) -> None:
        # State 0 accepts. A state either takes a character of its mask and goes on to its first successor, or
        # goes on at once to all successors, if its assertion (if it has one) holds.
        self._masks: list[int] = [0]
        self._assertions: list[str | None] = [None]
        self._successors: list[list[int]] = [[]]
        self._start = self._compile(tree, _ACCEPT)
        self._asserts = any(self._assertions)
        self._closures: dict[tuple[int, _Place], int] = {}
        self._steps: dict[tuple[int, str, _Place], int] = {}
        self._visits = 0
        for state, mask in enumerate(self._masks):
            if mask:
                self._closure(self._successors[state][0], _NOWHERE)
            if self._visits > MAX_VISITS:
                raise InvalidExpression("expression too large")

    def matches(self, name: str) -> bool:
        """True when the whole of `name` matches."""
        states = self._closure(self._start, self._place(name, 0))
        for position, character in enumerate(name, 1):
            if not states:
                return False
            states = self._step(states, character, self._place(name, position))
        return bool(states & 1)

    @property
    def is_large(self) -> bool:
        """Whether one character may take a millisecond."""
        return len(self._masks) > _LARGE

    def matches_in_slices(self, name: str) -> Generator[None, None, bool]:
        """As `matches`, with a pause after each character."""
        states = self._closure(self._start, self._place(name, 0))
        for position, character in enumerate(name, 1):
            if not states:
                return False
            states = self._step(states, character, self._place(name, position))
            yield
        return bool(states & 1)

    def _place(self, name: str, position: int) -> _Place:
        if not self._asserts:
            return _NOWHERE
        return _Place(
            _kind(name[position - 1]) if position else "edge",
            _kind(name[position]) if position < len(name) else "edge",
        )

    def _step(self, states: int, character: str, place: _Place) -> int:
        key = states, character, place
        found = self._steps.get(key)
        if found is not None:
            return found
        code = ord(character)
        result = 0
        while states and code < 128:
            lowest = states & -states
            states ^= lowest
            state = lowest.bit_length() - 1
            if self._masks[state] >> code & 1:
                result |= self._closure(self._successors[state][0], place)
        if len(self._steps) >= _MAX_REMEMBERED:
            self._steps.clear()
        self._steps[key] = result
        return result

    def _closure(self, start: int, place: _Place) -> int:
        """All states that take a character, or accept, and are reached from `start` without one."""
        key = start, place
        found = self._closures.get(key)
        if found is None:
            found, seen, pending = 0, {start}, [start]
            while pending:
                state = pending.pop()
                if self._masks[state] or state == _ACCEPT:
                    found |= 1 << state
                    continue
                assertion = self._assertions[state]
                if assertion is None or place.holds(assertion):
                    for successor in self._successors[state]:
                        if successor not in seen:
                            seen.add(successor)
                            pending.append(successor)
            self._closures[key] = found
            self._visits += len(seen)
        return found

    def _state(self, successors: list[int], mask: int = 0, assertion: str | None = None) -> int:
        if len(self._masks) >= MAX_STATES:
            raise InvalidExpression("expression too large")
        self._masks.append(mask)
        self._assertions.append(assertion)
        self._successors.append(successors)
        return len(self._masks) - 1

    def _compile(self, node: Node, after: int) -> int:
        """States for `node` that go on to `after`; returns where they begin."""
        if node.kind == "class":
            # A class without any ASCII character leads nowhere.
            return self._state([after] if node.mask else [], mask=node.mask)
        if node.kind == "cat":
            for part in reversed(node.parts):
                after = self._compile(part, after)
            return after
        if node.kind == "alt":
            return self._state([self._compile(part, after) for part in node.parts])
        if node.kind == "repeat":
            return self._compile_repeat(node, after)
        if node is EMPTY:
            return after
        return self._state([after], assertion=node.kind)

    def _compile_repeat(self, node: Node, after: int) -> int:
        body = node.parts[0]
        begin = after
        if node.high < 0:
            begin = self._state([after])
            self._successors[begin].append(self._compile(body, begin))
        for _ in range(node.high - node.low):
            begin = self._state([self._compile(body, begin), after])
        for _ in range(node.low):
            begin = self._compile(body, begin)
        return begin
