"""A group lives through the death of its broker: no acknowledged commit is lost, and reading goes on.

The broker is a process and is killed with SIGKILL while members read and commit. What a member was told is
committed must be there afterwards, and what is delivered twice is only what was read and not committed.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from broker_process import BrokerProcess

DEADLINE = 60.0
RECORDS = 300
KILLS = 2


@pytest.fixture
def settings() -> dict[str, object]:
    return {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 1000}


def test_no_acknowledged_commit_is_lost_when_the_broker_is_killed_under_load(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    group, topic = f"g-{uuid.uuid4().hex[:8]}", "t"
    with BrokerProcess(tmp_path, settings) as broker:
        servers = broker.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        for number in range(RECORDS):
            producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(DEADLINE) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        consumer.subscribe([topic])
        acknowledged, last_read, seen, killed = 0, -1, 0, 0
        deadline = time.monotonic() + DEADLINE
        try:
            while acknowledged < RECORDS:
                assert time.monotonic() < deadline, f"committed {acknowledged} of {RECORDS}"
                message = consumer.poll(0.2)
                if message is None or message.error():
                    continue
                offset = message.offset()
                assert offset is not None
                assert offset <= last_read + 1, "nothing is passed over"
                assert offset >= acknowledged, "what was committed is not delivered again"
                last_read, seen = offset, seen + 1
                if offset % 3 == 2 or offset == RECORDS - 1:
                    with suppress(KafkaException):  # not acknowledged: it may or may not be there
                        consumer.commit(message=message, asynchronous=False)
                        acknowledged = offset + 1
                if killed < KILLS and acknowledged > (killed + 1) * RECORDS // (KILLS + 1):
                    killed += 1
                    broker.kill()
                    broker.start()
                    assert _committed(servers, group, topic) >= acknowledged
        finally:
            consumer.close()
        assert killed == KILLS
        assert _committed(servers, group, topic) == RECORDS
        assert seen - RECORDS <= KILLS * 10, "only what was not committed is delivered again"


def _committed(servers: str, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=DEADLINE)
    finally:
        consumer.close()
    assert found.error is None
    return int(found.offset)
