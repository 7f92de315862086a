"""What the news stages decide per batch, on plain Arrow data."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from ottla.examples.news import columns

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
LATER = datetime(2026, 3, 2, 13, tzinfo=UTC)


def read(**entry: object) -> dict[str, Any]:
    usual = {
        "outlet": "The Daily Ladder",
        "guid": "tag:7",
        "link": "https://ladder.example/7?utm_source=rss",
        "title": "Goose elected | The Daily Ladder",
        "body": "<p>A goose was elected mayor of Brindleford on Monday by a pond.</p>",
        "published": "Mon, 02 Mar 2026 09:30:00 +0000",
        "fetched": NOON,
        "arrived": LATER,
    }
    arrays = [pa.array([value]) for value in {**usual, **entry}.values()]
    article: dict[str, Any] = columns.read_articles(*arrays).to_pylist()[0]
    return article


def test_an_entry_becomes_a_clean_article() -> None:
    article = read()
    assert article["reason"] is None
    assert article["title"] == "Goose elected"
    assert article["text"] == "A goose was elected mayor of Brindleford on Monday by a pond."
    assert article["link"] == "https://ladder.example/7"
    assert article["id"] == columns.article_id("https://ladder.example/7")
    assert (article["published"], article["day"]) == (datetime(2026, 3, 2, 9, 30, tzinfo=UTC), "2026-03-02")
    assert article["terms"][:2] == ["goose", "elected"]
    assert article["sketch"]


def test_an_article_without_link_goes_by_its_guid_and_without_title_by_its_first_words() -> None:
    assert read(link=None)["link"] == "tag:7"
    assert read(title=None)["title"] == "A goose was elected mayor of Brindleford on Monday by"


def test_an_entry_without_text_is_rejected_with_a_reason() -> None:
    assert read(link=None, guid=None)["reason"] == "neither link nor guid"
    assert read(title=None, body=None)["reason"] == "nothing in it"
    assert read(body="<p>&nbsp;</p>")["reason"] == "no text"


def test_a_publication_time_is_never_after_the_arrival() -> None:
    ahead = read(fetched=datetime(2062, 1, 1, tzinfo=UTC), published=None)
    assert ahead["fetched"] == ahead["published"] == LATER
    assert read(fetched=None)["fetched"] == LATER


def test_an_article_is_marked_with_the_most_alike_even_when_the_rows_lie_in_other_batches() -> None:
    batches = [
        (
            pa.array(["0:1", "0:2", "0:2"]),
            pa.array([None, "a", None], pa.string()),
            pa.array([None, 0.3, None], pa.float64()),
        ),
        (pa.array(["0:2"]), pa.array(["b"]), pa.array([0.9])),
    ]
    marked = [array.to_pylist() for array in columns.mark_copies(iter(batches))]
    assert marked == [
        [{"duplicate_of": None, "likeness": None}, None, {"duplicate_of": "b", "likeness": 0.9}],
        [None],
    ]


def test_the_best_matches_are_recommended_once_per_reader() -> None:
    rows = [
        ("ada", NOON, "l1", "Comet", "comet", 0.5),
        ("ada", NOON, "l1", "Comet", "people", 1.0),
        ("ada", NOON, "l2", "People", "people", 1.0),
        ("ben", NOON, "l2", "People", "people", 0.1),
    ]
    batch = tuple(pa.array(values) for values in zip(*rows, strict=True))
    first, *others = next(columns.choose(iter([batch]))).to_pylist()
    assert [(article["title"], article["score"]) for article in first] == [("Comet", 1.0), ("People", 0.5)]
    assert sorted(first[0]["because"]) == ["comet", "people"]
    assert others[:2] == [None, None]
    assert [article["link"] for article in others[2]] == ["l2"]


def test_a_list_has_at_most_ten_articles() -> None:
    rows = [("ada", NOON, f"l{n}", "title", f"term{n}", float(n)) for n in range(30)]
    batch = tuple(pa.array(values) for values in zip(*rows, strict=True))
    chosen = [found for found in next(columns.choose(iter([batch]))).to_pylist() if found is not None]
    assert [article["link"] for article in chosen[0]] == [f"l{n}" for n in range(29, 19, -1)]
