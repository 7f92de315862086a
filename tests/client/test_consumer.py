"""Reading: one by one, in batches, by group and by hand, from anywhere, and records that cannot be read."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import pytest

import ottla
from client.consuming import PATIENCE, fill, group, numbers, read, until
from ottla.client import (
    ClientError,
    ClosedError,
    ConfigurationError,
    ConsumerInterceptor,
    ConsumerRecord,
    DeserializationError,
    TopicPartition,
)
from ottla.client.dead_letters import DeadLetters


def test_records_come_one_by_one_with_all_their_parts(servers: str, topic: str) -> None:
    fill(servers, topic, [b"a", None], key=lambda number: [b"k", None][number], partition=1)
    with ottla.Consumer(topic, bootstrap_servers=[servers], group_id=group()) as consumer:
        found = []
        for record in consumer:
            found.append(record)
            if len(found) == 2:
                break
    assert [(each.topic, each.partition, each.offset) for each in found] == [(topic, 1, 0), (topic, 1, 1)]
    assert [(each.key, each.value) for each in found] == [(b"k", b"a"), (None, None)]
    assert abs((found[0].timestamp or 0) / 1000 - time.time()) < PATIENCE
    with pytest.raises(ClosedError):
        consumer.poll()


def test_batches_are_as_large_as_asked_for_and_come_at_once(servers: str, topic: str) -> None:
    fill(servers, topic, numbers(0, 50), partition=0)
    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=group()) as consumer:
        found: list[bytes] = []
        for batch in consumer.batches(20):
            assert 1 <= len(batch) <= 20
            found += [each.value for each in batch]
            if len(found) == 50:
                break
        assert found == numbers(0, 50)
        assert consumer.fetch(10, timeout=0.01) == []
        began = time.monotonic()
        fill(servers, topic, [b"one more"], partition=0)
        assert [each.value for each in consumer.fetch(10, timeout=PATIENCE)] == [b"one more"]
        assert time.monotonic() - began < PATIENCE / 2, "it waited for a full batch"


def test_a_consumer_that_is_not_read_from_keeps_no_partitions(servers: str, topic: str) -> None:
    fill(servers, topic, numbers(0, 30))
    name = group()
    with (
        ottla.Consumer(topic, bootstrap_servers=servers, group_id=name) as idle,
        ottla.Consumer(topic, bootstrap_servers=servers, group_id=name) as busy,
    ):
        assert len(read(busy, 30)) == 30
        assert len(busy.assignment()) == 3
        until(lambda: (idle.poll(0.01), busy.poll(0.01), idle.assignment())[-1], "share of the other member")


def test_reading_inside_a_rebalance_callback_is_an_error_that_says_so(servers: str, topic: str) -> None:
    fill(servers, topic, [b"x"])

    def on_assign(consumer: ottla.Consumer, _: object) -> None:
        consumer.poll(0)

    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=group(), on_assign=on_assign) as consumer:
        with pytest.raises(ClientError, match="a rebalance callback cannot read"):
            consumer.poll(PATIENCE)
        assert [each.value for each in read(consumer, 1)] == [b"x"]


def test_a_consumer_reads_several_topics_and_patterns(servers: str, make_topic: Callable[[int], str]) -> None:
    first, second, third = make_topic(1), make_topic(1), make_topic(1)
    for name in (first, second, third):
        fill(servers, name, [name.encode()])
    pattern = re.compile(f"{second}|{third}")
    with ottla.Consumer(first, pattern, bootstrap_servers=servers, group_id=group()) as consumer:
        assert {each.value.decode() for each in read(consumer, 3)} == {first, second, third}


def test_partitions_can_be_assigned_by_hand_without_a_group(servers: str, topic: str) -> None:
    fill(servers, topic, numbers(0, 5), partition=0)
    fill(servers, topic, numbers(10, 15), partition=2)
    with ottla.Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign({TopicPartition(topic, 0): 3, TopicPartition(topic, 2): 4})
        assert {each.value for each in read(consumer, 3)} == {b"3", b"4", b"14"}
        consumer.assign([TopicPartition(topic, 2)])
        assert [each.value for each in read(consumer, 5)] == numbers(10, 15)
        with pytest.raises(ConfigurationError, match="group_id"):
            consumer.commit()
        with pytest.raises(ConfigurationError, match="group_id"):
            consumer.subscribe(topic)
        with pytest.raises(ClientError, match="not assigned"):
            consumer.seek(TopicPartition(topic, 0), 0)


def test_a_consumer_can_go_anywhere_and_knows_its_lag(servers: str, topic: str) -> None:
    place = TopicPartition(topic, 0)
    base = int(time.time() * 1000) - 100_000
    fill(servers, topic, numbers(0, 20), partition=0, timestamp=lambda number: base + number * 1000)
    with ottla.Consumer(bootstrap_servers=servers) as consumer:
        with pytest.raises(ClientError, match="no partition is assigned to this consumer yet"):
            consumer.seek_to_time(base)
        consumer.assign([place])
        assert [each.offset for each in read(consumer, 3)] == [0, 1, 2]
        assert consumer.position(place) == 3
        assert consumer.lag() == {place: 17}
        consumer.seek(place, 15)
        assert consumer.position(place) == 15
        assert [each.offset for each in read(consumer, 2)] == [15, 16]
        consumer.seek_to_time(base + 6500)
        assert [each.offset for each in read(consumer, 2)] == [7, 8]
        consumer.seek_to_time(datetime.fromtimestamp((base + 2000) / 1000, UTC), place)
        assert read(consumer, 1)[0].offset == 2
        consumer.seek_to_end()
        assert consumer.poll(0.05) is None
        consumer.seek_to_time(base + 10**6)
        assert consumer.position(place) == 20
        consumer.seek_to_beginning()
        assert read(consumer, 1)[0].offset == 0
        with pytest.raises(ConfigurationError, match="time zone"):
            consumer.seek_to_time(datetime(2020, 1, 1))
        with pytest.raises(ConfigurationError, match="seek_to_beginning"):
            consumer.seek(place, -1)


def test_a_seek_inside_a_loop_takes_effect_at_the_next_record(servers: str, topic: str) -> None:
    fill(servers, topic, numbers(0, 10), partition=0)
    with ottla.Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found = []
        for record in consumer:
            found.append(record.offset)
            if len(found) == 3:
                consumer.seek(TopicPartition(topic, 0), 8)
            if len(found) == 5:
                break
        assert found == [0, 1, 2, 8, 9]


def test_a_paused_partition_is_silent_until_it_is_resumed(servers: str, topic: str) -> None:
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    for place in (first, second):
        fill(servers, topic, numbers(0, 5), partition=place.partition)
    with ottla.Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign([first, second])
        read(consumer, 1)
        consumer.pause(first)
        assert consumer.paused() == {first}
        rest: list[ConsumerRecord] = []
        while batch := consumer.fetch(timeout=0.3):
            rest += batch
        assert {each.partition for each in rest} == {1}
        consumer.resume()
        while len(rest) < 9:
            rest += consumer.fetch(timeout=PATIENCE)
        of_first = [each.offset for each in rest if each.partition == 0]
        assert of_first == sorted(set(of_first)), "in order, and none twice"


def test_a_group_begins_where_it_was_told_to(servers: str, topic: str) -> None:
    fill(servers, topic, [b"old"], partition=0)
    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=group(), start="latest") as consumer:
        until(lambda: consumer.poll(0.05) is None and consumer.assignment(), "assignment")
        deadline = time.monotonic() + PATIENCE
        record = None
        while record is None and time.monotonic() < deadline:
            fill(servers, topic, [b"new"], partition=0)
            record = consumer.poll(1.0)
        assert record is not None
        assert record.value == b"new"


class Upper(ConsumerInterceptor):
    """Changes one record, drops another, fails at a third."""

    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        self.closed = False

    def on_consume(self, record: ConsumerRecord) -> ConsumerRecord | None:
        if record.value == "drop":
            return None
        if record.value == "fail":
            raise RuntimeError("an interceptor that fails")
        return record.replace(value=record.value.upper())

    def on_commit(self, offsets: Mapping[TopicPartition, int], error: ClientError | None) -> None:
        assert error is None
        self.commits.append(dict(offsets))

    def close(self) -> None:
        self.closed = True


def test_deserializers_then_interceptors(servers: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    fill(servers, topic, [b'"a"', b'"drop"', b'"fail"', b'"drop"'], partition=0)
    upper = Upper()
    with ottla.Consumer(
        topic,
        bootstrap_servers=servers,
        group_id=group(),
        key_deserializer="str",
        value_deserializer="json",
        interceptors=[upper],
    ) as consumer:
        assert [(each.key, each.value) for each in read(consumer, 2)] == [("0", "A"), ("2", "fail")]
        assert "an interceptor that fails" in caplog.text
        until(lambda: consumer.poll(0.0) is None, "end")
        consumer.commit()
        assert consumer.committed(TopicPartition(topic, 0)) == {TopicPartition(topic, 0): 4}
        assert upper.commits == [{TopicPartition(topic, 0): 4}], "the dropped record at the end counts"
    assert upper.closed


def test_a_record_that_cannot_be_read_is_raised_with_its_place(servers: str, topic: str) -> None:
    fill(servers, topic, [b"1", b"{", b"3"], partition=0)
    with ottla.Consumer(
        topic, bootstrap_servers=servers, group_id=group(), value_deserializer="json"
    ) as consumer:
        assert read(consumer, 1)[0].value == 1
        for _ in range(2):  # and again, until somebody decides
            with pytest.raises(DeserializationError, match=f"value of {topic}-0 at offset 1") as failure:
                consumer.poll(PATIENCE)
        bad = failure.value
        assert (bad.topic, bad.partition, bad.offset, bad.data) == (topic, 0, 1, b"{")
        consumer.seek(TopicPartition(topic, 0), bad.offset + 1)
        assert read(consumer, 1)[0].value == 3


def test_bad_records_are_skipped_or_become_dead_letters(
    servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(servers, topic, [b"1", b"{", b"3"], partition=0)
    letters = DeadLetters("{topic}.dead")
    for policy in ("skip", letters):
        with ottla.Consumer(
            topic,
            bootstrap_servers=servers,
            group_id=group(),
            value_deserializer="json",
            on_bad_record=policy,
        ) as consumer:
            with caplog.at_level(logging.WARNING):
                assert [each.value for each in read(consumer, 2)] == [1, 3]
            assert f"{topic}-0 at offset 1" in caplog.text
    with ottla.Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign([TopicPartition(f"{topic}.dead", 0)])
        letter = read(consumer, 1)[0]
    assert (letter.key, letter.value) == (b"1", b"{")
    assert letter.header("ottla.topic") == topic.encode()
    assert (letter.header("ottla.partition"), letter.header("ottla.offset")) == (b"0", b"1")
    assert b"cannot be read" in (letter.header("ottla.reason") or b"")
    assert letter.header("ottla.exception") == b"json.decoder.JSONDecodeError"


def test_a_stopped_consumer_ends_its_loops(servers: str, topic: str) -> None:
    fill(servers, topic, numbers(0, 5), partition=0)
    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=group()) as consumer:
        found = []
        for record in consumer:
            found.append(record.value)
            if len(found) == 2:
                consumer.stop()
        assert found == [b"0", b"1"]
        assert list(consumer.batches()) == []


def test_ctrl_c_ends_a_loop_that_waits(servers: str, topic: str) -> None:
    program = (
        "import ottla, sys\n"
        f"with ottla.Consumer({topic!r}, bootstrap_servers={servers!r}, group_id={group()!r}) as consumer:\n"
        "    consumer.fetch(timeout=1)\n"
        "    try:\n"
        "        print('waiting', flush=True)\n"
        "        for record in consumer: pass\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', flush=True)\n"
        "        sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - began < 5.0, "a busy machine takes some time, but not so much"
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_what_cannot_be_is_refused_at_once(servers: str) -> None:
    with pytest.raises(ConfigurationError, match="needs a group_id"):
        ottla.Consumer("t", bootstrap_servers=servers)
    with pytest.raises(ConfigurationError, match=r"fetch\.min\.byte"):
        ottla.Consumer("t", bootstrap_servers=servers, group_id="g", config={"fetch.min.byte": 1})
    with pytest.raises(ConfigurationError, match="on_bad_record"):
        ottla.Consumer("t", bootstrap_servers=servers, group_id="g", on_bad_record="ignore")  # type: ignore[arg-type]


def test_a_closed_consumer_says_so(servers: str, topic: str) -> None:
    place = TopicPartition(topic, 0)
    fill(servers, topic, numbers(0, 10), partition=0)
    consumer = ottla.Consumer(bootstrap_servers=servers, group_id=group())
    consumer.assign({place: 0})
    records = iter(consumer)
    next(records)
    consumer.close()
    for use in (
        lambda: next(records),
        consumer.poll,
        consumer.commit,
        consumer.committed,
        consumer.lag,
        consumer.seek_to_beginning,
        consumer.pause,
        consumer.group_metadata,
        lambda: consumer.assign([place]),
    ):
        with pytest.raises(ClosedError):
            use()
