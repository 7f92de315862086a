"""Points in time as people write them: `beginning`, `end`, `-1h`, `2026-11-15T10:00`, `1700000000000`."""

from __future__ import annotations

import re
from datetime import datetime

from ottla.protocol_client.offsets import EARLIEST, LATEST

_SPAN = re.compile(r"(\d+)\s*(ms|s|m|h|d|w)")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_NAMES = {
    "beginning": EARLIEST,
    "earliest": EARLIEST,
    "start": EARLIEST,
    "end": LATEST,
    "latest": LATEST,
    "now": LATEST,
}
_WANTED = "wanted: beginning, end, a span back like -1h or 30m, a time like 2026-11-15T10:00, or epoch ms"


def parse_moment(text: str, now_ms: int) -> int:
    """Epoch ms, or EARLIEST or LATEST as ListOffsets takes them; ValueError for what is no time.

    A date without a zone is local time. A number is epoch seconds or milliseconds, told apart by its size.
    """
    word = text.strip().lower()
    if word in _NAMES:
        return _NAMES[word]
    span = span_ms(word)
    if span is not None:
        return max(now_ms - span, 0)
    if word.isdecimal():
        number = int(word)
        if number < 100_000_000:
            raise ValueError(f"{text!r} is no time; to start at an offset use --offset {number}")
        return number if number >= 100_000_000_000 else number * 1000
    try:
        moment = datetime.fromisoformat(text.strip().replace(" ", "T"))
    except ValueError:
        raise ValueError(f"{text!r} is no time; {_WANTED}") from None
    return int(moment.astimezone().timestamp() * 1000)


def span_ms(word: str) -> int | None:
    """`1h30m`, `-1h`, `5m ago`: how long it is; None when it is something else."""
    body = word.removesuffix("ago").strip().lstrip("-")
    if not body or not body[0].isdigit() or _SPAN.sub("", body).strip():
        return None
    return sum(int(number) * _MILLISECONDS[unit] for number, unit in _SPAN.findall(body))


def time_text(milliseconds: int, *, zone: bool = True) -> str:
    """A record's timestamp in local time, to the millisecond; `-` when it has none."""
    if milliseconds < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000)
        if zone:
            moment = moment.astimezone()
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return moment.isoformat(sep="T", timespec="milliseconds")
