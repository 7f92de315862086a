"""What a leader checks and changes before batches may enter the log."""

from struct import pack_into
from typing import Any

import pytest

from ottla.protocol.batches import DELETE_HORIZON, BatchHeader, crc_matches, headers, read_header
from ottla.protocol.compression import Codec, compress
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.records import Record, decode_batch, encode_batch
from ottla.protocol.varints import append_varint
from ottla.storage.inspection import prepare
from ottla.storage.log_config import LogConfig
from ottla.storage.validation import InvalidRecordsError, OpenElsewhere, Validated, validate_and_stamp
from unit.storage.logs import MAX_SIZE, T0, batch, from_producer


def validate(
    records: memoryview, *, first: int = 100, epoch: int = 5, now: int = T0, **config: Any
) -> Validated:
    return validate_and_stamp(records, first, epoch, LogConfig(**config), now, "t-0")


def refused(records: memoryview, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as refusal:
        validate(records, **options)
    assert "t-0" in refusal.value.message
    return refusal.value


def joined(*batches: memoryview) -> memoryview:
    return memoryview(bytearray(b"".join(batches)))


def with_header(data: memoryview, **fields: int) -> memoryview:
    """The batch with other header fields and the CRC that goes with them."""
    from crc32c import crc32c

    from ottla.protocol.batches import HEADER

    copy = bytearray(data)
    header = read_header(copy)._replace(**fields)
    HEADER.pack_into(copy, 0, *header)
    if "crc" not in fields:
        HEADER.pack_into(copy, 0, *header._replace(crc=crc32c(copy[21:])))
    return memoryview(copy)


def test_offset_and_epoch_are_stamped_in_place_and_the_crc_stays() -> None:
    data = batch(3)
    before = read_header(data)
    data_out, batches, next_offset = validate(data)
    assert data_out is data
    assert next_offset == 103
    after = read_header(data)
    assert (after.base_offset, after.leader_epoch, after.crc) == (100, 5, before.crc)
    assert crc_matches(data, 0, after)
    assert [(position, offset) for position, offset, _ in batches] == [(0, 100)]


def test_several_batches_get_consecutive_offsets() -> None:
    data = joined(batch(3), batch(2), batch(1))
    validate(data)
    assert [header.base_offset for _, header in headers(data)] == [100, 103, 105]


def test_bytes_behind_the_last_whole_batch_are_left_out() -> None:
    whole = batch(2)
    validated = validate(joined(whole, batch(1)[:-1]))
    assert len(validated.data) == len(whole)
    assert validated.next_offset == 102


@pytest.mark.parametrize("size", [0, 60, 61, 75])
def test_no_whole_batch_is_an_invalid_record(size: int) -> None:
    assert refused(batch(1)[:size]).code == ErrorCode.INVALID_RECORD


def test_a_wrong_crc_is_a_corrupt_message() -> None:
    data = batch(1)
    data[-1] ^= 1
    assert refused(data).code == ErrorCode.CORRUPT_MESSAGE


def test_a_length_below_that_of_a_header_is_a_corrupt_message() -> None:
    data = batch(1)
    pack_into(">i", data, 8, 12)
    assert refused(data).code == ErrorCode.CORRUPT_MESSAGE


def test_a_batch_above_max_message_bytes_is_too_large() -> None:
    data = batch(1)
    assert refused(data, max_message_bytes=len(data) - 1).code == ErrorCode.MESSAGE_TOO_LARGE
    validate(data, max_message_bytes=len(data))


@pytest.mark.parametrize(
    "fields",
    [
        {"magic": 1},
        {"base_offset": 1},
        {"last_offset_delta": -1},
        {"last_offset_delta": 5},
        {"record_count": 0},
        {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2},
        {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2, "attributes": Codec.ZSTD},
        {"record_count": -1},
        {"attributes": 0x20},
        {"attributes": 5},
        {"producer_id": 4, "base_sequence": -1},
    ],
)
def test_a_header_that_contradicts_itself_is_an_invalid_record(fields: dict[str, int]) -> None:
    assert refused(with_header(batch(2), **fields)).code == ErrorCode.INVALID_RECORD


def test_the_broker_itself_may_write_control_batches() -> None:
    data = from_producer(-1, control=True, transactional=True)
    validate_and_stamp(data, 0, 0, LogConfig(), T0, "t-0", from_client=False)
    assert read_header(data).is_control


def test_times_too_far_in_the_future_are_refused_record_by_record() -> None:
    data = batch(3, timestamp=T0, step=1000)
    problem = refused(data, message_timestamp_after_max_ms=1500)
    assert isinstance(problem, InvalidRecordsError)
    assert problem.code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in problem.record_errors] == [2]


