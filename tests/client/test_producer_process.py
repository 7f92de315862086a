"""The producer and its process: Ctrl-C, the end of a program that forgot to close, and forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Message

import ottla
from ottla.client import ClosedError

Reader = Callable[..., list[Message]]
WRITE_UNTIL_INTERRUPTED = """
import sys, ottla
servers, topic, kind = sys.argv[1:]
transactional = "tx-" + topic if kind == "transaction" else None
with ottla.Producer(servers, transactional_id=transactional) as producer:
    if kind == "transaction":
        with producer.transaction():
            producer.send(topic, "committed")
        with producer.transaction():
            producer.send_and_wait(topic, "aborted")
            print("begun", flush=True)
            while True:
                producer.send_and_wait(topic, "aborted")
    number = 0
    while True:
        if kind == "waiting":
            producer.send_and_wait(topic, str(number))
        else:
            producer.send(topic, str(number))
        number += 1
        if number == 200:
            print("begun", flush=True)
"""


@pytest.mark.parametrize("kind", ["sending", "waiting", "transaction"])
def test_ctrl_c_ends_in_time_and_leaves_whole_records(
    servers: str, make_topic: Callable[[int], str], read_all: Reader, kind: str
) -> None:
    topic = make_topic(1)
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_UNTIL_INTERRUPTED, servers, topic, kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT, errors
    assert errors.strip().endswith("KeyboardInterrupt")
    found = [message.value() or b"" for message in read_all(topic)]
    if kind == "transaction":
        assert found == [b"committed"]
    else:
        assert len(found) >= 200
        assert found == [b"%d" % n for n in range(len(found))], (
            "nothing is missing in the middle, nothing twice"
        )


def test_a_program_that_forgets_to_close_loses_nothing(servers: str, topic: str, read_all: Reader) -> None:
    code = (
        "import sys, ottla\n"
        "producer = ottla.Producer(sys.argv[1], linger_ms=2000)\n"
        "for number in range(100): producer.send(sys.argv[2], str(number), partition=0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, servers, topic], capture_output=True, text=True, timeout=90, check=True
    )
    assert "was not closed: use it in a `with` statement" in done.stderr
    assert [message.value() for message in read_all(topic)] == [b"%d" % n for n in range(100)]


def test_a_producer_that_is_dropped_leaves_no_thread(servers: str) -> None:
    def threads() -> int:
        return sum(each.name == "ottla-producer" for each in threading.enumerate())

    before = threads()
    producer = ottla.Producer(servers)
    assert threads() == before + 1
    producer.close()
    assert threads() == before


FORK = """
import os, sys, ottla
from ottla.client import ClosedError
servers, topic = sys.argv[1:]
with ottla.Producer(servers) as producer:
    producer.send_and_wait(topic, "parent")
    child = os.fork()
    if child == 0:
        try:
            producer.send(topic, "child")
        except ClosedError as error:
            print(error, flush=True)
        producer.close()
        with ottla.Producer(servers) as own:
            own.send_and_wait(topic, "child, with its own")
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    producer.send_and_wait(topic, "parent again")
"""


def test_a_forked_child_is_told_to_make_its_own(
    servers: str, make_topic: Callable[[int], str], read_all: Reader
) -> None:
    topic = make_topic(1)
    done = subprocess.run(
        [sys.executable, "-c", FORK, servers, topic], capture_output=True, text=True, timeout=90, check=True
    )
    assert done.stdout.splitlines() == [
        "the producer belongs to the process that forked this one: make a new one after the fork",
        "7",
    ]
    found = [message.value() for message in read_all(topic)]
    assert found == [b"parent", b"child, with its own", b"parent again"]


def test_closing_from_another_thread_ends_those_who_send(servers: str, topic: str) -> None:
    producer = ottla.Producer(servers)
    ended = threading.Event()

    def work() -> None:
        try:
            while True:
                producer.send(topic, b"x")
        except ClosedError:
            ended.set()

    threading.Thread(target=work, daemon=True).start()
    deadline = time.monotonic() + 60
    while not len(producer) and time.monotonic() < deadline:
        os.sched_yield()
    producer.close()
    assert ended.wait(60)
