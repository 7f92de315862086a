"""How the text of an option becomes a value, and the words when it does not.

Spark hands every option over as text. The forms are those of Spark's Kafka connector, so that options move
over unchanged: `15m` and `500ms` for times, `64m` for sizes, `{"topic":{"0":17,"1":-1}}` for positions. Each
function takes the option's name, because a person who reads the error has to find the line to change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from ottla.pipeline.patterns import compiled

Place: TypeAlias = tuple[str, int]
"""A partition of a topic."""

_MILLISECONDS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {"": 0, "b": 0, "k": 10, "kb": 10, "m": 20, "mb": 20, "g": 30, "gb": 30, "t": 40, "tb": 40}
_SECURITY = ("sasl.", "ssl.", "security.")
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+)\s*([a-z]*)\s*\Z", re.IGNORECASE)


class OptionError(ValueError):
    """An option that cannot be followed. The text says which, why, and what would do."""


class TopicMissing(OptionError):
    """A topic or partition that an option names does not exist, or not yet."""


def boolean(name: str, text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise OptionError(f"{name} is {text!r}: true or false is wanted")
    return lowered == "true"


def whole_number(name: str, text: str, least: int = 1) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        raise OptionError(f"{name} is {text!r}: a whole number is wanted") from None
    if number < least:
        raise OptionError(f"{name} is {number}: it must be at least {least}")
    return number


def milliseconds(name: str, text: str) -> int:
    """`15m`, `30s`, `500ms`; a bare number is milliseconds."""
    match = _NUMBER_AND_UNIT.match(text)
    unit = (match[2].lower() or "ms") if match else ""
    if not match or unit not in _MILLISECONDS:
        raise OptionError(f"{name} is {text!r}: a time is wanted, for example 500ms, 30s or 15m")
    return int(int(match[1]) * _MILLISECONDS[unit])


def size(name: str, text: str) -> int:
    """`64m`, `1g`, `100k`; a bare number is bytes."""
    match = _NUMBER_AND_UNIT.match(text)
    if not match or match[2].lower() not in _SIZES:
        raise OptionError(f"{name} is {text!r}: a size is wanted, for example 64m or 1000000")
    number = int(match[1]) << _SIZES[match[2].lower()]
    if number < 1:
        raise OptionError(f"{name} is {text!r}: it must be at least 1 byte")
    return number


def pattern(name: str, text: str) -> re.Pattern[str]:
    stripped = text.strip()
    if not stripped:
        raise OptionError(f"{name} is empty: a regular expression for names of topics is wanted")
    try:
        return compiled(stripped)
    except re.error as error:
        raise OptionError(
            f"{name} is {text!r}, which is no regular expression ({error}). It is read by Python's `re`, "
            "which takes nearly all that Java's takes; \\p{...} classes have to be written out"
        ) from None


def topic_list(name: str, text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise OptionError(f"{name} is {text!r}: it names no topic")
    return topics


def partition_lists(name: str, text: str) -> tuple[Place, ...]:
    """`{"topicA":[0,1],"topicB":[2]}` as places, in order."""
    wanted = '{"topicA":[0,1],"topicB":[2]}'
    found = _object(name, text, wanted)
    places = []
    for topic, partitions in found.items():
        if not isinstance(partitions, list) or not all(_is_number(p) and p >= 0 for p in partitions):
            raise OptionError(f"{name} is {text!r}: {wanted} is the form")
        places += [(topic, p) for p in partitions]
    if not places:
        raise OptionError(f"{name} is {text!r}: it names no partition")
    return tuple(sorted(set(places)))


def numbers_by_place(name: str, text: str, least: int, wanted: str) -> dict[Place, int]:
    """`{"topicA":{"0":23,"1":-1}}` as a number for each place, in order."""
    places: dict[Place, int] = {}
    for topic, partitions in _object(name, text, wanted).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{name} is {text!r}: {wanted} is the form")
        for partition, number in partitions.items():
            if not partition.isdecimal() or not _is_number(number) or number < least:
                raise OptionError(
                    f"{name} has {json.dumps({partition: number})} for topic {topic!r}: {wanted} is the form"
                )
            places[topic, int(partition)] = number
    return dict(sorted(places.items()))


def _object(name: str, text: str, wanted: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"{name} is {text!r}: JSON is wanted, in the form {wanted}")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class Given:
    """The options as text, by name in lower case; remembers which names there may be."""

    def __init__(
        self,
        options: Mapping[str, str],
        role: str,
        names: list[str],
        settings: frozenset[str],
        refused: Mapping[str, str],
    ) -> None:
        self._texts = {name.lower(): value for name, value in options.items() if value is not None}
        self._role = role
        self._names = names
        self._settings = settings
        for name in self._kafka():
            if name in refused:
                raise OptionError(f"kafka.{name} cannot be set: {refused[name]}")
            plain = name == "security.protocol" and self.text("kafka." + name).upper() == "PLAINTEXT"
            if name.startswith(_SECURITY) and not plain:
                raise OptionError(
                    f"kafka.{name} cannot be followed: connections with TLS or SASL are not spoken yet. "
                    "Use a listener with security.protocol PLAINTEXT"
                )

    def _kafka(self) -> list[str]:
        return sorted(name.removeprefix("kafka.") for name in self._texts if name.startswith("kafka."))

    def notices(self) -> tuple[str, ...]:
        found = []
        unknown = [f"kafka.{name}" for name in self._kafka() if name not in self._settings]
        if unknown:
            found.append(f"without effect on this {self._role}: {', '.join(unknown)}")
        known = {name.lower(): name for name in self._names}
        for name in sorted(self._texts):
            if name not in known and not name.startswith("kafka."):
                from difflib import (
                    get_close_matches,
                )  # rarely needed, and this module is loaded in all workers

                near = get_close_matches(name, known, 1)
                hint = f"; did you mean {known[near[0]]}?" if near else ""
                found.append(f"the option {name} is unknown to this {self._role} and without effect{hint}")
        return tuple(found)

    def text(self, name: str, default: str = "") -> str:
        return self._texts.get(name.lower(), default).strip()

    def has(self, name: str) -> bool:
        return name.lower() in self._texts

    def yes(self, name: str, default: bool) -> bool:
        return boolean(name, self.text(name)) if self.has(name) else default

    def number(self, name: str, least: int = 1) -> int | None:
        return whole_number(name, self.text(name), least) if self.has(name) else None

    def size(self, name: str) -> int | None:
        return size(name, self.text(name)) if self.has(name) else None

    def optional_seconds(self, name: str, least: int = 0) -> float | None:
        found = self.number(name, least)
        return None if found is None else found / 1000

    def seconds(self, name: str, default: float, least: int = 1) -> float:
        found = self.optional_seconds(name, least)
        return default if found is None else found

    def bootstrap(self) -> str:
        from ottla.protocol_client.wire import parse_bootstrap

        servers = self.text("kafka.bootstrap.servers")
        if not servers:
            raise OptionError("kafka.bootstrap.servers has to say where the brokers are, as host:port,...")
        try:
            parse_bootstrap(servers)
        except ValueError as error:
            raise OptionError(f"kafka.bootstrap.servers: {error}") from None
        return servers
