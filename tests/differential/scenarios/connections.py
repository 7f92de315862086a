"""Frames and connections: order, unknown versions, and bytes that are no request at all.

A broker that cannot read a request has nothing to answer with: it closes that connection and goes on with
the rest.
"""

from __future__ import annotations

import struct
from typing import Any

from differential.peer import CLOSED, Closed, Peer
from differential.scenario import SPOKEN, Answers, scenario
from ottla.protocol.apis import APIS
from ottla.protocol.codec import decode
from ottla.protocol.frames import request_frame
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import ProduceRequest

REQUEST_LIMIT = 104_857_600


def _header(
    key: int, version: int, *, correlation: int = 7, client: bytes | None = b"me", tags: bytes = b""
) -> bytes:
    name = struct.pack(">h", -1) if client is None else struct.pack(">h", len(client)) + client
    return struct.pack(">hhi", key, version, correlation) + name + tags


def _outcome(answer: bytes | Closed) -> Any:
    """Closed, or that something was answered under the right id."""
    if isinstance(answer, Closed):
        return answer
    return "answered", struct.unpack_from(">i", answer)[0]


@scenario()
def versions_of_api_versions_that_nobody_speaks(peer: Peer, version: int) -> Answers:
    for wanted in (5, 6, 99, 32767, -1):
        for body in (b"", b"\0", b"\0" * 8, b"\xff" * 20):
            answer = peer.frame(_header(18, wanted) + body)
            if isinstance(answer, Closed):
                yield f"{wanted} with {len(body)} bytes", answer
            else:
                yield (
                    f"{wanted} with {len(body)} bytes",
                    decode(ApiVersionsResponse, 0, memoryview(answer), 4),
                )


@scenario()
def versions_that_nobody_speaks(peer: Peer, version: int) -> Answers:
    for key in SPOKEN:
        if key == 18:
            continue
        api = APIS[key]
        for wanted in (-1, 0, 1, 2, api.max_version + 1, 99, 32767):
            if not api.min_version <= wanted <= api.max_version:
                yield f"{key} version {wanted}", _outcome(peer.frame(_header(key, wanted) + b"\0" * 40))


@scenario()
def keys_that_nobody_speaks(peer: Peer, version: int) -> Answers:
    for key in (-1, 4, 5, 6, 7, 93, 1000, 32767):
        yield f"key {key}", _outcome(peer.frame(_header(key, 0) + b"\0" * 20))


@scenario()
def frames_that_are_too_short(peer: Peer, version: int) -> Answers:
    whole = b"".join(request_frame(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12, 7, "me"))[4:]
    for length in range(len(whole)):
        yield f"{length} of {len(whole)} bytes", _outcome(peer.frame(whole[:length]))


@scenario()
def frames_with_bytes_left_over(peer: Peer, version: int) -> Answers:
    for wanted in (1, 9, 12):
        whole = b"".join(request_frame(MetadataRequest(topics=[]), wanted, 7, "me"))[4:]
        yield f"metadata {wanted}", _outcome(peer.frame(whole + b"rest"))
    whole = b"".join(
        request_frame(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3, 7, "me")
    )[4:]
    yield "api versions 3", _outcome(peer.frame(whole + b"rest"))
    whole = b"".join(request_frame(ApiVersionsRequest(), 0, 7, "me"))[4:]
    yield "api versions 0", _outcome(peer.frame(whole + b"rest"))


@scenario()
def counts_that_cannot_be(peer: Peer, version: int) -> Answers:
    yield "topics 2^31-1", _outcome(peer.frame(_header(3, 1) + struct.pack(">i", 0x7FFFFFFF)))
    yield "topics -2", _outcome(peer.frame(_header(3, 1) + struct.pack(">i", -2)))
    yield (
        "topics 2^32-2",
        _outcome(peer.frame(_header(3, 9, tags=b"\0") + b"\xff\xff\xff\xff\x0f" + b"\0\0\0\0")),
    )
    yield "a string of 2^31", _outcome(peer.frame(_header(3, 9, tags=b"\0") + b"\x02\xff\xff\xff\xff\x07"))
    yield "a string of -2", _outcome(peer.frame(_header(3, 1) + struct.pack(">ih", 1, -2)))
    yield "a name of null", _outcome(peer.frame(_header(3, 1) + struct.pack(">ih", 1, -1)))
    yield (
        "records of 2^31-1",
        _outcome(
            peer.frame(
                _header(0, 3)
                + struct.pack(">hhii", -1, 1, 1000, 1)
                + b"\0\1t"
                + struct.pack(">iii", 1, 0, 0x7FFFFFFF)
            )
        ),
    )
    yield "an endless varint", _outcome(peer.frame(_header(3, 9, tags=b"\0") + b"\xff" * 30))
    yield "an array of null", _outcome(peer.frame(_header(20, 1) + struct.pack(">ii", -1, 1000)))


