"""Errors of librdkafka and brokers as exceptions that say what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from confluent_kafka import KafkaError

from ottla.client import ClientError, DeserializationError, SendError, TimedOutError, UnknownTopicError
from ottla.client.errors import error_from


def test_an_error_keeps_its_code_and_says_what_to_do() -> None:
    error = error_from(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), "cannot send to 'a'", SendError)
    assert isinstance(error, UnknownTopicError)
    assert (error.code, error.name) == (3, "UNKNOWN_TOPIC_OR_PART")
    assert str(error).startswith("cannot send to 'a': Broker: Unknown topic or partition (UNKNOWN_TOPIC")
    assert "create the topic first" in str(error)


def test_an_error_without_a_class_of_its_own_is_of_the_callers_kind() -> None:
    error = error_from(KafkaError(KafkaError.INVALID_RECORD, retriable=True), "cannot send", SendError)
    assert type(error) is SendError
    assert error.retriable
    assert not error.fatal


def test_our_time_out_is_one_of_pythons_too() -> None:
    error = error_from(KafkaError(KafkaError._TIMED_OUT), "cannot list topics")
    assert isinstance(error, TimedOutError)
    with pytest.raises(TimeoutError):
        raise error


def test_an_unreadable_record_keeps_its_place() -> None:
    error = DeserializationError("no", topic="t", partition=1, offset=2, field="key", data=b"x")
    assert (error.topic, error.partition, error.offset, error.field, error.data) == ("t", 1, 2, "key", b"x")
    assert isinstance(error, ClientError)


def test_importing_ottla_loads_no_client() -> None:
    code = "import sys, ottla; assert not [m for m in sys.modules if 'confluent' in m or m == 'ottla.client']"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'Produce'"):
        import ottla

        ottla.Produce  # noqa: B018
