"""The pool against a broker: order per key, commits, failures, rebalances, and the end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

import ottla
import ottla.testing
from client.consuming import PATIENCE, fill, group, numbers, read, until
from ottla.client import (
    ConfigurationError,
    ConsumerRecord,
    HandlerError,
    Pool,
    Retry,
    RetryTopic,
    TopicPartition,
    UnknownTopicError,
)
from ottla.client.pool_processes import ProcessHandle, WorkerDied

QUICK = Retry(attempts=3, first=0.01)


class Running:
    """A pool in a thread; leaving the block stops it and raises what it raised."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.pool.run()
        except BaseException as error:  # noqa: BLE001 - for the test's thread
            self._error = error

    def __enter__(self) -> Pool:
        self._thread.start()
        return self.pool

    def __exit__(self, *error: object) -> None:
        self.pool.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the pool does not end"
        if self._error is not None:
            raise self._error


def committed(servers: str, name: str, topic: str) -> dict[int, int]:
    with ottla.Consumer(bootstrap_servers=servers, group_id=name) as consumer:
        places = [TopicPartition(topic, number) for number in range(3)]
        return {place.partition: offset for place, offset in consumer.committed(*places).items()}


class Log:
    """What a handler saw, per key; and how many were at work at once."""

    def __init__(self) -> None:
        self.by_key: dict[bytes, list[int]] = defaultdict(list)
        self.lock = threading.Lock()
        self.at_work: dict[bytes, int] = defaultdict(int)
        self.most = 0

    def enter(self, record: ConsumerRecord) -> None:
        with self.lock:
            self.at_work[record.key] += 1
            assert self.at_work[record.key] == 1, "two records of a key at a time"
            self.most = max(self.most, sum(self.at_work.values()))

    def leave(self, record: ConsumerRecord) -> None:
        with self.lock:
            self.at_work[record.key] -= 1
            self.by_key[record.key].append(int(record.value))

    def check(self, count: int, keys: int) -> None:
        assert sorted(number for seen in self.by_key.values() for number in seen) == list(range(count))
        for key, seen in self.by_key.items():
            assert seen == sorted(seen), f"{key!r} is out of order"
        assert len(self.by_key) == keys


@pytest.mark.parametrize("mode", ["threads", "tasks"])
def test_keys_are_worked_on_in_order_and_in_parallel(servers: str, topic: str, mode: str) -> None:
    fill(servers, topic, numbers(0, 600), key=lambda number: b"%d" % (number % 20))
    name, log = group(), Log()
    start = threading.Barrier(4, timeout=PATIENCE)

    def work(record: ConsumerRecord) -> None:
        log.enter(record)
        if int(record.value) < 4:
            start.wait()  # four keys are at work at once, or nobody gets past
        log.leave(record)

    async def async_work(record: ConsumerRecord) -> None:
        log.enter(record)
        await asyncio.sleep(0.001)
        log.leave(record)

    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=name) as consumer:
        handler = work if mode == "threads" else async_work
        with Running(Pool(handler, consumer, workers=8, max_in_flight=50)) as pool:
            until(lambda: pool.done == 600, "end of the work")
    log.check(600, keys=20)
    assert 4 <= log.most <= 8
    assert sum(committed(servers, name, topic).values()) == 600


def test_a_pool_runs_on_the_loop_of_the_application(servers: str, topic: str) -> None:
    fill(servers, topic, numbers(0, 100), key=lambda number: b"%d" % (number % 5))
    log = Log()

    async def program() -> None:
        loop = asyncio.get_running_loop()

        async def work(record: ConsumerRecord) -> None:
            assert asyncio.get_running_loop() is loop
            log.enter(record)
            await asyncio.sleep(0)
            log.leave(record)

        with ottla.Consumer(topic, bootstrap_servers=servers, group_id=group()) as consumer:
            pool = Pool(work, consumer)
            running = asyncio.create_task(pool.run_async())
            while pool.done < 100:
                await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(asyncio.wait_for(program(), PATIENCE))
    log.check(100, keys=5)