@scenario()
def headers_out_of_the_ordinary(peer: Peer, version: int) -> Answers:
    body = b"".join(request_frame(MetadataRequest(topics=[]), 12, 7, "me"))[4 + 12 + 1 :]
    good = _header(3, 12, tags=b"\0") + body
    yield "as it should be", _outcome(peer.frame(good))
    yield "null client id", _outcome(peer.frame(_header(3, 12, client=None, tags=b"\0") + body))
    yield "empty client id", _outcome(peer.frame(_header(3, 12, client=b"", tags=b"\0") + body))
    yield (
        "client id not in UTF-8",
        _outcome(peer.frame(_header(3, 12, client=b"\xff\xfe", tags=b"\0") + body)),
    )
    yield "client id of -2", _outcome(peer.frame(struct.pack(">hhih", 3, 12, 7, -2) + b"\0" + body))
    yield "client id too long", _outcome(peer.frame(struct.pack(">hhih", 3, 12, 7, 30000) + b"\0" + body))
    yield "an unknown tag in the header", _outcome(peer.frame(_header(3, 12, tags=b"\1\x63\3abc") + body))
    yield (
        "an unknown tag in the body",
        _outcome(peer.frame(_header(3, 12, tags=b"\0") + body[:-1] + b"\1\x63\3abc")),
    )
    yield "negative correlation id", _outcome(peer.frame(_header(3, 12, correlation=-5, tags=b"\0") + body))
    yield "tags that lie", _outcome(peer.frame(_header(3, 12, tags=b"\1\x63\x7fabc") + body))
    yield "tags out of order", _outcome(peer.frame(_header(3, 12, tags=b"\2\x63\1a\x62\1b") + body))
    yield "a tag twice", _outcome(peer.frame(_header(3, 12, tags=b"\2\x63\1a\x63\1b") + body))


@scenario()
def sizes_that_cannot_be(peer: Peer, version: int) -> Answers:
    for size in (-1, -0x80000000, 0x7FFFFFFF, REQUEST_LIMIT + 1):
        with peer.connection() as connection:
            connection.send_bytes(struct.pack(">i", size))
            yield f"size {size}", connection.receive_frame()
    yield "size 0", _outcome(peer.frame(b""))


@scenario()
def other_connections_live_on(peer: Peer, version: int) -> Answers:
    with peer.connection() as healthy:
        yield "before", _alive(healthy.call(MetadataRequest(topics=[]), 12))
        yield "garbage", _outcome(peer.frame(b"\xde\xad\xbe\xef" * 8))
        yield "after", _alive(healthy.call(MetadataRequest(topics=[]), 12))


def _alive(answer: Any) -> Any:
    return CLOSED if isinstance(answer, Closed) else len(answer.brokers)


@scenario()
def answers_in_the_order_of_requests(peer: Peer, version: int) -> Answers:
    """A fetch that waits holds back the answers to what was asked after it."""
    topic = peer.topic("t")
    with peer.connection() as connection:
        sent = [
            (connection.send(DescribeClusterRequest(), 0), DescribeClusterRequest.api_key, 0),
            (
                connection.send(peer.fetch_request({topic: {0: 0}}, max_wait_ms=300), 12),
                FetchRequest.api_key,
                12,
            ),
            (connection.send(peer.produce_request(topic, peer.batch(2)), 9), ProduceRequest.api_key, 9),
            (
                connection.send(peer.fetch_request({topic: {0: 0}}, max_wait_ms=0), 12),
                FetchRequest.api_key,
                12,
            ),
            (
                connection.send(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12),
                MetadataRequest.api_key,
                12,
            ),
        ]
        for number, (correlation, key, wanted) in enumerate(sent):
            received = connection.receive(key, wanted)
            if isinstance(received, Closed):
                yield f"answer {number}", received
                return
            yield f"answer {number} in its turn", received[0] == correlation
            yield f"answer {number}", received[1]


@scenario()
def many_requests_at_once(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    with peer.connection() as connection:
        sent = [connection.send(peer.produce_request(topic, peer.batch(1, start=i)), 9) for i in range(300)]
        received = [connection.receive(ProduceRequest.api_key, 9) for _ in sent]
    answers = [answer for answer in received if not isinstance(answer, Closed)]
    yield "in order", [answer[0] for answer in answers] == sent
    yield "offsets", [answer[1].responses[0].partition_responses[0].base_offset for answer in answers]


@scenario()
def a_request_in_small_pieces(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    frame = b"".join(request_frame(peer.produce_request(topic, peer.batch(3)), 9, 3, "slow"))
    with peer.connection() as connection:
        for position in range(0, len(frame), 7):
            connection.send_bytes(frame[position : position + 7])
        yield "answer", connection.receive(ProduceRequest.api_key, 9)


@scenario()
def a_refused_request_takes_its_connection_with_it(peer: Peer, version: int) -> Answers:
    """What was asked before is still answered, what comes after is not."""
    with peer.connection() as connection:
        good = connection.send(DescribeClusterRequest(), 0)
        bad = _header(3, 99) + b"\0" * 8
        connection.send_bytes(struct.pack(">i", len(bad)) + bad)
        connection.send(DescribeClusterRequest(), 0)
        received = connection.receive(DescribeClusterRequest.api_key, 0)
        yield "first", received if isinstance(received, Closed) else received[0] == good
        yield "second", connection.receive_frame()
