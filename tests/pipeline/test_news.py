"""The news pipeline from end to end, on a real broker and Spark: results, and figures above their floors.

The world is fixed by its seed, so the figures are the same in every run; the floors lie some way below what
was measured, so that a change which makes the pipeline worse shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import ottla.testing
from ottla.examples.news import results
from ottla.examples.news.measure import Figures
from ottla.examples.news.player import play
from ottla.examples.news.world import World, make_world
from ottla.pipeline.running.runner import run
from ottla.protocol_client.wire import Wire

pytestmark = pytest.mark.timeout(600)  # one run of six stages serves all tests here


@dataclass(frozen=True)
class Done:
    world: World
    figures: Figures
    lake: Path
    rows: dict[str, list[Mapping[str, Any]]]


@pytest.fixture(scope="module")
def done(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    folder = tmp_path_factory.mktemp("news")
    world = make_world(seed=7, days=3, readers=60)
    with pytest.MonkeyPatch.context() as patch, ottla.testing.broker() as broker:
        patch.chdir(folder)  # the stages name their lake by a relative path
        play(world, folder / "feeds", broker.bootstrap_servers)
        run(
            "ottla.examples.news.news",
            bootstrap=broker.bootstrap_servers,
            checkpoints=folder / "checkpoints",
            spark=spark,
        )
        with Wire(broker.bootstrap_servers) as wire:
            topics = ("articles.clean", "articles.unique", "trends", "recommendations")
            rows = {topic: results.rows(wire, topic) for topic in topics}
        yield Done(world, results.figures(world, broker.bootstrap_servers), folder / "news-lake", rows)


def test_broken_entries_are_repaired_and_hopeless_ones_set_aside(done: Done) -> None:
    found = done.figures.cleaning
    assert found.repaired == found.faulty > 0
    assert found.rejected == found.hopeless > 0
    assert found.wrongly_rejected == 0
    assert found.dead_letters == found.junk > 0


def test_copies_are_found_and_hardly_anything_else_is_taken_for_one(done: Done) -> None:
    found = done.figures.copies
    assert found.articles == done.figures.cleaning.clean
    assert found.recall >= 0.96
    assert found.precision >= 0.97


def test_planted_trends_are_found_with_few_false_ones(done: Done) -> None:
    found = done.figures.trends
    assert found.found >= len(found.bursts) - 1
    assert found.precision >= 0.65
    assert found.precision >= 2 * found.counting_precision


def test_recommendations_beat_the_most_read_articles(done: Done) -> None:
    found = done.figures.recommended
    assert found.lists > 200
    assert found.hit_rate >= 1.4 * found.popular_hit_rate
    assert found.interest >= 2 * found.popular_interest


def test_the_lake_has_what_the_topics_have(done: Done) -> None:
    for folder, topic in (
        ("articles", "articles.unique"),
        ("trends", "trends"),
        ("recommendations", "recommendations"),
    ):
        table = ds.dataset(done.lake / folder, partitioning="hive").to_table()
        assert table.num_rows == len(done.rows[topic]) > 0
    articles = ds.dataset(done.lake / "articles", partitioning="hive").to_table()
    assert set(articles.column("id").to_pylist()) == {row["id"] for row in done.rows["articles.unique"]}