def test_an_unfinished_record_holds_the_commit_back(servers: str, make_topic: Callable[[int], str]) -> None:
    topic, name = make_topic(1), group()
    fill(servers, topic, numbers(0, 20))
    go = threading.Event()
    done: list[int] = []

    def work(record: ConsumerRecord) -> None:
        if record.offset == 3:
            go.wait(PATIENCE)
        done.append(record.offset)

    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=name) as consumer:
        with Running(Pool(work, consumer, workers=2, commit_interval=0.0)) as pool:
            until(lambda: len(done) == 19, "others")
            until(lambda: committed(servers, name, topic) == {0: 3}, "commit up to the unfinished one")
            assert pool.in_flight == 1
            go.set()
            until(lambda: committed(servers, name, topic) == {0: 20}, "commit of everything")


def test_a_full_pool_pauses_and_keeps_polling(
    servers: str, make_topic: Callable[[int], str], poll_limit: dict[str, int]
) -> None:
    """The handlers hang for longer than max.poll.interval.ms, and the member stays in the group."""
    topic, lost = make_topic(1), []
    fill(servers, topic, numbers(0, 100))
    go = threading.Event()
    with ottla.Consumer(
        topic,
        bootstrap_servers=servers,
        group_id=group(),
        on_lost=lambda _, names: lost.append(names),
        config=poll_limit,
    ) as consumer:
        with Running(Pool(lambda record: go.wait(PATIENCE), consumer, workers=4, max_in_flight=10)) as pool:
            until(lambda: pool.in_flight == 10, "full pool")
            until(lambda: consumer.paused() == {TopicPartition(topic, 0)}, "pause")
            hung = time.monotonic() + 1.2 * poll_limit["max.poll.interval.ms"] / 1000
            until(lambda: time.monotonic() > hung or pool.in_flight > 10, "time")
            assert pool.in_flight == 10, "the bound holds"
            go.set()
            until(lambda: pool.done == 100, "end of the work")
            assert lost == []


def test_a_record_is_tried_again_then_delayed_then_a_dead_letter(
    servers: str, make_topic: Callable[[int], str]
) -> None:
    topic, name = make_topic(1), group()
    fill(servers, topic, [b"good", b"bad", b"better later", b"good"], key=lambda number: b"same key")
    tried: list[tuple[str, bytes, float]] = []

    def work(record: ConsumerRecord) -> None:
        tried.append((record.topic, record.value, time.time()))
        if record.value == b"bad" or (record.value == b"better later" and record.topic == topic):
            raise LookupError("no such thing")

    retry = RetryTopic(f"{topic}.retry", 1.0)
    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=name) as consumer:
        pool = Pool(work, consumer, retry=QUICK, retry_topics=[retry], dead_letters="{topic}.dead")
        with Running(pool):
            until(lambda: pool.done == 6, "end: four records, and two of them a second time")
    order = [(each[0], each[1]) for each in tried]
    assert order[:8] == [(topic, b"good")] + [(topic, b"bad")] * 3 + [(topic, b"better later")] * 3 + [
        (topic, b"good")
    ]
    later = [each for each in tried if each[0] == retry.topic]
    assert [each[1] for each in later] == [b"bad"] * 3 + [b"better later"]
    assert later[0][2] - tried[3][2] >= 0.99, "not before its time"
    with ottla.Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign([TopicPartition(f"{topic}.dead", 0)])
        letter = read(consumer, 1)[0]
        assert consumer.poll(0.1) is None
    assert (letter.key, letter.value) == (b"same key", b"bad")
    headers = dict(letter.headers)
    assert headers["ottla.topic"] == topic.encode()
    assert (headers["ottla.partition"], headers["ottla.offset"]) == (b"0", b"1")
    assert headers["ottla.reason"] == b"LookupError: no such thing"
    assert (headers["ottla.attempts"], headers["ottla.group"]) == (b"6", name.encode())


