"""The text functions of the news example: they get over what feeds do to text, and never fail."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.examples.news import text

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
words = st.lists(
    st.sampled_from(["goose", "mayor", "pond", "ferry", "brass", "tuba", "moth", "comet", "spoon"]),
    max_size=60,
)


@pytest.mark.parametrize(
    ("markup", "wanted"),
    [
        ("<p>A goose</p>\n<p>was seen</p>", "A goose was seen"),
        ("A&nbsp;goose &amp; a moth &raquo;", "A goose & a moth »"),
        ("<b>Bold<br>unclosed <font color=red>soup", "Bold unclosed soup"),
        ("before<script>if (a < b) { steal() }</script>after", "before after"),
        ("text <script>never closed", "text"),
        ("<!-- hidden <b>words</b> -->shown", "shown"),
        ("kept <!-- to the end", "kept"),
        ("&lt;p&gt;escaped&lt;/p&gt; once", "escaped once"),
        ("&amp;lt;p&amp;gt;escaped&amp;lt;/p&amp;gt; twice", "escaped twice"),
        ("ChloÃ© said â€” no", "Chloé said — no"),
        ("Chloé said — no", "Chloé said — no"),
        ("5 < 6 and 7 > 3", "5 < 6 and 7 > 3"),
        ("a picture <img src='x.gif' width=1", "a picture"),
        ("", ""),
        (None, ""),
    ],
)
def test_markup_becomes_text(markup: str | None, wanted: str) -> None:
    assert text.clean(markup) == wanted


@given(st.text())
def test_any_text_can_be_cleaned(markup: str) -> None:
    cleaned = text.clean(markup)
    assert cleaned == " ".join(cleaned.split())


@given(words)
def test_plain_words_stay_as_they_are(some: list[str]) -> None:
    assert text.clean(" ".join(some)) == " ".join(some)


@pytest.mark.parametrize(
    ("published", "wanted"),
    [
        ("Mon, 02 Mar 2026 09:30:00 +0000", datetime(2026, 3, 2, 9, 30, tzinfo=UTC)),
        ("Mon, 02 Mar 2026 09:30:00 +0200", datetime(2026, 3, 2, 7, 30, tzinfo=UTC)),
        ("2026-03-02T09:30:00Z", datetime(2026, 3, 2, 9, 30, tzinfo=UTC)),
        ("2026-03-02T09:30:00+02:00", datetime(2026, 3, 2, 7, 30, tzinfo=UTC)),
        ("2026-03-02", datetime(2026, 3, 2, tzinfo=UTC)),
        ("the day before yesterday", NOON),
        ("31.02.2026, 25:61", NOON),
        ("Tue, 03 Mar 2062 09:30:00 +0000", NOON),
        ("Thu, 01 Jan 1970 00:00:00 +0000", NOON),
        ("0001-01-01T00:00:00+14:00", NOON),
        ("", NOON),
        (None, NOON),
    ],
)
def test_an_impossible_date_is_replaced_by_the_time_of_fetching(
    published: str | None, wanted: datetime
) -> None:
    assert text.when(published, NOON) == wanted


@given(st.text())
def test_any_date_is_between_the_first_feeds_and_now(published: str) -> None:
    assert datetime(1995, 1, 1, tzinfo=UTC) <= text.when(published, NOON) <= NOON


@pytest.mark.parametrize(
    ("link", "wanted"),
    [
        ("https://Post.example/a?utm_source=rss&utm_medium=feed", "https://post.example/a"),
        ("https://post.example/a?id=7&utm_source=rss#top", "https://post.example/a?id=7"),
        (" https://post.example/a ", "https://post.example/a"),
        ("javascript:alert(1)", ""),
        ("https://[broken/a", ""),
        ("tag:post.example,2026:7", ""),
        (None, ""),
    ],
)
def test_an_address_has_no_trackers(link: str | None, wanted: str) -> None:
    assert text.address(link) == wanted


def test_a_headline_loses_the_name_of_its_outlet_and_no_other_ending() -> None:
    assert text.headline("Goose elected | The Daily Ladder", "The Daily Ladder") == "Goose elected"
    assert text.headline("Rovers - Athletic", "The Daily Ladder") == "Rovers - Athletic"


def test_terms_are_the_content_words_of_title_and_beginning() -> None:
    found = text.terms("The Goose and the Mayor", "A goose of 44 kilos, it's said, met the o'clock mayor.")
    assert found == ["goose", "mayor", "kilos", "it's", "met", "o'clock"]


@given(words, words)
def test_likeness_is_symmetric_and_one_for_the_same_text(one: list[str], other: list[str]) -> None:
    first, second = text.sketch(one), text.sketch(other)
    assert text.likeness(first, second) == text.likeness(second, first)
    assert 0.0 <= text.likeness(first, second) <= 1.0
    assert text.likeness(first, first) == (1.0 if len(one) >= text.RUN else 0.0)


def test_likeness_estimates_the_share_of_text_in_common() -> None:
    long = [f"word{n}" for n in range(400)]
    half = [*long[:200], *(f"other{n}" for n in range(200))]
    estimated = text.likeness(text.sketch(long), text.sketch(half))
    assert estimated == pytest.approx(1 / 3, abs=0.15)
    assert text.likeness(text.sketch(long), text.sketch([f"new{n}" for n in range(400)])) < 0.05


def test_a_profile_weighs_terms_by_the_share_of_articles_with_them() -> None:
    assert text.profile([["goose", "pond"], ["goose"]], limit=1) == [("goose", 1.0)]
    assert text.profile([["b", "a"], ["c"]]) == [("a", 0.5), ("b", 0.5), ("c", 0.5)]
    assert text.profile([]) == []
