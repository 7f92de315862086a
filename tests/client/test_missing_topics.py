"""Topics that are created after a consumer asked for them, by name, by pattern and by partition."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import ottla
from client.consuming import PATIENCE, fill, group, read
from ottla.client import TopicPartition
from ottla.client.delivery import GroupProtocol

NO_REFRESH = {"topic.metadata.refresh.interval.ms": 600_000}
"""librdkafka does not find the topic by itself within the test."""


def create(servers: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(PATIENCE)


def missing() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_topic_created_after_the_subscription_is_read_soon(
    servers: str, make_topic: Callable[[int], str], protocol: GroupProtocol
) -> None:
    there, later = make_topic(1), missing()
    fill(servers, there, [b"first"])
    with ottla.Consumer(
        there,
        later,
        bootstrap_servers=servers,
        group_id=group(),
        group_protocol=protocol,
        config=NO_REFRESH,
    ) as consumer:
        assert [each.value for each in read(consumer, 1)] == [b"first"]
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:  # it has looked for the topic, in vain
            assert consumer.poll(0.1) is None
        assert later not in AdminClient({"bootstrap.servers": servers}).list_topics(timeout=PATIENCE).topics
        create(servers, later)
        fill(servers, later, [b"second"])
        assert [each.value for each in read(consumer, 1)] == [b"second"]


def test_several_topics_created_after_the_subscription_are_read(servers: str) -> None:
    names = [missing(), missing()]
    with ottla.Consumer(*names, bootstrap_servers=servers, group_id=group(), config=NO_REFRESH) as consumer:
        assert consumer.poll(0.5) is None
        for name in names:
            create(servers, name)
            fill(servers, name, [name.encode()])
        assert {each.value.decode() for each in read(consumer, 2)} == set(names)


def test_a_partition_of_a_topic_created_after_the_assignment_is_read(servers: str) -> None:
    name = missing()
    with ottla.Consumer(bootstrap_servers=servers, config=NO_REFRESH) as consumer:
        consumer.assign({TopicPartition(name, 0): 0})
        assert consumer.poll(0.5) is None
        create(servers, name)
        fill(servers, name, [b"1"])
        assert [each.value for each in read(consumer, 1)] == [b"1"]


def test_new_topics_of_a_pattern_are_read_after_the_metadata_interval(servers: str) -> None:
    name = missing()
    with ottla.Consumer(
        re.compile(f"{name}-.*"),
        bootstrap_servers=servers,
        group_id=group(),
        config={"topic.metadata.refresh.interval.ms": 500},
    ) as consumer:
        assert consumer.poll(0.5) is None
        create(servers, f"{name}-1")
        fill(servers, f"{name}-1", [b"1"])
        assert [each.value for each in read(consumer, 1)] == [b"1"]