def test_a_pool_is_not_made_without_its_retry_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.client.dead_letters._CREATION", 0.2)
    with ottla.testing.broker(topics=["t"], settings={"auto.create.topics.enable": False}) as broker:
        with ottla.Consumer("t", bootstrap_servers=broker.bootstrap_servers, group_id=group()) as consumer:
            with pytest.raises(UnknownTopicError, match=r"cannot use t\.retry"):
                Pool(print, consumer, retry_topics=[RetryTopic("t.retry", 1.0)])


def test_a_failure_that_nobody_takes_stops_the_pool(servers: str, make_topic: Callable[[int], str]) -> None:
    topic, name = make_topic(1), group()
    fill(servers, topic, numbers(0, 5), key=lambda number: None)

    def work(record: ConsumerRecord) -> None:
        if record.offset == 2:
            raise KeyError("two")

    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=name) as consumer:
        pool = Pool(work, consumer, workers=1, retry=Retry(never=(KeyError,)))
        with pytest.raises(HandlerError, match=f"{topic}-0, offset 2 failed after 1 attempts") as failure:
            pool.run()
        assert (failure.value.partition, failure.value.offset) == (0, 2)
        assert isinstance(failure.value.__cause__, KeyError)
        assert committed(servers, name, topic) == {0: 2}
        assert read(consumer, 1)[0].offset == 2, "the consumer goes on where the pool was"
        consumer.commit({TopicPartition(topic, 0): 2})
    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=name) as consumer:
        pool = Pool(work, consumer, workers=1, retry=Retry(attempts=1), on_failure="skip")
        with Running(pool):
            until(lambda: pool.done == 3, "end")
    assert committed(servers, name, topic) == {0: 5}


@pytest.mark.parametrize("slow", [False, True], ids=["finish", "drop"])
def test_revoked_partitions_are_finished_or_dropped(servers: str, topic: str, slow: bool) -> None:
    """A second member takes partitions over. Handlers that end in time count, others come again there."""
    name, go = group(), threading.Event()
    begun: dict[tuple[int, int], int] = defaultdict(int)
    done: dict[tuple[int, int], int] = defaultdict(int)
    lock = threading.Lock()

    def work(record: ConsumerRecord) -> None:
        place = record.partition, record.offset
        with lock:
            begun[place] += 1
            first = begun[place] == 1
        if first and record.offset < 2:
            if slow:
                go.wait(PATIENCE)
            else:
                until(lambda: second.assignment() or go.is_set() or len(done) > 20, "time", 1.0)
        with lock:
            done[place] += 1

    for partition in range(3):
        fill(servers, topic, numbers(0, 10), partition=partition)
    first = ottla.Consumer(topic, bootstrap_servers=servers, group_id=name)
    second = ottla.Consumer(topic, bootstrap_servers=servers, group_id=name)
    limits = {"workers": 6, "max_in_flight": 30, "finish_timeout": 0.2 if slow else 20.0}
    with first, second:
        with Running(Pool(work, first, **limits)):  # type: ignore[arg-type]
            until(lambda: len(begun) >= 6, "work")
            with Running(Pool(work, second, **limits)):  # type: ignore[arg-type]
                until(lambda: second.assignment(), "share of the second member")
                until(lambda: len(begun) == 30, "start of all work")
                go.set()
                until(lambda: len(done) == 30, "end of all work")
    assert committed(servers, name, topic) == {0: 10, 1: 10, 2: 10}
    if not slow:
        assert set(done.values()) == {1}, "nothing twice"


def kill_at_seven(record: ConsumerRecord) -> None:
    marker = Path(os.environ["OTTLA_TEST_MARKER"])
    if record.value == b"7" and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with marker.with_suffix(".seen").open("ab", buffering=0) as seen:
        seen.write(b"%d %s %s\n" % (os.getpid(), record.key, record.value))


