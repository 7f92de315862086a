"""The clients against real brokers: Ottla in the test's process, and Apache Kafka in the slow suite."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import ottla.testing
from client.reading import PATIENCE, read_topic
from postgresql_server import postgresql, programs

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for bench, which carries Apache Kafka

KAFKA = pytest.param("kafka", marks=[pytest.mark.slow, pytest.mark.xdist_group("kafka")])


SESSION_TIMEOUT = "group.min.session.timeout.ms"


@pytest.fixture(scope="session", params=["ottla", KAFKA])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a broker that creates topics when they are first used, as is the default."""
    given = request.config.getoption("--bootstrap")
    if given:
        yield given
    elif request.param == "ottla":
        with ottla.testing.broker(
            settings={"group.initial.rebalance.delay.ms": 0, SESSION_TIMEOUT: 100}
        ) as broker:
            yield broker.bootstrap_servers
    else:
        from bench.peers.kafka import kafka_peer

        with kafka_peer({SESSION_TIMEOUT: "100"}) as peer:
            yield peer.bootstrap


@pytest.fixture
def poll_limit(request: pytest.FixtureRequest) -> dict[str, int]:
    """The configuration of a member that must poll every two seconds, or what a broker's defaults allow."""
    limit = 6_000 if request.config.getoption("--bootstrap") else 2_000
    return {"max.poll.interval.ms": limit, "session.timeout.ms": limit, "heartbeat.interval.ms": 300}


@pytest.fixture
def make_topic(servers: str) -> Callable[[int], str]:
    """Creates a topic with so many partitions, of a name that no other test has."""

    def make(partitions: int) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(PATIENCE)
        return name

    return make


@pytest.fixture
def topic(make_topic: Callable[[int], str]) -> str:
    """A topic with three partitions."""
    return make_topic(3)


@pytest.fixture
def read_all(servers: str) -> Callable[[str], list[Message]]:
    """Reads all committed records of a topic with confluent-kafka, in order of partitions and offsets."""

    def read(topic: str, isolation: str = "read_committed", bootstrap: str = servers) -> list[Message]:
        return read_topic(bootstrap, topic, isolation)

    return read


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """A PostgreSQL of the session, as what `psycopg.connect` takes."""
    if programs() is None:
        pytest.skip("PostgreSQL is missing (Debian: apt-get install postgresql)")
    with postgresql() as connection:
        yield connection