def test_times_too_far_in_the_past_are_refused_record_by_record() -> None:
    data = batch(3, timestamp=T0 - 2000, step=1000)
    problem = refused(data, message_timestamp_before_max_ms=1500)
    assert isinstance(problem, InvalidRecordsError)
    assert [error.batch_index for error in problem.record_errors] == [0]


def test_records_without_a_time_are_never_out_of_range() -> None:
    validate(batch(1, timestamp=-1), message_timestamp_before_max_ms=1)


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_sets_the_time_of_the_log_without_opening_the_batch(codec: Codec) -> None:
    data = batch(3, codec=codec)
    body = bytes(data[61:])
    _, batches, _ = validate(data, now=T0 + 77, message_timestamp_type="LogAppendTime")
    header = read_header(data)
    assert (header.is_log_append_time, header.max_timestamp) == (True, T0 + 77)
    assert crc_matches(data, 0, header)
    assert bytes(data[61:]) == body
    assert batches[0][2].max_timestamp == T0 + 77
    assert {record.timestamp for record in decode_batch(data, max_size=MAX_SIZE)} == {T0 + 77}


def test_a_producer_may_not_claim_log_append_time() -> None:
    data = batch(1, log_append_time=True)
    assert refused(data, message_timestamp_type="LogAppendTime").code == ErrorCode.INVALID_TIMESTAMP


def test_a_log_append_time_flag_of_a_producer_is_cleared_on_a_create_time_topic() -> None:
    data = batch(2, log_append_time=True)
    validate(data)
    header = read_header(data)
    assert not header.is_log_append_time
    assert crc_matches(data, 0, header)


def test_a_compacted_topic_needs_keys() -> None:
    problem = refused(batch(2, key=None), cleanup_policy=("compact",))
    assert isinstance(problem, InvalidRecordsError)
    assert problem.code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in problem.record_errors] == [0, 1]
    validate(batch(2), cleanup_policy=("compact",))


def records_and_header(validated: Validated) -> tuple[list[tuple[int, bytes | None]], BatchHeader]:
    records = decode_batch(validated.data, max_size=MAX_SIZE)
    return [(record.offset, record.value) for record in records], read_header(validated.data)


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_the_codec_of_the_topic_replaces_that_of_the_producer(source: Codec, target: str) -> None:
    data = from_producer(4, 3, codec=source, value=b"x" * 50)
    validated = validate(data, compression_type=target)
    wanted = Codec.NONE if target == "uncompressed" else Codec[target.upper()]
    records, header = records_and_header(validated)
    assert records == [(100, b"x" * 50), (101, b"x" * 50), (102, b"x" * 50)]
    assert header.compression == wanted
    assert (header.producer_id, header.base_sequence, header.leader_epoch) == (7, 4, 5)
    assert crc_matches(validated.data, 0, header)
    assert (validated.data is data) == (source == wanted)


def test_batches_with_different_codecs_are_recompressed_to_one() -> None:
    data = joined(batch(2, codec=Codec.GZIP), batch(1, codec=Codec.ZSTD))
    validated = validate(data, compression_type="zstd")
    assert [header.compression for _, header in headers(validated.data)] == [Codec.ZSTD, Codec.ZSTD]
    assert [position for position, _, _ in validated.batches] == [p for p, _ in headers(validated.data)]


def test_recompression_and_log_append_time_go_together() -> None:
    validated = validate(batch(2), now=T0 + 9, compression_type="lz4", message_timestamp_type="LogAppendTime")
    header = read_header(validated.data)
    assert (header.compression, header.is_log_append_time, header.max_timestamp) == (Codec.LZ4, True, T0 + 9)


def test_a_batch_that_grows_too_large_uncompressed_is_refused() -> None:
    data = batch(1, value=b"x" * 10_000, codec=Codec.GZIP)
    problem = refused(data, compression_type="uncompressed", max_message_bytes=5000)
    assert problem.code == ErrorCode.MESSAGE_TOO_LARGE


