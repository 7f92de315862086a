"""What happens in the country, hour by hour, and the truth about it.

A world is made from a seed and is the same every time. Stories break, more of them by day; some are printed
by other outlets too (copies), some have a sequel the next day that repeats a sentence (not a copy), and the
weather is always the same text with other values (not a copy either). Now and then a theme bursts: for some
hours many different stories are about it, then it fades. Readers have interests and read what is fresh, much
discussed and, above all, about what they like. Everything the figures are measured against is here.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from ottla.examples.news.vocabulary import FIRST_NAMES, OUTLETS, PLACES, SURNAMES, Outlet, Subject, Theme
from ottla.examples.news.writing import SUBJECTS, Draft, bulletin, facts_of, follow_up, syndicated, write

START = datetime(2026, 3, 2, tzinfo=UTC)
"""A Monday. The same for every seed, so that runs can be compared."""

REPAIRABLE = (
    "no guid", "no link", "no author", "no date", "unreadable date", "date in the future", "tag soup",
    "wrongly decoded", "escaped twice",
)  # fmt: skip
"""Faults of a feed's entry that cleaning should get over."""
HOPELESS = ("nothing in it", "no text")
"""Faults that leave nothing to clean."""

_HOUR = timedelta(hours=1)
_LOUDNESS = {"football": 2.4, "markets": 1.6, "railways": 1.0, "museums": 0.7}
_STORIES_PER_HOUR = 9.0
_SYNDICATED = 0.35
_FOLLOWED_UP = 0.12
_FAULTY = 0.06


@dataclass(frozen=True)
class Article:
    """One entry of one feed. Articles of the same `group` are copies of each other."""

    number: int
    outlet: Outlet
    published: datetime
    title: str
    sentences: tuple[str, ...]
    author: str
    subject: str
    kind: str
    group: int
    heat: float
    burst: int | None = None
    fault: str | None = None

    @property
    def guid(self) -> str:
        return f"tag:{self.outlet.site},2026:{self.number}"

    @property
    def link(self) -> str:
        words = "-".join(word for word in self.title.lower().split()[:5] if word.isascii() and word.isalpha())
        return f"https://{self.outlet.site}/{self.published:%Y/%m/%d}/{self.number}-{words}"

    @property
    def identity(self) -> str:
        """What the pipeline should come to call it: its address, or its guid where the feed gives none."""
        return self.guid if self.fault == "no link" else self.link


@dataclass(frozen=True)
class Burst:
    number: int
    subject: str
    terms: tuple[str, ...]
    start: datetime
    end: datetime


@dataclass(frozen=True)
class Reader:
    name: str
    interests: dict[str, float]
    reads_per_day: float


@dataclass(frozen=True)
class Read:
    reader: str
    link: str
    at: datetime
    seconds: int


@dataclass(frozen=True)
class World:
    seed: int
    days: int
    articles: tuple[Article, ...]
    bursts: tuple[Burst, ...]
    readers: tuple[Reader, ...]
    reads: tuple[Read, ...]
    junk: tuple[tuple[datetime, bytes], ...]
    """What a careless program writes to the topic of the articles."""

    @property
    def start(self) -> datetime:
        return START

    @property
    def end(self) -> datetime:
        return START + timedelta(days=self.days)


def make_world(seed: int = 7, days: int = 4, readers: int = 120) -> World:
    """The whole of it. Four days are some 1,900 articles and 4,500 reads."""
    rng = random.Random(f"{seed}/{days}/{readers}")
    press = _Press(rng, days)
    bursts = press.plan_bursts()
    press.run(bursts)
    articles = press.edition()
    people = _readers(rng, readers)
    reads = tuple(_reads(rng, people, articles, days))
    return World(seed, days, articles, tuple(bursts), people, reads, _junk(rng, days))


