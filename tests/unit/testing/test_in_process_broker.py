"""The broker that users put into their tests: quick to start, gone at the end, and it can be killed."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla.testing
from ottla.config.values import ConfigError
from ottla.protocol.errors import ApiError, ErrorCode, error_of
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.records import Record, encode_batch
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker
from raw_client import RawClient

pytest_plugins = ["pytester"]


def partitions(broker: InProcessBroker, topic: str) -> int:
    with Wire(broker.bootstrap_servers) as wire:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        (found,) = wire.call(request).topics
    if found.error_code:
        raise ApiError(error_of(found.error_code))
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
        began = time.process_time()  # other processes may keep the machine busy
        with ottla.testing.broker() as broker:
            socket.create_connection((broker.host, broker.port)).close()
            taken.append(time.process_time() - began)
    assert min(taken) < 0.1, taken


def test_topics_exist_when_the_with_block_begins() -> None:
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


def test_acknowledged_records_survive_a_kill() -> None:
    with ottla.testing.broker(topics=["t"]) as broker:
        for n in range(20):
            assert produce(broker, "t", b"%d" % n) == n
        broker.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((broker.host, broker.port))
        broker.start()
        assert produce(broker, "t", b"after") == 20


FORKED_CHILD_OUTLIVES_THE_BROKER = """
import os, signal, socket
import ottla.testing

with ottla.testing.broker(topics=["t"]) as broker:
    address = (broker.host, broker.port)
    client = socket.create_connection(address, 10)
    client.sendall(bytes.fromhex("0000000a0012000000000001ffff"))
    assert client.recv(4)
    child = os.fork()
    if not child:
        signal.pause()
    try:
        broker.kill()
        while client.recv(65536):
            pass
        try:
            socket.create_connection(address, 10)
        except ConnectionRefusedError:
            print("refused")
        broker.start()
        socket.create_connection(address, 10).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""


def test_a_killed_broker_is_gone_although_a_forked_child_holds_its_sockets() -> None:
    program = [sys.executable, "-c", FORKED_CHILD_OUTLIVES_THE_BROKER]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_a_group_forms_without_the_three_seconds_that_production_waits_for_members() -> None:
    with ottla.testing.broker() as broker:
        assert broker.broker is not None
        assert broker.broker.config["group.initial.rebalance.delay.ms"] == 100
    with ottla.testing.broker(group_initial_rebalance_delay_ms=2000) as broker:
        assert broker.broker is not None
        assert broker.broker.config["group.initial.rebalance.delay.ms"] == 2000


def test_a_paused_broker_answers_no_client_until_it_is_resumed() -> None:
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


def test_the_plugin_imports_the_broker_only_when_a_test_uses_it() -> None:
    code = (
        "import sys, ottla.testing.pytest_plugin as plugin;"
        "ours = [m for m in sys.modules if m.startswith('ottla.') and not m.startswith('ottla.testing')];"
        "print(ours + [m for m in ('asyncio', 'sqlite3') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def far() -> Iterator[InProcessBroker]:
    with ottla.testing.broker(topics=["t"], network=True) as broker:
        yield broker


def test_clients_of_a_broker_with_a_network_get_only_its_address(far: InProcessBroker) -> None:
    assert far.bootstrap_servers != far.direct_servers
    for address in (far.bootstrap_servers, far.direct_servers):
        with Wire(address) as wire:
            (node,) = wire.metadata().brokers
            assert f"{node.host}:{node.port}" == far.bootstrap_servers


def test_a_network_that_is_cut_is_silent_until_it_is_mended(far: InProcessBroker) -> None:
    with RawClient(far.bootstrap_servers, timeout=0.3) as client:
        assert client.produce("t", b"a").base_offset == 0
        far.network.cut()
        with pytest.raises(TimeoutError):
            client.produce("t", b"b")
        with RawClient(far.direct_servers) as beside:
            assert beside.produce("t", b"c").base_offset == 1, "the broker itself is well"
        far.network.mend()
        client.socket.settimeout(10)
        assert client.receive().responses[0].partition_responses[0].base_offset == 2


def test_requests_whose_responses_are_lost_take_effect(far: InProcessBroker) -> None:
    with RawClient(far.bootstrap_servers, timeout=0.3) as client:
        far.network.lose_answers()
        with pytest.raises(TimeoutError):
            client.produce("t", b"a")
        assert far.network.lost > 0
        far.network.mend()
        assert client.is_closed(within=10)
    with RawClient(far.bootstrap_servers) as client:
        assert client.produce("t", b"b").base_offset == 1


def test_connections_can_be_broken_and_made_again(far: InProcessBroker) -> None:
    with RawClient(far.bootstrap_servers) as client:
        assert client.produce("t", b"a").base_offset == 0
        far.network.reset()
        assert client.is_closed(within=10)
    far.kill()
    with RawClient(far.bootstrap_servers) as client:
        assert client.is_closed(within=10), "the other end is closed"
    far.start()
    with RawClient(far.bootstrap_servers) as client:
        assert client.produce("t", b"b").base_offset == 1


def test_a_broker_without_a_network_says_how_to_get_one() -> None:
    with ottla.testing.broker() as broker, pytest.raises(RuntimeError, match="network=True"):
        broker.network.cut()
