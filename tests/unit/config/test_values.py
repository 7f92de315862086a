"""A broker's configuration: where values come from, what is refused, and what topics make of it."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from ottla.config.values import BrokerConfig, ConfigError, Source, topic_config, validate_topic_config
from ottla.protocol.errors import ApiError, ErrorCode

DAY_MS = 24 * 60 * 60 * 1000


def problems(**settings: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(overrides={name.replace("_", "."): value for name, value in settings.items()})
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def test_keys_have_their_defaults_without_any_configuration() -> None:
    config = BrokerConfig.load()
    assert config["node.id"] == 1
    assert config["message.max.bytes"] == 1_048_588
    assert config["auto.create.topics.enable"] is True
    assert config["log.cleanup.policy"] == ["delete"]
    assert config["log.retention.ms"] is None
    assert config.source("message.max.bytes") is Source.DEFAULT
    assert config.is_default("message.max.bytes")
    assert config.warnings == []


def test_limits_that_are_unlimited_in_kafka_have_finite_defaults() -> None:
    config = BrokerConfig.load()
    assert config["max.connections"] == 10_000
    assert config["max.connections.per.ip"] == 8_000
    assert config["queued.max.request.bytes"] == 256 << 20
    assert config["max.partitions"] == 20_000
    assert config["max.decompressed.message.bytes"] == 128 << 20


def test_the_command_line_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nlog.retention.hours=3\nmessage.max.bytes=4\n")
    environ = {"OTTLA_LOG_RETENTION_HOURS": "30", "OTTLA_MESSAGE_MAX_BYTES": "40", "PATH": "/bin"}
    config = BrokerConfig.load(file, {"message.max.bytes": "400"}, environ)
    assert config["num.partitions"] == 2
    assert config["log.retention.hours"] == 30
    assert config["message.max.bytes"] == 400
    assert config.source("num.partitions") is Source.STATIC
    assert not config.is_default("num.partitions")


def test_a_file_made_for_kafka_is_read_without_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        """\
# as it comes with Apache Kafka 4.3
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
    )
    config = BrokerConfig.load(file)
    assert config.warnings == []
    assert config.log_dir == "/tmp/kraft-combined-logs"
    (listener,) = config.listeners.clients
    assert listener.port == 9092
    assert config.advertised(listener, "0.0.0.0", 9092) == ("localhost", 9092)
    assert config.listeners.inter_broker == ("INTERNAL", "127.0.0.1", 0)


def test_an_unknown_key_is_ignored_with_a_warning_that_names_the_nearest() -> None:
    config = BrokerConfig.load(overrides={"log.retention.hour": "5", "zookeeper.connect": "x"})
    assert config.warnings == [
        "unknown broker key log.retention.hour; did you mean log.retention.hours? It is ignored.",
        "unknown broker key zookeeper.connect. It is ignored.",
    ]
    assert config["log.retention.hours"] == 168


def test_an_environment_variable_that_looks_misspelt_is_warned_of_and_others_are_left_alone() -> None:
    environ = {"OTTLA_NODE_IDD": "5", "OTTLA_DATA": "/x", "OTTLA_TEST_SEED": "7"}
    config = BrokerConfig.load(environ=environ)
    assert config.warnings == [
        "environment variable OTTLA_NODE_IDD names no key; did you mean OTTLA_NODE_ID?"
    ]