@dataclass
class _Press:
    """Writes articles while the hours pass."""

    rng: random.Random
    days: int
    printed: list[Article] = field(default_factory=list)
    groups: int = 0
    themes: dict[int, tuple[Subject, Theme]] = field(default_factory=dict)

    def plan_bursts(self) -> list[Burst]:
        """Two a day, the first when there is a base to compare with, the last with time left to be seen."""
        themes = [(subject, theme) for subject in SUBJECTS for theme in subject.themes]
        self.rng.shuffle(themes)
        count = min(len(themes), 2 * self.days)
        first, last = 18.0, self.days * 24 - 14.0
        bursts = []
        for number, (subject, theme) in enumerate(themes[:count]):
            hour = first + (last - first) * (number + self.rng.uniform(0.1, 0.9)) / count
            start = START + hour * _HOUR
            self.themes[number] = (subject, theme)
            bursts.append(Burst(number, subject.name, theme.terms, start, start + 12 * _HOUR))
        return bursts

    def run(self, bursts: list[Burst]) -> None:
        weights = [_LOUDNESS.get(subject.name, 1.0) for subject in SUBJECTS]
        for hour in range(self.days * 24):
            begin = START + hour * _HOUR
            for at in self._moments(begin, _STORIES_PER_HOUR * _by_day(hour)):
                self._story(at, self.rng.choices(SUBJECTS, weights)[0])
            for burst in bursts:
                for at in self._moments(begin, _intensity(burst, begin)):
                    self._story(at, self.themes[burst.number][0], burst.number)
            if hour % 6 == 5:
                for _ in range(3):
                    at = begin + self.rng.random() * _HOUR
                    draft = bulletin(self.rng, self.rng.choice(PLACES))
                    self._print(at, self._outlet(), draft, "weather", "bulletin", self._new_group(), 0.2)

    def edition(self) -> tuple[Article, ...]:
        """All that was printed before the end, in order, with faults strewn in."""
        end = START + timedelta(days=self.days)
        printed = sorted((a for a in self.printed if a.published < end), key=lambda a: a.published)
        faults = [*REPAIRABLE, *HOPELESS]
        return tuple(
            replace(
                article, number=number, fault=self.rng.choice(faults) if self.rng.random() < _FAULTY else None
            )
            for number, article in enumerate(printed, start=1000)
        )

    def _story(self, at: datetime, subject: Subject, burst: int | None = None) -> None:
        rng = self.rng
        facts = facts_of(rng, subject)
        theme = self.themes[burst][1] if burst is not None else None
        first = write(rng, subject, facts, rng.randint(8, 13), theme)
        home, group = self._outlet(), self._new_group()
        heat = rng.lognormvariate(0.0, 0.7) * (1.5 if theme else 1.0)
        self._print(at, home, first, subject.name, "story", group, heat, burst)
        if rng.random() < _SYNDICATED:
            others = [outlet for outlet in OUTLETS if outlet is not home]
            for outlet in rng.sample(others, k=rng.choice((1, 1, 2, 2, 3, 4))):
                later = at + rng.uniform(0.2, 6.0) * _HOUR
                copy = syndicated(rng, first, outlet.suffix)
                self._print(later, outlet, copy, subject.name, "copy", group, heat, burst)
        if burst is None and rng.random() < _FOLLOWED_UP:
            later = at + rng.uniform(10.0, 26.0) * _HOUR
            sequel = follow_up(rng, subject, facts, first)
            self._print(later, home, sequel, subject.name, "follow-up", self._new_group(), heat)

    def _print(
        self,
        at: datetime,
        outlet: Outlet,
        draft: Draft,
        subject: str,
        kind: str,
        group: int,
        heat: float,
        burst: int | None = None,
    ) -> None:
        author = f"{self.rng.choice(FIRST_NAMES)} {self.rng.choice(SURNAMES)}"
        at = at.replace(microsecond=0)
        self.printed.append(
            Article(0, outlet, at, draft.title, draft.sentences, author, subject, kind, group, heat, burst)
        )

    def _moments(self, begin: datetime, rate: float) -> Iterator[datetime]:
        """Random moments of one hour at a rate per hour (Poisson)."""
        after = self.rng.expovariate(rate) if rate > 0 else 1.0
        while after < 1.0:
            yield begin + after * _HOUR
            after += self.rng.expovariate(rate)

    def _outlet(self) -> Outlet:
        return self.rng.choices(OUTLETS, [outlet.weight for outlet in OUTLETS])[0]

    def _new_group(self) -> int:
        self.groups += 1
        return self.groups


