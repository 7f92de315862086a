"""The thread that polls for a producer's results, and senders that poll in its place."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from ottla.client import ClientError, polling
from ottla.client.polling import Poller

PATIENCE = 30.0


class Client:
    """In the place of librdkafka's producer: counts the polls of the thread and those of senders."""

    def __init__(self) -> None:
        self.by_thread = self.by_senders = 0
        self.failure: BaseException | None = None
        self.callback: Callable[[], None] | None = None
        self.result = threading.Event()

    def poll(self, timeout: float) -> int:
        if threading.current_thread().name == "ottla-producer":
            self.by_thread += 1
            self.result.wait(0.001)
        else:
            self.by_senders += 1
        if self.callback is not None:
            callback, self.callback = self.callback, None
            callback()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return 0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def poller(client: Client) -> Iterator[Poller]:
    poller = Poller(cast(Any, client))
    yield poller
    poller.stop_and_wait()
    assert not poller._thread.is_alive()


@pytest.fixture
def long_stand_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "_STAND_BACK_SECONDS", 10 * PATIENCE)


def test_the_thread_polls_while_nobody_else_does(client: Client, poller: Poller) -> None:
    until(lambda: client.by_thread >= 3)
    assert client.by_senders == 0


def test_the_thread_stands_back_while_senders_poll_and_polls_again_after_them(
    client: Client, poller: Poller
) -> None:
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        poller.poll_as_sender()
    assert client.by_senders > 5 * client.by_thread
    before = client.by_thread
    until(lambda: client.by_thread >= before + 3)


@pytest.mark.usefixtures("long_stand_back")
def test_the_thread_polls_at_once_when_it_is_woken(client: Client, poller: Poller) -> None:
    poller.poll_as_sender()
    until(lambda: not poller._sender_polled)
    before = client.by_thread
    poller.wake()
    until(lambda: client.by_thread > before)


@pytest.mark.usefixtures("long_stand_back")
def test_a_thread_that_stands_back_ends_at_once(client: Client, poller: Poller) -> None:
    poller.poll_as_sender()
    until(lambda: not poller._sender_polled)
    began = time.monotonic()
    poller.stop_and_wait()
    assert not poller._thread.is_alive()
    assert time.monotonic() - began < PATIENCE


@pytest.mark.usefixtures("long_stand_back")
def test_the_client_is_not_freed_while_somebody_polls(client: Client, poller: Poller) -> None:
    """An event loop takes results itself, and may do so while a thread closes the producer."""
    polls, done = threading.Event(), threading.Event()

    def callback() -> None:
        polls.set()
        done.wait(PATIENCE)

    poller.poll_as_sender()
    until(lambda: not poller._sender_polled)  # the thread stands back
    client.callback = callback
    sender = threading.Thread(target=poller.poll_as_sender)
    sender.start()
    assert polls.wait(PATIENCE)
    closer = threading.Thread(target=poller.stop_and_wait)
    closer.start()
    until(lambda: not poller._thread.is_alive())
    assert closer.is_alive()
    done.set()
    closer.join(PATIENCE)
    sender.join(PATIENCE)
    before = client.by_senders
    poller.poll_as_sender()
    assert client.by_senders == before


def test_the_thread_may_be_woken_and_stopped_at_each_of_its_lines(client: Client) -> None:
    """As by the garbage collector, which runs in any thread and stops the poller of a lost producer."""
    lines: list[int] = []

    def at_each_line(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "line" and "poller" in made:
            polled = made["poller"]._sender_polled
            made["poller"].wake()
            made["poller"]._sender_polled = polled
            lines.append(frame.f_lineno)
        return at_each_line

    def lines_are(count: int) -> bool:
        return len(lines) >= count

    made: dict[str, Poller] = {}
    threading.settrace(at_each_line)
    try:
        poller = Poller(cast(Any, client))
    finally:
        threading.settrace(cast(Any, None))
    made["poller"] = poller
    for _ in range(20):
        poller.poll_as_sender()
        until(lambda: not poller._sender_polled)
        enough = len(lines) + 20
        until(partial(lines_are, enough))
    poller.stop_and_wait()
    assert not poller._thread.is_alive()


def test_a_sender_does_not_poll_inside_a_callback(client: Client, poller: Poller) -> None:
    polls: list[int] = []

    def send() -> None:
        before = client.by_senders
        poller.poll_as_sender()
        polls.append(client.by_senders - before)
        with pytest.raises(ClientError, match="can send, but not flush"):
            poller.check_no_callback()

    client.callback = send
    until(lambda: polls == [0])
    client.callback = send
    while len(polls) == 1:
        poller.poll_as_sender()
    assert polls == [0, 0]


def test_errors_of_callbacks_are_logged_for_senders_and_thread(
    client: Client, poller: Poller, caplog: pytest.LogCaptureFixture
) -> None:
    client.failure = KafkaException(KafkaError(KafkaError._FATAL, "fenced"))
    poller.poll_as_sender()
    client.failure = ZeroDivisionError("in a callback")
    until(lambda: client.failure is None)
    poller.poll_as_sender()
    until(lambda: "a callback of the producer failed" in caplog.text)
    assert "the producer is of no use any more" in caplog.text


def test_an_exit_that_a_callback_asks_for_does_not_end_the_thread(
    client: Client, poller: Poller, caplog: pytest.LogCaptureFixture
) -> None:
    client.failure = SystemExit("in a callback")
    until(lambda: client.failure is None)
    before = client.by_thread
    until(lambda: client.by_thread > before + 2)
    assert "a callback of the producer failed" in caplog.text


@pytest.mark.usefixtures("long_stand_back")
def test_ctrl_c_leaves_no_thread_marked_as_calling_back(poller: Poller) -> None:
    """Also while its exception lives: a `with` block closes the producer then."""
    came = marked = 0

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        while came < 300:
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005)
                while True:
                    poller.poll_as_sender()
            except KeyboardInterrupt:
                came += 1
                marked += poller.is_calling_back
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert marked == 0
