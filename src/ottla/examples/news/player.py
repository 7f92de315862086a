"""Plays a world: its clock runs, feeds are rewritten, readers read, and a careless program writes junk.

Days pass in as many seconds as wanted. With each step the feeds on disk become what they would be at that
hour, the feeder looks at them, and the reads that have happened go to their topic. Played without pauses, the
same world gives the same records in the same order.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path

from ottla.examples.news import feeds
from ottla.examples.news.feeder import TOPIC, Feeder, feed_clock
from ottla.examples.news.vocabulary import Outlet
from ottla.examples.news.world import Article, World
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol_client import admin
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire

READS = "reads"
TOPICS = {
    TOPIC: 3,
    READS: 3,
    # One partition keeps the order of arrival, by which of two copies the first is kept.
    "articles.clean": 1,
    "articles.unique": 3,
    "articles.duplicates": 1,
    "articles.rejected": 1,
    "trends": 1,
    "reads.articles": 3,
    "readers.interests": 3,
    "recommendations": 3,
}
STEP = timedelta(hours=1)


class FeedWriter:
    """Keeps the feed files of all outlets as they would be at a moment."""

    def __init__(self, world: World, folder: Path) -> None:
        self.folder = folder
        self.by_outlet: dict[str, tuple[Outlet, list[Article]]] = {}
        for article in world.articles:
            self.by_outlet.setdefault(article.outlet.site, (article.outlet, []))[1].append(article)
        self._shown: dict[str, int] = defaultdict(int)
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, now: datetime) -> int:
        """Rewrite the feeds that have something new. Returns how many."""
        changed = 0
        for site, (outlet, articles) in self.by_outlet.items():
            count = sum(article.published <= now for article in articles)
            if count == self._shown[site]:
                continue
            self._shown[site] = count
            path = self.folder / feeds.file_name(outlet)
            fresh = path.with_suffix(".new")
            fresh.write_bytes(feeds.feed(outlet, articles, now))
            fresh.replace(path)
            changed += 1
        return changed


def create_topics(wire: Wire) -> None:
    for name, partitions in TOPICS.items():
        try:
            admin.create_topic(wire, name, partitions=partitions)
        except ApiError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


def play(
    world: World,
    folder: Path,
    bootstrap: str,
    *,
    seconds: float = 0.0,
    tell: Callable[[datetime, int, int], None] = lambda now, articles, reads: None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[int, int]:
    """Let the world happen on a broker. Returns how many articles and reads were written.

    `tell` is called after each step; `stop` is asked before each.
    """
    writer = FeedWriter(world, folder)
    steps = int((world.end - world.start) / STEP)
    reads, junk = iter(world.reads), iter(world.junk)
    next_read, next_junk = next(reads, None), next(junk, None)
    read_count = 0
    with Wire(bootstrap) as wire:
        create_topics(wire)
        articles_out, reads_out = Producer(wire, TOPIC), Producer(wire, READS)
        feeder = Feeder(articles_out, [str(folder)], memory=folder / "seen.json", clock=feed_clock)
        began = time.monotonic()
        for step in range(1, steps + 1):
            now = world.start + step * STEP
            if stop():
                break
            writer.write(now)
            feeder.poll()
            while next_junk is not None and next_junk[0] <= now:
                articles_out.add(None, next_junk[1])
                next_junk = next(junk, None)
            while next_read is not None and next_read.at <= now:
                value = {**asdict(next_read), "at": next_read.at.isoformat()}
                reads_out.add(next_read.reader.encode(), json.dumps(value, ensure_ascii=False).encode())
                next_read, read_count = next(reads, None), read_count + 1
            articles_out.flush()
            reads_out.flush()
            tell(now, feeder.written, read_count)
            time.sleep(max(0.0, began + seconds * step / steps - time.monotonic()))
        return feeder.written, read_count
