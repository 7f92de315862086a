"""Record batches opened and made: real clients' bytes, the rules a leader checks, and recompression."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import pytest

from ottla.protocol.batches import HEADER, HEADER_SIZE, crc_matches, headers, read_header
from ottla.protocol.compression import Codec, CompressionError
from ottla.protocol.records import (
    InvalidRecords,
    Record,
    decode_batch,
    encode_batch,
    recompress,
    validate_records,
)

# What each client wrote for the same twenty records, taken from the log of an Apache Kafka 4.3.1.
CLIENTS: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "batches_of_clients.json").read_text()
)
BATCHES = [(client, codec) for client, codecs in CLIENTS.items() for codec in codecs]
LIMIT = 1 << 20

RECORDS = [
    Record(0, 1000, b"a", b"first", []),
    Record(1, 1007, None, b"second", [("trace", b"1"), ("null", None), ("", b"")]),
    Record(2, 995, b"", None, [("h\u00e9", b"\xff")]),
]


@pytest.mark.parametrize(("client", "codec"), BATCHES)
def test_batches_of_real_clients_are_read(client: str, codec: str) -> None:
    batch = base64.b64decode(CLIENTS[client][codec])
    header = read_header(batch)
    assert Codec(header.compression).label == codec
    assert crc_matches(batch, 0, header)
    empty = b"" if client == "kafka-python" else None  # kafka-python refuses to send a null header
    assert decode_batch(batch, max_size=LIMIT) == [
        Record(
            n,
            1_700_000_000_000 + n,
            b"key-%d" % n,
            b"value %d " % n * 6,
            [("trace", b"%d" % n), ("empty", empty)],
        )
        for n in range(20)
    ]
    assert validate_records(batch, LIMIT) == (1_700_000_000_000, 1_700_000_000_019)


@pytest.mark.parametrize("client", list(CLIENTS))
def test_an_uncompressed_batch_of_ours_is_byte_for_byte_that_of_the_client(client: str) -> None:
    batch = base64.b64decode(CLIENTS[client]["none"])
    header = read_header(batch)
    ours = encode_batch(
        decode_batch(batch, max_size=LIMIT),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.leader_epoch,
    )
    assert ours == batch


@pytest.mark.parametrize("codec", list(Codec))
def test_records_come_back_with_nulls_empties_headers_and_their_times(codec: Codec) -> None:
    batch = encode_batch(RECORDS, codec=codec)
    assert decode_batch(batch, max_size=LIMIT) == RECORDS
    header = read_header(batch)
    assert crc_matches(batch, 0, header)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1007)
    assert (header.record_count, header.last_offset_delta, header.size) == (3, 2, len(batch))


def test_the_header_carries_producer_epoch_and_marks() -> None:
    batch = encode_batch(
        RECORDS,
        base_offset=0,
        producer_id=7,
        producer_epoch=3,
        base_sequence=11,
        leader_epoch=5,
        transactional=True,
        control=True,
    )
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert header.leader_epoch == 5
    assert header.is_transactional
    assert header.is_control
    assert header.last_sequence == 13


def test_offsets_count_from_the_base_offset_and_keep_gaps() -> None:
    records = [RECORDS[0]._replace(offset=100), RECORDS[1]._replace(offset=250)]
    batch = encode_batch(records, base_offset=90)
    assert [r.offset for r in decode_batch(batch, max_size=LIMIT)] == [100, 250]
    assert read_header(batch).last_offset == 250


def test_offsets_that_do_not_rise_are_refused() -> None:
    with pytest.raises(ValueError, match="must rise"):
        encode_batch([RECORDS[1], RECORDS[0]])
    with pytest.raises(ValueError, match="must rise"):
        encode_batch(RECORDS, base_offset=1)
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])


def test_with_log_append_time_all_records_have_the_batchs_time() -> None:
    batch = encode_batch(RECORDS, log_append_time=True)
    assert {r.timestamp for r in decode_batch(batch, max_size=LIMIT)} == {1007}


def test_several_batches_are_walked_by_their_headers() -> None:
    data = encode_batch(RECORDS) + encode_batch(
        [r._replace(offset=r.offset + 3) for r in RECORDS], base_offset=3
    )
    view = memoryview(data)
    offsets = [
        r.offset for position, _ in headers(data) for r in decode_batch(view[position:], max_size=LIMIT)
    ]
    assert offsets == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("before", list(Codec))
@pytest.mark.parametrize("after", list(Codec))
def test_recompression_keeps_records_and_header(before: Codec, after: Codec) -> None:
    batch = encode_batch(
        RECORDS, codec=before, producer_id=9, producer_epoch=1, base_sequence=4, leader_epoch=2
    )
    again = recompress(memoryview(batch), after, max_size=LIMIT)
    assert decode_batch(again, max_size=LIMIT) == RECORDS
    old, new = read_header(batch), read_header(again)
    assert new.compression == after
    assert crc_matches(again, 0, new)
    kept = {"attributes": 0, "crc": 0, "batch_length": 0}
    assert new._replace(**kept) == old._replace(**kept)


def test_recompression_can_stamp_the_append_time() -> None:
    batch = recompress(encode_batch(RECORDS), Codec.ZSTD, 10, max_size=LIMIT, log_append_time_ms=123_456)
    header = read_header(batch)
    assert header.is_log_append_time
    assert header.max_timestamp == 123_456
    assert crc_matches(batch, 0, header)
    assert {r.timestamp for r in decode_batch(batch, max_size=LIMIT)} == {123_456}


def test_recompression_refuses_what_validation_refuses() -> None:
    with pytest.raises(InvalidRecords):
        recompress(encode_batch([RECORDS[0], RECORDS[2]]), Codec.GZIP, max_size=LIMIT)
    with pytest.raises(InvalidRecords, match="no key"):
        recompress(encode_batch(RECORDS), Codec.GZIP, max_size=LIMIT, require_keys=True)
    with pytest.raises(CompressionError, match="allowed"):
        recompress(encode_batch(RECORDS), Codec.GZIP, max_size=10)


def test_validation_returns_the_earliest_and_latest_time_found() -> None:
    assert validate_records(encode_batch(RECORDS), LIMIT) == (995, 1007)


def test_records_without_keys_are_refused_for_compacted_topics() -> None:
    validate_records(encode_batch([RECORDS[0]]), LIMIT, require_keys=True)
    with pytest.raises(InvalidRecords, match="record 1 has no key"):
        validate_records(encode_batch(RECORDS), LIMIT, require_keys=True)


@pytest.mark.parametrize(
    ("place", "layout", "value", "reason"),
    [
        (57, ">i", 4, "4 records but offsets 0 to 2"),
        (23, ">i", 7, "3 records but offsets 0 to 7"),
        (57, ">i", -1, "records"),
        (57, ">i", 0x7FFFFFFF, "records"),
        (16, ">b", 1, "format 1 is not supported"),
        (8, ">i", 10_000, "claims 10012 bytes"),
        (8, ">i", 48, "claims 60 bytes"),
        (8, ">i", -1, "claims 11 bytes"),
    ],
)
def test_batch_headers_that_contradict_the_records_are_refused(
    place: int, layout: str, value: int, reason: str
) -> None:
    batch = encode_batch(RECORDS)
    struct.pack_into(layout, batch, place, value)
    with pytest.raises(InvalidRecords, match=reason):
        validate_records(batch, LIMIT)


def test_count_and_last_offset_may_not_both_be_raised_beyond_the_records() -> None:
    batch = encode_batch(RECORDS)
    struct.pack_into(">i", batch, 57, 4)
    struct.pack_into(">i", batch, 23, 3)
    with pytest.raises(InvalidRecords, match="cut off"):
        validate_records(batch, LIMIT)
    with pytest.raises(InvalidRecords, match="cut off"):
        decode_batch(batch, max_size=LIMIT)


def test_count_and_last_offset_may_not_both_be_lowered_below_the_records() -> None:
    batch = encode_batch(RECORDS)
    struct.pack_into(">i", batch, 57, 2)
    struct.pack_into(">i", batch, 23, 1)
    with pytest.raises(InvalidRecords, match="left behind the last of 2 records"):
        validate_records(batch, LIMIT)
    with pytest.raises(InvalidRecords, match="left behind the last of 2 records"):
        decode_batch(batch, max_size=LIMIT)


def test_a_batch_without_records_is_read_as_such_and_refused_from_a_producer() -> None:
    batch = encode_batch(RECORDS)[:HEADER_SIZE]
    struct.pack_into(">i", batch, 8, HEADER_SIZE - 12)
    struct.pack_into(">i", batch, 57, 0)
    assert decode_batch(batch, max_size=LIMIT) == []
    struct.pack_into(">i", batch, 23, -1)
    with pytest.raises(InvalidRecords, match="no records"):
        validate_records(batch, LIMIT)


def test_offset_deltas_with_a_gap_are_refused_from_a_producer() -> None:
    batch = encode_batch([RECORDS[0], RECORDS[2]])
    struct.pack_into(">i", batch, 23, 1)
    with pytest.raises(InvalidRecords, match="record 1 has offset delta 2"):
        validate_records(batch, LIMIT)


def test_less_than_a_header_is_refused() -> None:
    for size in range(HEADER_SIZE):
        with pytest.raises(InvalidRecords, match="less than the header"):
            decode_batch(bytes(size), max_size=LIMIT)


def test_header_keys_that_are_no_text_are_read_with_replacement_marks() -> None:
    batch = encode_batch([Record(0, 0, None, None, [("abc", b"")])])
    batch[batch.index(b"abc") + 1] = 0xFF
    assert decode_batch(batch, max_size=LIMIT)[0].headers == [("a\ufffdc", b"")]


def test_a_timestamp_beyond_64_bits_wraps_around_as_javas_does() -> None:
    batch = encode_batch([Record(0, 1000, None, b"v", []), Record(1, 5000, None, b"v", [])])
    HEADER.pack_into(batch, 0, *read_header(batch)._replace(base_timestamp=2**63 - 1))
    assert decode_batch(batch, max_size=LIMIT)[1].timestamp == -(2**63) + 3999
