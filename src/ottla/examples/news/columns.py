"""The plain functions of `text` as functions over Arrow data, and what is decided per batch.

`read_articles` and `profiles` work on columns, row by row. `mark_copies` and `choose` are given all rows of a
partition of one micro-batch and bring together what belongs together: an article and the earlier ones it
resembles, a reader and the articles that match. The joins before give such rows in one batch, so no state is
needed here. They give a value to one row of each article or reader and null to the others, which are then
dropped. (Spark's `mapInArrow`, which may return fewer rows, wants pandas to be installed.)
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from ottla.examples.news import text

LEAST_WORDS = 5
"""An article with fewer is not one."""
RECOMMENDED = 10

CLEANED = (
    "id string, link string, title string, text string, published timestamp, fetched timestamp, day string,"
    " terms array<string>, sketch array<int>, reason string"
)
PROFILE = "array<struct<term: string, weight: double>>"
COPY = "duplicate_of string, likeness double"
CHOSEN = "array<struct<id: string, link: string, title: string, score: double, because: array<string>>>"

_MOMENT = pa.timestamp("us", tz="UTC")
_CLEANED = pa.struct(
    [
        ("id", pa.string()),
        ("link", pa.string()),
        ("title", pa.string()),
        ("text", pa.string()),
        ("published", _MOMENT),
        ("fetched", _MOMENT),
        ("day", pa.string()),
        ("terms", pa.list_(pa.string())),
        ("sketch", pa.list_(pa.int32())),
        ("reason", pa.string()),
    ]
)
_PROFILE = pa.list_(pa.struct([("term", pa.string()), ("weight", pa.float64())]))
_COPY = pa.struct([("duplicate_of", pa.string()), ("likeness", pa.float64())])
_CHOSEN = pa.list_(
    pa.struct(
        [
            ("id", pa.string()),
            ("link", pa.string()),
            ("title", pa.string()),
            ("score", pa.float64()),
            ("because", pa.list_(pa.string())),
        ]
    )
)


def article_id(link: str) -> str:
    """A short name for an address, the same wherever it is computed."""
    return blake2b(link.encode(), digest_size=6).hexdigest()


def read_articles(
    outlet: pa.Array,
    guid: pa.Array,
    link: pa.Array,
    title: pa.Array,
    body: pa.Array,
    published: pa.Array,
    fetched: pa.Array,
    arrived: pa.Array,
) -> pa.Array:
    """Raw entries as clean articles; `reason` says why one cannot be used."""
    columns = (outlet, guid, link, title, body, published, fetched, arrived)
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return pa.array([_read(*row) for row in rows], _CLEANED)


def _read(
    outlet: str | None,
    guid: str | None,
    link: str | None,
    title: str | None,
    body: str | None,
    published: str | None,
    fetched: datetime | None,
    arrived: datetime,
) -> dict[str, Any]:
    # Nothing can have been fetched after it arrived here; a clock that says so would hold up every window.
    seen = min(fetched or arrived, arrived)
    moment = text.when(published, seen)
    headline, words = text.headline(title, outlet or ""), text.clean(body)
    where = text.address(link) or (guid or "").strip()
    tokens = text.tokens(f"{headline} {words}")
    if not where:
        reason: str | None = "neither link nor guid"
    elif not headline and not words:
        reason = "nothing in it"
    elif len(text.tokens(words)) < LEAST_WORDS:
        reason = "no text"
    else:
        reason = None
    return {
        "id": article_id(where),
        "link": where,
        "title": headline or " ".join(words.split()[:10]),
        "text": words,
        "published": moment,
        "fetched": seen,
        "day": f"{moment:%Y-%m-%d}",
        "terms": text.terms(headline, words),
        "sketch": text.sketch(tokens),
        "reason": reason,
    }


def profiles(lists: pa.Array) -> pa.Array:
    """What each reader reads about, from the terms of the articles read."""
    found = [
        [{"term": term, "weight": weight} for term, weight in text.profile(read)]
        for read in lists.to_pylist()
    ]
    return pa.array(found, _PROFILE)


def mark_copies(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """For each row of an article the earlier one it is most like; null for the rows of likenesses.

    Columns: `place`, the article that a row is about; `other` and `likeness`, null in the article's own row.
    """
    rows = [tuple(column.to_pylist() for column in batch) for batch in batches]
    best: dict[str, tuple[float, str]] = {}
    for places, others, likenesses in rows:
        for place, other, likeness in zip(places, others, likenesses, strict=True):
            if other is not None:
                best[place] = max(best.get(place, (0.0, "")), (likeness, other))
    for places, others, _ in rows:
        found = []
        for place, other in zip(places, others, strict=True):
            likeness, original = best.get(place, (None, None))
            own = {"duplicate_of": original, "likeness": likeness}
            found.append(own if other is None else None)
        yield pa.array(found, _COPY)


def choose(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """In the first row of each reader and moment the best of all articles that match; null in the others.

    Columns: `reader`, `at`, and `link`, `title`, `term`, `weight` of a match.
    """
    rows = [tuple(column.to_pylist() for column in batch) for batch in batches]
    matches: dict[tuple[str, datetime], dict[str, list[tuple[float, str]]]] = {}
    titles: dict[str, str] = {}
    for batch in rows:
        for reader, at, link, title, term, weight in zip(*batch, strict=True):
            titles[link] = title
            matches.setdefault((reader, at), defaultdict(list))[link].append((weight, term))
    for batch in rows:
        first = [matches.pop(who, None) for who in zip(*batch[:2], strict=True)]
        yield pa.array([None if found is None else _best(found, titles) for found in first], _CHOSEN)


def _best(matches: Mapping[str, list[tuple[float, str]]], titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """A term counts for as much as the reader cares, shared among all fresh articles that have it.

    All of these are here, since the join finds every one: how common a term is needs no count of its own.
    """
    common = Counter(term for terms in matches.values() for _, term in terms)
    shares = {
        link: sorted(((weight / common[term], term) for weight, term in terms), reverse=True)
        for link, terms in matches.items()
    }
    scored = ((sum(share for share, _ in terms), link) for link, terms in shares.items())
    return [
        {
            "id": article_id(link),
            "link": link,
            "title": titles[link],
            "score": round(score, 4),
            "because": [term for _, term in shares[link][:3]],
        }
        for score, link in heapq.nlargest(RECOMMENDED, scored)
    ]
