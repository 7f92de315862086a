"""How large frames and records may be, how many partitions, and what the broker says to what is too much."""

from __future__ import annotations

import pytest

import ottla.testing
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from raw_client import RawClient, produce_request


@pytest.mark.parametrize("size", [100_001, 2**31 - 1, -1, -(2**31), 0])
def test_a_frame_of_a_forbidden_size_closes_the_connection_at_once(size: int) -> None:
    with ottla.testing.broker(socket_request_max_bytes=100_000) as broker:
        with RawClient(broker.bootstrap_servers) as client, RawClient(broker.bootstrap_servers) as neighbour:
            client.socket.sendall(size.to_bytes(4, "big", signed=True) + b"\0" * 100)
            assert client.is_closed(within=2)
            assert neighbour.call(ApiVersionsRequest(), 0).error_code == 0


def test_a_frame_of_exactly_the_largest_size_is_read() -> None:
    with ottla.testing.broker(topics=["t"]) as broker, RawClient(broker.bootstrap_servers) as client:
        frame = client.frame(produce_request("t", [b"x" * 300_000]), 9)
    limit = len(frame) - 4
    with ottla.testing.broker(topics=["t"], socket_request_max_bytes=limit) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            assert client.produce("t", b"x" * 300_000).error_code == 0
            client.send(produce_request("t", [b"x" * 300_001]), 9)
            assert client.is_closed(within=2)


def test_bytes_that_are_no_request_close_the_connection() -> None:
    with ottla.testing.broker() as broker:
        for nonsense in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00" + b"\1" * 600,
            b"\0" * 50,
        ):
            with RawClient(broker.bootstrap_servers) as client:
                client.socket.sendall(nonsense)
                assert client.is_closed(within=2), nonsense[:20]


def test_a_record_above_the_size_limit_is_refused_with_the_name_of_the_limit() -> None:
    with ottla.testing.broker(topics=["t"], message_max_bytes=10_000) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            refused = client.produce("t", b"x" * 10_001)
            assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
            assert "10000" in refused.error_message
            assert client.produce("t", b"x" * 9000).base_offset == 0


def test_a_topic_may_allow_larger_or_smaller_records_than_the_broker() -> None:
    with ottla.testing.broker(message_max_bytes=10_000) as broker:
        broker.create_topic("small", config={"max.message.bytes": 1000})
        broker.create_topic("large", config={"max.message.bytes": 50_000})
        with RawClient(broker.bootstrap_servers) as client:
            assert client.produce("small", b"x" * 2000).error_code == ErrorCode.MESSAGE_TOO_LARGE
            assert client.produce("large", b"x" * 40_000).error_code == 0


def test_partitions_above_the_limit_are_refused_with_the_name_of_the_limit() -> None:
    with ottla.testing.broker(topics={"six": 6}, max_partitions=10) as broker:
        with pytest.raises(ApiError, match=r"max\.partitions"):
            broker.create_topic("five", partitions=5)
        with RawClient(broker.bootstrap_servers) as client:
            grow = CreatePartitionsTopic(name="six", count=11, assignments=None)
            answer = client.call(CreatePartitionsRequest(topics=[grow], timeout_ms=5000), 3)
        assert answer.results[0].error_code
        assert "max.partitions" in answer.results[0].error_message
        broker.create_topic("four", partitions=4)


def test_a_topic_is_not_auto_created_above_the_partition_limit() -> None:
    with ottla.testing.broker(topics={"full": 4}, max_partitions=4) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name="more")], allow_auto_topic_creation=True
            )
            (answer,) = client.call(request, 9).topics
            assert answer.error_code
            (known,) = client.call(MetadataRequest(topics=None), 9).topics
            assert known.name == "full"