def _by_day(hour: int) -> float:
    """Newsrooms sleep too: from 0.4 at three in the morning to 1.6 in the afternoon."""
    return 1.0 - 0.6 * math.cos((hour % 24 - 3) / 24 * 2 * math.pi)


def _intensity(burst: Burst, begin: datetime) -> float:
    """Stories per hour about a theme: hardly any before, a steep rise, a slow end."""
    hours = (begin - burst.start) / _HOUR
    if hours < -0.5:
        return 0.02
    if hours < 2:
        return 3.0
    return 3.0 * math.exp(-(hours - 2) / 4.0) + 0.02


def _readers(rng: random.Random, count: int) -> tuple[Reader, ...]:
    names: dict[str, None] = {}
    while len(names) < count:
        names[f"{rng.choice(FIRST_NAMES)} {rng.choice(SURNAMES)}"] = None
    subjects = [subject.name for subject in SUBJECTS]
    people = []
    for name in names:
        first, *others = rng.sample(subjects, k=rng.choice((1, 2, 2, 3)))
        people.append(Reader(name, {first: 1.0, **dict.fromkeys(others, 0.5)}, rng.uniform(5, 14)))
    return tuple(people)


def _reads(
    rng: random.Random, people: tuple[Reader, ...], articles: tuple[Article, ...], days: int
) -> Iterator[Read]:
    """Who reads what and when, in the order of time."""
    wanted = sorted(
        (START + (day + _waking_hour(rng) / 24) * timedelta(days=1), number)
        for number, reader in enumerate(people)
        for day in range(days)
        for _ in range(round(rng.gauss(reader.reads_per_day, 2.0)))
    )
    readable = [article for article in articles if article.fault not in HOPELESS]
    times = [article.published for article in readable]
    known: list[set[int]] = [set() for _ in people]
    for moment, number in wanted:
        at = moment.replace(microsecond=0)
        reader, seen = people[number], known[number]
        fresh = [
            a
            for a in readable[bisect_left(times, at - 12 * _HOUR) : bisect_right(times, at - _HOUR / 6)]
            if a.group not in seen
        ]
        if not fresh:
            continue
        weights = [
            reader.interests.get(a.subject, 0.04) * a.heat * math.exp(-((at - a.published) / _HOUR) / 5.0)
            for a in fresh
        ]
        chosen = rng.choices(fresh, weights)[0]
        seen.add(chosen.group)
        yield Read(reader.name, chosen.identity, at, round(rng.lognormvariate(4.0, 0.6)))


def _waking_hour(rng: random.Random) -> float:
    """Over breakfast, at lunch, or in the evening."""
    centre, width = rng.choice(((7.5, 1.2), (12.5, 1.0), (19.5, 2.0)))
    return min(23.9, max(5.0, rng.gauss(centre, width)))


def _junk(rng: random.Random, days: int) -> tuple[tuple[datetime, bytes], ...]:
    kinds = (
        b"title;body;date\nGoose;honk;today",
        b'{"title": "cut off in the middle of a sen',
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00 surely this was compressed",
        b"<html><body><h1>502 Bad Gateway</h1></body></html>",
        b'["an", "array", "of", "words"]',
        b"TEST TEST please ignore",
    )
    moments = sorted(START + rng.uniform(1, days * 24 - 1) * _HOUR for _ in range(5 * days))
    return tuple((at.replace(microsecond=0), rng.choice(kinds)) for at in moments)
