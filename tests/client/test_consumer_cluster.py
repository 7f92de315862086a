"""The pool on three brokers while the one that leads what is being read is killed."""

from __future__ import annotations

import threading
from collections import Counter

import ottla
import ottla.testing
from client.consuming import PATIENCE, fill, numbers, until
from ottla.client import ConsumerRecord, Pool, TopicPartition


def test_nothing_is_lost_when_the_leader_is_killed() -> None:
    settings = {"group.initial.rebalance.delay.ms": 0}
    with ottla.testing.cluster(3, topics={"t": 1}, settings=settings) as cluster:
        servers = cluster.bootstrap_servers
        fill(servers, "t", numbers(0, 200), key=lambda number: b"%d" % (number % 10))
        seen: Counter[bytes] = Counter()
        lock = threading.Lock()

        def work(record: ConsumerRecord) -> None:
            with lock:
                seen[record.value] += 1

        fast = {"reconnect.backoff.max.ms": 200}
        with ottla.Consumer("t", bootstrap_servers=servers, group_id="g", config=fast) as consumer:
            pool = Pool(work, consumer, workers=4, commit_interval=0.1)
            running = threading.Thread(target=pool.run)
            running.start()
            try:
                until(lambda: pool.done >= 100, "first records")
                cluster.kill(cluster.leader("t"))
                fill(servers, "t", numbers(200, 400), key=lambda number: b"%d" % (number % 10))
                until(lambda: len(seen) == 400, "records after the kill")
            finally:
                pool.stop()
                running.join(PATIENCE)
            until(lambda: consumer.committed().get(TopicPartition("t", 0)) == 400, "commit of everything")
        assert set(seen) == set(numbers(0, 400))
