"""Runs each conformance test once per client, and hands out topics of its own to every test.

Tests that take `bootstrap` run on a single broker and on a cluster of three. There only those with
`@pytest.mark.cluster` are part of the quick suite; the others are slow. The tests of the cluster share it, so
they are one group for xdist.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from conformance.clients import CLIENTS, ConfluentClient
from conformance.clients.confluent import await_topic


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`client` and `reader` run over all clients that have every feature of `@pytest.mark.needs(...)`.

    `codec` next to `client` runs over the codecs which that client has."""
    needs = {name for mark in metafunc.definition.iter_markers("needs") for name in mark.args}
    able = [cls for cls in CLIENTS if needs <= cls.features]
    assert able, f"no client has {needs}"
    for argument in ("client", "reader"):
        if argument in metafunc.fixturenames:
            clients = CLIENTS if argument == "reader" else able
            metafunc.parametrize(argument, clients, ids=lambda cls: cls.name, indirect=True)
    if "bootstrap" in metafunc.fixturenames and not metafunc.config.getoption("--bootstrap"):
        marks = [pytest.mark.xdist_group("cluster")]
        if not any(metafunc.definition.iter_markers("cluster")):
            marks.append(pytest.mark.slow)
        places = [pytest.param(1, id="1-broker"), pytest.param(3, id="3-brokers", marks=marks)]
        metafunc.parametrize("bootstrap", places, indirect=True, scope="session")


@pytest.fixture
def client(request: pytest.FixtureRequest, bootstrap: str) -> Any:
    return request.param(bootstrap)


@pytest.fixture
def reader(request: pytest.FixtureRequest, bootstrap: str) -> Any:
    return request.param(bootstrap)


@pytest.fixture
def replicas(bootstrap: str) -> int:
    """How many replicas a topic has that does not say: one on each broker, up to three."""
    return min(3, len(ConfluentClient(bootstrap).cluster().brokers))


@pytest.fixture
def name() -> str:
    """A topic name that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def make_topic(bootstrap: str) -> Callable[..., str]:
    """Creates a topic with a name of its own and returns the name once all partitions have a leader."""
    setup = ConfluentClient(bootstrap)

    def make(partitions: int = 1, config: Mapping[str, str] = {}) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        setup.create_topic(name, partitions, config=config)
        await_topic(bootstrap, name, partitions)
        return name

    return make


@pytest.fixture
def topic(make_topic: Callable[..., str]) -> str:
    return make_topic()
