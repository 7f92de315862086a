"""Stopping between two batches: which batches may start, and which must be waited for."""

from __future__ import annotations

import threading

import pytest

from ottla.pipeline.running.supervision import MOST_BEHIND, BatchGate, StopAsked, StopRequest


def test_the_second_stop_request_stops_at_once() -> None:
    stop = StopRequest()
    assert not stop.wait(0)
    stop.ask()
    assert stop.asked
    assert not stop.at_once
    stop.ask()
    assert stop.at_once


def test_batches_pass_until_the_gate_is_shut() -> None:
    written: list[int] = []
    gate = BatchGate(lambda frame, number: written.append(number))
    gate(None, 4)
    gate(None, 5)
    assert gate.shut() == 5
    with pytest.raises(StopAsked):
        gate(None, 6)
    assert written == [4, 5]
    assert gate.turned_away


def test_stopping_waits_for_the_current_batch() -> None:
    inside, finish = threading.Event(), threading.Event()

    def write(frame: object, number: int) -> None:
        inside.set()
        assert finish.wait(10)

    gate = BatchGate(write)
    thread = threading.Thread(target=gate, args=(None, 7))
    thread.start()
    assert inside.wait(10)
    assert gate.shut() == 7
    finish.set()
    thread.join(10)
    assert not gate.turned_away
    assert gate.error is None


def test_a_query_without_batches_can_be_stopped_at_once() -> None:
    assert BatchGate(lambda frame, number: None).shut() is None


def test_the_exception_of_a_failed_batch_is_kept() -> None:
    def write(frame: object, number: int) -> None:
        raise KeyError("x")

    gate = BatchGate(write)
    with pytest.raises(KeyError):
        gate(None, 0)
    assert isinstance(gate.error, KeyError)


def test_batches_wait_while_the_observer_is_behind() -> None:
    backlog = [MOST_BEHIND + 1]
    passed = threading.Event()
    gate = BatchGate(lambda frame, number: passed.set(), lambda: backlog[0])
    thread = threading.Thread(target=gate, args=(None, 0))
    thread.start()
    assert not passed.wait(0.05)
    backlog[0] = 0
    assert passed.wait(10)
    thread.join(10)
