"""The pipeline: six stages from raw entries to articles, trends and recommendations.

    ottla pipeline run ottla.examples.news.news

    articles.raw -> normalise -> articles.clean, articles.rejected
    articles.clean -> deduplicate -> articles.unique, articles.duplicates, lake
    articles.unique -> trends -> trends, lake
    reads, articles.clean -> readings -> reads.articles
    reads.articles, articles.unique -> interests -> readers.interests
    readers.interests, articles.unique -> recommend -> recommendations, lake

Three times are used. `published` is when an article appeared, and trends are about that. `fetched` is when
the feeder met it, and what is read and recommended goes by it: a feed may forget a date or invent one. Copies
go by the arrival on the topic, for no article may be lost by being late. Every state is bounded by a
watermark on one of them: two days of sketches, a day of terms, half a day of candidates.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ottla.examples.news import columns
from ottla.examples.news.text import PROBES
from ottla.pipeline import lake, stage, topic

LAKE = os.environ.get("NEWS_LAKE", "news-lake")
"""Where the Parquet goes."""

ALIKE = 0.2
"""Articles whose runs of four words are shared to this degree are copies."""
REMEMBER = "2 days"
"""For how long a copy is recognised."""
SKEW = "10 minutes"
"""By how much the clocks of those who write to one topic may differ."""
LATE = "2 hours"
"""How much later than others an article may be fetched, or a read reported."""

TREND_DAY, TREND_HOURS = "24 hours", "3 hours"
"""A term of the last three hours is held against the rest of the day."""
FEWEST_ARTICLES, LEAST_SCORE, LEAST_GROWTH = 4, 3.5, 3.0

PROFILE_DAY, PROFILE_EVERY = "24 hours", "6 hours"
FRESH = "12 hours"
"""Older articles are not recommended."""

RAW = (
    "feed string, outlet string, guid string, link string, title string, body string, author string,"
    " published string, fetched timestamp"
)
UNIQUE = (
    "id string, link string, outlet string, author string, title string, text string, published timestamp,"
    " fetched timestamp, day string, terms array<string>"
)
CLEAN = f"{UNIQUE}, sketch array<int>"
DUPLICATE = "id string, link string, outlet string, title string, duplicate_of string, likeness double"
READ = "reader string, link string, at timestamp, seconds int"
READING = "reader string, link string, at timestamp, terms array<string>"
INTERESTS = (
    "reader string, at timestamp, interests array<struct<term: string, weight: double>>, read array<string>"
)
FIRST, COPY = "duplicate_of is null", "duplicate_of is not null"


@stage(
    topic("articles.raw", json=RAW),
    to=[
        topic("articles.clean", json=CLEAN, key="id", where="reason is null"),
        topic("articles.rejected", key="link", where="reason is not null"),
    ],
)
def normalise(raw: DataFrame) -> DataFrame:
    """Clean text, a date that can be, terms and a sketch; or a reason why there is no article in it."""
    read = _arrow(columns.read_articles, columns.CLEANED)
    cleaned = read(
        "outlet", "guid", "link", "title", "body", "published", "fetched", F.col("_source.timestamp")
    )
    return raw.select("outlet", "author", cleaned.alias("cleaned")).select("outlet", "author", "cleaned.*")


@stage(
    topic("articles.clean", json=CLEAN),
    to=[
        topic("articles.unique", json=UNIQUE, key="id", where=FIRST),
        topic("articles.duplicates", json=DUPLICATE, key="id", where=COPY),
        lake(f"{LAKE}/articles", partition_by="day", where=FIRST),
    ],
)
def deduplicate(clean: DataFrame) -> DataFrame:
    """Articles with the earlier article that they repeat, if there is one.

    Articles that share one of their smallest hashes meet in a join of the stream with itself, and are
    compared by their whole sketches. Every article also meets itself, and that row brings the article along:
    it comes out as soon as it is in, with all its pairs, and waits for no watermark. A join of a stream with
    itself reads its topic twice, the left side first, so that what an article is compared with is there when
    it comes. Its clock is the arrival on the topic, where nothing can be late, or the join would drop it.
    """
    place = F.concat_ws(":", "_source.partition", "_source.offset")
    # A text without any run of words resembles nothing but must meet itself.
    own = F.array(F.hash(place))
    probes = F.when(F.size("sketch") > 0, F.slice("sketch", 1, PROBES)).otherwise(own)
    kept = [name for name in clean.columns if name not in ("sketch", "_source")]
    arrivals = clean.withColumn("arrived", F.col("_source.timestamp")).withWatermark("arrived", SKEW)
    known = arrivals.select(
        place.alias("place"),
        F.struct("_source.partition", "_source.offset").alias("position"),
        "arrived",
        "sketch",
        "id",
        F.struct(*kept).alias("article"),
        F.posexplode(probes).alias("number", "probe"),
    )
    later = known.drop("id").withColumn("article", F.when(F.col("number") == 0, F.col("article")))
    names = ("place", "position", "arrived", "sketch", "id", "probe")
    earlier = known.select(*(F.col(name).alias(f"earlier_{name}") for name in names))
    itself = F.col("place") == F.col("earlier_place")
    before = F.struct("earlier_arrived", "earlier_position") < F.struct("arrived", "position")
    pairs = later.join(
        earlier,
        (F.col("probe") == F.col("earlier_probe"))
        & (itself | before)
        & (F.col("earlier_arrived") >= F.col("arrived") - F.expr(f"interval {REMEMBER}"))
        & (F.col("earlier_arrived") <= F.col("arrived")),
    )
    likeness = _likeness(F.col("sketch"), F.col("earlier_sketch"))
    rows = pairs.select(
        "place",
        F.when(itself, F.col("article")).alias("article"),
        F.when(~itself, F.col("earlier_id")).alias("other"),
        F.when(~itself, likeness).alias("likeness"),
    ).where(F.col("article").isNotNull() | (F.col("likeness") >= ALIKE))
    mark = _arrow(columns.mark_copies, columns.COPY, sees_other_rows=True)
    marked = rows.repartition("place").select("article", mark("place", "other", "likeness").alias("copy"))
    return marked.where(F.col("copy").isNotNull()).select("article.*", "copy.*")


def _arrow(
    function: Callable[..., Any], type: str, *, sees_other_rows: bool = False
) -> Callable[..., Column]:
    """A function over Arrow arrays as one over columns.

    What Spark believes to depend on its own row alone it may move before a shuffle. A function that looks at
    the other rows of its partition must stay where it is, and Spark has one word for that.
    """
    made = F.arrow_udf(function, type)  # type: ignore[attr-defined]
    kept: Callable[..., Column] = made.asNondeterministic() if sees_other_rows else made
    return kept


def _likeness(one: Column, other: Column) -> Column:
    """`text.likeness` in Spark's own words: the share of the smallest hashes of both that are in both."""
    size = F.greatest(F.size(one), F.size(other))
    sample = F.slice(F.array_sort(F.array_union(one, other)), F.lit(1), size)
    return F.size(F.array_intersect(sample, F.array_intersect(one, other))) / size


