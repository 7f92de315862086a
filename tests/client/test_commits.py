"""Commits and groups: what is committed when, and that a record is never committed before it is finished."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka import TopicPartition as Offset

import ottla
from client.consuming import PATIENCE, fill, group, numbers, read, until
from ottla.client import ClientError, ConfigurationError, ConsumerInterceptor, TopicPartition
from ottla.client.delivery import CommitMode, GroupProtocol


class Commits(ConsumerInterceptor):
    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.errors: list[ClientError] = []

    def on_commit(self, offsets: Mapping[TopicPartition, int], error: ClientError | None) -> None:
        if error is None:
            self.offsets += offsets.values()
        else:
            self.errors.append(error)


def committed(servers: str, name: str, topic: str, partition: int = 0) -> int | None:
    with ottla.Consumer(bootstrap_servers=servers, group_id=name) as consumer:
        place = TopicPartition(topic, partition)
        return consumer.committed(place).get(place)


@pytest.fixture
def single(servers: str, make_topic: Callable[[int], str]) -> str:
    """A topic with one partition and ten records."""
    topic = make_topic(1)
    fill(servers, topic, numbers(0, 10))
    return topic


def test_a_record_is_finished_when_the_next_one_is_asked_for(servers: str, single: str) -> None:
    name = group()
    with pytest.raises(ZeroDivisionError):
        with ottla.Consumer(single, bootstrap_servers=servers, group_id=name) as consumer:
            for record in consumer:
                if record.offset == 4:
                    raise ZeroDivisionError
    assert committed(servers, name, single) == 4, "the record that failed comes again"
    with ottla.Consumer(single, bootstrap_servers=servers, group_id=name) as consumer:
        assert [each.offset for each in consumer.fetch(3, timeout=PATIENCE)] == [4, 5, 6]
    assert committed(servers, name, single) == 4, "the batch was not finished"
    with ottla.Consumer(single, bootstrap_servers=servers, group_id=name) as consumer:
        assert [each.offset for each in consumer.fetch(3, timeout=PATIENCE)] == [4, 5, 6]
        consumer.commit()
        read(consumer, 1)
    assert committed(servers, name, single) == 7


def test_a_consumer_that_was_interrupted_while_it_joined_joins_at_the_next_read(
    servers: str, single: str
) -> None:
    with ottla.Consumer(single, bootstrap_servers=servers, group_id=group()) as consumer:
        join = consumer._join
        assert join is not None
        calls: list[bool] = []

        def interrupted() -> None:
            calls.append(True)
            if len(calls) == 1:
                raise KeyboardInterrupt
            join()

        consumer._join = interrupted
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(1)
        record = consumer.poll(10)
        assert record is not None
        assert record.offset == 0


def test_a_commit_inside_the_loop_covers_each_record_and_repeats_none(servers: str, single: str) -> None:
    place = TopicPartition(single, 0)
    found = []
    with ottla.Consumer(single, bootstrap_servers=servers, group_id=group(), commit="manual") as consumer:
        for record in consumer:
            consumer.commit()
            found.append(record.offset)
            assert consumer.committed(place) == {place: record.offset + 1}
            if record.offset == 2:
                consumer._tick_at = 0.0  # as if a second had passed
            if len(found) == 6:
                break
    assert found == [0, 1, 2, 3, 4, 5]


def test_a_record_that_is_polled_inside_the_loop_is_not_handed_out_by_the_loop(
    servers: str, single: str
) -> None:
    found = []
    with ottla.Consumer(single, bootstrap_servers=servers, group_id=group()) as consumer:
        for record in consumer:
            found.append(record.offset)
            if record.offset == 2:
                found += [each.offset for each in read(consumer, 2)]
            if len(found) == 7:
                break
    assert found == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("mode", ["auto", "sync", "async", "async-then-sync", "manual"])
def test_modes_of_committing(servers: str, single: str, mode: CommitMode) -> None:
    name, commits = group(), Commits()
    with ottla.Consumer(
        single,
        bootstrap_servers=servers,
        group_id=name,
        commit=mode,
        commit_interval=0.0,
        batch_size=4,
        interceptors=[commits],
    ) as consumer:
        read(consumer, 10)
        until(lambda: consumer.poll(0.01) is None, "end")
        if mode == "manual":
            assert commits.offsets == []
            consumer.commit(wait=False)
        until(lambda: consumer.poll(0.01) is None and commits.offsets[-1:] == [10], "commit of everything")
        if mode in ("sync", "async", "async-then-sync"):
            assert len(commits.offsets) >= 3, "after each batch"
        consumer.commit({TopicPartition(single, 0): 2})
        assert commits.offsets[-1] == 2
    assert commits.errors == []
    assert committed(servers, name, single) == (2 if mode == "manual" else 10), "on close once more"


def test_a_failed_asynchronous_commit_is_followed_by_a_synchronous_one(servers: str, single: str) -> None:
    commits = Commits()
    with ottla.Consumer(
        single,
        bootstrap_servers=servers,
        group_id=group(),
        commit="async-then-sync",
        batch_size=3,
        interceptors=[commits],
    ) as consumer:
        assert len(consumer.fetch(3, timeout=PATIENCE)) == 3
        refused = KafkaError(KafkaError.REQUEST_TIMED_OUT)
        consumer._committer.answered(refused, [Offset(single, 0, 1)])  # as librdkafka tells it
        assert [error.name for error in commits.errors] == ["REQUEST_TIMED_OUT"]
        consumer._buffer.settle()
        consumer._tick(time.monotonic())
        assert commits.offsets == [3], "it is known at once, without a poll"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_shares_partitions_and_hands_them_over(
    servers: str, make_topic: Callable[[int], str], protocol: GroupProtocol
) -> None:
    """A second member comes and goes, while records are read: each of them once."""
    topic, name = make_topic(4), group()
    calls: list[tuple[str, str, list[int]]] = []
    seen: list[tuple[int, int]] = []
    lock = threading.Lock()

    def member(label: str, until_told: threading.Event) -> None:
        def note(kind: str) -> Callable[[Any, list[TopicPartition]], None]:
            return lambda _, names: calls.append((label, kind, sorted(each.partition for each in names)))

        with ottla.Consumer(
            topic,
            bootstrap_servers=servers,
            group_id=name,
            group_protocol=protocol,
            on_assign=note("assign"),
            on_revoke=note("revoke"),
        ) as consumer:
            while not until_told.is_set():
                for record in consumer.fetch(timeout=0.05):
                    with lock:
                        seen.append((record.partition, record.offset))
            consumer.commit()

    ends = [threading.Event(), threading.Event()]
    threads = [
        threading.Thread(target=member, args=(label, end)) for label, end in zip("ab", ends, strict=True)
    ]
    try:
        for partition in range(4):
            fill(servers, topic, numbers(0, 50), partition=partition)
        threads[0].start()
        until(lambda: len(seen) == 200, "first half")
        threads[1].start()
        until(
            lambda: any(call[:2] == ("b", "assign") and call[2] for call in calls),
            "share of the second member",
        )
        for partition in range(4):
            fill(servers, topic, numbers(50, 100), partition=partition)
        until(lambda: len(seen) >= 400, "second half")
        ends[1].set()
        threads[1].join(PATIENCE)
        for partition in range(4):
            fill(servers, topic, numbers(100, 110), partition=partition)
        until(lambda: len(seen) >= 440, "end")
    finally:
        for end in ends:
            end.set()
        for thread in threads:
            if thread.is_alive():
                thread.join(PATIENCE)
    assert sorted(seen) == sorted((partition, offset) for partition in range(4) for offset in range(110))
    assert ("a", "revoke") in {call[:2] for call in calls}
    moved = next(call[2] for call in calls if call[:2] == ("a", "revoke"))
    assert len(moved) < 4, "a rebalance moves some partitions, not all"


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(
    servers: str, make_topic: Callable[[int], str]
) -> None:
    topic, name = make_topic(1), group()
    fill(servers, topic, numbers(0, 4))
    for first in (0, 2):
        with ottla.Consumer(
            topic, bootstrap_servers=servers, group_id=name, group_instance_id="one", commit="sync"
        ) as consumer:
            assert [each.offset for each in read(consumer, 2)] == [first, first + 1]
            consumer.commit()


def test_reading_begins_where_on_assign_says(servers: str, single: str) -> None:
    def at_six(consumer: ottla.Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            consumer.seek(partition, 6)

    with ottla.Consumer(single, bootstrap_servers=servers, group_id=group(), on_assign=at_six) as consumer:
        assert [each.offset for each in read(consumer, 4)] == [6, 7, 8, 9]


def test_at_most_once_commits_before_it_hands_out(servers: str, single: str) -> None:
    name = group()
    with ottla.Consumer(
        single, bootstrap_servers=servers, group_id=name, delivery="at-most-once", batch_size=5
    ) as consumer:
        assert read(consumer, 1)[0].offset == 0
        assert committed(servers, name, single) == 5
    with ottla.Consumer(
        single, bootstrap_servers=servers, group_id=name, delivery="at-most-once"
    ) as consumer:
        assert read(consumer, 1)[0].offset == 5, "the four that were not handed out are lost"


def test_exactly_once_commits_with_the_transaction_only(
    servers: str, single: str, make_topic: Callable[[int], str], read_all: Callable[[str], list[Any]]
) -> None:
    name, output = group(), make_topic(1)
    with (
        ottla.Producer(bootstrap_servers=servers, transactional_id=name) as producer,
        ottla.Consumer(single, bootstrap_servers=servers, group_id=name, delivery="exactly-once") as consumer,
    ):
        with pytest.raises(ConfigurationError, match="transaction"):
            consumer.commit()
        with pytest.raises(ZeroDivisionError):
            with producer.transaction(consumer):
                producer.send(output, b"aborted")
                assert len(consumer.fetch(4, timeout=PATIENCE)) == 4
                raise ZeroDivisionError
        done = 0
        while done < 10:
            batch = consumer.fetch(4, timeout=PATIENCE)
            with producer.transaction(consumer):
                for record in batch:
                    producer.send(output, record.value)
            done += len(batch)
            assert committed(servers, name, single) == done
    assert [each.value() for each in read_all(output)] == numbers(0, 10)


def test_a_slow_reader_keeps_its_partitions(
    servers: str,
    make_topic: Callable[[int], str],
    poll_limit: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records that were read ahead outlast max.poll.interval.ms; the consumer polls meanwhile."""
    monkeypatch.setattr("ottla.client.consumer._POLL_INTERVAL", 0.2)
    topic, lost, limit = make_topic(1), [], poll_limit["max.poll.interval.ms"] / 1000
    fill(servers, topic, numbers(0, 8))
    with ottla.Consumer(
        topic,
        bootstrap_servers=servers,
        group_id=group(),
        on_lost=lambda _, names: lost.append(names),
        config=poll_limit,
    ) as consumer:
        began = time.monotonic()
        for record in consumer:
            due = began + record.offset * limit / 6
            until(lambda: time.monotonic() > due, "time of a slow record")  # noqa: B023
            if record.offset == 7:
                break
        assert time.monotonic() - began > limit
        assert lost == []
        consumer.commit()


