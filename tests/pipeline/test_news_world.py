"""The invented country: the same from the same seed, consistent with its own truth, and readable as feeds."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.examples.news import feeds, text
from ottla.examples.news.feeder import parse
from ottla.examples.news.player import FeedWriter
from ottla.examples.news.vocabulary import OUTLETS
from ottla.examples.news.world import HOPELESS, REPAIRABLE, World, make_world
from ottla.examples.news.writing import SUBJECTS

few_worlds = settings(max_examples=8, deadline=None)
seeds = st.integers(0, 10_000)


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(seed=7, days=3, readers=60)


def test_the_same_seed_gives_the_same_world_and_another_seed_another() -> None:
    first, again, other = (make_world(seed, days=1, readers=10) for seed in (3, 3, 4))
    assert first == again
    assert {a.title for a in first.articles} != {a.title for a in other.articles}


@few_worlds
@given(seeds)
def test_articles_are_distinct(seed: int) -> None:
    world = make_world(seed, days=1, readers=5)
    identities = [article.identity for article in world.articles]
    assert len(set(identities)) == len(identities) > 100


@few_worlds
@given(seeds)
def test_readers_read_what_has_appeared_and_no_story_twice(seed: int) -> None:
    world = make_world(seed, days=1, readers=20)
    by_identity = {article.identity: article for article in world.articles}
    seen = set()
    for read in world.reads:
        article = by_identity[read.link]
        assert timedelta(0) < read.at - article.published <= timedelta(hours=12)
        assert article.fault not in HOPELESS
        assert (read.reader, article.group) not in seen
        seen.add((read.reader, article.group))
    assert [read.at for read in world.reads] == sorted(read.at for read in world.reads)


def test_copies_resemble_their_story_and_nothing_else_does(world: World) -> None:
    sketches = {
        a.number: text.sketch(text.tokens(f"{a.title} {' '.join(a.sentences)}")) for a in world.articles
    }
    groups = defaultdict(list)
    for article in world.articles:
        groups[article.group].append(article)
    copies = [
        max(text.likeness(sketches[article.number], sketches[other.number]) for other in group[:n])
        for group in groups.values()
        for n, article in enumerate(group)
        if n > 0
    ]
    strangers = [
        text.likeness(sketches[one[0].number], sketches[other[0].number])
        for one, other in zip(list(groups.values())[::2], list(groups.values())[1::2], strict=False)
    ]
    assert sum(likeness >= 0.2 for likeness in copies) > 0.95 * len(copies)
    assert sum(likeness >= 0.2 for likeness in strangers) < 0.02 * len(strangers)


def test_the_words_of_a_burst_are_frequent_only_while_it_lasts(world: World) -> None:
    for burst in world.bursts:
        about = [a for a in world.articles if a.kind == "story" and set(burst.terms) <= set(_words(a.title))]
        during = [a for a in about if burst.start <= a.published <= burst.end]
        before = [a for a in about if a.published < burst.start - timedelta(hours=1)]
        assert len(during) >= 5, burst
        assert len(before) <= 2, burst


def test_readers_mostly_read_about_what_they_like(world: World) -> None:
    by_identity = {article.identity: article for article in world.articles}
    interests = {reader.name: reader.interests for reader in world.readers}
    liked = [by_identity[read.link].subject in interests[read.reader] for read in world.reads]
    assert sum(liked) > 0.7 * len(liked)


def test_all_kinds_of_faults_happen_and_most_entries_have_none(world: World) -> None:
    faults = [article.fault for article in world.articles]
    assert set(faults) == {None, *REPAIRABLE, *HOPELESS}
    assert faults.count(None) > 0.9 * len(faults)


def test_every_subject_has_words_for_all_its_slots() -> None:
    for seed in range(3):
        titles = {a.title for a in make_world(seed, days=1, readers=1).articles}
        assert not any("{" in title or "}" in title for title in titles)
    assert len({subject.name for subject in SUBJECTS}) == len(SUBJECTS) == 8


@few_worlds
@given(seeds)
def test_feeds_give_back_their_entries_through_feedparser(seed: int) -> None:
    world = make_world(seed, days=1, readers=1)
    for outlet in OUTLETS:
        own = [a for a in world.articles if a.outlet is outlet]
        parsed = parse(feeds.feed(outlet, own, world.end))
        newest = own[-feeds.LENGTH :][::-1]
        assert parsed.feed.title == outlet.name
        assert len(parsed.entries) == len(newest)
        for entry, article in zip(parsed.entries, newest, strict=True):
            identity = text.address(entry.get("link")) or entry.get("id")
            assert identity == article.identity
            if article.fault not in (*HOPELESS, "wrongly decoded"):
                assert text.clean(entry.title) == article.title


def test_a_feed_that_lies_about_its_encoding_keeps_its_letters() -> None:
    lying = next(outlet for outlet in OUTLETS if outlet.encoding == "windows-1252")
    world = make_world(1, days=4, readers=1)
    own = [
        a for a in world.articles if a.outlet is lying and a.fault is None and "é" in " ".join(a.sentences)
    ]
    assert own
    for article in own:
        entry = parse(feeds.feed(lying, [article], world.end)).entries[0]
        assert text.clean(entry.summary).startswith(" ".join(article.sentences))


def test_only_feeds_with_something_new_are_rewritten(world: World, tmp_path: Path) -> None:
    writer = FeedWriter(world, tmp_path)
    assert writer.write(world.start + timedelta(hours=12)) == len(list(tmp_path.iterdir())) == len(OUTLETS)
    assert writer.write(world.start + timedelta(hours=12)) == 0
    assert 0 < writer.write(world.start + timedelta(hours=12, minutes=10)) < len(OUTLETS)


def _words(title: str) -> list[str]:
    return text.tokens(title)
