"""Groups and their offsets as administrators see and change them, with the admin clients people use."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import kafka.admin
import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from conformance.clients.members import ConfluentMember

DEADLINE = 20.0


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def member(bootstrap: str, group: str, topic: str) -> Iterator[ConfluentMember]:
    """One member that owns the topic's only partition."""
    joined = ConfluentMember(bootstrap, group, [topic])
    deadline = time.monotonic() + DEADLINE
    while not joined.owned():
        assert time.monotonic() < deadline
        joined.poll(0.05)
    yield joined
    joined.close()


def commit(bootstrap: str, group: str, *offsets: TopicPartition) -> None:
    """As a simple consumer does, which is in no group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        committed = consumer.commit(offsets=list(offsets), asynchronous=False)
        assert committed is not None
        assert all(each.error is None for each in committed)
    finally:
        consumer.close()


def committed(admin: AdminClient, group: str) -> dict[tuple[str, int], tuple[int, str]]:
    asked = ConsumerGroupTopicPartitions(group)
    listed = admin.list_consumer_group_offsets([asked])[group].result(DEADLINE)
    return {
        (each.topic, each.partition): (each.offset, each.metadata or "") for each in listed.topic_partitions
    }


@pytest.mark.cluster
def test_groups_are_listed_with_state_and_type(
    admin: AdminClient, bootstrap: str, group: str, topic: str, member: ConfluentMember
) -> None:
    commit(bootstrap, f"{group}-simple", TopicPartition(topic, 0, 1))

    def listed(**filters: Any) -> dict[str, Any]:
        found = admin.list_consumer_groups(request_timeout=DEADLINE, **filters).result(DEADLINE)
        assert not found.errors
        return {each.group_id: each for each in found.valid if each.group_id.startswith(group)}

    assert {name: each.state for name, each in listed().items()} == {
        group: ConsumerGroupState.STABLE,
        f"{group}-simple": ConsumerGroupState.EMPTY,
    }
    assert listed()[group].type == ConsumerGroupType.CLASSIC
    assert not listed()[group].is_simple_consumer_group
    assert listed()[f"{group}-simple"].is_simple_consumer_group
    assert set(listed(states={ConsumerGroupState.STABLE})) == {group}
    assert set(listed(types={ConsumerGroupType.CONSUMER})) == set()


@pytest.mark.cluster
def test_a_group_is_described_with_its_members_and_what_they_own(
    admin: AdminClient, group: str, topic: str, member: ConfluentMember
) -> None:
    described = admin.describe_consumer_groups([group])[group].result(DEADLINE)
    assert (described.state, described.partition_assignor) == (ConsumerGroupState.STABLE, "range")
    (only,) = described.members
    assert (only.client_id, only.group_instance_id) == ("confluent", None)
    assert [(each.topic, each.partition) for each in only.assignment.topic_partitions] == [(topic, 0)]
    assert described.coordinator.port


@pytest.mark.cluster
def test_offsets_of_an_empty_group_can_be_read_changed_and_deleted(
    admin: AdminClient, bootstrap: str, group: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(2)
    commit(bootstrap, group, TopicPartition(topic, 0, 5, "a note"), TopicPartition(topic, 1, 7))
    assert committed(admin, group) == {(topic, 0): (5, "a note"), (topic, 1): (7, "")}
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 2)])
    altered = admin.alter_consumer_group_offsets([wanted])[group].result(DEADLINE)
    assert [each.error for each in altered.topic_partitions] == [None]
    assert committed(admin, group)[topic, 0][0] == 2
    with kafka_python(bootstrap) as other:
        outcome = other.delete_group_offsets(group, [kafka.TopicPartition(topic, 0)])
    assert outcome
    assert set(committed(admin, group)) == {(topic, 1)}


def kafka_python(bootstrap: str) -> Any:
    return closing(kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap))


def test_offsets_of_a_subscribed_topic_cannot_be_changed_by_an_administrator(
    admin: AdminClient, group: str, topic: str, member: ConfluentMember
) -> None:
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 2)])
    with pytest.raises(KafkaException) as refused:
        altered = admin.alter_consumer_group_offsets([wanted])[group].result(DEADLINE)
        for each in altered.topic_partitions:
            if each.error is not None:
                raise KafkaException(each.error)
    assert refused.value.args[0].name() == "UNKNOWN_MEMBER_ID"


@pytest.mark.cluster
def test_only_groups_without_members_can_be_deleted(
    admin: AdminClient, bootstrap: str, group: str, topic: str, member: ConfluentMember
) -> None:
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([group])[group].result(DEADLINE)
    assert refused.value.args[0].name() == "NON_EMPTY_GROUP"
    commit(bootstrap, f"{group}-2", TopicPartition(topic, 0, 1))
    admin.delete_consumer_groups([f"{group}-2"])[f"{group}-2"].result(DEADLINE)
    assert committed(admin, f"{group}-2") == {}
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([f"{group}-2"])[f"{group}-2"].result(DEADLINE)
    assert refused.value.args[0].name() == "GROUP_ID_NOT_FOUND"


def test_offsets_of_a_deleted_topic_are_deleted(
    admin: AdminClient, bootstrap: str, group: str, make_topic: Callable[..., str]
) -> None:
    deleted, kept = make_topic(), make_topic()
    commit(bootstrap, group, TopicPartition(deleted, 0, 5), TopicPartition(kept, 0, 6))
    admin.delete_topics([deleted])[deleted].result(DEADLINE)
    deadline = time.monotonic() + DEADLINE
    while set(committed(admin, group)) != {(kept, 0)}:
        assert time.monotonic() < deadline, committed(admin, group)


def test_the_offsets_topic_is_internal_and_refuses_records_of_clients(
    admin: AdminClient, bootstrap: str, group: str, topic: str
) -> None:
    commit(bootstrap, group, TopicPartition(topic, 0, 1))
    assert "__consumer_offsets" in admin.list_topics(timeout=DEADLINE).topics
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("__consumer_offsets", b"v", b"k", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE) == 0
    assert [error.name() for error in errors] == ["TOPIC_EXCEPTION"]


def test_kafka_python_sees_the_same_groups(
    bootstrap: str, group: str, topic: str, member: ConfluentMember
) -> None:
    with kafka_python(bootstrap) as other:
        assert group in str(other.list_groups())
        described = str(other.describe_groups([group]))
    assert "Stable" in described
    assert topic in described