def test_records_that_cannot_be_opened_when_they_must_be_are_invalid() -> None:
    data = with_header(batch(2), attributes=1)
    assert refused(data, compression_type="zstd").code == ErrorCode.INVALID_RECORD


def test_a_decompression_bomb_is_refused() -> None:
    data = batch(1, value=bytes(3_000_000), codec=Codec.GZIP)
    problem = refused(data, compression_type="zstd", max_decompressed_message_bytes=1_000_000)
    assert problem.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_batch_of_the_smallest_records_is_accepted(codec: Codec) -> None:
    smallest = memoryview(encode_batch([Record(i, T0, b"", b"", []) for i in range(60)], codec=codec))
    assert validate(smallest).next_offset == 160


# -- times that the header does not tell -----------------------------------------------------------------


def with_times(*deltas: int, codec: int = 0, base: int = T0, max_timestamp: int = -1) -> memoryview:
    """Records at `base` plus the deltas under a header that says what it is told to say."""
    records = [Record(index, base + delta, b"k", b"v", []) for index, delta in enumerate(deltas)]
    data = memoryview(encode_batch(records, codec=codec))
    return with_header(data, max_timestamp=max_timestamp)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("claimed", [-1, -2, 0, T0 - 1])
def test_a_max_timestamp_that_cannot_be_true_is_computed_from_the_records(codec: Codec, claimed: int) -> None:
    data = with_times(0, 5000, 300, codec=codec, max_timestamp=claimed)
    validated = validate(data)
    header = read_header(data)
    assert header.max_timestamp == validated.batches[0][2].max_timestamp == T0 + 5000
    assert crc_matches(data, 0, header)


def test_times_too_far_ahead_are_refused_when_the_header_has_no_max_timestamp() -> None:
    problem = refused(with_times(0, 10 * 86_400_000))
    assert isinstance(problem, InvalidRecordsError)
    assert problem.code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in problem.record_errors] == [1]


@pytest.mark.parametrize("base", [2**63 - 1, -(2**63)])
def test_a_base_timestamp_at_the_64_bit_limit_is_refused(base: int) -> None:
    data = with_header(batch(1), base_timestamp=base, max_timestamp=T0)
    assert refused(data).code == ErrorCode.INVALID_TIMESTAMP


def test_timestamps_beyond_64_bits_are_refused_whatever_the_topic_allows() -> None:
    data = with_header(batch(2, step=1000), base_timestamp=2**63 - 1, max_timestamp=2**63 - 1)
    problem = refused(data, message_timestamp_after_max_ms=2**63 - 1)
    assert problem.code == ErrorCode.INVALID_TIMESTAMP


def test_a_record_older_than_the_first_counts_for_the_oldest_time_allowed() -> None:
    data = with_times(0, -5000, max_timestamp=T0)
    problem = refused(data, message_timestamp_before_max_ms=1000)
    assert isinstance(problem, InvalidRecordsError)
    assert [error.batch_index for error in problem.record_errors] == [1]


def test_a_batch_without_timestamps_keeps_none() -> None:
    data = batch(2, timestamp=-1, step=0)
    validate(data)
    assert read_header(data).max_timestamp == -1


def test_an_answer_names_a_hundred_refused_records_and_counts_the_others() -> None:
    problem = refused(batch(250, timestamp=T0 + 7_200_000))
    assert isinstance(problem, InvalidRecordsError)
    assert [error.batch_index for error in problem.record_errors] == list(range(100))
    assert "250 records" in problem.message


# -- records that are not what the header promises -------------------------------------------------------


def forged(body: bytes, count: int = 1, codec: int = 0) -> memoryview:
    whole = bytearray(batch(1)[:61]) + compress(codec, body)
    return with_header(
        memoryview(whole),
        batch_length=len(whole) - 12,
        attributes=codec,
        record_count=count,
        last_offset_delta=count - 1,
    )