def test_a_lost_partition_is_never_committed(
    servers: str, make_topic: Callable[[int], str], poll_limit: dict[str, int]
) -> None:
    topic, name, lost = make_topic(1), group(), []
    fill(servers, topic, numbers(0, 10))
    with ottla.Consumer(
        topic,
        bootstrap_servers=servers,
        group_id=name,
        on_lost=lambda _, names: lost.append(names),
        config=poll_limit,
    ) as consumer:
        assert len(consumer.fetch(3, timeout=PATIENCE)) == 3
        with ottla.Consumer(topic, bootstrap_servers=servers, group_id=name, commit="sync") as other:
            assert len(read(other, 10)) == 10, "the reader that hangs has to give the partition up"
            other.commit()
        consumer.fetch(1, timeout=0.5)
        until(lambda: lost or consumer.fetch(1, timeout=0.5) is None, "loss")
    assert committed(servers, name, topic) == 10, "the hung reader did not set it back"


def test_entering_a_producer_ends_the_transaction_that_keeps_a_consumer_waiting(
    servers: str, make_topic: Callable[[int], str]
) -> None:
    """Offsets in the open transaction of a crashed process are not told until it is aborted."""
    topic, name = make_topic(1), group()
    fill(servers, topic, numbers(0, 5))
    crashed = Producer(
        {"bootstrap.servers": servers, "transactional.id": name, "transaction.timeout.ms": 600_000}
    )
    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=name, delivery="exactly-once") as consumer:
        read(consumer, 3)
        crashed.init_transactions(PATIENCE)
        crashed.begin_transaction()
        crashed.send_offsets_to_transaction(
            consumer.positions_for_transaction(), consumer.group_metadata(), PATIENCE
        )
    with (
        ottla.Consumer(topic, bootstrap_servers=servers, group_id=name, delivery="exactly-once") as consumer,
        ottla.Producer(bootstrap_servers=servers, transactional_id=name) as producer,
    ):
        assert [each.value for each in read(consumer, 5)] == numbers(0, 5), "the transaction was aborted"
        with producer.transaction(consumer):
            pass
    with ottla.Consumer(bootstrap_servers=servers, group_id=name) as consumer:
        assert consumer.committed(TopicPartition(topic, 0)) == {TopicPartition(topic, 0): 5}
