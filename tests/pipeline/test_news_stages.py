"""The stages of the news example as what they are: functions from DataFrames to a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ottla.examples.news import news, text
from ottla.pipeline.stages import stages_of

START = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)
_STORY = (
    "A municipal goose was appointed interim mayor of Brindleford after the ferry had been held up by a "
    "purple otter for seven hours, the harbour office announced in a letter that smelled of kippers."
)
_OTHER = (
    "Shares in Turnip Holdings fell on the rumour of a spreadsheet while traders priced frozen peas by the "
    "barrel and auditors counted invoices which rhymed, according to nobody who was awake at the exchange."
)
STORY, OTHER = _STORY.split(), _OTHER.split()


def with_source(
    spark: SparkSession,
    rows: Sequence[tuple[Any, ...]],
    schema: str,
    *,
    apart: timedelta = timedelta(seconds=1),
) -> DataFrame:
    """Rows as a topic would give them: one partition, in this order."""
    numbered = [(n, *row) for n, row in enumerate(rows)]
    milliseconds = apart // timedelta(milliseconds=1)
    source = F.struct(
        F.lit(0).alias("partition"),
        F.col("n").alias("offset"),
        F.timestamp_millis(F.lit(1_790_000_000_000) + F.col("n") * milliseconds).alias("timestamp"),
    )
    return spark.createDataFrame(numbered, f"n long, {schema}").withColumn("_source", source).drop("n")


def article(
    number: int, words: Sequence[str], fetched: datetime = START, title: str = "Goose"
) -> tuple[Any, ...]:
    body = " ".join(words)
    link = f"https://x.example/{number}"
    terms = text.terms(title, body)
    sketch = text.sketch(text.tokens(f"{title} {body}"))
    day = f"{fetched:%Y-%m-%d}"
    return (f"id{number}", link, "X", "A. Author", title, body, fetched, fetched, day, terms, sketch)


def moments(rows: Sequence[Any], name: str) -> list[datetime]:
    return [row[name].astimezone(UTC) for row in rows]


def test_the_pipeline_has_its_six_stages_in_order() -> None:
    names = [stage.name for stage in stages_of(news)]
    assert names == ["normalise", "deduplicate", "trends", "readings", "interests", "recommend"]


def test_normalise_cleans_what_it_can_and_says_why_it_cannot(spark: SparkSession) -> None:
    link, body = "https://x.example/1?utm_source=rss", f"<p>{' '.join(STORY)}"
    date = "Mon, 02 Mar 2026 09:30:00 +0000"
    good = ("f", "X", "g1", link, "Goose &amp; mayor", body, "A", date, START + 10 * HOUR)
    empty = ("f", "X", "g2", "https://x.example/2", None, "<p>&nbsp;</p>", None, "soon", START + 10 * HOUR)
    rows = news.normalise(with_source(spark, [good, empty], news.RAW)).orderBy("link").collect()
    assert [row.reason for row in rows] == [None, "nothing in it"]
    assert rows[0].title == "Goose & mayor"
    assert rows[0].text == " ".join(STORY)
    assert moments(rows, "published") == [START + 9.5 * HOUR, START + 10 * HOUR]


def test_deduplicate_keeps_the_first_of_each_story_and_names_it(spark: SparkSession) -> None:
    clean = [
        article(1, STORY),
        article(2, OTHER, START + HOUR),
        article(3, [*STORY[:-6], "indeed"], START + 2 * HOUR),
        article(4, ["too", "short"], START + 2 * HOUR),
        article(5, STORY, START - 90 * HOUR),  # whatever a feed says about time, the order is that of arrival
        article(6, [*STORY[6:], "again"], START),
    ]
    rows = news.deduplicate(with_source(spark, clean, news.CLEAN)).orderBy("id").collect()
    assert [(row.id, row.duplicate_of) for row in rows] == [
        ("id1", None),
        ("id2", None),
        ("id3", "id1"),
        ("id4", None),
        ("id5", "id1"),
        ("id6", rows[5].duplicate_of),
    ]
    assert rows[5].duplicate_of in ("id1", "id5")
    assert 0.2 < rows[2].likeness < 1.0
    assert rows[0].text == " ".join(STORY)


def test_a_copy_that_arrives_after_two_days_is_news_again(spark: SparkSession) -> None:
    clean = [article(1, STORY), article(2, STORY), article(3, STORY)]
    apart = timedelta(hours=25)
    rows = news.deduplicate(with_source(spark, clean, news.CLEAN, apart=apart)).orderBy("id").collect()
    assert [row.duplicate_of for row in rows] == [None, "id1", "id2"]
    rows = news.deduplicate(with_source(spark, clean, news.CLEAN, apart=2 * apart)).orderBy("id").collect()
    assert [row.duplicate_of for row in rows] == [None, None, None]


def test_an_article_that_is_delivered_twice_is_kept_once(spark: SparkSession) -> None:
    rows = news.deduplicate(with_source(spark, [article(1, STORY)] * 2, news.CLEAN)).collect()
    assert sorted(str(row.duplicate_of) for row in rows) == ["None", "id1"]


def test_likeness_in_spark_is_the_likeness_of_the_plain_function(spark: SparkSession) -> None:
    sketches = [text.sketch(words) for words in (STORY, OTHER, STORY[:15], STORY[5:], [*STORY, *OTHER])]
    pairs = [(one, other) for one in sketches for other in sketches]
    frame = spark.createDataFrame(pairs, "one array<int>, other array<int>")
    found = [row[0] for row in frame.select(news._likeness(F.col("one"), F.col("other"))).collect()]
    assert found == pytest.approx([text.likeness(one, other) for one, other in pairs])


def test_a_term_that_grows_is_a_trend_and_one_that_is_always_there_is_not(spark: SparkSession) -> None:
    rows = []
    for hour in range(24):
        for n in range(4):
            words = ["always"]
            if hour >= 21:
                words.append("comet")
            elif n == 0:
                words.append("calm")
            at = START + (hour + n / 5) * HOUR
            rows.append((f"id{hour}.{n}", "l", "X", "A", f"Title {hour}", "t", at, at, "day", words))
    found = news.trends(with_source(spark, rows, news.UNIQUE)).collect()
    assert {row.term for row in found} == {"comet"}
    whole = next(row for row in found if row.end.astimezone(UTC) == START + 24 * HOUR)
    assert (whole.articles, whole.expected, whole.headline) == (12, 0.0, "Title 23")
    assert whole.growth == pytest.approx(25.0)


def test_more_articles_overall_make_no_trend(spark: SparkSession) -> None:
    rows = []
    for hour in range(24):
        for n in range(16 if hour >= 21 else 2):
            at = START + (hour + n / 20) * HOUR
            words = ["always", "often" if n % 2 else "seldom"]
            rows.append((f"id{hour}.{n}", "l", "X", "A", "Title", "t", at, at, "day", words))
    assert news.trends(with_source(spark, rows, news.UNIQUE)).where("day = '2026-03-03'").collect() == []


def test_interests_are_the_terms_of_what_was_read_in_the_last_day(spark: SparkSession) -> None:
    clean = with_source(spark, [article(1, STORY), article(2, OTHER, title="Peas")], news.CLEAN)
    reads = [
        ("ada", "https://x.example/1", START + HOUR, 30),
        ("ada", "https://x.example/2", START + 2 * HOUR, 30),
        ("ben", "https://x.example/2", START + 2 * HOUR, 30),
        ("ben", "https://x.example/unknown", START + 2 * HOUR, 30),
        (
            "eve",
            "https://x.example/1",
            START + 30 * HOUR,
            30,
        ),  # a day after: nobody knows the article any more
    ]
    readings = news.readings(with_source(spark, reads, news.READ), clean)
    nothing = with_source(spark, [], news.UNIQUE)
    found = news.interests(readings, nothing).where(F.col("at") == START + 6 * HOUR)
    rows = {row.reader: row for row in found.collect()}
    assert set(rows) == {"ada", "ben"}
    ada = {interest.term: interest.weight for interest in rows["ada"].interests}
    assert ada["goose"] == ada["peas"] == 0.5
    assert {interest.weight for interest in rows["ben"].interests} == {1.0}
    assert sorted(rows["ada"].read) == ["https://x.example/1", "https://x.example/2"]


def test_articles_advance_the_watermark_of_interests_without_a_reader(spark: SparkSession) -> None:
    readings = with_source(spark, [("ada", "l1", START + HOUR, ["goose"])], news.READING)
    unique = with_source(spark, [article(1, STORY)[:-1]], news.UNIQUE)
    assert {row.reader for row in news.interests(readings, unique).collect()} == {"ada"}


def test_recommend_offers_fresh_unread_articles_on_what_is_read(spark: SparkSession) -> None:
    at = START + 24 * HOUR

    def offered(number: int, hours_ago: float, *terms: str) -> tuple[Any, ...]:
        when = at - hours_ago * HOUR
        return (f"id{number}", f"l{number}", "X", "A", f"Title {number}", "t", when, when, "day", list(terms))

    unique = with_source(
        spark,
        [
            offered(1, 1, "goose", "pond"),
            offered(2, 2, "goose"),
            offered(3, 3, "comet"),
            offered(4, 13, "goose"),  # too old
            offered(5, 4, "goose"),  # read already
        ],
        news.UNIQUE,
    )
    interests = spark.createDataFrame(
        [
            ("ada", at, [("goose", 0.9), ("pond", 0.3)], ["l5"], {"timestamp": at + 9999 * HOUR}),
            ("ben", at, [("tuba", 1.0)], [], {"timestamp": at + 9999 * HOUR}),
        ],
        f"{news.INTERESTS}, _source struct<timestamp: timestamp>",
    )
    (only,) = news.recommend(interests, unique).collect()
    assert only.reader == "ada"
    assert [chosen.link for chosen in only.articles] == ["l1", "l2"]
    assert sorted(only.articles[0].because) == ["goose", "pond"]
