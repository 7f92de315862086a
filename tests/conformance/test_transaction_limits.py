"""What ends of transactions, ids and epochs when limits are reached, on a broker, request by request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ottla.testing
from conformance.group_member import until
from ottla.clock import SystemClock
from ottla.coordinator.transactions.records import encode_entry
from ottla.coordinator.transactions.transaction import LAST_EPOCH, Transaction
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from ottla.protocol.records import Record, encode_batch
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.offsets import LATEST, list_offsets
from ottla.protocol_client.wire import Wire
from ottla.storage.files import RealDisk
from ottla.storage.log_config import LogConfig
from ottla.storage.log_directory import LogDirectory
from ottla.testing.in_process import InProcessBroker
from raw_client import RawClient
from wire_producer import WireProducer

TOPIC = "t"
protocols = pytest.mark.parametrize("second", [False, True], ids=["first protocol", "second protocol"])
OK = 0


@contextmanager
def client(**settings: Any) -> Iterator[RawClient]:
    topics = settings.pop("topics", {TOPIC: 1})
    with ottla.testing.broker(topics=topics, **settings) as broker, connected(broker) as raw:
        yield raw


def connected(broker: InProcessBroker) -> RawClient:
    return RawClient(broker.bootstrap_servers, timeout=60)


def committed(broker: InProcessBroker) -> list[bytes]:
    """All that a reader of committed records gets, up to the end of the log: no transaction is open."""
    with Wire(broker.bootstrap_servers) as wire:
        ends = list_offsets(wire, TOPIC, {0: LATEST}, timeout=60)
        reader = Consumer(wire, TOPIC, {0: 0}, ends, read_committed=True, timeout=60)
        return [record.value or b"" for _, record in reader]


def test_transactions_begin_although_topics_use_up_all_partitions() -> None:
    with client(topics={TOPIC: 3}, max_partitions=3) as raw:
        producer = WireProducer(raw)
        assert producer.init() == OK
        assert producer.send(TOPIC, b"a") == OK
        assert producer.end() == OK


@protocols
def test_a_transaction_with_very_many_partitions_refuses_more_and_can_be_ended(second: bool) -> None:
    topics = {f"{number:02}{'x' * 230}": 1 for number in range(12)}
    with client(topics=topics, message_max_bytes=2000) as raw:
        producer = WireProducer(raw, second=second)
        assert producer.init() == OK
        codes = [producer.send(topic, b"a") for topic in topics]
        fitting = codes.count(OK)
        assert codes == [OK] * fitting + [ErrorCode.RECORD_LIST_TOO_LARGE] * (len(codes) - fitting)
        assert 5 < fitting < len(codes)
        assert producer.end() == OK
        until(lambda: producer.described().transaction_state == "CompleteCommit", producer.described)


def test_a_timeout_above_the_brokers_limit_is_refused() -> None:
    with client(transaction_max_timeout_ms=5000) as raw:
        assert WireProducer(raw, timeout_ms=5001).init() == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert WireProducer(raw, timeout_ms=5000).init() == OK


@protocols
def test_an_id_that_is_not_used_is_forgotten_unless_its_transaction_is_open(second: bool) -> None:
    settings = {
        "transactional.id.expiration.ms": 300,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 50,
    }
    with client(settings=settings) as raw:
        working, idle = (WireProducer(raw, name, second=second) for name in ("working", "idle"))
        assert working.init() == OK
        assert working.send(TOPIC, b"a") == OK
        assert idle.init() == OK
        gone = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        until(lambda: idle.described().error_code == gone, idle.described)
        assert idle.send(TOPIC, b"late") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert idle.end(commit=False) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert working.described().transaction_state == "Ongoing"
        assert working.end() == OK
        before = idle.producer_id
        assert idle.init() == OK
        assert idle.producer_id != before


@protocols
def test_a_partition_does_not_forget_a_producer_whose_transaction_is_open(second: bool) -> None:
    settings = {"producer.id.expiration.ms": 300, "producer.id.expiration.check.interval.ms": 50}
    with ottla.testing.broker(topics={TOPIC: 1}, settings=settings) as broker, connected(broker) as raw:
        open_one, ended = (WireProducer(raw, name, second=second) for name in ("open", "ended"))
        for producer in (open_one, ended):
            assert producer.init() == OK
            assert producer.send(TOPIC, producer.name.encode()) == OK
        assert ended.end() == OK

        def remembered() -> list[int]:
            request = DescribeProducersRequest(topics=[TopicRequest(name=TOPIC, partition_indexes=[0])])
            (partition,) = raw.call(request, 0).topics[0].partitions
            return [each.producer_id for each in partition.active_producers]

        until(lambda: remembered() == [open_one.producer_id], remembered)
        assert open_one.send(TOPIC, b"more") == OK
        assert open_one.end() == OK
        until(lambda: committed(broker) == [b"open", b"ended", b"more"], lambda: committed(broker))


@protocols
def test_a_topic_that_is_deleted_does_not_keep_its_transaction_from_ending(second: bool) -> None:
    with client(topics={TOPIC: 1, "gone": 1}) as raw:
        producer = WireProducer(raw, second=second)
        assert producer.init() == OK
        assert producer.send(TOPIC, b"a") == producer.send("gone", b"b") == OK
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")], timeout_ms=30_000)
        assert raw.call(deletion, 6).responses[0].error_code == OK
        assert producer.end() == OK
        until(lambda: producer.described().transaction_state == "CompleteCommit", producer.described)
        assert producer.send(TOPIC, b"c") == OK
        assert producer.end() == OK


# -- epochs -------------------------------------------------------------------------------------------------


def use_up_epochs(data: Path, producer: WireProducer) -> None:
    """While the broker is down, the producer's id gets the last epoch that producers may have."""
    entry = Transaction(producer.name, producer.producer_id, LAST_EPOCH - 1, 60_000, update_ms=_now())
    key, value = encode_entry((producer.name, entry))
    directory = LogDirectory(data, RealDisk(), SystemClock(), config_for=lambda _: LogConfig())
    directory.open()
    log = directory.logs["__transaction_state", 0]
    batch = encode_batch([Record(0, _now(), key, value, [])])
    log.append(memoryview(batch), log.leader_epochs.latest, from_client=False)
    directory.close()


