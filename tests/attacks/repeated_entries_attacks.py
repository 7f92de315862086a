"""Requests that name one thing many times, so that a small frame asks for a huge answer or endless work."""

from __future__ import annotations

from attacks.attack import MB, Target, attack
from attacks.large_request_attacks import await_coordinator, commit
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, encode_batch
from raw_client import RawClient

_BROKER = 4
_PARTITIONS = 1_000


@attack("DescribeConfigs naming the broker 5,000 times", memory=64 * MB, kafka_takes_it=True)
def describe_configs_of_one_broker_many_times(target: Target) -> None:
    resources = [DescribeConfigsResource(resource_type=_BROKER, resource_name="1") for _ in range(5_000)]
    with target.client() as client:
        client.send(DescribeConfigsRequest(resources=resources), 4)
        client.receive_frame()


def prepare_offsets(target: Target) -> None:
    """A group with a thousand offsets, each with a kilobyte of metadata."""
    target.create_topic("many", partitions=_PARTITIONS)
    await_coordinator(target)
    request = commit([("many", index) for index in range(_PARTITIONS)])
    for partition in request.topics[0].partitions:
        partition.committed_metadata = "m" * 1_000
    with target.client() as client:
        answer = client.call(request, 8)
    assert {each.error_code for each in answer.topics[0].partitions} == {0}


@attack("OffsetFetch of one group 200 times", prepare=prepare_offsets, kafka_takes_it=True)
def offset_fetch_of_one_group_many_times(target: Target) -> None:
    groups = [OffsetFetchRequestGroup(group_id="group", topics=None) for _ in range(200)]
    with target.client() as client:
        answer = client.call(OffsetFetchRequest(groups=groups), 8)
    assert len(answer.groups[0].topics[0].partitions) == _PARTITIONS


@attack("OffsetFetch of one partition 100,000 times", prepare=prepare_offsets, kafka_takes_it=True)
def offset_fetch_of_one_partition_many_times(target: Target) -> None:
    topic = OffsetFetchRequestTopics(name="many", partition_indexes=[0] * 100_000)
    group = OffsetFetchRequestGroup(group_id="group", topics=[topic])
    with target.client() as client:
        client.send(OffsetFetchRequest(groups=[group]), 8)
        client.receive_frame()


def prepare_producers(target: Target) -> None:
    """A partition that remembers a thousand producers."""
    target.create_topic("produced")
    with target.client() as client:
        for producer in range(1_000):
            client.socket.sendall(_produce(client, producer))
        for _ in range(1_000):
            client.receive_frame()


def _produce(client: RawClient, producer_id: int) -> bytes:
    record = Record(0, 1_700_000_000_000, None, b"x", [])
    batch = encode_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    data = TopicProduceData(name="produced", partition_data=[PartitionProduceData(index=0, records=batch)])
    return client.frame(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]), 9)


@attack("DescribeProducers of one partition 5,000 times", prepare=prepare_producers)
def describe_producers_of_one_partition_many_times(target: Target) -> None:
    request = DescribeProducersRequest(topics=[TopicRequest(name="produced", partition_indexes=[0] * 5_000)])
    with target.client() as client:
        answer = client.call(request, 0)
    (partition,) = answer.topics[0].partitions
    assert len(partition.active_producers) == 1_000


@attack("Fetch that waits for one partition, named 50,000 times", kafka_takes_it=True)
def fetch_that_waits_for_one_partition_many_times(target: Target) -> None:
    """It waits for more bytes than ever come, and each append of the probe wakes it."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    topic = FetchTopic(topic="probe", partitions=[partition] * 50_000)
    with target.client() as client:
        request = FetchRequest(max_wait_ms=2_000, min_bytes=1 << 30, max_bytes=1 << 30, topics=[topic])
        answer = client.call(request, 12)
    assert len(answer.responses[0].partitions) == 1


def prepare_topics(target: Target) -> None:
    topics = [
        CreatableTopic(name=f"orders-{n}", num_partitions=1, replication_factor=1) for n in range(1_000)
    ]
    with target.client() as client:
        answer = client.call(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 5)
    assert {topic.error_code for topic in answer.topics} == {0}
    target.create_topic("many")
    await_coordinator(target)


@attack("40 groups that subscribe to 1,000 topics by expressions, and a new topic", prepare=prepare_topics)
def groups_that_subscribe_by_expressions(target: Target) -> None:
    def heartbeat(number: int) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=f"group-{number}",
            member_id="member",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_regex=f"(.?){{100}}-{number}",
            topic_partitions=[],
        )

    with target.client() as client:
        for when in ("joining", "after a new topic"):
            for number in range(40):
                assert client.call(heartbeat(number), 1).error_code == 0
            target.create_topic(f"orders-new-{when.partition(' ')[0]}")