@stage(
    topic("articles.unique", json=UNIQUE),
    to=[topic("trends", key="term"), lake(f"{LAKE}/trends", partition_by="day")],
)
def trends(unique: DataFrame) -> DataFrame:
    """Terms that are met far more often in the last hours than the rest of the day made one expect.

    What is expected grows and shrinks with the number of all articles, or every morning would be a trend.
    """
    everything = ""  # a term that every article has: its count is the number of articles
    words = unique.withWatermark("published", LATE).select(
        F.window("published", TREND_DAY, TREND_HOURS).alias("window"),
        "published",
        "title",
        F.explode(F.concat("terms", F.array(F.lit(everything)))).alias("term"),
    )
    is_recent = F.col("published") >= F.col("window.end") - F.expr(f"interval {TREND_HOURS}")
    counted = words.groupBy("window", "term").agg(
        F.count_if(is_recent).alias("recent"),
        F.count_if(~is_recent).alias("before"),
        F.max_by("title", "published").alias("headline"),
    )
    is_everything = F.col("term") == everything
    candidates = counted.where((F.col("recent") >= FEWEST_ARTICLES) | is_everything)
    total_recent, total_before = (F.max(F.when(is_everything, F.col(name))) for name in ("recent", "before"))
    windows = candidates.groupBy("window").agg(
        total_recent.alias("total_recent"),
        total_before.alias("total_before"),
        F.collect_list(F.when(~is_everything, F.struct("term", "recent", "before", "headline"))).alias(
            "terms"
        ),
    )
    # A base of less than twice the period itself is none: the first hours after a start have no trends.
    known = windows.where(F.col("total_before") >= 2 * F.col("total_recent"))
    expected = F.col("found.before") * F.col("total_recent") / F.col("total_before")
    scored = known.select("window", "total_recent", "total_before", F.explode("terms").alias("found")).select(
        (F.col("window.end") - F.expr(f"interval {TREND_HOURS}")).alias("start"),
        F.col("window.end").alias("end"),
        F.date_format("window.end", "yyyy-MM-dd").alias("day"),
        "found.term",
        F.col("found.recent").alias("articles"),
        F.round(expected, 2).alias("expected"),
        F.round((F.col("found.recent") + 0.5) / (expected + 0.5), 2).alias("growth"),
        F.round((F.col("found.recent") - expected) / F.sqrt(expected + 1), 2).alias("score"),
        "found.headline",
    )
    return scored.where((F.col("score") >= LEAST_SCORE) & (F.col("growth") >= LEAST_GROWTH))


