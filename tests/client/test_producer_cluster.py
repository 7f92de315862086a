"""The producer on three brokers, one of which is killed while it sends."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import ottla
import ottla.testing
from client.reading import read_topic
from ottla.client import ClientError, ProducerInterceptor, ProducerRecord, RecordMetadata

RECORDS = 6_000


class Ledger(ProducerInterceptor):
    """Keeps every result, and fails now and then."""

    def __init__(self) -> None:
        self.written: Counter[bytes] = Counter()
        self.failed: list[ClientError] = []
        self._calls = 0

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self._calls += 1
        if self._calls % 10 == 0:
            raise RuntimeError("every tenth time")
        return record

    def on_ack(
        self, record: ProducerRecord, metadata: RecordMetadata | None, error: ClientError | None
    ) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.written[record.value] += 1


def test_no_record_is_lost_or_doubled_when_a_leader_is_killed() -> None:
    ledger = Ledger()
    with ottla.testing.cluster(3, topics={"t": 3}) as cluster:
        victim = cluster.leader("t", 0)
        with ottla.Producer(
            cluster.bootstrap_servers, interceptors=[ledger], partitioner="round_robin"
        ) as producer:
            killed = threading.Thread(target=cluster.kill, args=[victim])
            for number in range(RECORDS):
                if number == RECORDS // 3:
                    killed.start()
                producer.send("t", b"%d" % number)
            killed.join()

            async def some() -> list[RecordMetadata]:
                return await asyncio.gather(*(producer.asend("t", b"async %d" % n) for n in range(100)))

            assert len(asyncio.run(some())) == 100
        survivors = ",".join(each.bootstrap_servers for n, each in cluster.brokers.items() if n != victim)
        found = read_topic(survivors, "t")
    expected = [b"%d" % n for n in range(RECORDS)] + [b"async %d" % n for n in range(100)]
    assert Counter(message.value() for message in found) == Counter(expected)
    assert not ledger.failed
    assert ledger.written == Counter(expected)
    for partition in range(3):
        numbers = [
            int(value)
            for message in found
            if message.partition() == partition and (value := message.value() or b"").isdigit()
        ]
        assert numbers == sorted(numbers), "each partition has its records in the order of the sends"
