"""Regular expressions of subscriptions match like those of Python, and none can block the broker."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator.re2_syntax import InvalidExpression
from ottla.coordinator.regex_subscriptions import compiled
from ottla.coordinator.topic_matches import TopicMatches

atoms = st.sampled_from(
    ["a", "b", "-", r"\.", ".", "[ab]", "[^a]", r"\d", r"\w", "[a-c1]", r"\b", "^", "$", "(?i:A)"]
)


def _compose(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeated = st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"]))
    return st.one_of(
        st.lists(inner, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map("|".join).map("({})".format),
        repeated.map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


expressions = st.recursive(atoms, _compose, max_leaves=12)


@given(expressions, st.lists(st.text("ab-.1A", max_size=8), max_size=8))
def test_expressions_match_like_pythons_re(expression: str, names: list[str]) -> None:
    mine = compiled(expression)
    theirs = re.compile(expression, re.ASCII)
    for name in names:
        assert mine.matches(name) == (theirs.fullmatch(name) is not None), (expression, name)


@given(st.text(r"ab\()[]{}*+?|^$.-,012dwpQEPN:<>im", max_size=20), st.text("ab-", max_size=5))
def test_any_text_is_compiled_or_refused(expression: str, name: str) -> None:
    try:
        compiled(expression).matches(name)
    except InvalidExpression as error:
        assert str(error)


@pytest.mark.parametrize(
    "expression",
    ["(a*)*b", "(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*.*)*.*b", "((a?){20}){20}b", "(.?){400}", "a{0,900}b"],
)
def test_matching_time_is_bounded_for_any_expression(expression: str) -> None:
    began = time.perf_counter()
    compiled(expression).matches("a" * 249)
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(?=a)", "invalid or unsupported Perl syntax"),
        (r"(a)\1", "invalid escape sequence"),
        ("a{1001}", "invalid repeat count"),
        ("((a{100}){100}){100}", "expression too large"),
        ("(" * 500 + ")" * 500, "expression nests too deeply"),
        ("a" * 20_000, "expression too long"),
        ("(", r"missing closing \)"),
        ("[", "missing closing ]"),
        ("*", "missing argument to repetition operator"),
        (r"\p{Klingon}", "invalid character class range"),
    ],
)
def test_expensive_and_invalid_expressions_are_refused(expression: str, reason: str) -> None:
    with pytest.raises(InvalidExpression, match=reason):
        compiled(expression)


def test_an_expression_must_match_the_whole_topic_name() -> None:
    topics = ["orders", "orders-eu", "my-orders"]
    assert TopicMatches().matching("orders.*", dict.fromkeys(topics)) == {"orders", "orders-eu"}
    assert TopicMatches().matching(r"\Qorders\E", dict.fromkeys(topics)) == {"orders"}
    assert TopicMatches().matching("(?i)ORDERS|my-.*", dict.fromkeys(topics)) == {"orders", "my-orders"}
    assert TopicMatches().matching(r"[[:alpha:]]+-\p{Ll}{2}", dict.fromkeys(topics)) == {"orders-eu"}
