"""The figures: a perfect pipeline has perfect ones, and each kind of mistake shows in its own."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from ottla.examples.news import measure, report, text
from ottla.examples.news.columns import article_id
from ottla.examples.news.measure import Figures
from ottla.examples.news.world import HOPELESS, Article, World, make_world

HOUR = timedelta(hours=1)
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(seed=7, days=2, readers=40)


def row(article: Article) -> dict[str, Any]:
    words = " ".join(article.sentences)
    return {
        "id": article_id(article.identity),
        "link": article.identity,
        "title": article.title,
        "outlet": article.outlet.name,
        "published": article.published.isoformat(),
        "fetched": article.published.isoformat(),
        "terms": text.terms(article.title, words),
    }


def perfect(world: World) -> tuple[Rows, Rows]:
    """The first of each story, and the others pointing to it."""
    groups: dict[int, list[Article]] = defaultdict(list)
    for article in world.articles:
        if article.fault not in HOPELESS:
            groups[article.group].append(article)
    unique = [row(group[0]) for group in groups.values()]
    duplicates = [
        {**row(copy), "duplicate_of": article_id(group[0].identity), "likeness": 0.5}
        for group in groups.values()
        for copy in group[1:]
    ]
    return unique, duplicates


def test_perfect_deduplication_has_perfect_figures(world: World) -> None:
    found = measure.copies(world, *perfect(world))
    assert (found.precision, found.recall, found.lost) == (1.0, 1.0, 0)
    assert found.found > 100


def test_a_missed_copy_lowers_recall_and_a_wrong_one_precision(world: World) -> None:
    unique, duplicates = perfect(world)
    missed = measure.copies(world, [*unique, duplicates[0]], duplicates[1:])
    assert (missed.missed, missed.wrong, missed.precision) == (1, 0, 1.0)
    taken = {**unique[0], "duplicate_of": unique[1]["id"], "likeness": 0.5}
    wrong = measure.copies(world, unique[1:], [*duplicates, taken])
    assert (wrong.wrong, wrong.precision < 1.0) == (1, True)


def test_an_article_that_came_twice_from_the_same_feed_counts_for_nothing(world: World) -> None:
    unique, duplicates = perfect(world)
    again = {**unique[0], "duplicate_of": unique[0]["id"], "likeness": 1.0}
    assert measure.copies(world, unique, [*duplicates, again]) == measure.copies(world, unique, duplicates)


def test_cleaning_counts_what_was_repaired_and_what_was_lost(world: World) -> None:
    good = [row(a) for a in world.articles if a.fault not in HOPELESS]
    hopeless = [row(a) for a in world.articles if a.fault in HOPELESS]
    found = measure.cleaning(world, good, hopeless, len(world.junk))
    assert (found.repaired, found.rejected, found.wrongly_rejected) == (found.faulty, found.hopeless, 0)
    assert measure.cleaning(world, good[1:], [*hopeless, good[0]], 0).wrongly_rejected == 1


def trend(start: Any, term: str, score: float, headline: str = "") -> dict[str, Any]:
    return {
        **{"start": start.isoformat(), "end": (start + 3 * HOUR).isoformat(), "term": term, "score": score},
        **{"articles": 7, "expected": 0.5, "growth": 7.5, "headline": headline or f"All about {term}"},
    }


def test_a_burst_is_found_by_one_of_its_words_in_its_hours(world: World) -> None:
    unique, _ = perfect(world)
    burst = world.bursts[0]
    found = measure.trends(world, [trend(burst.start, burst.terms[1], 9.0)], unique)
    assert found.found == 1
    assert found.bursts[0].seen == burst.start + 3 * HOUR
    assert found.precision == 1.0
    too_late = trend(burst.end + HOUR, burst.terms[0], 9.0)
    assert measure.trends(world, [too_late], unique).found == 0


def test_a_word_that_is_always_there_is_no_trend(world: World) -> None:
    unique, _ = perfect(world)
    assert measure.trends(world, [trend(world.bursts[0].start, "place", 9.0)], unique).precision == 0.0


def recommendation(reader: str, at: Any, links: list[str]) -> dict[str, Any]:
    articles = [{"link": link, "title": link, "because": ["goose"]} for link in links]
    return {"reader": reader, "at": at.isoformat(), "articles": articles}


def test_recommending_what_is_read_next_is_a_hit_and_anything_else_is_not(world: World) -> None:
    unique, _ = perfect(world)
    kept = {row["link"]: row for row in unique}
    read = next(r for r in world.reads if r.link in kept and r.at > world.start + 24 * HOUR)
    at = max(measure.moment(kept[read.link]["fetched"]), read.at - HOUR / 6)
    hit = measure.recommendations(world, [recommendation(read.reader, at, [read.link])], unique)
    assert (hit.lists, hit.hits) == (1, 1)
    other = next(r["link"] for r in unique if r["link"] not in {x.link for x in world.reads})
    miss = measure.recommendations(world, [recommendation(read.reader, at, [other])], unique)
    assert (miss.lists, miss.hits) == (1, 0)


def test_the_report_reads_well_without_a_terminal(world: World) -> None:
    unique, duplicates = perfect(world)
    trends = [trend(b.start, term, 9.0 - n) for n, b in enumerate(world.bursts) for term in b.terms]
    figures = Figures(
        measure.cleaning(world, unique, [], 0),
        measure.copies(world, unique, duplicates),
        measure.trends(world, trends, unique),
        measure.recommendations(world, [], unique),
    )
    console = Console(width=110, record=True, file=StringIO())
    console.print(report.trend_table(trends))
    console.print(report.figure_table(figures))
    told = console.export_text()
    assert all(burst.terms[0] in told for burst in world.bursts)
    assert "100.0% found" in told
    assert f"{len(world.bursts)} of {len(world.bursts)} found" in told