@stage(
    topic("reads", json=READ),
    topic("articles.clean", json=CLEAN),
    to=topic("reads.articles", json=READING, key="reader"),
)
def readings(reads: DataFrame, clean: DataFrame) -> DataFrame:
    """What the read articles were about. Reads of copies count as well.

    A stage of its own: an aggregation behind a join waits for as long as the join may still give rows, here a
    day; with a topic between them it waits for its own watermark only.
    """
    known = clean.withWatermark("fetched", LATE).select(F.col("link").alias("known"), "fetched", "terms")
    read = reads.withWatermark("at", LATE).join(
        known,
        (F.col("link") == F.col("known"))
        & (F.col("at") >= F.col("fetched") - F.expr(f"interval {LATE}"))
        & (F.col("at") <= F.col("fetched") + F.expr("interval 1 day")),
    )
    return read.select("reader", "link", "at", "terms")


@stage(
    topic("reads.articles", json=READING),
    topic("articles.unique", json=UNIQUE),
    to=topic("readers.interests", json=INTERESTS, key="reader"),
)
def interests(readings: DataFrame, unique: DataFrame) -> DataFrame:
    """What each reader has read about in the last day, every six hours.

    A window is closed when both inputs have passed its end: of the articles nothing is wanted but their
    clock, so that what is recommended next does not depend on which stage is quicker.
    """
    clock = unique.select(F.lit("").alias("reader"), F.col("fetched").alias("at")).withWatermark("at", LATE)
    read = readings.withWatermark("at", LATE).select("reader", "at", "link", "terms")
    profile = _arrow(columns.profiles, columns.PROFILE)
    return (
        read.unionByName(clock, allowMissingColumns=True)
        .groupBy(F.window("at", PROFILE_DAY, PROFILE_EVERY).alias("window"), "reader")
        .agg(F.collect_list("terms").alias("lists"), F.collect_set("link").alias("read"))
        # Not by the reader's name: a condition on it would be moved before the union and stop the clock.
        .where(F.size("read") > 0)
        .select("reader", F.col("window.end").alias("at"), profile("lists").alias("interests"), "read")
    )


@stage(
    topic("readers.interests", json=INTERESTS),
    topic("articles.unique", json=UNIQUE),
    to=[topic("recommendations", key="reader"), lake(f"{LAKE}/recommendations")],
)
def recommend(interests: DataFrame, unique: DataFrame) -> DataFrame:
    """For each reader the fresh and unread articles that are about what they read.

    An article matches interests that were written after it, so all matches of a reader come in one batch.
    """
    wanted = interests.withWatermark("at", LATE).select(
        "reader", "at", "read", F.col("_source.timestamp").alias("asked"), F.inline("interests")
    )
    fresh = unique.withWatermark("fetched", LATE).select(
        "link",
        "title",
        "fetched",
        F.col("_source.timestamp").alias("offered"),
        F.explode("terms").alias("met"),
    )
    matches = wanted.join(
        fresh,
        (F.col("term") == F.col("met"))
        & (F.col("offered") <= F.col("asked"))
        & (F.col("fetched") > F.col("at") - F.expr(f"interval {FRESH}"))
        & (F.col("fetched") <= F.col("at"))
        & ~F.array_contains("read", F.col("link")),
    ).select("reader", "at", "link", "title", "term", "weight")
    choose = _arrow(columns.choose, columns.CHOSEN, sees_other_rows=True)
    chosen = choose("reader", "at", "link", "title", "term", "weight").alias("articles")
    lists = matches.repartition("reader").select("reader", "at", chosen)
    return lists.where(F.col("articles").isNotNull())
