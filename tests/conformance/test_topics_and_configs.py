"""Topics, partitions, configs and records as an administrator changes them, with every client that can."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.clients.confluent import await_topic
from conformance.clients.model import DEADLINE, EARLIEST, Message, Refused

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_CONFIG = 40

pytestmark = pytest.mark.needs("admin")


def eventually(condition: Callable[[], bool]) -> None:
    """Kafka applies changes in the background after it answered, so the tests wait for what they expect."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it did not become true"


@pytest.mark.cluster
def test_a_created_topic_has_its_partitions_and_takes_records(client: Any, bootstrap: str, name: str) -> None:
    client.create_topic(name, 4)
    await_topic(bootstrap, name, 4)
    assert name in client.topics()
    assert client.partition_count(name) == 4
    client.produce(name, [Message(b"v")], partition=3)
    with client.reading(name, 3, EARLIEST) as reader:
        assert reader.take(1)[0].value == b"v"


def test_a_topic_is_created_with_its_configs(client: Any, bootstrap: str, name: str) -> None:
    client.create_topic(name, config={"retention.ms": "123456", "cleanup.policy": "compact,delete"})
    await_topic(bootstrap, name, 1)
    config = client.topic_config(name)
    assert config["retention.ms"] == "123456"
    assert config["cleanup.policy"] == "compact,delete"
    assert config["max.message.bytes"] == "1048588"


def test_replicas_can_be_assigned_manually(client: Any, bootstrap: str, name: str) -> None:
    (broker, *_) = client.cluster().brokers
    client.create_topic_on(name, [[broker], [broker]])
    await_topic(bootstrap, name, 2)
    assert client.partition_count(name) == 2


def test_validating_a_topic_creates_nothing(client: Any, name: str) -> None:
    client.create_topic(name, validate_only=True)
    assert name not in client.topics()


def test_a_topic_cannot_be_created_twice(client: Any, topic: str) -> None:
    with pytest.raises(Refused) as refused:
        client.create_topic(topic)
    assert refused.value.code == TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"replication_factor": 100}, INVALID_REPLICATION_FACTOR),
        ({"config": {"retention.ms": "soon"}}, INVALID_CONFIG),
        ({"config": {"no.such.key": "1"}}, INVALID_CONFIG),
        ({"config": {"cleanup.policy": "burn"}}, INVALID_CONFIG),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_a_topic_with_a_bad_setting_is_refused(
    client: Any, name: str, bad: dict[str, Any], code: int
) -> None:
    with pytest.raises(Refused) as refused:
        client.create_topic(name, **bad)
    assert refused.value.code == code
    assert name not in client.topics()


@pytest.mark.needs("zero-partitions")  # librdkafka refuses them before it asks the broker
def test_a_topic_without_partitions_is_refused(client: Any, name: str) -> None:
    with pytest.raises(Refused) as refused:
        client.create_topic(name, 0)
    assert refused.value.code == INVALID_PARTITIONS


@pytest.mark.parametrize("bad_name", ["with space", "a/b", "x" * 250, ".", ".."])
def test_a_topic_with_a_bad_name_is_refused(client: Any, bad_name: str) -> None:
    with pytest.raises(Refused) as refused:
        client.create_topic(bad_name)
    assert refused.value.code == INVALID_TOPIC


@pytest.mark.cluster
def test_a_deleted_topic_is_gone(client: Any, topic: str) -> None:
    client.produce(topic, [Message(b"v")])
    client.delete_topic(topic)
    eventually(lambda: topic not in client.topics())


def test_a_topic_created_again_begins_empty(client: Any, bootstrap: str, topic: str) -> None:
    client.produce(topic, [Message(b"old")] * 3)
    client.delete_topic(topic)
    eventually(lambda: topic not in client.topics())
    client.create_topic(topic)
    await_topic(bootstrap, topic, 1)
    client.produce(topic, [Message(b"new")])
    with client.reading(topic, 0, EARLIEST) as reader:
        (record,) = reader.take(1)
    assert (record.offset, record.value) == (0, b"new")


def test_deleting_an_unknown_topic_is_refused(client: Any, name: str) -> None:
    with pytest.raises(Refused) as refused:
        client.delete_topic(name)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.cluster
def test_partitions_can_be_added_and_hold_records(client: Any, bootstrap: str, topic: str) -> None:
    client.produce(topic, [Message(b"before")])
    client.add_partitions(topic, 3)
    await_topic(bootstrap, topic, 3)
    assert client.partition_count(topic) == 3
    client.produce(topic, [Message(b"after")], partition=2)
    for partition, value in ((0, b"before"), (2, b"after")):
        with client.reading(topic, partition, EARLIEST) as reader:
            assert reader.take(1)[0].value == value


@pytest.mark.parametrize("total", [1, 2])
def test_the_number_of_partitions_cannot_be_reduced(
    client: Any, make_topic: Callable[..., str], total: int
) -> None:
    topic = make_topic(2)
    with pytest.raises(Refused) as refused:
        client.add_partitions(topic, total)
    assert refused.value.code == INVALID_PARTITIONS


def test_adding_partitions_to_an_unknown_topic_is_refused(client: Any, name: str) -> None:
    with pytest.raises(Refused) as refused:
        client.add_partitions(name, 3)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.cluster
