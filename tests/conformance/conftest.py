"""Runs each conformance test once per client, and hands out topics of its own to every test."""

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


@pytest.fixture
def client(request: pytest.FixtureRequest, bootstrap: str) -> Any:
    return request.param(bootstrap)


@pytest.fixture
def reader(request: pytest.FixtureRequest, bootstrap: str) -> Any:
    return request.param(bootstrap)


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
