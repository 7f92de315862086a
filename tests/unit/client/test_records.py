"""Records as clients have them."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from confluent_kafka import Message

from ottla.client import ConsumerRecord, ProducerRecord, RecordMetadata
from ottla.client.records import ReceivedRecord, ReceivedRecords, as_headers


def test_headers_are_pairs_whatever_they_were_given_as() -> None:
    pairs = (("a", b"1"), ("b", None))
    assert as_headers({"a": "1", "b": None}) == pairs
    assert as_headers([("a", b"1"), ("b", None)]) == pairs
    assert as_headers(None) == as_headers({}) == ()
    assert as_headers([("a", "é"), ("a", "2")]) == (("a", b"\xc3\xa9"), ("a", b"2"))


def test_the_last_header_of_a_name_counts() -> None:
    headers = as_headers([("a", "1"), ("a", "2")])
    assert ProducerRecord("t", headers=headers).header("a") == b"2"
    assert ConsumerRecord("t", 0, 0, headers=headers).header("a") == b"2"
    assert ProducerRecord("t").header("a") is None


def test_a_record_to_send_is_changed_by_copying() -> None:
    record = ProducerRecord("t", value=1)
    changed = record.replace(value=2, headers={"a": "1"})
    assert (record.value, changed.value, changed.headers) == (1, 2, (("a", b"1"),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.value = 3  # type: ignore[misc]


def test_a_dropped_record_has_no_place() -> None:
    assert RecordMetadata("t", -1, -1).dropped
    assert not RecordMetadata("t", 0, 0).dropped


def test_a_received_record_is_read_from_its_message() -> None:
    message = Message("t", 1, 2, b"k", b"v", headers=[("a", b"1")], timestamp=(1, 3), leader_epoch=4)
    record = ReceivedRecord((b"v", message))
    assert isinstance(record, ConsumerRecord)
    assert record == ConsumerRecord("t", 1, 2, b"k", b"v", 3, (("a", b"1"),), 4)
    assert record != record.replace(key=b"other")
    assert record.replace(value=5) == ConsumerRecord("t", 1, 2, b"k", 5, 3, (("a", b"1"),), 4)
    assert record.replace(headers=(), timestamp=None) == ConsumerRecord("t", 1, 2, b"k", b"v", leader_epoch=4)
    assert hash(record) == hash(pickle.loads(pickle.dumps(record)))
    assert pickle.loads(pickle.dumps(record)) == copy.copy(record) == record
    assert repr(record).startswith("ConsumerRecord(topic='t', partition=1, offset=2, key=b'k', value=b'v', ")


def test_a_record_without_time_headers_and_key_says_so() -> None:
    record = ReceivedRecord((None, Message("t", 0, 0)))
    assert (record.key, record.value, record.timestamp, record.headers) == (None, None, None, ())
    assert record.leader_epoch is None


def test_received_records_are_a_sequence() -> None:
    records = ReceivedRecords([Message("t", 0, offset, value=b"%d" % offset) for offset in range(4)])
    assert len(records) == 4
    assert [record.value for record in records] == [b"0", b"1", b"2", b"3"]
    assert (records[-1].offset, records[1:3][0].offset, len(records[1:3])) == (3, 1, 2)
    assert records[0] in records
    assert repr(records[:1]) == f"[{records[0]!r}]"
