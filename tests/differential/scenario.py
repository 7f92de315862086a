"""What a scenario is: a script that both peers run, and the names of the answers that it gathers.

A scenario is a generator function. It gets a peer and a version, sends what it likes and yields pairs of a
name and an answer. `@scenario(XRequest)` runs it once for every version of that API in the table;
`@scenario()` runs it once.

    @scenario(MetadataRequest)
    def an_unknown_topic(peer: Peer, version: int) -> Answers:
        yield "by name", peer.call(MetadataRequest(topics=[MetadataRequestTopic(name="nobody")]), version)

The scenarios stand in tests/differential/scenarios, one file per family of APIs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from differential.peer import Peer
from ottla.protocol.apis import APIS

Answers = Iterator[tuple[str, Any]]
Script = Callable[[Peer, int], Answers]


@dataclass(frozen=True)
class Scenario:
    """A script with its name and the versions that it runs in."""

    name: str
    script: Script
    versions: tuple[int, ...]


SCENARIOS: dict[str, Scenario] = {}

SPOKEN = (
    *(0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29),
    *(30, 31, 32, 33, 35, 37, 42, 43, 44, 45, 46, 47, 55, 57, 60, 61, 64, 65, 66, 68, 69, 74, 75),
)
"""The keys of the APIs that are compared; what else a broker speaks is its own affair."""


def versions_of(request: type, first: int = 0) -> tuple[int, ...]:
    """Every version of an API that Kafka 4.3 speaks, from `first` on."""
    api = APIS[request.api_key]  # type: ignore[attr-defined]
    return tuple(range(max(first, api.min_version), api.max_version + 1))


def scenario(request: type | None = None, *, first: int = 0) -> Callable[[Script], Script]:
    """Register a script; with a request class it runs in each version of that API, else once."""

    def register(script: Script) -> Script:
        family = script.__module__.rsplit(".", 1)[-1]
        name = f"{family}.{script.__name__}"
        if name in SCENARIOS:
            raise ValueError(f"two scenarios are named {name}")
        SCENARIOS[name] = Scenario(name, script, versions_of(request, first) if request else (0,))
        return script

    return register
