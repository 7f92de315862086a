"""Where `ottla group reset-offsets` takes a group: the target as people write it, and the step it means.

    earliest, latest        the start or the end of the partition
    42                      that offset
    +100, -100              so many records on or back from where the group is
    -1h, 30m, 1h30m         the first record that is not older than that
    2026-11-15T10:00        the first record at or after that time

Targets outside of what a partition holds are moved to its nearer end, and the plan says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from ottla.cli.moments import parse_moment
from ottla.protocol_client.offsets import EARLIEST, LATEST, Span

WANTED = (
    "earliest, latest, an offset, +N or -N records, a span back like -1h, or a time like 2026-11-15T10:00"
)

_SHIFT = re.compile(r"[+-]\d+")
_PARTITIONS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


@dataclass(frozen=True, slots=True)
class Target:
    """One of the three is set. `moment` is epoch ms, or EARLIEST or LATEST."""

    offset: int | None = None
    shift: int | None = None
    moment: int | None = None


class Step(NamedTuple):
    """What is to be done in one partition. `note` says why `to` is not what was asked for."""

    topic: str
    partition: int
    before: int | None
    to: int
    note: str = ""


class NothingToShift(ValueError):
    """The group has committed nothing in a partition, so there is nothing to count from."""


def parse_target(text: str, now_ms: int) -> Target:
    """ValueError says what is wrong with it."""
    word = text.strip().lower().removeprefix("shift").strip()
    if _SHIFT.fullmatch(word):
        return Target(shift=int(word))
    if word.isdecimal():
        return Target(offset=int(word))
    try:
        return Target(moment=parse_moment(text, now_ms))
    except ValueError:
        raise ValueError(f"{text!r} is no place to go to; wanted: {WANTED}") from None


def parse_topic(text: str) -> tuple[str, list[int] | None]:
    """`payments`, `payments:0`, `payments:0,2,5-7`: a topic and its partitions, None for all of them."""
    topic, colon, numbers = text.partition(":")
    if not topic or (colon and not _PARTITIONS.fullmatch(numbers)):
        raise ValueError(f"{text!r}: TOPIC, TOPIC:PARTITION or TOPIC:0,2,5-7 is wanted")
    if not colon:
        return topic, None
    wanted: set[int] = set()
    for piece in numbers.split(","):
        first, _, last = piece.partition("-")
        wanted.update(range(int(first), int(last or first) + 1))
    return topic, sorted(wanted)


def plan_step(
    target: Target, topic: str, partition: int, before: int | None, span: Span, at_moment: int = -1
) -> Step:
    """The step for one partition. `at_moment` is the first offset at the target's time; -1: none so late."""
    if target.offset is not None:
        wanted = target.offset
    elif target.shift is not None:
        if before is None:
            raise NothingToShift(f"nothing is committed in partition {partition} of {topic!r} to shift")
        wanted = before + target.shift
    elif target.moment == EARLIEST:
        wanted = span.start
    elif target.moment == LATEST:
        wanted = span.end
    elif at_moment < 0:
        return Step(topic, partition, before, span.end, "nothing that late: the end")
    else:
        wanted = at_moment
    if wanted < span.start:
        return Step(topic, partition, before, span.start, f"{wanted} is before the start")
    if wanted > span.end:
        return Step(topic, partition, before, span.end, f"{wanted} is past the end")
    return Step(topic, partition, before, wanted)
