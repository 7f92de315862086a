"""What is told of a configuration: values, sources and layers, as Apache Kafka 4.3.1 told them when asked."""

from __future__ import annotations

from ottla.config.describe import Entry, describe_broker, describe_cluster, describe_group, describe_topic
from ottla.config.keys import Type
from ottla.config.table import BROKER_KEYS
from ottla.config.values import BrokerConfig, Source


def by_name(entries: list[Entry]) -> dict[str, Entry]:
    return {entry.name: entry for entry in entries}


def test_all_keys_of_a_topic_are_described_but_internal_ones_only_when_set() -> None:
    broker = BrokerConfig.load()
    entries = by_name(describe_topic(broker, {}))
    assert len(entries) == 33
    assert "internal.segment.bytes" not in entries
    entries = by_name(describe_topic(broker, {"internal.segment.bytes": "5"}))
    assert entries["internal.segment.bytes"].layers == [("internal.segment.bytes", "5", Source.TOPIC)]
    assert entries["segment.bytes"].value == "1073741824"


def test_a_topic_value_is_described_with_all_its_synonyms() -> None:
    broker = BrokerConfig.load(overrides={"log.segment.bytes": "2000000"})
    entry = by_name(describe_topic(broker, {"segment.bytes": " 3000000 "}))["segment.bytes"]
    assert (entry.value, entry.source, entry.type, entry.read_only) == (
        "3000000",
        Source.TOPIC,
        Type.INT,
        False,
    )
    assert entry.layers == [
        ("segment.bytes", "3000000", Source.TOPIC),
        ("log.segment.bytes", "2000000", Source.STATIC),
        ("log.segment.bytes", "1073741824", Source.DEFAULT),
    ]


def test_a_value_in_another_unit_is_in_force_but_described_as_default_without_layers() -> None:
    broker = BrokerConfig.load(overrides={"log.retention.hours": "1"})
    entry = by_name(describe_topic(broker, {}))["retention.ms"]
    assert (entry.value, entry.source, entry.layers) == ("3600000", Source.DEFAULT, [])


def test_dynamic_broker_values_are_shown_in_topics() -> None:
    broker = BrokerConfig.load().with_dynamic({"log.retention.ms": "9"}, {})
    entry = by_name(describe_topic(broker, {}))["retention.ms"]
    assert (entry.value, entry.source) == ("9", Source.CLUSTER)
    assert entry.layers == [
        ("log.retention.ms", "9", Source.CLUSTER),
        ("log.retention.hours", "168", Source.DEFAULT),
    ]


def test_only_known_keys_that_are_asked_for_are_described() -> None:
    broker = BrokerConfig.load()
    names = ["retention.ms", "nobody.knows"]
    assert [entry.name for entry in describe_topic(broker, {}, names)] == ["retention.ms"]
    assert len(describe_topic(broker, {}, [])) == 33


def test_a_broker_describes_every_key_and_unknown_ones_it_was_given() -> None:
    broker = BrokerConfig.load(
        overrides={"my.own.key": "secret?", "node.id": "3", "ssl.key.password": "hunter2"}
    )
    entries = by_name(describe_broker(broker))
    assert len(entries) == len([key for key in BROKER_KEYS.values() if not key.internal]) + 1
    assert (entries["node.id"].value, entries["node.id"].read_only) == ("3", True)
    assert (entries["broker.id"].value, entries["broker.id"].source) == ("3", Source.STATIC)
    password = entries["ssl.key.password"]
    assert (password.value, password.sensitive, password.source) == (None, True, Source.STATIC)
    own = entries["my.own.key"]
    assert (own.value, own.sensitive, own.type, own.read_only) == (None, True, Type.UNKNOWN, True)
    assert (entries["log.retention.ms"].value, entries["log.retention.ms"].source) == (None, Source.DEFAULT)
    assert entries["log.cleaner.io.max.bytes.per.second"].value == "1.7976931348623157E308"
    assert "producer.id.expiration.check.interval.ms" not in entries


def test_the_default_broker_resource_describes_only_what_was_set_for_all() -> None:
    broker = BrokerConfig.load(overrides={"log.retention.ms": "1"})
    assert describe_cluster(broker) == []
    broker = broker.with_dynamic(
        {"log.retention.ms": "2", "leader.replication.throttled.rate": "7"}, {"log.retention.ms": "3"}
    )
    entries = by_name(describe_cluster(broker))
    assert set(entries) == {"log.retention.ms", "leader.replication.throttled.rate"}
    entry = entries["log.retention.ms"]
    assert (entry.value, entry.source) == ("2", Source.CLUSTER)
    assert entry.layers == [("log.retention.ms", "2", Source.CLUSTER)]


def test_a_groups_keys_are_described_above_the_brokers() -> None:
    entries = by_name(describe_group(BrokerConfig.load(), {"consumer.session.timeout.ms": "50000"}))
    assert len(entries) == 17
    assert entries["consumer.session.timeout.ms"].layers == [
        ("consumer.session.timeout.ms", "50000", Source.GROUP),
        ("group.consumer.session.timeout.ms", "45000", Source.DEFAULT),
    ]
    assert entries["share.auto.offset.reset"].layers == [
        ("share.auto.offset.reset", "latest", Source.DEFAULT)
    ]
