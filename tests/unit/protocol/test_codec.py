"""The codec at its edges: what it refuses, what it leaves out, and that records are never copied."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.codec import Malformed, ManyObjects, decode, decode_few, decoder, encode
from ottla.protocol.compiler import read_varint, write_varint
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


def produce(records: Any, name: Any = "t") -> ProduceRequest:
    partition = PartitionProduceData(index=1, records=records)
    return ProduceRequest(acks=1, topic_data=[TopicProduceData(name=name, partition_data=[partition])])


def wire(message: Any, version: int) -> bytes:
    return b"".join(encode(message, version))


# Records


@pytest.mark.parametrize("version", [3, 9])
def test_records_are_decoded_as_a_view_of_the_frame(version: int) -> None:
    frame = bytearray(wire(produce(b"abc"), version))
    records = decode(ProduceRequest, version, memoryview(frame)).topic_data[0].partition_data[0].records
    assert records == b"abc"
    frame[frame.index(b"abc")] = ord("x")
    assert records == b"xbc"


@pytest.mark.parametrize("version", [3, 9, 13])
def test_few_objects_are_decoded_however_many_bytes_their_records_have(version: int) -> None:
    frame = memoryview(wire(produce(bytes(5 << 20)), version))
    assert decode_few(ProduceRequest, version, frame) == decode(ProduceRequest, version, frame)


@pytest.mark.parametrize("version", [3, 9, 13])
@pytest.mark.parametrize(("topics", "partitions"), [(1, 600), (400, 1), (30, 30)])
def test_many_objects_are_left_to_a_decoder_that_pauses(version: int, topics: int, partitions: int) -> None:
    entries = [PartitionProduceData(index=n, records=b"") for n in range(partitions)]
    data = [TopicProduceData(name=f"t{n}", partition_data=entries) for n in range(topics)]
    with pytest.raises(ManyObjects):
        decode_few(ProduceRequest, version, memoryview(wire(ProduceRequest(topic_data=data), version)))


@pytest.mark.parametrize("version", [3, 9])
def test_few_objects_that_are_cut_off_are_malformed(version: int) -> None:
    with pytest.raises(Malformed):
        decode_few(ProduceRequest, version, memoryview(wire(produce(b"abc"), version))[:-2])


@pytest.mark.parametrize("version", [3, 9])
def test_records_leave_as_a_part_of_their_own(version: int) -> None:
    class Slice:
        def __len__(self) -> int:
            return 1 << 20

    part = Slice()
    parts = encode(produce(part), version)
    assert parts[1] is part
    assert len(parts) == (
        3 if version == 9 else 2
    )  # behind them stand the tagged fields, if there may be any
    assert sum(map(len, parts)) == len(wire(produce(bytes(1 << 20)), version))


def test_pieces_between_records_are_joined() -> None:
    partitions = [PartitionData(partition_index=i, records=b"r" * i) for i in range(4)]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    parts = encode(response, 12)
    assert [part for part in parts if isinstance(part, bytes)] == [b"r", b"rr", b"rrr"]
    assert len(parts) == 7  # empty records are no part


@pytest.mark.parametrize("version", [3, 9])
def test_null_and_empty_records_are_distinguished(version: int) -> None:
    for value in (None, b""):
        frame = memoryview(wire(produce(value), version))
        message = decode(ProduceRequest, version, frame)
        assert message.topic_data[0].partition_data[0].records == value


# Versions


def test_a_field_that_a_version_lacks_is_dropped_and_comes_back_as_its_default() -> None:
    request = FetchRequest(rack_id="r", session_id=9, max_wait_ms=5)
    back = decode(FetchRequest, 4, memoryview(wire(request, 4)))
    assert (back.rack_id, back.session_id, back.max_wait_ms) == ("", 0, 5)


def test_a_version_that_is_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match="FetchRequest has versions 4 to 18, not 3"):
        decoder(FetchRequest, 3)
    with pytest.raises(ValueError, match="not 19"):
        encode(FetchRequest(), 19)


def test_a_message_can_be_decoded_from_the_middle_of_a_frame() -> None:
    frame = memoryview(b"header" + wire(ApiVersionsRequest(client_software_name="n"), 3))
    assert decode(ApiVersionsRequest, 3, frame, 6).client_software_name == "n"


def test_trailing_bytes_of_librdkafkas_metadata_request_are_ignored() -> None:
    frame = bytes.fromhex("00000000010000")
    assert decode(MetadataRequest, 13, memoryview(frame)) == MetadataRequest(
        topics=None, allow_auto_topic_creation=False
    )


# Tagged fields


def test_tagged_fields_are_written_only_when_they_differ_from_their_defaults() -> None:
    plain = wire(FetchRequest(), 15)
    assert wire(FetchRequest(replica_state=ReplicaState(replica_id=-1, replica_epoch=-1)), 15) == plain
    assert plain[-1] == 0
    follower = wire(FetchRequest(replica_state=ReplicaState(replica_id=2)), 15)
    assert follower == plain[:-1] + b"\x01\x01\x0d\x00\x00\x00\x02" + b"\xff" * 8 + b"\x00"


def with_tags(tags: bytes) -> memoryview:
    """A Fetch v15 request whose tagged fields are `tags`, their count first."""
    return memoryview(wire(FetchRequest(), 15)[:-1] + tags)


def test_unknown_tagged_fields_are_skipped() -> None:
    assert decode(FetchRequest, 15, with_tags(b"\x02\x05\x00\xac\x02\x03abc")) == FetchRequest()
    mixed = decode(FetchRequest, 15, with_tags(b"\x02\x00\x03id\x07\x01x"[:2] + b"\x03\x03id\x07\x01x"))
    assert mixed == FetchRequest(cluster_id="id")


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        (b"\x02\x05\x00\x05\x00", "twice"),
        (b"\x02\x06\x00\x05\x00", "after a higher one"),
        (b"\x02\x00\x03\x03id\x00\x03\x03id", "twice"),
        (b"\x01\x05\x7f", "longer than the bytes"),
        (b"\x01\x00\x04\x03id?", "not as long as its tag says"),
        (b"\x01\x00\x02\x03id", "not as long as its tag says"),
        (b"\x01\x05\xff\xff\xff\xff\x1f", "varint"),
        (b"\x80\x01" + b"\x01\x00" * 128, "more than 127 tagged fields"),
        (b"\x03\x05\x00", "cut off"),
    ],
)
def test_bad_tagged_fields_are_malformed(tags: bytes, reason: str) -> None:
    with pytest.raises(Malformed, match=f"FetchRequest v15: .*{reason}"):
        decode(FetchRequest, 15, with_tags(tags))


# Varints


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 2**21, 2**28 - 1, 2**28, 2**32 - 1])
def test_varints_round_trip(value: int) -> None:
    data = write_varint(value)
    assert len(data) <= 5
    assert read_varint(memoryview(b"?" + data + b"?"), 1) == (value, 1 + len(data))


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x10", b"\x80\x80\x80\x80\x80\x01", b"\xff" * 10])
def test_varints_of_more_than_32_bits_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed, match="varint"):
        read_varint(memoryview(data), 0)


# Nulls, lengths and strings


def test_a_nullable_struct_has_a_marker() -> None:
    request = DescribeTopicPartitionsRequest(cursor=Cursor(topic_name="t", partition_index=1))
    frame = wire(request, 0)
    assert decode(DescribeTopicPartitionsRequest, 0, memoryview(frame)) == request
    marker = len(frame) - len(b"\x01\x02t\x00\x00\x00\x01\x00\x00")
    assert frame[marker] == 1
    spoiled = frame[:marker] + b"\x02" + frame[marker + 1 :]
    with pytest.raises(Malformed, match="neither there nor null"):
        decode(DescribeTopicPartitionsRequest, 0, memoryview(spoiled))
    assert wire(DescribeTopicPartitionsRequest(), 0)[-2] == 0xFF


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\xff\xff\xff\xfe", "topics has the length -2"),
        (b"\x00\x00\x00\x01\xff\xff", "name is null"),
        (b"\x00\x00\x00\x01\x80\x00", "name is null"),
        (b"\x00\x00\x00\x01\x00\x02a", "name is longer"),
        (b"\x00\x00\x00\x01\x00\x01\xff", "not UTF-8"),
        (b"\x00\x00\x00\x01\x00\x02\xc0\x80", "not UTF-8"),
        (b"\x7f\xff\xff\xff\x00\x01a", "cannot have 2147483647 elements"),
    ],
)
def test_bad_lengths_and_strings_are_malformed(frame: bytes, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        decode(MetadataRequest, 1, memoryview(frame))


def test_a_string_is_at_most_32767_bytes_long_in_every_version() -> None:
    longest = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32767)])
    for version in (1, 9):
        assert decode(MetadataRequest, version, memoryview(wire(longest, version))) == longest
        with pytest.raises(ValueError, match=r"topics\[0\]\.name is longer than 32767 bytes"):
            encode(MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32768)]), version)
    frame = b"\x02" + write_varint(32769) + b"x" * 32768 + b"\x00\x01\x00\x00\x00"
    with pytest.raises(Malformed, match="longer than 32767"):
        decode(MetadataRequest, 9, memoryview(frame))


# What cannot be written


@pytest.mark.parametrize(
    ("message", "version", "reason"),
    [
        (produce(b"", name=None), 3, r"ProduceRequest\.topic_data\[0\]\.name is None"),
        (produce(b"", name=None), 9, r"ProduceRequest\.topic_data\[0\]\.name is None"),
        (produce(b"", name=b"bytes"), 9, r"topic_data\[0\]\.name is a bytes, not a string"),
        (ProduceRequest(topic_data=None), 9, r"ProduceRequest\.topic_data is None"),  # type: ignore[arg-type]
        (ProduceRequest(acks=40_000), 9, r"ProduceRequest\.acks is not an int16: 40000"),
        (ProduceRequest(acks=None), 9, r"ProduceRequest\.acks is None"),  # type: ignore[arg-type]
        (
            MetadataRequest(topics=None),
            0,
            r"MetadataRequest\.topics is None, but cannot be null in version 0",
        ),
        (
            FetchRequest(topics=[FetchTopic(topic_id=b"short")]),
            13,
            r"FetchRequest\.topics\[0\]\.topic_id is not 16 bytes long",
        ),
        (
            FetchRequest(topics=[FetchTopic(partitions=[MetadataRequest()])]),  # type: ignore[list-item]
            12,
            r"partitions\[0\] is a MetadataRequest, not a struct",
        ),
        (
            FetchRequest(topics=[FetchTopic(partitions=[FetchPartition(partition=2**31)])]),
            12,
            r"FetchRequest\.topics\[0\]\.partitions\[0\]\.partition is not an int32",
        ),
    ],
)
def test_encoding_names_the_field_that_is_wrong(message: Any, version: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        encode(message, version)


def test_lists_of_integers_of_any_length_round_trip() -> None:
    for count in (0, 1, 16, 17, 1000):
        partition = MetadataResponsePartition(replica_nodes=list(range(count)), isr_nodes=[-1] * count)
        response = MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=[partition])])
        for version in (0, 12):
            assert decode(MetadataResponse, version, memoryview(wire(response, version))) == response


def test_a_long_array_round_trips() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=str(i)) for i in range(300)])
    for version in (0, 9):
        assert decode(MetadataRequest, version, memoryview(wire(request, version))) == request


def test_an_unsupported_version_response_is_encoded_in_version_0() -> None:
    assert wire(ApiVersionsResponse(error_code=35), 0) == b"\x00\x23\x00\x00\x00\x00"
