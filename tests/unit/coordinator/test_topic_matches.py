"""Topics of expressions: matched once for each name, for all groups, however often the topics change."""

from __future__ import annotations

import pytest

from ottla.coordinator import regex_subscriptions
from ottla.coordinator.topic_matches import TopicMatches

MANY = {f"orders-{number}": None for number in range(2_000)}


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were matched against an expression."""
    names: list[str] = []
    real = regex_subscriptions.Expression.matches

    def noted(self: regex_subscriptions.Expression, name: str) -> bool:
        names.append(name)
        return real(self, name)

    monkeypatch.setattr(regex_subscriptions.Expression, "matches", noted)
    return names


def test_only_new_names_are_matched_when_the_topics_change(looked_at: list[str]) -> None:
    matches = TopicMatches()
    assert matches.matching("orders-1.*", MANY) == {name for name in MANY if name.startswith("orders-1")}
    assert len(looked_at) == len(MANY)
    looked_at.clear()
    for other in (MANY, dict(MANY)):
        matches.matching("orders-1.*", other)
    assert looked_at == [], "nothing came or went"
    more = {**MANY, "orders-1-new": None, "payments": None}
    del more["orders-10"]
    found = matches.matching("orders-1.*", more)
    assert sorted(looked_at) == ["orders-1-new", "payments"]
    assert found == {name for name in more if name.startswith("orders-1")}


def test_a_topic_that_is_deleted_and_made_again_matches_again() -> None:
    matches = TopicMatches()
    assert matches.matching("a.*", {"ab": None}) == {"ab"}
    assert matches.matching("a.*", {}) == frozenset()
    assert matches.matching("a.*", {"ab": None}) == {"ab"}


def test_internal_topics_are_not_matched() -> None:
    assert TopicMatches().matching(".*", {"__consumer_offsets": None, "__mine": None}) == {"__mine"}


@pytest.mark.parametrize(
    "expression", ["orders-.*5", "(" + "|".join(f"orders-{n}" for n in range(200)) + ")"]
)
def test_matches_prepared_in_slices_are_not_computed_again(expression: str, looked_at: list[str]) -> None:
    matches = TopicMatches()
    pauses = sum(1 for _ in matches.prepare([expression, "(no expression"], MANY))
    assert pauses >= len(MANY) // 50
    looked_at.clear()
    found = matches.matching(expression, MANY)
    assert looked_at == []
    assert found == TopicMatches().matching(expression, MANY)


def test_the_number_of_kept_results_is_bounded() -> None:
    matches = TopicMatches(max_kept=3 * len(MANY))
    for number in range(10):
        matches.matching(f"orders-.*|{number}", MANY)
    assert len(matches._answers) == 3
    assert matches._kept == 3 * len(MANY)