def test_a_key_set_twice_in_a_file_is_warned_of_and_the_last_one_counts(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\n\nnum.partitions=3\n")
    config = BrokerConfig.load(file)
    assert config["num.partitions"] == 3
    assert config.warnings == [f"{file}: num.partitions is set in line 1 and again in line 3, which counts"]


def test_all_bad_values_are_reported_together() -> None:
    assert problems(log_segment_bytes="12", message_max_bytes="big", log_preallocate="perhaps") == [
        "log.segment.bytes: must be at least 1048576 (got 12)",
        "message.max.bytes: must be a whole number of 32 bits (got big)",
        "log.preallocate: must be true or false (got perhaps)",
    ]


def test_a_file_that_is_not_there_or_not_readable_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.properties: No such file"):
        BrokerConfig.load(tmp_path / "nothing.properties")
    file = tmp_path / "broken.properties"
    file.write_text("a=\\u1")
    with pytest.raises(ConfigError, match="line 1"):
        BrokerConfig.load(file)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"listeners": "localhost"}, "listeners: 'localhost' has no port (expected host:port)"),
        (
            {"listeners": "SSL://:9093"},
            "listeners: SSL is not built yet, only PLAINTEXT is (got SSL://:9093)",
        ),
        ({"listeners": "INSIDE://:1"}, "listeners: INSIDE has no protocol in listener.security.protocol.map"),
        (
            {"listeners": "PLAINTEXT://:1,SSL://:2"},
            "listeners: SSL is not built yet, only PLAINTEXT is (got SSL://:2)",
        ),
        (
            {"listeners": "INTERNAL://:1"},
            "listeners: must name an address for clients (got INTERNAL://:1)",
        ),
        (
            {"inter.broker.listener.name": "INSIDE"},
            "listeners: INSIDE, which inter.broker.listener.name names, is not among them "
            "(got PLAINTEXT://:9092)",
        ),
        (
            {"advertised.listeners": "OUTSIDE://example:1"},
            "advertised.listeners: OUTSIDE is not among listeners (got OUTSIDE://example:1)",
        ),
        (
            {"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"},
            "advertised.listeners: must be an address that clients can reach, which 0.0.0.0 is not",
        ),
        ({"log.dirs": "/a,/b"}, "log.dirs: must name one folder, as all data is kept in one (got /a,/b)"),
        ({"log.dirs": ""}, "log.dirs: must name a folder (got nothing)"),
        (
            {"node.id": "1", "broker.id": "2"},
            "broker.id: must be the same as node.id, for which it is another name (got 2 and 1)",
        ),
        ({"broker.id": "-1"}, "broker.id: must be at least 0 (got -1)"),
        (
            {"queued.max.request.bytes": "1000"},
            "queued.max.request.bytes: must be at least socket.request.max.bytes, which is 104857600, "
            "so that a request of that size can be read (got 1000)",
        ),
        (
            {"max.connections.per.ip.overrides": "localhost"},
            "max.connections.per.ip.overrides: 'localhost' is not address:limit",
        ),
        (
            {"group.min.session.timeout.ms": "9", "group.max.session.timeout.ms": "8"},
            "group.min.session.timeout.ms: must not be larger than group.max.session.timeout.ms, "
            "which is 8 (got 9)",
        ),
        ({"log.retention.ms": "0"}, "log.retention.ms: must be at least 1, or -1 for no limit (got 0)"),
    ],
)
def test_keys_that_do_not_fit_together_are_refused(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(overrides=settings)
    assert problem in caught.value.problems


def test_a_listener_may_have_a_name_of_its_own() -> None:
    config = BrokerConfig.load(
        overrides={
            "listeners": "INSIDE://localhost:1",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT",
        }
    )
    assert config.listeners.clients == (("INSIDE", "localhost", 1),)


def test_broker_id_and_node_id_are_two_names_of_one_thing() -> None:
    for name in ("broker.id", "node.id"):
        config = BrokerConfig.load(overrides={name: "7"})
        assert config["node.id"] == config["broker.id"] == 7
        assert config.source("node.id") is config.source("broker.id") is Source.STATIC
    config = BrokerConfig.load()
    assert config["broker.id"] == 1


def test_the_memory_for_requests_holds_at_least_the_largest_request() -> None:
    config = BrokerConfig.load(overrides={"socket.request.max.bytes": str(512 << 20)})
    assert config["queued.max.request.bytes"] == 512 << 20
    assert BrokerConfig.load(overrides={"queued.max.request.bytes": "-1"})["queued.max.request.bytes"] == -1


def test_the_data_folder_may_lie_in_the_home_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert BrokerConfig.load().log_dir == "/home/ada/.local/share/ottla/data"
    assert BrokerConfig.load(overrides={"log.dir": "~/data"}).log_dir == "/home/ada/data"
    assert BrokerConfig.load(overrides={"log.dir": "/a", "log.dirs": "/b"}).log_dir == "/b"


def test_clients_get_the_advertised_address_or_the_one_listened_on() -> None:
    def advertised(**settings: str) -> tuple[str, int]:
        config = BrokerConfig.load(overrides={n.replace("_", "."): v for n, v in settings.items()})
        (listener,) = config.listeners.clients
        return config.advertised(listener, listener.host or "0.0.0.0", 4711)

    assert advertised(listeners="127.0.0.1:0") == ("127.0.0.1", 4711)
    assert advertised(listeners="[::1]:0") == ("::1", 4711)
    assert advertised(listeners=":0", advertised_listeners="kafka.example:19092") == ("kafka.example", 19092)
    assert advertised(listeners=":0", advertised_listeners="kafka.example:0") == ("kafka.example", 4711)
    host, port = advertised(listeners=":0")
    assert host not in ("", "0.0.0.0")
    assert port == 4711


def test_every_listener_has_an_advertised_address_of_its_own() -> None:
    config = BrokerConfig.load(
        overrides={
            "listeners": "INSIDE://10.0.0.1:1,OUTSIDE://:2,PEERS://10.0.0.1:3",
            "advertised.listeners": "OUTSIDE://kafka.example:19092",
            "inter.broker.listener.name": "peers",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,PEERS:PLAINTEXT",
        }
    )
    inside, outside = config.listeners.clients
    assert config.advertised(inside, "10.0.0.1", 1) == ("10.0.0.1", 1)
    assert config.advertised(outside, "0.0.0.0", 2) == ("kafka.example", 19092)
    assert config.listeners.inter_broker == ("PEERS", "10.0.0.1", 3)


# -- dynamic values -----------------------------------------------------------------------------------------


def test_broker_values_override_cluster_values_which_override_static_ones() -> None:
    static = BrokerConfig.load(overrides={"log.retention.ms": "1", "message.max.bytes": "10"})
    dynamic = static.with_dynamic(
        {"log.retention.ms": "2", "message.max.bytes": "20"}, {"log.retention.ms": "3"}
    )
    assert dynamic["log.retention.ms"] == 3
    assert dynamic["message.max.bytes"] == 20
    assert dynamic.source("log.retention.ms") is Source.BROKER
    assert dynamic.source("message.max.bytes") is Source.CLUSTER
    assert static["log.retention.ms"] == 1
    again = dynamic.with_dynamic({}, {})
    assert again["log.retention.ms"] == 1
    assert again.source("log.retention.ms") is Source.STATIC


def test_dynamic_values_of_keys_that_cannot_change_have_no_effect() -> None:
    config = BrokerConfig.load().with_dynamic(
        {"num.partitions": "9", "listeners": "x:1", "nobody.knows": "1"}, {"node.id": "9"}
    )
    assert config["num.partitions"] == 1
    assert config["node.id"] == 1
    assert config["listeners"] == ["PLAINTEXT://:9092"]


def test_an_invalid_dynamic_value_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = BrokerConfig.load().with_dynamic({"log.segment.bytes": "12"}, {})
    assert config["log.segment.bytes"] == 1 << 30
    assert "log.segment.bytes is ignored: must be at least 1048576" in caplog.text


def test_layers_list_every_source_of_a_value_in_order_of_precedence() -> None:
    config = BrokerConfig.load(overrides={"log.retention.hours": "5"})
    assert config.layers("log.retention.hours") == [
        ("log.retention.hours", "5", Source.STATIC),
        ("log.retention.hours", "168", Source.DEFAULT),
    ]
    assert config.layers("log.retention.ms") == []
    config = config.with_dynamic({"log.retention.ms": "9"}, {"log.retention.ms": "8"})
    assert config.layers("log.retention.ms") == [
        ("log.retention.ms", "8", Source.BROKER),
        ("log.retention.ms", "9", Source.CLUSTER),
        ("log.retention.hours", "5", Source.STATIC),
        ("log.retention.hours", "168", Source.DEFAULT),
    ]
    assert config.layers("log.retention.hours")[0] == ("log.retention.hours", "5", Source.STATIC)


def test_secrets_are_listed_in_layers_without_their_value() -> None:
    config = BrokerConfig.load(overrides={"ssl.key.password": "hunter2"})
    assert config.layers("ssl.key.password") == [("ssl.key.password", None, Source.STATIC)]
    assert "hunter2" not in repr(config)


# -- topics -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "retention"),
    [
        ({}, 7 * DAY_MS),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-5"}, -1),
    ],
)
def test_a_topic_takes_its_retention_from_the_most_exact_broker_key(
    settings: dict[str, str], retention: int
) -> None:
    assert topic_config(BrokerConfig.load(overrides=settings), {})["retention.ms"] == retention


