"""Each client's program is run once for all its checks."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for bench, which resolves jars

from bench.peers.maven import PeerMissing

from clients.programs import Program

Results = dict[str, dict[str, Any]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """On a single broker, and on three with three replicas of each topic."""
    if "bootstrap" in metafunc.fixturenames and not metafunc.config.getoption("--bootstrap"):
        places = [pytest.param(1, id="1-broker"), pytest.param(3, id="3-brokers")]
        metafunc.parametrize("bootstrap", places, indirect=True, scope="session")


@pytest.fixture(scope="session")
def results(bootstrap: str) -> Callable[[Program], Results]:
    """The checks of a program, from one run of it against the broker of these tests."""
    kept: dict[str, Results | PeerMissing] = {}

    def run(program: Program) -> Results:
        if program.name not in kept:
            try:
                kept[program.name] = program.run(bootstrap, f"{program.name}-{uuid.uuid4().hex[:6]}")
            except PeerMissing as missing:
                kept[program.name] = missing
        found = kept[program.name]
        if isinstance(found, PeerMissing):
            pytest.skip(str(found))
        return found

    return run
