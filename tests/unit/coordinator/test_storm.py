"""A storm: many members that come and go, and many groups at once. Nothing is owned twice, and it ends.

Meanwhile others write and read small records: `SLOWDOWN` times as long as at a quiet broker is what the
slowest hundredth of their requests may take (or `AT_LEAST_MS`, as quiet can be very quiet). A thousand
members that come in the same moment keep the broker's one thread busy for a second or two; then it may be
`BURST_MS`, since they wait in request scheduler.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla.testing
from broker_process import BrokerProcess
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol_client.wire import Wire
from unit.coordinator.storm import SETTINGS, TOPIC, Probe, ready

BESIDE = "beside"
SLOWDOWN = 20
AT_LEAST_MS = 100.0
BURST_MS = 200.0
"""Seen: 21 to 48 ms, the more the busier the machine; Apache Kafka 4.3.1 here: 30 to 40 ms."""

PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


async def _storm(
    bootstrap: str,
    protocol: str,
    *,
    partitions: int,
    members: int,
    seconds: float,
    silently: float = 0,
    within: float,
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    storm = await ready(bootstrap, protocol, partitions)
    try:
        stayed = await storm.churn("g", members, seconds, silently, random.Random(seed))
        took = await storm.settle({"g": stayed}, within)
        print(f"{protocol}: {members} members, stable {took:.2f} s after the storm")
        assert storm.owners.changes > members
    finally:
        await storm.end_all()


async def _many_groups(bootstrap: str, protocol: str, *, partitions: int, groups: int, within: float) -> None:
    """All form at the same time, then a member of each leaves, and its partitions go to the other."""
    storm = await ready(bootstrap, protocol, partitions)
    try:
        both = {f"g-{n}": [storm.start(f"g-{n}"), storm.start(f"g-{n}")] for n in range(groups)}
        took = await storm.settle(both, within)
        print(f"{protocol}: {groups} groups formed in {took:.2f} s")
        await asyncio.gather(*(storm.end(first) for first, _ in both.values()))
        took = await storm.settle({group: [second] for group, (_, second) in both.items()}, within)
        print(f"{protocol}: {groups} groups lost a member and went on within {took:.2f} s")
    finally:
        await storm.end_all()


@PROTOCOLS
def test_members_that_come_and_go_never_share_a_partition_and_settle(protocol: str) -> None:
    with ottla.testing.broker(topics={TOPIC: 20}, settings=SETTINGS) as broker:
        asyncio.run(
            _storm(
                broker.bootstrap_servers,
                protocol,
                partitions=20,
                members=30,
                seconds=3,
                within=30,
            )
        )


@PROTOCOLS
def test_many_groups_form_at_once_without_disturbing_each_other(protocol: str) -> None:
    with ottla.testing.broker(topics={TOPIC: 4}, settings=SETTINGS) as broker:
        asyncio.run(_many_groups(broker.bootstrap_servers, protocol, partitions=4, groups=50, within=30))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, SETTINGS) as broker:
        yield broker


@pytest.fixture
def watched(request: pytest.FixtureRequest, process: BrokerProcess) -> Iterator[Probe]:
    """Another client of the broker, measured before and during the storm; judged at the end.

    The parameter is what its p99 may be in any case, in milliseconds.
    """
    with Wire(process.bootstrap_servers) as wire:
        new = [
            CreatableTopic(name=name, num_partitions=n, replication_factor=1) for name, n in TOPICS.items()
        ]
        answer = wire.call(CreateTopicsRequest(topics=new, timeout_ms=10_000))
        assert not any(topic.error_code for topic in answer.topics)
    probe = Probe(process.bootstrap_servers, BESIDE)
    try:
        probe.p99_since_last()
        time.sleep(3)  # of quiet, which is what is measured
        quiet = probe.p99_since_last()
        yield probe
        stormy = probe.p99_since_last()
        print(f"p99 of a small request: quiet {quiet:.2f} ms, in the storm {stormy:.2f} ms")
        assert stormy < max(SLOWDOWN * quiet, request.param)
    finally:
        probe.close()


TOPICS = {TOPIC: 100, BESIDE: 1}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("watched", [AT_LEAST_MS], indirect=True, ids=[""])
@PROTOCOLS
def test_two_hundred_members_come_and_go_for_a_minute_and_then_settle(
    process: BrokerProcess, protocol: str
) -> None:
    asyncio.run(
        _storm(
            process.bootstrap_servers,
            protocol,
            partitions=TOPICS[TOPIC],
            members=200,
            seconds=60,
            silently=0.05,
            within=60,
        )
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("watched", [BURST_MS], indirect=True, ids=[""])
@PROTOCOLS
def test_five_hundred_groups_form_at_once(process: BrokerProcess, protocol: str) -> None:
    asyncio.run(
        _many_groups(process.bootstrap_servers, protocol, partitions=TOPICS[TOPIC], groups=500, within=60)
    )
