"""The simulated network of the tests of the peer client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unit.peer.scripted_peer import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.loop.discard()
    assert world.loop.defects == []
