"""Sentences and headlines from templates: how a story is told, told again, and copied with small changes."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ottla.examples.news.subjects_country import COUNTRY
from ottla.examples.news.subjects_town import TOWN
from ottla.examples.news.vocabulary import (
    BULLETIN,
    BULLETIN_HEADLINES,
    BULLETIN_WORDS,
    COMMON,
    CREDITS,
    FIRST_NAMES,
    GENERAL_SENTENCES,
    PLACES,
    SURNAMES,
    SYNONYMS,
    Subject,
    Theme,
)

SUBJECTS: tuple[Subject, ...] = COUNTRY + TOWN

_WORD = re.compile(r"[A-Za-z]+")
_A_BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=[aeiou])")
_AFTER_STOP = re.compile(r"(^|[.!?] )([a-z])")


@dataclass(frozen=True)
class Draft:
    """An article as its author would hand it in: a headline and sentences."""

    title: str
    sentences: tuple[str, ...]


class _Slots(dict[str, str]):
    """Fills a template: facts as they are, everything else drawn from the lists."""

    def __init__(
        self, rng: random.Random, words: Mapping[str, Sequence[str]], facts: Mapping[str, str]
    ) -> None:
        super().__init__(facts)
        self.rng = rng
        self.words = words

    def __missing__(self, name: str) -> str:
        choices = self.words.get(name) or COMMON[name]
        return self.rng.choice(choices).format_map(self)


def facts_of(rng: random.Random, subject: Subject) -> dict[str, str]:
    """Who, where and what a story is about."""
    surname = rng.choice(SURNAMES)
    facts = {
        "Who": f"{rng.choice(FIRST_NAMES)} {surname}",
        "Surname": surname,
        "Role": rng.choice(subject.roles),
        "Place": rng.choice(PLACES),
        "Body": rng.choice(subject.bodies),
    }
    facts["Thing"] = rng.choice(subject.things).format_map(_Slots(rng, subject.words, facts))
    return facts


def write(
    rng: random.Random, subject: Subject, facts: Mapping[str, str], length: int, theme: Theme | None = None
) -> Draft:
    """A new article of `length` sentences about the facts; with a theme, one about that."""
    slots = _Slots(rng, subject.words, facts)
    headline = rng.choice(theme.headlines if theme else subject.headlines)
    pool = list(subject.sentences) + list(GENERAL_SENTENCES)
    rng.shuffle(pool)
    if theme:
        themed = rng.sample(theme.sentences, k=min(2, len(theme.sentences)))
        pool = [themed[0], *pool[: length - 2], *themed[1:]]
    return Draft(_polish(headline, slots), tuple(_polish(template, slots) for template in pool[:length]))


def follow_up(rng: random.Random, subject: Subject, facts: Mapping[str, str], first: Draft) -> Draft:
    """The next day: another text on the same facts that repeats a sentence or two as background."""
    fresh = write(rng, subject, facts, rng.randint(7, 10))
    background = rng.sample(first.sentences, k=rng.randint(1, 2))
    return Draft(fresh.title, (*fresh.sentences, *background))


def bulletin(rng: random.Random, place: str) -> Draft:
    """The weather: always the same text, never the same values."""
    slots = _Slots(rng, BULLETIN_WORDS, {"Place": place})
    sentences = tuple(_polish(template, slots) for template in BULLETIN)
    return Draft(_polish(rng.choice(BULLETIN_HEADLINES), slots), sentences)


def syndicated(rng: random.Random, draft: Draft, suffix: str) -> Draft:
    """The same article as another outlet prints it: edited headline, some words changed, perhaps cut."""
    strength = rng.choice((0.0, 0.15, 0.3, 0.5))
    sentences = [_reworded(rng, sentence, strength) for sentence in draft.sentences]
    if rng.random() < 0.45:
        sentences = sentences[: max(4, round(len(sentences) * rng.uniform(0.6, 0.95)))]
    if rng.random() < 0.5:
        sentences.append(rng.choice(CREDITS).format(Place=rng.choice(PLACES)))
    if len(sentences) > 4 and rng.random() < 0.15:
        at = rng.randrange(1, len(sentences) - 1)
        sentences[at], sentences[at + 1] = sentences[at + 1], sentences[at]
    return Draft(_edited_title(rng, draft.title) + suffix, tuple(sentences))


def _edited_title(rng: random.Random, title: str) -> str:
    match rng.randrange(6):
        case 0:
            return f"UPDATE: {title}"
        case 1:
            return _reworded(rng, title, 0.8)
        case 2 if ", " in title:
            return title.split(", ")[0]
        case 3:
            return f"{title} (with pictures)"
        case 4:
            return title.upper()
        case _:
            return title


def _reworded(rng: random.Random, sentence: str, strength: float) -> str:
    def swap(match: re.Match[str]) -> str:
        word = match[0]
        other = SYNONYMS.get(word.lower())
        if other is None or rng.random() >= strength:
            return word
        return other.capitalize() if word[0].isupper() else other

    return _WORD.sub(swap, sentence)


def _polish(template: str, slots: _Slots) -> str:
    """Fill in, mend the article before a vowel, and write a capital where a sentence begins."""
    text = template.format_map(slots)
    text = _A_BEFORE_VOWEL.sub(r"\1n ", text)
    text = text[0].upper() + text[1:]
    return _AFTER_STOP.sub(lambda match: match[1] + match[2].upper(), text)