def test_a_changed_topic_config_is_shown_and_takes_effect_at_once(client: Any, topic: str) -> None:
    client.produce(topic, [Message(b"x" * 5000)])
    client.set_topic_config(topic, {"max.message.bytes": "1000"})
    eventually(lambda: client.topic_config(topic)["max.message.bytes"] == "1000")
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Message(b"x" * 5000)])
    assert refused.value.code == MESSAGE_TOO_LARGE
    client.produce(topic, [Message(b"small")])


def test_a_bad_topic_config_is_refused_and_changes_nothing(client: Any, topic: str) -> None:
    with pytest.raises(Refused) as refused:
        client.set_topic_config(topic, {"retention.ms": "soon"})
    assert refused.value.code == INVALID_CONFIG
    assert client.topic_config(topic)["retention.ms"] == "604800000"


@pytest.mark.needs("incremental-configs")
def test_an_incremental_change_leaves_other_configs_alone(
    client: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(config={"retention.ms": "111000"})
    client.set_topic_config(topic, {"segment.ms": "222000"})
    eventually(lambda: client.topic_config(topic)["segment.ms"] == "222000")
    assert client.topic_config(topic)["retention.ms"] == "111000"


@pytest.mark.needs("config-reset")
def test_a_config_can_return_to_its_default(client: Any, make_topic: Callable[..., str]) -> None:
    topic = make_topic(config={"retention.ms": "111000"})
    client.reset_topic_config(topic, "retention.ms")
    eventually(lambda: client.topic_config(topic)["retention.ms"] == "604800000")


@pytest.mark.needs("broker-configs")
def test_the_brokers_config_can_be_read(client: Any) -> None:
    (broker, *_) = client.cluster().brokers
    config = client.broker_config(broker)
    assert config["node.id"] == str(broker)
    assert config["message.max.bytes"] == "1048588"
    assert "log.retention.ms" in config


def test_the_config_of_an_unknown_topic_is_refused(client: Any, name: str) -> None:
    if client.name == "kafka-python":
        assert client.topic_config(name) == {}, "kafka-python drops the error of this answer"
        return
    with pytest.raises(Refused) as refused:
        client.topic_config(name)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.cluster
def test_deleted_records_are_gone_and_the_rest_stays(client: Any, topic: str) -> None:
    client.produce(topic, [Message(b"%d" % n) for n in range(10)])
    assert client.delete_records(topic, 0, 4) == 4
    assert client.watermarks(topic, 0) == (4, 10)
    with client.reading(topic, 0, EARLIEST) as reader:
        assert [r.value for r in reader.take(6)] == [b"%d" % n for n in range(4, 10)]


def test_all_records_up_to_the_end_can_be_deleted(client: Any, topic: str) -> None:
    client.produce(topic, [Message(b"%d" % n) for n in range(10)])
    assert client.delete_records(topic, 0, -1) == 10
    assert client.watermarks(topic, 0) == (10, 10)


def test_records_beyond_the_end_cannot_be_deleted(client: Any, topic: str) -> None:
    client.produce(topic, [Message(b"v")])
    with pytest.raises(Refused) as refused:
        client.delete_records(topic, 0, 5)
    assert refused.value.code == OFFSET_OUT_OF_RANGE
    assert client.watermarks(topic, 0) == (0, 1)


def test_the_cluster_describes_itself(client: Any, bootstrap: str) -> None:
    cluster = client.cluster()
    assert cluster.controller in cluster.brokers
    ports = {port for _, port in cluster.brokers.values()}
    assert int(bootstrap.rpartition(":")[2]) in ports
    if client.name != "aiokafka":  # it asks with a version that has no cluster id
        assert cluster.cluster_id


@pytest.mark.cluster
@pytest.mark.needs("log-dirs")
def test_the_log_dirs_show_the_size_of_every_replica(client: Any, topic: str, replicas: int) -> None:
    def sizes() -> list[int]:
        with client.admin() as admin:
            brokers = admin.describe_log_dirs({topic: [0]})
        folders = [folder for broker in brokers for folder in broker["log_dirs"]]
        assert not any(folder["error_code"] for folder in folders)
        topics = [found for folder in folders for found in folder["topics"]]
        assert {found["name"] for found in topics} == {topic}
        return [partition["partition_size"] for found in topics for partition in found["partitions"]]

    client.produce(topic, [Message(b"x" * 10_000)])
    eventually(lambda: len(found := sizes()) == replicas and all(10_000 < size < 11_000 for size in found))


@pytest.mark.needs("describe-partitions")
def test_topic_partitions_are_described_page_by_page(client: Any, make_topic: Callable[..., str]) -> None:
    topic = make_topic(5)
    with client.admin() as admin:
        described = admin.describe_topic_partitions([topic], response_partition_limit=3)
    found = described["topics"][0]
    assert found["name"] == topic
    assert [p["partition_index"] for p in found["partitions"]] == [0, 1, 2]
    assert described["next_cursor"]["partition_index"] == 3


@pytest.mark.needs("describe-producers")
def test_the_producers_of_a_partition_are_described(client: Any, topic: str) -> None:
    from kafka import TopicPartition

    client.produce(topic, [Message(b"%d" % n) for n in range(3)], idempotent=True)
    with client.admin() as admin:
        described = admin.describe_producers([TopicPartition(topic, 0)])
    (producer,) = described[TopicPartition(topic, 0)].active_producers
    assert producer.last_sequence == 2
    assert producer.producer_id >= 0
