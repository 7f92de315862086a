"""What a configuration key is: its name, its type, the values it allows, and how these are read and shown.

The tables (`topic_keys`, `broker_keys`, `foreign_keys`, `group_keys`) are made of these. Values come as text,
from a properties file, the command line, the environment or a request, and are read as Kafka reads them:
surrounding spaces do not count, booleans are `true` and `false` in any case, lists are separated by commas.
They are shown as Java would print them, since DescribeConfigs shows them to tools that know Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any


class Type(IntEnum):
    """The type of a value, numbered as in a DescribeConfigs response."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Scope(Enum):
    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"


class Mode(Enum):
    """Whether a broker key can change while the broker runs, and for which brokers."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Rule:
    """Which values a key allows: a text that completes "must be ..." and a test for it."""

    __slots__ = ("holds", "text")

    def __init__(self, text: str, holds: Callable[[Any], bool]) -> None:
        self.text = text
        self.holds = holds


class Synonym:
    """A broker key that stands in for a topic's or group's, and the factor from its unit to theirs."""

    __slots__ = ("factor", "name")

    def __init__(self, name: str, factor: int = 1) -> None:
        self.name = name
        self.factor = factor


class BadValue(ValueError):
    """A value that a key does not allow; the text says why, without the key's name."""


class ConfigKey:
    """One row of the table. `default` is typed (not text); `doc` is one line for people.

    A key with `used` False is one that Kafka knows and Ottla does not act on: it is accepted and shown, so
    that a server.properties made for Kafka works, and `doc` says why it has no effect. An `internal` key is
    not listed unless it is set.
    """

    # A plain class with slots: a hundred rows are made at every start, and named tuples are slow to define.
    __slots__ = (
        "default",
        "doc",
        "importance",
        "internal",
        "mode",
        "name",
        "rule",
        "scope",
        "section",
        "synonyms",
        "type",
        "used",
    )

    def __init__(
        self,
        name: str,
        type: Type,
        default: Any,
        rule: Rule | None,
        scope: Scope,
        mode: Mode,
        doc: str,
        importance: Importance = Importance.MEDIUM,
        synonyms: tuple[Synonym, ...] = (),
        section: str = "",
        used: bool = True,
        internal: bool = False,
    ) -> None:
        self.name = name
        self.type = type
        self.default = default
        self.rule = rule
        self.scope = scope
        self.mode = mode
        self.doc = doc
        self.importance = importance
        self.synonyms = synonyms
        self.section = section
        self.used = used
        self.internal = internal

    def __repr__(self) -> str:
        return f"<{self.scope.value} key {self.name}: {self.type.name}>"

    @property
    def sensitive(self) -> bool:
        return self.type is Type.PASSWORD

    def parse(self, text: str) -> Any:
        """The typed value; `BadValue` with the reason when the text is not one this key allows."""
        value = parse(self.type, text)
        if self.rule is not None and not self.rule.holds(value):
            shown = "a hidden value" if self.sensitive else text.strip() or "nothing"
            raise BadValue(f"must be {self.rule.text} (got {shown})")
        return value


_BITS = {Type.SHORT: 16, Type.INT: 32, Type.LONG: 64}
_OF_NUMBERS = frozenset("0123456789+-.eEdDfF")


def parse(kind: Type, text: str) -> Any:
    """Read `text` as a value of that type; `BadValue` when it is none."""
    if kind is Type.PASSWORD:
        return text
    text = text.strip()
    if kind is Type.BOOLEAN:
        word = text.lower()
        if word not in ("true", "false"):
            raise BadValue(f"must be true or false (got {text or 'nothing'})")
        return word == "true"
    if kind in _BITS:
        return _parse_integer(text, _BITS[kind])
    if kind is Type.DOUBLE:
        return _parse_double(text)
    if kind is Type.LIST:
        return list(dict.fromkeys(item.strip() for item in text.split(","))) if text else []
    return text


def _parse_integer(text: str, bits: int) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if digits.isascii() and digits.isdigit():  # int() alone would take underscores and other scripts
        number = int(text)
        if -(1 << bits - 1) <= number < 1 << bits - 1:
            return number
    raise BadValue(f"must be a whole number of {bits} bits (got {text or 'nothing'})")


def _parse_double(text: str) -> float:
    if _OF_NUMBERS.issuperset(text):  # float() alone would take nan, inf and underscores
        try:
            return float(text.rstrip("dDfF"))
        except ValueError:
            pass
    raise BadValue(f"must be a number (got {text or 'nothing'})")


def show(value: Any) -> str | None:
    """The value as text, the way Java prints it."""
    if value is None:
        return None
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, float):
        return _show_double(value)
    return str(value)


def _show_double(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign = "-" if value < 0 else ""
    digits = repr(abs(value)).partition("e")[0].replace(".", "").strip("0")
    exponent = int(f"{value:.16e}".partition("e")[2])
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"
