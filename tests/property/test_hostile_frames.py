"""Decoding arbitrary bytes raises Malformed or gives a message, and takes bounded memory."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterable
from random import Random
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from effort import examples
from fuzz.hostile import ABSURD, expensive, spoil
from fuzz.random_messages import Message, random_message, versions_of
from ottla.protocol import decoders
from ottla.protocol.apis import APIS, Api
from ottla.protocol.codec import Malformed, decode, decode_in_slices, decoder, encode, encode_in_slices
from ottla.protocol.frames import UnsupportedVersion, parse_request_header, parse_response
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.schema import Request
from property.message_versions import for_each_message, for_each_version

T = TypeVar("T")

few = settings(max_examples=examples(2, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32)
PLACES = examples(6, 50)
"""Where absurd counts are written in a message."""

# What is in use besides the message: the error, its text, frames of the interpreter.
SLACK = 32 << 10


def peak_of_decoding(
    decode: Callable[[memoryview, int], object], frames: Iterable[bytes], allowed: int
) -> int:
    """How many bytes were in use at most, more than before, while one of `frames` was decoded.

    A peak above `allowed` is measured again, three times in all: threads of other tests in this process may
    have allocated meanwhile.
    """
    highest = 0
    tracemalloc.start()
    try:
        for frame in frames:
            peaks = [_peak_of_one(decode, frame)]
            while peaks[-1] > allowed and len(peaks) < 3:
                peaks.append(_peak_of_one(decode, frame))
            highest = max(highest, min(peaks))
    finally:
        tracemalloc.stop()
    return highest


def _peak_of_one(decode: Callable[[memoryview, int], object], frame: bytes) -> int:
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with contextlib.suppress(Malformed):
        decode(memoryview(frame), 0)
    return tracemalloc.get_traced_memory()[1] - before


@for_each_version()
def test_a_message_cut_off_at_any_byte_is_malformed(cls: Message, version: int) -> None:
    frame = b"".join(encode(random_message(Random(version), cls, version), version))
    for end in range(len(frame)):
        with pytest.raises(Malformed):
            decode(cls, version, memoryview(frame)[:end])


@for_each_version()
def test_trailing_bytes_are_ignored_in_requests_and_malformed_in_responses(
    cls: Message, version: int
) -> None:
    message = random_message(Random(version), cls, version)
    frame = b"".join(encode(message, version))
    if issubclass(cls, Request):
        assert b"".join(encode(decode(cls, version, memoryview(frame + b"\0")), version)) == frame
    else:
        with pytest.raises(Malformed, match="left over"):
            decode(cls, version, memoryview(frame + b"\0"))


@for_each_message()
@few
@given(seed=seeds)
def test_a_corrupted_message_is_malformed_or_round_trips(cls: Message, seed: int) -> None:
    rng = Random(seed)
    version = rng.choice(versions_of(cls))
    note(f"version {version}")
    frame = b"".join(encode(random_message(rng, cls, version), version))
    for _ in range(5):
        try:
            message = decode(cls, version, memoryview(spoil(rng, frame)))
        except Malformed:
            continue
        again = b"".join(encode(message, version))
        # The same bytes rather than the same objects: a spoiled float may be NaN, which equals nothing.
        assert b"".join(encode(decode(cls, version, memoryview(again)), version)) == again


@for_each_message()
@few
@given(seed=seeds, frame=st.binary(max_size=300))
def test_random_bytes_are_malformed_or_a_message(cls: Message, seed: int, frame: bytes) -> None:
    version = Random(seed).choice(versions_of(cls))
    note(f"version {version}")
    try:
        decode(cls, version, memoryview(frame))
    except Malformed as error:
        assert str(error).startswith(f"{cls.__name__} v{version}: ")


@for_each_version()
def test_absurd_counts_anywhere_in_a_small_message_allocate_next_to_nothing(
    cls: Message, version: int
) -> None:
    frame = b"".join(encode(random_message(Random(version), cls, version), version))[:600]
    allowed = 8 * len(frame) + SLACK
    peak = peak_of_decoding(
        decoder(cls, version),
        (
            frame[:at] + absurd + frame[at + len(absurd) :]
            for at in range(0, len(frame), 1 + len(frame) // PLACES)
            for absurd in ABSURD
        ),
        allowed,
    )
    assert peak <= allowed


def weigh(
    cls: type[Request], version: int, limit: int, counts: Iterable[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of so many elements: the larger ones are refused, and the largest accepted one comes close.

    By a limit much lower than the real one, since measuring memory takes long. Contents of strings are not
    charged for: there is one copy of them, and a second one while a string is being made.
    """
    monkeypatch.setattr(decoders, "MEMORY_LIMIT", limit)
    read = decoders.compile_decoder(cls, version)
    for place, request in expensive(Random(version), cls, version):
        for count in counts:
            frame = b"".join(encode(request(count), version))
            allowed = limit + 2 * len(frame) + SLACK
            assert peak_of_decoding(read, [frame], allowed) <= allowed, (place, count)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_no_request_needs_more_memory_than_the_limit(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    weigh(api.request, api.max_version, 1 << 18, (750, 2000), monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_no_request_of_any_version_needs_more_memory_than_the_limit(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in range(api.min_version, api.max_version + 1):
        weigh(api.request, version, 1 << 20, (1500, 2300, 3500, 5000, 7500, 11_000, 17_000), monkeypatch)


def test_padding_does_not_raise_the_memory_limit() -> None:
    partitions = [OffsetCommitRequestPartition(partition_index=i) for i in range(200_000)]
    topic = OffsetCommitRequestTopic(name="t", partitions=partitions)
    frame = b"".join(encode(OffsetCommitRequest(group_id="g", topics=[topic]), 8))
    for padding in (0, 20 << 20):
        with pytest.raises(Malformed, match="bytes of memory"):
            decode(OffsetCommitRequest, 8, memoryview(frame + bytes(padding)))


@for_each_version()
def test_decoding_and_encoding_in_slices_gives_the_same_result(cls: Message, version: int) -> None:
    message = random_message(Random(version), cls, version)
    frame = b"".join(encode(message, version))
    assert b"".join(result_of(encode_in_slices(message, version))[0]) == frame
    assert result_of(decode_in_slices(cls, version, memoryview(frame)))[0] == decode(
        cls, version, memoryview(frame)
    )
    if frame:
        with pytest.raises(Malformed):
            result_of(decode_in_slices(cls, version, memoryview(frame)[:-1]))


def test_a_large_request_is_read_and_written_in_many_slices() -> None:
    topics = [MetadataRequestTopic(name=f"topic-{i}") for i in range(10_000)]
    parts, pauses = result_of(encode_in_slices(MetadataRequest(topics=topics), 12))
    assert pauses >= 10_000 // 256
    frame = b"".join(parts)
    message, pauses = result_of(decode_in_slices(MetadataRequest, 12, memoryview(frame)))
    assert message == MetadataRequest(topics=topics)
    assert pauses >= len(frame) // decoders.SLICE_BYTES - 1


def result_of(steps: Generator[None, None, T]) -> tuple[T, int]:
    """What steps lead to, and how often they paused."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            return finished.value, pauses
        pauses += 1


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (MetadataRequest(topics=[MetadataRequestTopic(name=f"topic-{i}") for i in range(20_000)]), 12),
        (
            OffsetCommitRequest(
                group_id="g",
                topics=[
                    OffsetCommitRequestTopic(
                        name=f"topic-{i}", partitions=[OffsetCommitRequestPartition(committed_offset=1 << 40)]
                    )
                    for i in range(20_000)
                ],
            ),
            8,
        ),
        (
            FetchRequest(
                topics=[
                    FetchTopic(
                        topic_id=i.to_bytes(16, "big"),
                        partitions=[FetchPartition(fetch_offset=1 << 40, partition_max_bytes=1 << 20)],
                    )
                    for i in range(20_000)
                ]
            ),
            16,
        ),
        (
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name="t",
                        assignments=[
                            CreatableReplicaAssignment(partition_index=i, broker_ids=[1001, 1002, 1003])
                            for i in range(5_000)
                        ],
                    )
                ]
            ),
            7,
        ),
    ],
    ids=["Metadata", "OffsetCommit", "Fetch", "CreateTopics"],
)
def test_the_memory_limit_allows_requests_with_twenty_thousand_topics(
    request_: Request, version: int
) -> None:
    frame = b"".join(encode(request_, version))
    assert decode(type(request_), version, memoryview(frame)) == request_


@pytest.mark.parametrize(
    "api", [api for api in APIS.values() if api.max_version >= api.flexible_from], ids=lambda api: api.name
)
def test_a_flood_of_tags_is_refused_at_once(api: Api) -> None:
    version = api.max_version
    body = b"".join(encode(api.request(), version))
    assert body[-1] == 0  # the count of tagged fields of the request itself
    flood = body[:-1] + b"\xff\xff\x3f" + b"\x01\x00" * 500_000
    start = time.thread_time()  # of this thread alone, however busy the machine is
    with pytest.raises(Malformed, match="tagged fields"):
        decode(api.request, version, memoryview(flood))
    assert time.thread_time() - start < 0.1


@given(frame=st.binary(max_size=100))
@example(b"")
@example(b"\x00\x12\x00\x03\x00\x00\x00\x07\x7f\xff")
@example(b"\x00\x12\x00\x03\x00\x00\x00\x07\xff\xfe\x00")
@example(b"\x00\x12\x00\x03\x00\x00\x00\x07\x00\x01\xff\x00")
@example(b"\x00\x12\x00\x03\x00\x00\x00\x07\xff\xff\xff\xff\xff\xff")
@example(b"\x00\x12\x00\x03\x00\x00\x00\x07\xff\xff\x01\x05\xff\xff\xff\xff\x0f")
def test_a_request_header_is_read_or_refused(frame: bytes) -> None:
    try:
        header = parse_request_header(memoryview(frame))
    except UnsupportedVersion as error:
        assert error.header.api_version not in range(
            APIS[error.header.api_key].min_version if error.header.api_key in APIS else 0,
            APIS[error.header.api_key].max_version + 1 if error.header.api_key in APIS else 0,
        )
    except Malformed:
        pass
    else:
        assert 10 <= header.body_start <= len(frame)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@few
@given(frame=st.binary(max_size=100))
def test_a_response_is_read_or_refused(api: Api, frame: bytes) -> None:
    for version in {api.min_version, api.max_version}:
        with contextlib.suppress(Malformed):
            parse_response(api, version, memoryview(frame))
