"""The broker that users put into their tests: quick to start, gone at the end, and it can be killed."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ottla.testing
from ottla.client.wire import Wire
from ottla.config.values import ConfigError
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.records import Record, encode_batch
from ottla.testing.in_process import InProcessBroker

pytest_plugins = ["pytester"]


def partitions(broker: InProcessBroker, topic: str) -> int:
    with Wire(broker.bootstrap_servers) as wire:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        (found,) = wire.call(request).topics
    if found.error_code:
        raise ApiError(ErrorCode(found.error_code))
    return len(found.partitions)


def produce(broker: InProcessBroker, topic: str, value: bytes) -> int:
    """Writes one record and returns its offset."""
    batch = encode_batch([Record(0, broker_time(), None, value, [])])
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    with Wire(broker.bootstrap_servers) as wire:
        answer = wire.call(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data]), version=9)
    (partition,) = answer.responses[0].partition_responses
    assert partition.error_code == 0
    return int(partition.base_offset)


def broker_time() -> int:
    return time.time_ns() // 1_000_000


def test_a_broker_is_ready_within_a_tenth_of_a_second() -> None:
    with ottla.testing.broker():
        pass  # the first one pays for the imports
    taken = []
    for _ in range(5):
        began = time.monotonic()
        with ottla.testing.broker() as broker:
            socket.create_connection((broker.host, broker.port)).close()
            taken.append(time.monotonic() - began)
    assert min(taken) < 0.1, taken


def test_topics_are_there_when_the_block_begins() -> None:
    with ottla.testing.broker(topics={"orders": 3}) as broker:
        assert partitions(broker, "orders") == 3
    with ottla.testing.broker(topics=["a", "b"]) as broker:
        assert partitions(broker, "a") == partitions(broker, "b") == 1


def test_settings_are_given_by_name_or_by_keyword() -> None:
    with ottla.testing.broker(settings={"num.partitions": 5}, auto_create_topics_enable=False) as broker:
        assert broker.broker is not None
        assert broker.broker.config["num.partitions"] == 5
        assert broker.broker.config["auto.create.topics.enable"] is False


def test_a_bad_setting_says_why_and_starts_nothing() -> None:
    with pytest.raises(ConfigError, match=r"num\.partitions"), ottla.testing.broker(num_partitions="many"):
        pass


def test_the_address_and_the_data_stay_over_a_restart() -> None:
    with ottla.testing.broker(topics=["t"]) as broker:
        address = broker.bootstrap_servers
        assert produce(broker, "t", b"one") == 0
        broker.restart()
        assert broker.bootstrap_servers == address
        assert produce(broker, "t", b"two") == 1


def test_what_was_acknowledged_survives_a_kill() -> None:
    with ottla.testing.broker(topics=["t"]) as broker:
        for n in range(20):
            assert produce(broker, "t", b"%d" % n) == n
        broker.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((broker.host, broker.port))
        broker.start()
        assert produce(broker, "t", b"after") == 20


def test_a_paused_broker_answers_nobody_until_it_goes_on() -> None:
    with ottla.testing.broker(topics=["t"]) as broker:
        with broker.paused(), socket.create_connection((broker.host, broker.port), 1) as sock:
            sock.settimeout(0.2)
            sock.sendall(bytes.fromhex("0000000a0012000000000001ffff"))
            with pytest.raises(TimeoutError):
                sock.recv(4)
        assert produce(broker, "t", b"after") == 0


def test_a_temporary_folder_is_removed_and_a_given_one_is_kept(tmp_path: Path) -> None:
    with ottla.testing.broker(topics=["t"]) as broker:
        folder = broker.data
        assert folder.is_dir()
    assert not folder.exists()
    with ottla.testing.broker(topics=["t"], data=tmp_path / "kept") as broker:
        produce(broker, "t", b"v")
    assert (tmp_path / "kept" / "t-0").is_dir()
    with ottla.testing.broker(data=tmp_path / "kept") as broker:
        assert produce(broker, "t", b"w") == 1


def test_several_brokers_run_side_by_side() -> None:
    with ottla.testing.broker(topics=["t"]) as one, ottla.testing.broker(topics=["t"]) as other:
        assert one.port != other.port
        assert produce(one, "t", b"v") == 0
        assert produce(one, "t", b"v") == 1
        assert produce(other, "t", b"v") == 0


def test_creating_a_topic_that_exists_says_so() -> None:
    with ottla.testing.broker(topics=["t"]) as broker, pytest.raises(ApiError) as refused:
        broker.create_topic("t")
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_the_plugin_gives_fixtures_and_a_mark(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def ottla_session_settings():
            return {"num.partitions": 4}
        """
    )
    pytester.makepyfile(
        """
        import pytest

        seen = []

        @pytest.mark.ottla(topics={"t": 2}, num_partitions=7)
        def test_fresh(ottla_broker):
            seen.append(ottla_broker)
            assert ottla_broker.broker.config["num.partitions"] == 7
            assert "t" in ottla_broker.broker.image.topics

        def test_fresh_again(ottla_broker):
            assert ottla_broker is not seen[0]
            assert seen[0].broker is None
            assert "t" not in ottla_broker.broker.image.topics

        def test_session(ottla_session_broker):
            seen.append(ottla_session_broker)
            assert ottla_session_broker.broker.config["num.partitions"] == 4

        def test_the_same_session(ottla_session_broker):
            assert ottla_session_broker is seen[1]
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=4)


def test_the_plugin_imports_no_broker_before_a_test_asks() -> None:
    code = (
        "import sys, ottla.testing.pytest_plugin as plugin;"
        "ours = [m for m in sys.modules if m.startswith('ottla.') and not m.startswith('ottla.testing')];"
        "print(ours + [m for m in ('asyncio', 'sqlite3') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
