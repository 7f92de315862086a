"""Metadata, DescribeCluster, DescribeTopicPartitions and InitProducerId, answered as by Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ottla.testing
from ottla.broker.client_view import ClientView
from ottla.broker.handlers.metadata import _topic as described_topic
from ottla.cluster.image import BrokerNode, ClusterImage, PartitionState, TopicImage
from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.schema import ZERO_UUID
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker

NOT_ASKED = -(2**31)
TOPICS = {"a": 1, "b": 3, "c": 2}


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with ottla.testing.broker(topics=TOPICS) as broker:
        yield broker


@pytest.fixture
def wire(broker: InProcessBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap_servers) as wire:
        yield wire


def metadata(
    wire: Wire, *names: str, version: int = 13, create: bool = False, **more: bool
) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create, **more)
    response: MetadataResponse = wire.call(request, version=version)
    return response


def errors(response: MetadataResponse) -> dict[str | None, str]:
    return {topic.name: error_of(topic.error_code).name for topic in response.topics}


@pytest.mark.parametrize("version", range(14))
def test_metadata_contains_brokers_topics_and_leaders(
    broker: InProcessBroker, wire: Wire, version: int
) -> None:
    response = metadata(wire, "b", version=version)
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port) == (1, broker.host, broker.port)
    (topic,) = response.topics
    assert [partition.partition_index for partition in topic.partitions] == [0, 1, 2]
    for partition in topic.partitions:
        assert (partition.error_code, partition.leader_id) == (0, 1)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1], [1], [])
        assert partition.leader_epoch == (0 if version >= 7 else -1)
    assert response.controller_id == (1 if version >= 1 else -1)
    assert bool(response.cluster_id) == (version >= 2)
    assert topic.topic_authorized_operations == NOT_ASKED


def test_all_topics_are_requested_by_null_and_in_version_0_by_an_empty_list(wire: Wire) -> None:
    everything = wire.call(MetadataRequest(topics=None), version=1)
    assert {topic.name for topic in everything.topics} >= set(TOPICS)
    assert len(metadata(wire, version=0).topics) == len(everything.topics)
    assert metadata(wire, version=1).topics == []


def test_a_topic_requested_twice_is_returned_once(wire: Wire) -> None:
    assert [topic.name for topic in metadata(wire, "b", "a", "b").topics] == ["b", "a"]


def test_unknown_and_invalid_topic_names_have_their_errors_and_come_last(wire: Wire) -> None:
    response = metadata(wire, "nobody", "a", "x y", "", "__consumer_offsets")
    assert errors(response) == {
        "a": "NONE",
        "nobody": "UNKNOWN_TOPIC_OR_PARTITION",
        "x y": "INVALID_TOPIC_EXCEPTION",
        "": "INVALID_TOPIC_EXCEPTION",
        "__consumer_offsets": "UNKNOWN_TOPIC_OR_PARTITION",
    }
    assert next(iter(errors(response))) == "a"
    assert {topic.name for topic in response.topics if topic.is_internal} == {"__consumer_offsets"}


def test_metadata_creates_a_topic_if_the_request_allows_it(wire: Wire) -> None:
    assert errors(metadata(wire, "on-the-way")) == {"on-the-way": "UNKNOWN_TOPIC_OR_PARTITION"}
    (created,) = metadata(wire, "on-the-way", create=True).topics
    assert (created.error_code, len(created.partitions)) == (0, 1)
    assert created.topic_id != ZERO_UUID
    assert errors(metadata(wire, "on-the-way")) == {"on-the-way": "NONE"}
    assert errors(metadata(wire, "before-version-4", version=3)) == {"before-version-4": "NONE"}


def test_metadata_does_not_create_topics_with_invalid_or_reserved_names(wire: Wire) -> None:
    metadata(wire, "dot.ted", create=True)
    response = metadata(wire, "x y", "dot_ted", "__cluster_metadata", "__transaction_state", create=True)
    assert errors(response) == {
        "x y": "INVALID_TOPIC_EXCEPTION",
        "dot_ted": "UNKNOWN_TOPIC_OR_PARTITION",
        "__cluster_metadata": "UNKNOWN_TOPIC_OR_PARTITION",
        "__transaction_state": "UNKNOWN_TOPIC_OR_PARTITION",
    }


def test_metadata_creates_nothing_when_auto_creation_is_off() -> None:
    settings = {"auto.create.topics.enable": "false", "num.partitions": 4}
    with ottla.testing.broker(settings=settings) as broker, Wire(broker.bootstrap_servers) as wire:
        assert errors(metadata(wire, "t", create=True)) == {"t": "UNKNOWN_TOPIC_OR_PARTITION"}


def test_topics_are_found_by_id(wire: Wire) -> None:
    (known,) = metadata(wire, "b").topics
    unknown = b"x" * 16
    topics = [
        MetadataRequestTopic(name=None, topic_id=known.topic_id),
        MetadataRequestTopic(name=None, topic_id=unknown),
        MetadataRequestTopic(name="a"),
    ]
    first, second = wire.call(MetadataRequest(topics=topics), version=12).topics
    assert (first.error_code, first.name, first.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown)
    assert second == known


@pytest.mark.parametrize("version", [10, 11])
def test_ids_before_version_12_are_refused(wire: Wire, version: int) -> None:
    (known,) = metadata(wire, "b").topics
    topics = [MetadataRequestTopic(name=None, topic_id=known.topic_id)]
    response = wire.call(MetadataRequest(topics=topics), version=version)
    assert (response.brokers, response.cluster_id, response.controller_id) == ([], None, -1)
    assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST]


def test_a_topic_without_name_and_id_is_refused(wire: Wire) -> None:
    response = wire.call(MetadataRequest(topics=[MetadataRequestTopic(name=None)]), version=13)
    assert response.error_code == ErrorCode.INVALID_REQUEST


def test_partitions_list_offline_replicas_and_missing_leaders() -> None:
    led, orphaned = PartitionState((1, 2), (1, 2), 1, 5), PartitionState((2, 1), (2,), 2, 6)
    topic = TopicImage("t", b"i" * 16, (led, orphaned))
    image = ClusterImage.of(
        version=1,
        cluster_id="c",
        controller_id=1,
        brokers={1: BrokerNode(1, "host", 9092)},
        topics={"t": topic},
        configs={},
    )
    first, second = described_topic(topic, ClientView(image, "PLAINTEXT", 13)).partitions
    assert (first.error_code, first.leader_id, first.leader_epoch) == (0, 1, 5)
    assert (first.replica_nodes, first.isr_nodes, first.offline_replicas) == ([1, 2], [1, 2], [2])
    assert (second.error_code, second.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert (second.replica_nodes, second.isr_nodes, second.leader_epoch) == ([2, 1], [2], 6)
    # Version 0 has no word for offline: such replicas are left out and the error says so.
    first, second = described_topic(topic, ClientView(image, "PLAINTEXT", 0)).partitions
    assert (first.error_code, first.replica_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, [1])
    assert (second.error_code, second.isr_nodes) == (ErrorCode.LEADER_NOT_AVAILABLE, [])


@pytest.mark.parametrize("version", [8, 9, 10])
def test_authorized_operations_are_returned_on_request(wire: Wire, version: int) -> None:
    response = metadata(
        wire,
        "a",
        version=version,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert response.topics[0].topic_authorized_operations == 3576
    assert response.cluster_authorized_operations == 8096


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_describes_itself(broker: InProcessBroker, wire: Wire, version: int) -> None:
    response = wire.call(DescribeClusterRequest(), version=version)
    assert (response.error_code, response.controller_id) == (0, 1)
    assert len(response.cluster_id) == 22
    assert [(node.broker_id, node.host, node.port) for node in response.brokers] == [
        (1, broker.host, broker.port)
    ]
    assert response.cluster_authorized_operations == NOT_ASKED
    asked = wire.call(DescribeClusterRequest(include_cluster_authorized_operations=True), version=version)
    assert asked.cluster_authorized_operations == 8096


def test_controllers_are_not_described_by_a_broker(wire: Wire) -> None:
    for endpoint, error in ((2, "MISMATCHED_ENDPOINT_TYPE"), (3, "UNSUPPORTED_ENDPOINT_TYPE")):
        response = wire.call(DescribeClusterRequest(endpoint_type=endpoint), version=1)
        assert error_of(response.error_code).name == error
        assert response.brokers == []


def describe(
    wire: Wire, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=cursor and Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    response: DescribeTopicPartitionsResponse = wire.call(request)
    return response


def page(response: DescribeTopicPartitionsResponse) -> dict[str | None, list[int]]:
    return {topic.name: [p.partition_index for p in topic.partitions] for topic in response.topics}


def following(response: DescribeTopicPartitionsResponse) -> tuple[str, int] | None:
    cursor = response.next_cursor
    return (cursor.topic_name, cursor.partition_index) if cursor else None


def test_partitions_are_described_page_by_page_in_the_order_of_names(wire: Wire) -> None:
    names = ("c", "a", "b")
    first = describe(wire, *names, limit=2)
    assert (page(first), following(first)) == ({"a": [0], "b": [0]}, ("b", 1))
    second = describe(wire, *names, limit=2, cursor=("b", 1))
    assert (page(second), following(second)) == ({"b": [1, 2]}, ("c", 0))
    third = describe(wire, *names, limit=2, cursor=("c", 0))
    assert (page(third), following(third)) == ({"c": [0, 1]}, None)


def test_a_page_holds_at_least_one_partition(wire: Wire) -> None:
    assert page(describe(wire, "b", limit=0)) == {"b": [0]}
    assert page(describe(wire, "b", limit=-5)) == {"b": [0]}


def test_without_names_all_topics_are_described(wire: Wire) -> None:
    response = describe(wire, cursor=("b", 2))
    assert page(response)["b"] == [2] and "a" not in page(response)


def test_a_cursor_beyond_the_last_partition_ends_the_topic(wire: Wire) -> None:
    assert page(describe(wire, "a", "b", cursor=("a", 7))) == {"a": [], "b": [0, 1, 2]}


@pytest.mark.parametrize("cursor", [("b", -1), ("nobody", 0), ("0", 0)])
def test_a_cursor_that_does_not_fit_the_request_is_refused(wire: Wire, cursor: tuple[str, int]) -> None:
    response = describe(wire, "b", cursor=cursor)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("b", ErrorCode.INVALID_REQUEST)]


def test_described_topics_have_lists_where_null_is_allowed(wire: Wire) -> None:
    (topic,) = describe(wire, "a").topics
    (partition,) = topic.partitions
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
    assert topic.topic_authorized_operations == 3576


def test_unknown_topics_are_described_with_their_errors(wire: Wire) -> None:
    response = describe(wire, "a", "nobody", "x y")
    assert {topic.name: error_of(topic.error_code).name for topic in response.topics} == {
        "a": "NONE",
        "nobody": "UNKNOWN_TOPIC_OR_PARTITION",
        "x y": "INVALID_TOPIC_EXCEPTION",
    }


def init(wire: Wire, version: int = 5, **fields: int | str | None) -> InitProducerIdResponse:
    response: InitProducerIdResponse = wire.call(
        InitProducerIdRequest(**{"transactional_id": None, **fields}),  # type: ignore[arg-type]
        version=version,
    )
    return response


def test_every_idempotent_producer_gets_an_id_of_its_own(wire: Wire) -> None:
    responses = [init(wire, version) for version in range(6)]
    assert len({response.producer_id for response in responses}) == 6
    assert all(response.producer_epoch == 0 and response.error_code == 0 for response in responses)


def test_producer_ids_are_not_given_again_after_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("data")
    given = []
    for _ in range(2):
        with ottla.testing.broker(data=data) as broker, Wire(broker.bootstrap_servers) as wire:
            given.append(init(wire).producer_id)
    assert given == [0, 1000]


def test_an_existing_producer_gets_a_new_id(wire: Wire) -> None:
    before = init(wire)
    after = init(wire, producer_id=before.producer_id, producer_epoch=before.producer_epoch)
    assert after.producer_id != before.producer_id and after.producer_epoch == 0


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"producer_id": 5}, "INVALID_REQUEST"),
        ({"producer_epoch": 5}, "INVALID_REQUEST"),
        ({"transactional_id": ""}, "INVALID_REQUEST"),
        ({"transactional_id": "t", "transaction_timeout_ms": 0}, "INVALID_TRANSACTION_TIMEOUT"),
        ({"transactional_id": "t", "transaction_timeout_ms": 10**9}, "INVALID_TRANSACTION_TIMEOUT"),
        ({"transactional_id": "t", "transaction_timeout_ms": 1000}, "NOT_COORDINATOR"),
    ],
)
def test_invalid_init_producer_id_requests_are_refused(
    wire: Wire, fields: dict[str, Any], error: str
) -> None:
    response = init(wire, **fields)
    assert error_of(response.error_code).name == error
    assert (response.producer_id, response.producer_epoch) == (-1, -1)
