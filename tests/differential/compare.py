"""Run a scenario on both brokers and tell what differs, answer by answer and field by field."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from differential.differences import DIFFERENCES, Difference
from differential.normalise import differences, normalise
from differential.peer import Peer
from differential.scenario import Scenario

Named = list[tuple[str, Any]]


@dataclass(frozen=True)
class Sides:
    """Where the two brokers are, and what makes this run's topic names its own."""

    theirs: str
    ours: str
    run: str
    now: int


class Finding(NamedTuple):
    """One field of one answer that is not the same."""

    version: int
    answer: str
    path: str
    theirs: Any
    ours: Any


def run(scenario: Scenario, sides: Sides) -> list[Finding]:
    """Everything that differs, over all versions of the scenario."""
    with ThreadPoolExecutor(2) as pool:
        return [
            finding
            for version in scenario.versions
            for finding in _run_version(scenario, version, sides, pool)
        ]


def _run_version(
    scenario: Scenario, version: int, sides: Sides, pool: ThreadPoolExecutor
) -> Iterable[Finding]:
    theirs = pool.submit(_answers, scenario, version, "Kafka", sides.theirs, sides)
    ours = pool.submit(_answers, scenario, version, "Ottla", sides.ours, sides)
    for (name, their_answer), (our_name, our_answer) in _pairs(theirs.result(), ours.result()):
        if name != our_name:
            yield Finding(version, name, "<which answer this is>", name, our_name)
            continue
        for path, our_value, their_value in differences(our_answer, their_answer):
            yield Finding(version, name, path, their_value, our_value)


def _answers(scenario: Scenario, version: int, broker: str, address: str, sides: Sides) -> Named:
    """What one broker answers, normalised. A script that fails is an answer too: it ends the list."""
    host, port = address.rsplit(":", 1)
    name = scenario.name.replace("_", "-")[:70]
    peer = Peer(broker, host, int(port), f"{name}-v{version}-{sides.run}{broker[0].lower()}", sides.now)
    answers: Named = []
    try:
        for label, answer in scenario.script(peer, version):
            answers.append((normalise(label, peer), normalise(answer, peer)))
    except Exception as failure:  # noqa: BLE001 - whatever a peer does to a script says something about it
        last = f"after {answers[-1][0]!r}" if answers else "at the start"
        answers.append((f"{broker} failed {last}", f"{type(failure).__name__}: {failure}"))
    finally:
        peer.close()
    return answers


def _pairs(theirs: Named, ours: Named) -> Iterable[tuple[tuple[str, Any], tuple[str, Any]]]:
    nothing = ("<no answer>", None)
    for i in range(max(len(theirs), len(ours))):
        yield (theirs[i] if i < len(theirs) else nothing, ours[i] if i < len(ours) else nothing)


def explained_by(scenario: Scenario, finding: Finding) -> Difference | None:
    """The listed difference that this finding is an instance of."""
    for difference in DIFFERENCES:
        if difference.covers(scenario.name, finding.answer, finding.path, finding.theirs, finding.ours):
            return difference
    return None


def listed_for(scenario: Scenario) -> list[Difference]:
    """The differences that a run of this scenario must show."""
    return [difference for difference in DIFFERENCES if difference.must_occur_in(scenario.name)]


def report(scenario: Scenario, findings: Iterable[Finding]) -> str:
    """The findings for a person, equal ones of several versions in one paragraph."""
    versions: dict[tuple[str, str, str, str], list[int]] = {}
    for finding in findings:
        key = (finding.answer, finding.path, repr(finding.theirs), repr(finding.ours))
        versions.setdefault(key, []).append(finding.version)
    return "\n".join(
        f"{scenario.name} version {_ranges(found)}, {answer!r}: {path}\n"
        f"    Kafka: {_short(theirs)}\n    Ottla: {_short(ours)}"
        for (answer, path, theirs, ours), found in versions.items()
    )


def _ranges(versions: list[int]) -> str:
    return (
        str(versions[0]) if len(versions) == 1 else f"{versions[0]}-{versions[-1]} ({len(versions)} of them)"
    )


def _short(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
