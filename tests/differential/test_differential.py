"""Ottla answers as Apache Kafka 4.3.1 does, request by request, in every version of every API it speaks."""

from __future__ import annotations

import pytest

from differential import scenarios
from differential.compare import Sides, explained_by, listed_for, report, run
from differential.differences import DIFFERENCES
from differential.scenario import SCENARIOS, SPOKEN, Scenario
from ottla.broker.handlers import HANDLERS
from ottla.protocol.apis import FIRST_OWN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("differential")]

assert scenarios.__all__


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_both_brokers_give_the_same_answers(scenario: Scenario, sides: Sides) -> None:
    findings = run(scenario, sides)
    explained = [explained_by(scenario, finding) for finding in findings]
    unexplained = [f for f, difference in zip(findings, explained, strict=True) if difference is None]
    assert not unexplained, "\n" + report(scenario, unexplained)
    stale = [difference for difference in listed_for(scenario) if difference not in explained]
    assert not stale, f"listed as different, but no longer so: {stale}"


def test_listed_differences_name_scenarios_that_exist() -> None:
    for difference in DIFFERENCES:
        named = [difference.witness] if difference.witness else difference.scenarios
        assert set(named) <= set(SCENARIOS), difference


def test_every_api_that_the_broker_answers_is_compared() -> None:
    assert set(SPOKEN) == {key for key in HANDLERS if key < FIRST_OWN}
