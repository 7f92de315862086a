"""From what a feed says to what can be compared: clean text, dates, terms and sketches.

Plain functions over strings, so that they can be tested and reused without Spark; `stages` calls them once
per article inside an Arrow function. Feeds are careless in a few ways that come again and again, and each
function gets over one of them: markup that does not close, entities escaped twice, UTF-8 read as
Windows-1252, dates in two notations or none, addresses with trackers on them.

A sketch stands for the text when copies are looked for. Every run of four content words is hashed, and the
smallest hashes are kept (a bottom-k sketch). Two texts with the same runs keep the same hashes, and the share
of hashes in common estimates the share of text in common, whatever the length of the texts.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit, urlunsplit
from zlib import crc32

SKETCH = 48
"""Hashes kept of each text. The error of an estimated likeness is about 1/sqrt(SKETCH): 0.07 at a half."""
PROBES = 8
"""How many of them are used to find candidates. Texts that share a third miss each other once in 25 times."""
RUN = 4
"""Words in a run. Shorter ones are met in unrelated texts too, longer ones do not survive an editor."""
TERMS = 24
"""Terms kept of each article: those of the title first, then of the text's beginning."""

_DROPPED = re.compile(r"<(script|style)\b.*?(?:</\1\s*>|$)|<!--.*?(?:-->|$)", re.S | re.I)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>?")
_SPACE = re.compile(r"\s+")
_ESCAPED_MARKUP = re.compile(r"&lt;/?[a-zA-Z]|&amp;[a-z#]")
_MISREAD = re.compile(r"[ÃÂ][\x80-\xbf\u0152-\u2122\u00a0-\u00bf]|â€")
_TOKEN = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_STATION = re.compile(r"\s+(?:\||-|\u2013)\s+[^|]{3,40}$")
_EARLIEST = datetime(1995, 1, 1, tzinfo=UTC)

_STOP_WORDS = """
    a about above after again against all also although am an and any are as at be because been before being
    below between both but by can could did do does doing down during each few for from further get got had
    has have having he her here hers him his how i if in into is it its itself just let like made make many
    may me might more most much must my no nor not now of off on once one only or other our out over own per
    said same say says she should since so some still such than that the their them then there these they
    this those through to too two under until up upon us very was we were what when where whether which
    while who whom why will with within without would yet you your yesterday today tomorrow monday tuesday
    wednesday thursday friday saturday sunday new news update pictures according told reporters asked
    percent three four five six seven eight nine ten
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


def clean(markup: str | None) -> str:
    """Text for people from whatever a feed calls its content."""
    if not markup:
        return ""
    text = mended(markup)
    for _ in range(2):
        # Markup that was escaped shows up as text after the first round, and is markup in the second.
        escaped = _ESCAPED_MARKUP.search(text) is not None
        if "<" in text:
            text = _TAG.sub(" ", _DROPPED.sub(" ", text))
        text = html.unescape(text)
        if not escaped:
            break
    if "<" in text:
        text = _TAG.sub(" ", _DROPPED.sub(" ", text))
    return _SPACE.sub(" ", text).strip()


def mended(text: str) -> str:
    """UTF-8 that somebody read as Windows-1252 (`ChloÃ©`), put right where all of it can be."""
    if _MISREAD.search(text) is None:
        return text
    try:
        return text.encode("cp1252").decode("utf-8")
    except UnicodeError:
        return text


def headline(title: str | None, outlet: str = "") -> str:
    """A title without the name of its outlet at the end."""
    text = clean(title)
    found = _STATION.search(text)
    if found and outlet and outlet.casefold() in found[0].casefold():
        text = text[: found.start()]
    return text


def when(published: str | None, fetched: datetime) -> datetime:
    """When an article appeared, from RFC 822 or ISO 8601.

    Without a date, or with one that cannot be (the future, or before there were feeds), when it was fetched.
    """
    moment = _parsed((published or "").strip())
    if moment is None or not _EARLIEST <= moment <= fetched:
        return fetched
    return moment


def _parsed(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text) if text[:4].isdigit() else parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        return None


def address(link: str | None) -> str:
    """A link without trackers and fragment, so that the same page has the same address."""
    if not link:
        return ""
    try:
        parts = urlsplit(link.strip())
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return ""
    kept = "&".join(p for p in parts.query.split("&") if p and not p.startswith(("utm_", "ref=", "fbclid=")))
    return urlunsplit((parts.scheme, parts.netloc.lower(), parts.path, kept, ""))


def tokens(text: str) -> list[str]:
    """Words as they are compared: small letters, no punctuation, no stop words."""
    return [word for word in _TOKEN.findall(text.lower()) if word not in STOP_WORDS]


def terms(title: str, text: str, limit: int = TERMS) -> list[str]:
    """What an article is about, each word once: the title's, then those of the beginning of the text."""
    words = (w for w in [*tokens(title), *tokens(text[:600])] if len(w) > 2 and not w[0].isdigit())
    return list(dict.fromkeys(words))[:limit]


def sketch(words: Sequence[str], size: int = SKETCH) -> list[int]:
    """The smallest hashes of all runs of words, in order. Fewer where the text is short."""
    shifted = (words[start:] for start in range(RUN))
    runs = {crc32(" ".join(run).encode()) for run in zip(*shifted, strict=False)}
    return [value - (1 << 31) for value in sorted(runs)[:size]]


def likeness(one: Sequence[int], other: Sequence[int]) -> float:
    """The estimated share of runs in common (Jaccard) of two sketches.

    The smallest hashes of both together are a fair sample of all runs; counted is how many are in both.
    """
    size = min(len(one), len(other))
    if not size:
        return 0.0
    first, second = set(one), set(other)
    sample = sorted(first | second)[: max(len(one), len(other))]
    return sum(value in first and value in second for value in sample) / len(sample)


def profile(lists: Iterable[Sequence[str]], limit: int = 30) -> list[tuple[str, float]]:
    """What somebody reads about: the terms of the articles read, weighted by the share that has them."""
    count, total = Counter[str](), 0
    for words in lists:
        count.update(words)
        total += 1
    best = sorted(count.items(), key=lambda item: (-item[1], item[0]))[:limit]
    return [(word, n / total) for word, n in best]