def test_a_topics_own_values_count_before_the_brokers() -> None:
    broker = BrokerConfig.load(overrides={"log.segment.bytes": "2000000", "log.roll.hours": "3"})
    topic = topic_config(broker, {"segment.bytes": "3000000", "cleanup.policy": "compact, delete"})
    assert topic["segment.bytes"] == 3_000_000
    assert topic["cleanup.policy"] == ["compact", "delete"]
    assert topic["segment.ms"] == 3 * 3_600_000
    assert topic.get("max.message.bytes") == 1_048_588
    assert topic_config(broker, {})["segment.bytes"] == 2_000_000


def test_dynamic_broker_values_reach_topics_at_once() -> None:
    broker = BrokerConfig.load()
    assert topic_config(broker, {})["max.message.bytes"] == 1_048_588
    changed = broker.with_dynamic({"message.max.bytes": "77"}, {})
    assert topic_config(changed, {})["max.message.bytes"] == 77
    assert topic_config(changed, {"max.message.bytes": "78"})["max.message.bytes"] == 78


def test_internal_segment_bytes_allows_small_segments_for_tests() -> None:
    assert topic_config(BrokerConfig.load(), {"internal.segment.bytes": "1000"})["segment.bytes"] == 1000


def test_invalid_stored_values_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    topic = topic_config(BrokerConfig.load(), {"retention.ms": "soon", "nobody.knows": "1"})
    assert topic["retention.ms"] == 7 * DAY_MS
    assert "retention.ms is ignored" in caplog.text


