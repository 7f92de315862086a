"""The admin client against real brokers."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer

import ottla
from ottla.client import (
    AsyncAdmin,
    ClientError,
    ClosedError,
    NewTopic,
    TimedOutError,
    TopicPartition,
    UnknownTopicError,
)


@pytest.fixture
def admin(servers: str) -> Iterator[ottla.Admin]:
    with ottla.Admin(servers) as admin:
        yield admin


def until(true: Callable[[], bool]) -> None:
    """Kafka's brokers apply a configuration a moment after the controller has answered."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline


@pytest.fixture
def name() -> str:
    return f"a-{uuid.uuid4().hex[:12]}"


def test_topics_are_created_described_grown_and_deleted(admin: ottla.Admin, name: str) -> None:
    admin.create_topic(name, partitions=2, replication_factor=1, config={"retention.ms": 3_600_000})
    assert name in admin.list_topics()
    described = admin.describe_topics(name)[name]
    broker = admin.describe_cluster().brokers[0]
    assert [each.partition for each in described.partitions] == [0, 1]
    assert {(each.leader, each.replicas, each.in_sync) for each in described.partitions} == {
        (broker.id, (broker.id,), (broker.id,))
    }
    assert not described.internal
    assert len(described.id) == 22
    admin.add_partitions(name, 5)
    assert len(admin.describe_topics(name)[name].partitions) == 5
    admin.delete_topics(name)
    with pytest.raises(UnknownTopicError, match=f"cannot describe the topic '{name}'"):
        admin.describe_topics(name)


def test_a_topic_that_is_there_is_an_error_unless_that_is_fine(admin: ottla.Admin, name: str) -> None:
    admin.create_topics(name)
    with pytest.raises(ClientError, match=f"cannot create the topic '{name}'") as caught:
        admin.create_topics(name)
    assert caught.value.name == "TOPIC_ALREADY_EXISTS"
    other = NewTopic(f"{name}-2", 1)
    admin.create_topics(name, other, exist_ok=True)
    assert {name, other.name} <= set(admin.list_topics())
    admin.create_topics(f"{name}-3", validate_only=True)
    assert f"{name}-3" not in admin.list_topics()


def test_an_error_of_one_topic_does_not_stop_the_others(admin: ottla.Admin, name: str) -> None:
    with pytest.raises(ClientError, match="no such name"):
        admin.create_topics("no such name", name)
    assert name in admin.list_topics()


def test_configurations_are_read_changed_and_taken_back(admin: ottla.Admin, name: str) -> None:
    admin.create_topic(name, config={"cleanup.policy": "compact"})
    assert admin.topic_config(name)["cleanup.policy"].value == "compact"
    admin.alter_topic_config(name, {"retention.ms": 1_000, "cleanup.policy": None})
    until(lambda: admin.topic_config(name)["retention.ms"].value == "1000")
    found = admin.topic_config(name)
    assert not found["retention.ms"].default
    assert (found["cleanup.policy"].value, found["cleanup.policy"].default) == ("delete", True)
    with pytest.raises(ClientError, match="cannot change the configuration"):
        admin.alter_topic_config(name, {"retention.ms": "often"})
    broker = admin.describe_cluster().brokers[0].id
    value = admin.broker_config(broker)["log.cleaner.threads"]
    assert (value.read_only, value.sensitive) == (False, False)
    admin.alter_broker_config(broker, {"message.max.bytes": 2_000_000})
    until(lambda: admin.broker_config(broker)["message.max.bytes"].value == "2000000")
    admin.alter_broker_config(broker, {"message.max.bytes": None})


def test_groups_have_members_offsets_and_lag(admin: ottla.Admin, servers: str, topic: str, name: str) -> None:
    with ottla.Producer(servers) as producer:
        for number in range(10):
            producer.send(topic, b"x", partition=0, timestamp=1_000 * (number + 1))
    consumer = Consumer({"bootstrap.servers": servers, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = None
    for _ in range(4):
        message = consumer.poll(60)
    assert message is not None
    assert message.offset() == 3
    consumer.commit(message=message, asynchronous=False)
    described = admin.describe_groups(name)[name]
    [member] = described.members
    assert member.assignment == tuple(TopicPartition(topic, n) for n in range(3))
    assert (described.state, described.type, member.client_id) == ("stable", "classic", "rdkafka")
    first = TopicPartition(topic, 0)
    assert admin.group_offsets(name) == {first: 4}
    assert admin.group_lag(name) == {first: 6}
    with pytest.raises(ClientError, match="cannot delete the group"):
        admin.delete_groups(name)
    consumer.close()
    admin.alter_group_offsets(name, {first: 9, TopicPartition(topic, 2): 0})
    assert admin.group_lag(name) == {first: 1, TopicPartition(topic, 2): 0}
    assert name in {group.id for group in admin.list_groups() if group.state == "empty"}
    admin.delete_groups(name)
    assert name not in {group.id for group in admin.list_groups()}


def test_offsets_by_end_and_time_and_records_that_are_deleted(
    admin: ottla.Admin, servers: str, make_topic: Callable[[int], str]
) -> None:
    topic = make_topic(2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with ottla.Producer(servers) as producer:
        for number in range(10):
            producer.send(topic, b"x", partition=0, timestamp=1_700_000_000_000 + number)
    assert admin.offsets(topic) == {first: 10, second: 0}
    assert admin.offsets(first, at=1_700_000_000_004) == {first: 4}
    assert admin.offsets(topic, at=1_800_000_000_000) == {first: 10, second: 0}
    assert admin.delete_records({first: 3}) == {first: 3}
    assert admin.offsets(topic, at="earliest") == {first: 3, second: 0}


def test_the_cluster_has_an_id_a_controller_and_brokers(admin: ottla.Admin, servers: str) -> None:
    cluster = admin.describe_cluster()
    assert cluster.id
    assert cluster.controller in {each.id for each in cluster.brokers}
    assert servers in {
        f"{each.host}:{each.port}".replace("localhost", "127.0.0.1") for each in cluster.brokers
    }


def test_the_same_calls_are_coroutines_too(servers: str, name: str) -> None:
    async def run() -> None:
        async with AsyncAdmin(servers) as admin:
            await admin.create_topic(name, 3)
            assert name in await admin.list_topics()
            described, cluster = await asyncio.gather(admin.describe_topics(name), admin.describe_cluster())
            assert len(described[name].partitions) == 3
            assert cluster.brokers
            assert (await admin.offsets(name))[TopicPartition(name, 2)] == 0

    asyncio.run(run())


def test_every_call_of_the_admin_has_a_coroutine() -> None:
    public = {name for name in vars(ottla.Admin) if not name.startswith("_")}
    assert public <= set(vars(AsyncAdmin))


def test_nobody_there_is_an_error_within_the_timeout() -> None:
    began = time.monotonic()
    with ottla.Admin("127.0.0.1:1", timeout=0.5) as admin:
        with pytest.raises(ClientError, match=r"check bootstrap_servers|allow more time"):
            admin.list_topics()
        with pytest.raises(TimedOutError):
            admin.create_topics("t")
    assert time.monotonic() - began < 30
    with pytest.raises(ClosedError):
        admin.list_topics()
