"""Clients of other languages, each unmodified, use the broker without knowing that it is not Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from clients.programs import PROGRAMS, Program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("clients")]

Results = dict[str, dict[str, Any]]
KAFKAJS = next(program for program in PROGRAMS if program.name == "kafkajs")
READ_DEADLINE = 30.0


@pytest.mark.parametrize(
    ("program", "check"),
    [
        pytest.param(program, check, id=f"{program.name}: {check}")
        for program in PROGRAMS
        for check in program.checks
    ],
)
def test_a_client_check_passes(program: Program, check: str, results: Callable[[Program], Results]) -> None:
    result = results(program)[check]
    assert result["ok"], result["detail"]


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
def test_every_listed_check_of_a_client_ran(program: Program, results: Callable[[Program], Results]) -> None:
    assert set(results(program)) == set(program.checks)


def test_records_of_kafkajs_are_read_by_another_client(
    results: Callable[[Program], Results], bootstrap: str
) -> None:
    """It has read its own records back; here they are read without its own reader."""
    written = [result for result in results(KAFKAJS).values() if "topic" in result]
    assert len(written) == 15
    for result in written:
        expected = result.get("records") or result["sizes"]
        messages = _read(bootstrap, result["topic"], len(expected))
        if "sizes" in result:
            assert [len(message.value() or b"") for message in messages] == expected
        else:
            assert [[_text(m.key()), _text(m.value())] for m in messages] == expected
        if "headers" in result:
            headers = messages[0].headers() or []
            assert isinstance(headers, list)
            assert [[key, _text(value)] for key, value in headers] == result["headers"]
            assert messages[0].timestamp()[1] == result["timestamp"]


def _read(bootstrap: str, topic: str, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    messages: list[Message] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + READ_DEADLINE
        while len(messages) < count:
            assert time.monotonic() < deadline, f"only {len(messages)} of {count} records in {topic}"
            message = consumer.poll(0.5)
            if message is not None:
                assert message.error() is None, message.error()
                messages.append(message)
    finally:
        consumer.close()
    return messages


def _text(data: bytes | str | None) -> str | None:
    return data.decode() if isinstance(data, bytes) else data
