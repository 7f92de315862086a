"""What all tests share: which broker they talk to.

Tests that state a client's promise take the fixture `bootstrap`. It is an Ottla broker inside the test's own
process, one per worker, unless `--bootstrap HOST:PORT` (or OTTLA_TEST_BOOTSTRAP) names a running Kafka: the
same tests pass against Apache Kafka, and running them there is how a doubt about a promise is settled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import ottla.testing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bootstrap",
        metavar="HOST:PORT",
        default=os.environ.get("OTTLA_TEST_BOOTSTRAP"),
        help="run the conformance tests against this Kafka instead of a broker of their own",
    )


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    given = request.config.getoption("--bootstrap")
    if given:
        yield given
        return
    # Groups do not wait for more members: the tests know who comes.
    with ottla.testing.broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker.bootstrap_servers