def _now() -> int:
    return SystemClock().now_ms()


@protocols
def test_a_producer_whose_epochs_are_used_up_goes_on_with_another_id(tmp_path: Path, second: bool) -> None:
    settings = {"transaction.state.log.num.partitions": 1}
    with ottla.testing.broker(data=tmp_path, topics={TOPIC: 1}, settings=settings) as broker:
        with connected(broker) as raw:
            producer = WireProducer(raw, second=second)
            assert producer.init() == OK
        first_id = producer.producer_id
        broker.stop()
        use_up_epochs(tmp_path, producer)
        broker.start()
        with connected(broker) as raw:
            producer.client, producer.epoch = raw, LAST_EPOCH - 1
            assert producer.send(TOPIC, b"last epoch") == OK
            assert producer.end() == OK
            if not second:  # with the second protocol the answer to EndTxn gave the next id
                assert producer.init(goes_on=True) == OK
            assert (producer.producer_id != first_id, producer.epoch) == (True, 0)
            assert producer.send(TOPIC, b"next id") == OK
            assert producer.end(commit=False) == OK
            zombie = WireProducer(raw, second=second)
            zombie.producer_id, zombie.epoch = first_id, LAST_EPOCH - 1
            assert zombie.send(TOPIC, b"zombie") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
            assert producer.send(TOPIC, b"goes on") == OK
            assert producer.end() == OK
            until(lambda: committed(broker) == [b"last epoch", b"goes on"], lambda: committed(broker))


# -- the level of the feature -------------------------------------------------------------------------------


def set_level(raw: RawClient, level: int, kind: int) -> None:
    update = FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=kind)
    answer = raw.call(UpdateFeaturesRequest(feature_updates=[update]), 2)
    assert answer.error_code == OK, answer.error_message


@pytest.mark.parametrize("level", [0, 1])
def test_open_transactions_end_as_asked_when_the_level_is_lowered_and_raised(level: int) -> None:
    upgrade, downgrade = 1, 2
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}
    with ottla.testing.broker(topics={TOPIC: 1}, settings=settings) as broker, connected(broker) as raw:
        newer, older = WireProducer(raw, "newer", second=True), WireProducer(raw, "older")
        late = WireProducer(raw, "late", second=True, timeout_ms=300)
        for producer in (newer, older, late):
            assert producer.init() == OK
            assert producer.send(TOPIC, producer.name.encode()) == OK
        set_level(raw, level, downgrade)
        until(lambda: late.described().transaction_state == "CompleteAbort", late.described)
        assert late.end() == ErrorCode.INVALID_TXN_STATE
        assert newer.end() == older.end() == OK
        newer.second = False  # as a client does that is told of the level
        for producer in (newer, older):
            assert producer.send(TOPIC, producer.name.upper().encode()) == OK
        set_level(raw, 2, upgrade)
        assert newer.end() == older.end(commit=False) == OK
        newer.second = True
        assert newer.init() == OK
        assert newer.send(TOPIC, b"again") == OK
        assert newer.end() == OK
        expected = [b"newer", b"older", b"NEWER", b"again"]
        until(lambda: committed(broker) == expected, lambda: committed(broker))
