"""What the reader does when leaders move, records vanish or batches are damaged."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c

from ottla.protocol.batches import CRC_START, HEADER_SIZE
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.records import Record, encode_batch
from ottla.protocol_client.consume import Consumer, Damaged, Unreadable, UnreadableBatch
from ottla.protocol_client.offsets import list_offsets
from ottla.protocol_client.wire import Wire

from .scripted_broker import CLOSE, ScriptedBroker


def wire_to(broker: ScriptedBroker) -> Wire:
    return Wire(broker.bootstrap, connect_timeout=5, request_timeout=10)


def fetched(records: bytes = b"", error: int = 0, **more: Any) -> FetchResponse:
    data = PartitionData(partition_index=0, error_code=error, high_watermark=100, records=records, **more)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])


def batch(first: int, *values: bytes, **options: Any) -> bytes:
    records = [Record(first + i, 1000 + i, None, value, []) for i, value in enumerate(values)]
    return bytes(encode_batch(records, base_offset=first, **options))


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0)
    records = [Record(offset, 1000, key, value, [])]
    return bytes(
        encode_batch(
            records,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            transactional=True,
            control=True,
        )
    )


def values_read(broker: ScriptedBroker, stop: int, start: int = 0, **options: Any) -> list[bytes | None]:
    with broker, wire_to(broker) as wire:
        return [r.value for _, r in Consumer(wire, "t", {0: start}, {0: stop}, max_wait=0.1, **options)]


def test_reading_continues_after_retriable_errors() -> None:
    broker = ScriptedBroker()
    answers = [
        fetched(batch(0, b"a")),
        fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        CLOSE,
        fetched(),
        fetched(batch(1, b"b")),
    ]
    broker.answer(FetchRequest, lambda request, version: answers.pop(0))
    assert values_read(broker, stop=2) == [b"a", b"b"]
    assert [r.topics[0].partitions[0].fetch_offset for r in broker.of(FetchRequest)] == [0, 1, 1, 1, 1]


def test_records_before_the_start_and_after_the_stop_are_left_out() -> None:
    broker = ScriptedBroker()
    broker.answer(FetchRequest, lambda request, version: fetched(batch(0, b"0", b"1", b"2", b"3", b"4")))
    assert values_read(broker, start=1, stop=4) == [b"1", b"2", b"3"]


def test_a_batch_cut_off_at_the_end_is_fetched_again() -> None:
    broker = ScriptedBroker()
    second = batch(1, b"b")
    answers = [fetched(batch(0, b"a") + second[:-5]), fetched(second)]
    broker.answer(FetchRequest, lambda request, version: answers.pop(0))
    assert values_read(broker, stop=2) == [b"a", b"b"]


def test_aborted_transactions_and_markers_are_not_shown() -> None:
    broker = ScriptedBroker()
    data = (
        batch(0, b"plain")
        + batch(1, b"aborted", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
        + batch(2, b"good", producer_id=6, producer_epoch=0, base_sequence=0, transactional=True)
        + marker(3, 5, kind=0)
        + batch(4, b"later", producer_id=5, producer_epoch=0, base_sequence=1, transactional=True)
        + marker(5, 5, kind=1)
        + marker(6, 6, kind=1)
    )
    aborted = [AbortedTransaction(producer_id=5, first_offset=1)]
    broker.answer(FetchRequest, lambda request, version: fetched(data, aborted_transactions=aborted))
    assert values_read(broker, stop=7, read_committed=True) == [b"plain", b"good", b"later"]


def test_all_records_but_no_markers_are_shown_uncommitted() -> None:
    broker = ScriptedBroker()
    data = batch(0, b"open", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True) + marker(
        1, 5, 0
    )
    broker.answer(FetchRequest, lambda request, version: fetched(data))
    assert values_read(broker, stop=2) == [b"open"]


def test_a_wrong_checksum_is_found() -> None:
    broker = ScriptedBroker()
    damaged = bytearray(batch(0, b"value"))
    damaged[-3] ^= 1
    broker.answer(FetchRequest, lambda request, version: fetched(bytes(damaged)))
    with pytest.raises(Damaged, match="partition 0 of topic 't', batch at offset 0: the checksum is wrong"):
        values_read(broker, stop=1)


def unreadable(first: int) -> bytes:
    """A batch as its checksum says it was sent, of bytes that are no records."""
    data = bytearray(batch(first, b"value", b"value"))
    data[HEADER_SIZE:] = b"\xa7" * (len(data) - HEADER_SIZE)
    struct.pack_into(">I", data, CRC_START - 4, crc32c(bytes(data[CRC_START:])))
    return bytes(data)


def test_a_batch_that_holds_no_records_is_an_error_that_names_it() -> None:
    broker = ScriptedBroker()
    data = batch(0, b"zero") + unreadable(1) + batch(3, b"three")
    broker.answer(FetchRequest, lambda request, version: fetched(data))
    with pytest.raises(UnreadableBatch, match="partition 0 of topic 't', batch at offset 1: "):
        values_read(broker, stop=4)


def test_a_batch_that_holds_no_records_is_skipped_when_skip_is_given() -> None:
    broker = ScriptedBroker()
    data = batch(0, b"zero") + unreadable(1) + batch(3, b"three")
    broker.answer(FetchRequest, lambda request, version: fetched(data))
    told: list[str] = []
    assert values_read(broker, stop=4, skip=told.append) == [b"zero", b"three"]
    assert len(told) == 1
    assert "batch at offset 1" in told[0]


def test_deleted_records_are_skipped_with_a_notice() -> None:
    broker = ScriptedBroker()
    answers = [fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE), fetched(batch(5, b"five"))]
    broker.answer(FetchRequest, lambda request, version: answers.pop(0))
    broker.answer(ListOffsetsRequest, offsets_between(5, 6))
    said: list[str] = []
    assert values_read(broker, stop=6, notice=said.append) == [b"five"]
    assert said == ["partition 0: offsets 0 to 4 are deleted, going on after them"]


def test_a_position_past_the_end_is_an_error() -> None:
    broker = ScriptedBroker()
    broker.answer(FetchRequest, lambda request, version: fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    broker.answer(ListOffsetsRequest, offsets_between(0, 3))
    with pytest.raises(Unreadable, match="offset 7 is past the end"):
        values_read(broker, start=7, stop=9)


def offsets_between(start: int, end: int):  # type: ignore[no-untyped-def]
    def answer(request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        offset = start if request.topics[0].partitions[0].timestamp == -2 else end
        found = ListOffsetsPartitionResponse(partition_index=0, offset=offset)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[found])])

    return answer


def test_offsets_are_asked_for_again_when_the_leader_moved() -> None:
    broker = ScriptedBroker()
    good = offsets_between(2, 9)
    failing = ListOffsetsPartitionResponse(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    bad = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[failing])])
    queue = [lambda request, version: bad, good]
    broker.answer(ListOffsetsRequest, lambda request, version: queue.pop(0)(request, version))
    with broker, wire_to(broker) as wire:
        assert list_offsets(wire, "t", {0: -1}) == {0: 9}
