"""Headers of requests and responses, held against kio's."""

from __future__ import annotations

import io
import struct

import kio.schema.request_header.v1.header as kio_request_v1
import kio.schema.request_header.v2.header as kio_request_v2
import kio.schema.response_header.v0.header as kio_response_v0
import kio.schema.response_header.v1.header as kio_response_v1
import pytest
from kio.serial import entity_writer

from ottla.protocol.apis import API_VERSIONS, APIS, FETCH, PRODUCE
from ottla.protocol.codec import Malformed, decode, encode
from ottla.protocol.frames import (
    UnsupportedVersion,
    parse_request_header,
    parse_response,
    request_frame,
    response_frame,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse


def kio_request_header(key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    header = kio_request_v2 if version >= APIS[key].flexible_from else kio_request_v1
    out = io.BytesIO()
    entity = header.RequestHeader(
        request_api_key=key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    entity_writer(header.RequestHeader)(out, entity)
    return out.getvalue()


@pytest.mark.parametrize("client_id", [None, "", "client", "é"])
@pytest.mark.parametrize("version", [0, 8, 9, 13])
def test_a_request_frame_has_kios_header_and_is_read_again(version: int, client_id: str | None) -> None:
    request = MetadataRequest(topics=[])
    frame = b"".join(request_frame(request, version, 77, client_id))
    header = kio_request_header(3, version, 77, client_id)
    body = b"".join(encode(request, version))
    assert frame == struct.pack(">i", len(header) + len(body)) + header + body
    parsed = parse_request_header(memoryview(frame)[4:])
    assert parsed == (3, version, 77, client_id, len(header))
    assert decode(MetadataRequest, version, memoryview(frame)[4:], parsed.body_start) == request


@pytest.mark.parametrize("version", [0, 8, 9, 13])
def test_a_response_frame_has_kios_header_and_is_read_again(version: int) -> None:
    response = MetadataResponse(controller_id=1 if version else -1)
    parts = encode(response, version)
    body = b"".join(parts)
    frame = b"".join(response_frame(APIS[3], version, 78, parts))
    module = kio_response_v1 if version >= 9 else kio_response_v0
    out = io.BytesIO()
    entity_writer(module.ResponseHeader)(out, module.ResponseHeader(correlation_id=78))
    assert frame == struct.pack(">i", len(out.getvalue()) + len(body)) + out.getvalue() + body
    assert parse_response(APIS[3], version, memoryview(frame)[4:]) == (78, response)


def test_the_response_to_api_versions_has_the_old_header_in_every_version() -> None:
    api = APIS[API_VERSIONS]
    for version in range(api.max_version + 1):
        parts = encode(ApiVersionsResponse(), version)
        size = sum(map(len, parts))
        frame = b"".join(response_frame(api, version, 5, parts))
        assert frame[:8] == struct.pack(">ii", size + 4, 5)
        assert parse_response(api, version, memoryview(frame)[4:]) == (5, ApiVersionsResponse())


def test_records_stay_parts_of_a_response_frame() -> None:
    records = bytes(1000)
    response = FetchResponse(
        responses=[FetchableTopicResponse(topic="t", partitions=[PartitionData(records=records)])]
    )
    frame = response_frame(APIS[FETCH], 12, 1, encode(response, 12))
    assert frame[1] is records
    (size,) = struct.unpack_from(">i", frame[0])
    assert size == sum(map(len, frame)) - 4


@pytest.mark.parametrize(
    ("key", "version"), [(99, 0), (-1, 0), (3, 14), (3, -1), (PRODUCE, 2), (FETCH, 3), (API_VERSIONS, 99)]
)
def test_an_unknown_api_or_version_is_reported_with_the_header(key: int, version: int) -> None:
    frame = struct.pack(">hhih", key, version, 42, 6) + b"client" + b"whatever follows"
    with pytest.raises(UnsupportedVersion, match=f"api key {key} version {version} ") as caught:
        parse_request_header(memoryview(frame))
    header = caught.value.header
    assert (header.api_key, header.api_version, header.correlation_id) == (key, version, 42)
    assert header.client_id == "client"


def test_unknown_tagged_fields_of_headers_are_skipped() -> None:
    body = b"".join(encode(ApiVersionsRequest(client_software_name="n", client_software_version="1"), 3))
    head = struct.pack(">hhih", API_VERSIONS, 3, 1, -1)
    header = parse_request_header(memoryview(head + b"\x01\x09\x02ab" + body))
    assert header.body_start == len(head) + 5
    response = b"".join(encode(MetadataResponse(), 9))
    parsed = parse_response(APIS[3], 9, memoryview(b"\x00\x00\x00\x07" + b"\x01\x09\x02ab" + response))
    assert parsed == (7, MetadataResponse())


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "cut off"),
        (b"\x00\x03\x00\x09\x00\x00\x00\x01\x00", "cut off"),
        (b"\x00\x03\x00\x09\x00\x00\x00\x01\xff\xff", "cut off"),
        (b"\x00\x03\x00\x09\x00\x00\x00\x01\x00\x05abc", "longer than the frame"),
        (b"\x00\x03\x00\x09\x00\x00\x00\x01\xff\xfe", "length -2"),
        (b"\x00\x03\x00\x09\x00\x00\x00\x01\x00\x01\xff\x00", "not UTF-8"),
        (b"\x00\x03\x00\x09\x00\x00\x00\x01\xff\xff\xff\x00", "tagged fields"),
    ],
)
def test_a_bad_request_header_is_malformed(frame: bytes, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        parse_request_header(memoryview(frame))


def test_a_bad_response_header_is_malformed() -> None:
    for frame in (b"", b"\x00\x00\x00", b"\x00\x00\x00\x01"):
        with pytest.raises(Malformed, match="response header: cut off"):
            parse_response(APIS[3], 9, memoryview(frame))


def test_produce_is_advertised_from_version_0_and_implemented_from_3() -> None:
    assert (APIS[PRODUCE].advertised_min, APIS[PRODUCE].min_version) == (0, 3)
    assert all(api.advertised_min == api.min_version for api in APIS.values() if api.key != PRODUCE)
    assert all(api.response.versions == api.request.versions for api in APIS.values())
    assert all(api.response.flexible == api.request.flexible for api in APIS.values())