def test_ten_thousand_topics_are_configured_in_a_moment() -> None:
    broker = BrokerConfig.load()
    began = time.thread_time()  # of this thread alone, however busy the machine is
    for _ in range(10_000):
        topic_config(broker, {})
        topic_config(broker, {"retention.ms": "5", "cleanup.policy": "compact"})
    assert time.thread_time() - began < 1.0
    assert len(topic_config(broker, {})) == len(list(topic_config(broker, {})))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"retention.mss": "5"}, "unknown topic key retention.mss; did you mean retention.ms?"),
        ({"segment.bytes": "12"}, "segment.bytes: must be at least 1048576 (got 12)"),
        (
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
            "min.compaction.lag.ms (5) must not be larger than max.compaction.lag.ms (4)",
        ),
    ],
)
def test_a_topic_configuration_that_is_not_allowed_is_refused(overrides: dict[str, str], reason: str) -> None:
    with pytest.raises(ApiError) as caught:
        validate_topic_config(overrides)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert caught.value.message == reason


def test_a_topic_configuration_is_checked_against_broker_values() -> None:
    broker = BrokerConfig.load(overrides={"log.cleaner.max.compaction.lag.ms": "100"})
    validate_topic_config({"min.compaction.lag.ms": "500"})
    with pytest.raises(ApiError, match="must not be larger"):
        validate_topic_config({"min.compaction.lag.ms": "500"}, broker)


def test_the_command_line_wins_over_dynamic_values_from_before_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("message.max.bytes=100\n")
    loaded = BrokerConfig.load(file, {"max.connections.per.ip": "7"})
    stored = {"max.connections.per.ip": "1", "message.max.bytes": "200"}
    config = loaded.over_stored(stored, {"max.connections.per.ip": "2"})
    assert "max.connections.per.ip=7 of the command line is used, not 2" in caplog.text
    now = config.with_dynamic(stored, {"max.connections.per.ip": "2"})
    assert now["max.connections.per.ip"] == 7
    assert now.source("max.connections.per.ip") is Source.STATIC
    assert now["message.max.bytes"] == 200, "a file is weaker than what was set at run time"
    later = config.with_dynamic(stored, {"max.connections.per.ip": "3"})
    assert later["max.connections.per.ip"] == 3, "a value that is set later counts"
    cleared = config.with_dynamic({}, {})
    assert cleared["max.connections.per.ip"] == 7


def test_limits_that_admit_no_client_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"max.connections: must be at least 1"):
        BrokerConfig.load(overrides={"max.connections": "0"})
    with pytest.raises(ConfigError, match=r"max.connections.per.ip: must be at least 1 unless"):
        BrokerConfig.load(overrides={"max.connections.per.ip": "0"})
    BrokerConfig.load(
        overrides={"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:5"}
    )
