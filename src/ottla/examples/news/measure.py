"""How good the pipeline was, held against the truth that the generator knows.

Every figure has something beside it that makes it mean something: copies that were found beside articles that
were wrongly taken for copies, trends beside what plain counting would have called one, recommendations beside
the most read articles of the hour.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ottla.examples.news.world import HOPELESS, REPAIRABLE, World

Row = Mapping[str, Any]

TOP_TERMS = 3
"""Terms looked at per window, for the pipeline and for plain counting alike."""
LATER = timedelta(hours=12)
"""For how long after a recommendation a read counts as following it."""


def moment(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)


@dataclass(frozen=True)
class Cleaning:
    entries: int
    clean: int
    faulty: int
    repaired: int
    hopeless: int
    rejected: int
    wrongly_rejected: int
    junk: int
    dead_letters: int


@dataclass(frozen=True)
class Copies:
    articles: int
    found: int
    missed: int
    wrong: int
    lost: int
    """Stories of which no article is left."""

    @property
    def precision(self) -> float:
        return self.found / max(1, self.found + self.wrong)

    @property
    def recall(self) -> float:
        return self.found / max(1, self.found + self.missed)


@dataclass(frozen=True)
class FoundBurst:
    terms: tuple[str, ...]
    start: datetime
    seen: datetime | None
    """End of the first window that showed it."""


@dataclass(frozen=True)
class Trends:
    bursts: tuple[FoundBurst, ...]
    shown: int
    right: int
    counting_shown: int
    counting_right: int

    @property
    def found(self) -> int:
        return sum(burst.seen is not None for burst in self.bursts)

    @property
    def precision(self) -> float:
        return self.right / max(1, self.shown)

    @property
    def counting_precision(self) -> float:
        return self.counting_right / max(1, self.counting_shown)


@dataclass(frozen=True)
class Recommended:
    lists: int
    hits: int
    popular_hits: int
    articles: int
    on_interest: int
    popular_articles: int
    popular_on_interest: int

    @property
    def hit_rate(self) -> float:
        return self.hits / max(1, self.lists)

    @property
    def popular_hit_rate(self) -> float:
        return self.popular_hits / max(1, self.lists)

    @property
    def interest(self) -> float:
        return self.on_interest / max(1, self.articles)

    @property
    def popular_interest(self) -> float:
        return self.popular_on_interest / max(1, self.popular_articles)


@dataclass(frozen=True)
class Figures:
    cleaning: Cleaning
    copies: Copies
    trends: Trends
    recommended: Recommended


def cleaning(world: World, clean: Iterable[Row], rejected: Iterable[Row], dead_letters: int) -> Cleaning:
    usable = {row["link"] for row in clean}
    refused = {row["link"] for row in rejected}
    faulty = [a for a in world.articles if a.fault in REPAIRABLE]
    hopeless = [a for a in world.articles if a.fault in HOPELESS]
    good = {a.identity for a in world.articles if a.fault not in HOPELESS}
    return Cleaning(
        entries=len(world.articles),
        clean=len(usable),
        faulty=len(faulty),
        repaired=sum(a.identity in usable for a in faulty),
        hopeless=len(hopeless),
        rejected=sum(a.identity in refused for a in hopeless),
        wrongly_rejected=len(refused & good),
        junk=len(world.junk),
        dead_letters=dead_letters,
    )


def copies(world: World, unique: Iterable[Row], duplicates: Iterable[Row]) -> Copies:
    """Of each story one article should be left; each of the others should point to one of the same story."""
    groups = {a.identity: a.group for a in world.articles}
    removed = {row["id"]: row for row in duplicates}
    kept = {row["id"]: row["link"] for row in unique}
    links = {**{id: row["link"] for id, row in removed.items()}, **kept}
    found = wrong = 0
    for id, row in removed.items():
        if id in kept:
            continue  # written twice by somebody upstream, and rightly removed the second time
        if groups[row["link"]] == groups.get(links.get(row["duplicate_of"], "")):
            found += 1
        else:
            wrong += 1
    left = Counter(groups[link] for link in kept.values())
    all_groups = {groups[link] for link in links.values()}
    return Copies(
        articles=len(links),
        found=found,
        missed=sum(count - 1 for count in left.values()),
        wrong=wrong,
        lost=len(all_groups - left.keys()),
    )


def trends(world: World, rows: Sequence[Row], unique: Iterable[Row]) -> Trends:
    """What was shown, and what the terms with the highest counts of the same hours would have been.

    A term is right when at least half of the articles that have it in these hours belong to a burst.
    """
    by_link = {a.identity: a for a in world.articles}
    articles = sorted(((moment(row["published"]), row) for row in unique), key=lambda item: item[0])
    times = [at for at, _ in articles]
    windows: dict[tuple[datetime, datetime], list[Row]] = defaultdict(list)
    for row in rows:
        windows[moment(row["start"]), moment(row["end"])].append(row)
    seen: dict[int, datetime] = {}
    shown = right = counting_shown = counting_right = 0
    for (start, end), found in sorted(windows.items()):
        for burst in world.bursts:
            if start <= burst.end and end >= burst.start and any(row["term"] in burst.terms for row in found):
                seen.setdefault(burst.number, end)
        count, of_bursts = Counter[str](), Counter[str]()
        for _, row in articles[bisect_left(times, start) : bisect_left(times, end)]:
            count.update(row["terms"])
            if by_link[row["link"]].burst is not None:
                of_bursts.update(row["terms"])
        best = [row["term"] for row in sorted(found, key=lambda row: -row["score"])[:TOP_TERMS]]
        loudest = [term for term, _ in count.most_common(TOP_TERMS)]
        shown, counting_shown = shown + len(best), counting_shown + len(loudest)
        right += sum(2 * of_bursts[term] >= count[term] for term in best)
        counting_right += sum(2 * of_bursts[term] >= count[term] for term in loudest)
    bursts = tuple(FoundBurst(b.terms, b.start, seen.get(b.number)) for b in world.bursts)
    return Trends(bursts, shown, right, counting_shown, counting_right)


def recommendations(world: World, rows: Iterable[Row], unique: Iterable[Row]) -> Recommended:
    """Whether readers read one of the recommended stories in the hours after; the same for the most read.

    Only lists of readers who read something that could have been recommended are counted: nothing can be said
    about the others.
    """
    by_link = {a.identity: a for a in world.articles}
    group = {link: a.group for link, a in by_link.items()}
    interests = {reader.name: reader.interests for reader in world.readers}
    of_reader: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
    for read in world.reads:
        of_reader[read.reader].append((read.at, group[read.link]))
    read_times = [read.at for read in world.reads]
    published = sorted((moment(row["fetched"]), group[row["link"]]) for row in unique)
    times = [at for at, _ in published]
    subject = {a.group: a.subject for a in world.articles}
    popular_at: dict[datetime, list[int]] = {}
    lists = hits = popular_hits = articles = on_interest = popular_articles = popular_on_interest = 0
    for row in rows:
        at, reader = moment(row["at"]), row["reader"]
        fresh = {g for _, g in published[bisect_right(times, at - LATER) : bisect_right(times, at)]}
        before = {g for when, g in of_reader[reader] if when <= at}
        after = {g for when, g in of_reader[reader] if at < when <= at + LATER} - before
        if not after & fresh:
            continue
        if at not in popular_at:
            span = world.reads[bisect_right(read_times, at - LATER) : bisect_right(read_times, at)]
            count = Counter(group[read.link] for read in span if group[read.link] in fresh)
            popular_at[at] = [g for g, _ in count.most_common()]
        chosen = [group[article["link"]] for article in row["articles"]]
        popular = [g for g in popular_at[at] if g not in before][: len(chosen)]
        lists += 1
        hits += bool(after & set(chosen))
        popular_hits += bool(after & set(popular))
        articles += len(chosen)
        on_interest += sum(subject[g] in interests[reader] for g in chosen)
        popular_articles += len(popular)
        popular_on_interest += sum(subject[g] in interests[reader] for g in popular)
    return Recommended(
        lists, hits, popular_hits, articles, on_interest, popular_articles, popular_on_interest
    )