def one_record(offset_delta: int) -> bytes:
    record = bytearray(b"\0\0")
    append_varint(record, offset_delta)
    record += b"\x02k\x02v\0"
    return bytes([2 * len(record)]) + bytes(record)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(
    "body", [one_record(-1), one_record(1_000_000), one_record(0) + b"rest", b"\xa7" * 40]
)
def test_a_compacted_topic_takes_only_records_that_can_be_read(codec: Codec, body: bytes) -> None:
    problem = refused(forged(body, codec=codec), cleanup_policy=("compact",))
    assert problem.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_one_byte_of_compressed_records_cannot_hold_a_million_of_them(codec: Codec) -> None:
    whole = memoryview(bytearray(batch(1)[:61]) + b"\0")
    data = with_header(
        whole, batch_length=50, attributes=codec, record_count=900_000, last_offset_delta=899_999
    )
    assert refused(data).code == ErrorCode.INVALID_RECORD


def test_more_records_than_max_records_per_batch_are_refused() -> None:
    assert refused(batch(6), max_records_per_batch=5).code == ErrorCode.INVALID_RECORD
    assert validate(batch(5), max_records_per_batch=5).next_offset == 105


@pytest.mark.parametrize("time_type", ["CreateTime", "LogAppendTime"])
def test_a_delete_horizon_flag_set_by_a_client_is_cleared(time_type: str) -> None:
    data = with_header(batch(1), attributes=DELETE_HORIZON)
    validate(data, message_timestamp_type=time_type)
    header = read_header(data)
    assert not header.attributes & DELETE_HORIZON
    assert crc_matches(data, 0, header)


# -- what takes long is left to a thread ----------------------------------------------------------------


def validate_small(data: memoryview, config: LogConfig, prepared_under: LogConfig | None = None) -> Validated:
    return validate_and_stamp(data, 0, 0, config, T0, "t-0", only_small=True, prepared_under=prepared_under)


@pytest.mark.parametrize(
    ("data", "config"),
    [
        (batch(5000), LogConfig(cleanup_policy=("compact",))),
        (batch(1, value=bytes(300_000), codec=Codec.ZSTD), LogConfig(cleanup_policy=("compact",))),
        (
            memoryview(encode_batch([Record(0, T0, b"k", b"v", [("h", None)] * 5000)])),
            LogConfig(cleanup_policy=("compact",)),
        ),
        (batch(2, value=b"x" * 20_000), LogConfig(compression_type="zstd")),
        (batch(2), LogConfig(compression_type="zstd", compression_zstd_level=22)),
        (batch(2), LogConfig(compression_type="gzip", compression_gzip_level=9)),
        (batch(2), LogConfig(compression_type="lz4", compression_lz4_level=12)),
        (with_times(*range(5000)), LogConfig()),
        (batch(5000, timestamp=T0 + 10**8), LogConfig()),
        (batch(5000), LogConfig(message_timestamp_before_max_ms=10**9)),
    ],
    ids=[
        "records",
        "decompressed",
        "headers",
        "recompressed",
        "zstd-22",
        "gzip-9",
        "lz4-12",
        "no-max-timestamp",
        "ahead",
        "before",
    ],
)
def test_a_batch_that_takes_long_to_open_is_not_opened_on_the_loop(
    data: memoryview, config: LogConfig
) -> None:
    before = bytes(data)
    with pytest.raises(OpenElsewhere):
        validate_small(data, config)
    assert bytes(data) == before


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_small_batch_is_recompressed_on_the_loop_at_the_default_level(codec: str) -> None:
    config = LogConfig(compression_type=codec)
    validated = validate_small(batch(2), config)
    assert read_header(validated.data).compression == config.target_codec


def test_a_batch_prepared_under_the_same_configuration_is_not_opened_again() -> None:
    config = LogConfig(cleanup_policy=("compact",), compression_type="lz4")
    data = with_times(*range(5000))
    pauses: list[int] = []
    prepared = prepare(data, config, T0, "t-0", pause=lambda: pauses.append(1))
    assert len(pauses) > 10
    validated = validate_small(prepared, config, prepared_under=config)
    header = read_header(validated.data)
    assert (header.compression, header.max_timestamp, validated.next_offset) == (Codec.LZ4, T0 + 4999, 5000)
    assert crc_matches(validated.data, 0, header)
    with pytest.raises(OpenElsewhere):
        validate_small(prepared, LogConfig(cleanup_policy=("compact",)), prepared_under=config)