def test_a_worker_process_that_dies_is_replaced(
    servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "killed"
    monkeypatch.setenv("OTTLA_TEST_MARKER", str(marker))
    fill(servers, topic, numbers(0, 40), key=lambda number: b"%d" % (number % 4))
    name = group()
    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=name) as consumer:
        with Running(Pool(kill_at_seven, consumer, workers=2, mode="processes", retry=QUICK)) as pool:
            until(lambda: pool.done == 40, "end of the work")
    assert marker.exists()
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for line in marker.with_suffix(".seen").read_bytes().splitlines():
        pid, key, value = line.split()
        assert int(pid) != os.getpid()
        by_key[key].append(int(value))
    assert by_key == {b"%d" % key: list(range(key, 40, 4)) for key in range(4)}
    assert sum(committed(servers, name, topic).values()) == 40


def fail_or_exit(record: ConsumerRecord) -> None:
    if record.value == b"exit":
        sys.exit(3)
    raise LookupError(record.value)


def test_errors_of_worker_processes_come_over_with_their_class() -> None:
    handle = ProcessHandle(fail_or_exit)
    try:
        with pytest.raises(LookupError, match="what it was"):
            handle(ConsumerRecord("t", 0, 0, value="what it was"))
        with pytest.raises(SystemExit):
            handle(ConsumerRecord("t", 0, 0, value=b"exit"))
    finally:
        handle.close()
    with pytest.raises(WorkerDied):
        handle(ConsumerRecord("t", 0, 0))


def test_ctrl_c_finishes_what_runs_and_commits(
    servers: str, make_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic, name, seen = make_topic(1), group(), tmp_path / "seen"
    fill(servers, topic, numbers(0, 200))
    program = f"""
import ottla, time
from ottla.client import Pool
def work(record):
    time.sleep(0.02)
    with open({str(seen)!r}, "ab", buffering=0) as file:
        file.write(b"%d\\n" % record.offset)
with ottla.Consumer({topic!r}, bootstrap_servers={servers!r}, group_id={name!r}) as consumer:
    Pool(work, consumer, workers=2, max_in_flight=20, commit_interval=60.0).run()
"""
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    until(lambda: seen.exists() and seen.read_bytes().count(b"\n") >= 10, "work")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert b"KeyboardInterrupt" in errors
    offsets = sorted(map(int, seen.read_text().split()))
    assert offsets == list(range(len(offsets)))
    assert committed(servers, name, topic) == {0: len(offsets)}, "what was done, and nothing else"


def test_at_most_once_in_a_pool_commits_first(servers: str, make_topic: Callable[[int], str]) -> None:
    topic, name = make_topic(1), group()
    fill(servers, topic, numbers(0, 10))
    go = threading.Event()
    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=name, delivery="at-most-once") as consumer:
        with Running(Pool(lambda record: go.wait(PATIENCE), consumer)) as pool:
            until(lambda: committed(servers, name, topic) == {0: 10}, "commit before the work")
            assert pool.done == 0
            go.set()


def test_pools_that_cannot_be_are_refused(servers: str, topic: str) -> None:
    async def coroutine(record: ConsumerRecord) -> None: ...

    with ottla.Consumer(
        topic, bootstrap_servers=servers, group_id=group(), delivery="exactly-once"
    ) as consumer:
        with pytest.raises(ConfigurationError, match="no transaction"):
            Pool(print, consumer)
    with ottla.Consumer(topic, bootstrap_servers=servers, group_id=group()) as consumer:
        with pytest.raises(ConfigurationError, match="less than the 16 workers"):
            Pool(print, consumer, max_in_flight=3)
        with pytest.raises(ConfigurationError, match="coroutine"):
            Pool(coroutine, consumer, mode="threads")
