"""Requests with as many entries as fit: each API that takes a list is sent a list of tens of thousands.

Kafka takes all of these bytes, and tools of honest administrators send some of them. What they ask for is
done in slices, or refused as Kafka refuses it.
"""

from __future__ import annotations

import time

from attacks.attack import MB, Target, attack
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.schema import Request
from raw_client import RawClient

_GROUP = 32
_PARTITIONS = 100


def prepare(target: Target) -> None:
    target.create_topic("many", partitions=_PARTITIONS)
    await_coordinator(target)


def await_coordinator(target: Target, group: str = "group") -> None:
    """Wait until the group's coordinator takes commits."""
    deadline = time.monotonic() + 60
    while True:
        with target.client() as client:
            client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)
            request = commit([("many", 0)], group)
            if client.call(request, 8).topics[0].partitions[0].error_code == 0:
                return
        assert time.monotonic() < deadline, "the group has no coordinator"


def commit(partitions: list[tuple[str, int]], group: str = "group") -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for name, index in partitions:
        entry = OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata="")
        topics.setdefault(name, []).append(entry)
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name=name, partitions=all_) for name, all_ in topics.items()],
    )


def call(target: Target, request: Request, version: int, *, may_close: bool = False) -> None:
    """Send a request and wait for its answer; or, where it may be refused, for the end of the connection."""
    with target.client() as client:
        client.send(request, version)
        try:
            client.receive_frame()
        except ConnectionResetError:
            assert may_close, f"{type(request).__name__} was refused"


# -- groups -------------------------------------------------------------------------------------------------


@attack("OffsetCommit of 20,000 partitions", prepare=prepare, kafka_takes_it=True)
def offset_commit_of_20_000_partitions(target: Target) -> None:
    partitions = [("many", number % _PARTITIONS) for number in range(20_000)]
    with target.client() as client:
        answer = client.call(commit(partitions), 8)
    codes = [each.error_code for topic in answer.topics for each in topic.partitions]
    assert codes == [0] * 20_000


@attack("OffsetCommit of a million entries, padded to 60 MB", memory=128 * MB, prepare=prepare)
def offset_commit_of_a_million_entries(target: Target) -> None:
    with target.client() as client:
        frame = bytearray(client.frame(commit([("many", 0)] * 1_000_000), 8))
        frame += bytes(60 * MB - len(frame))
        frame[:4] = (len(frame) - 4).to_bytes(4, "big")
        send_and_see(client, bytes(frame))


def send_and_see(client: RawClient, frame: bytes) -> None:
    """Send a frame that may be refused."""
    try:
        client.socket.sendall(frame)
        client.receive_frame()
    except (ConnectionResetError, BrokenPipeError):
        pass  # refused: that is allowed


_MANY_NAMES = [f"name-{number}" for number in range(30_000)]


def group_requests() -> list[tuple[Request, int]]:
    return [
        (FindCoordinatorRequest(key_type=0, coordinator_keys=_MANY_NAMES), 4),
        (DescribeGroupsRequest(groups=_MANY_NAMES), 5),
        (ConsumerGroupDescribeRequest(group_ids=_MANY_NAMES), 0),
        (DeleteGroupsRequest(groups_names=_MANY_NAMES), 2),
        (LeaveGroupRequest(group_id="group", members=[MemberIdentity(member_id=n) for n in _MANY_NAMES]), 5),
        (
            OffsetDeleteRequest(
                group_id="group",
                topics=[
                    OffsetDeleteRequestTopic(
                        name="many",
                        partitions=[
                            OffsetDeleteRequestPartition(partition_index=number % 200)
                            for number in range(100_000)
                        ],
                    )
                ],
            ),
            0,
        ),
    ]


@attack("requests about 30,000 groups", memory=128 * MB, prepare=prepare, kafka_takes_it=True)
def requests_about_many_groups(target: Target) -> None:
    for request, version in group_requests():
        call(target, request, version)


def member_requests() -> list[tuple[Request, int]]:
    return [
        (
            JoinGroupRequest(
                group_id="joined",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name=n, metadata=b"x") for n in _MANY_NAMES],
            ),
            3,
        ),
        (
            SyncGroupRequest(
                group_id="group",
                generation_id=1,
                member_id="m",
                protocol_type="consumer",
                protocol_name="range",
                assignments=[SyncGroupRequestAssignment(member_id=n, assignment=b"x") for n in _MANY_NAMES],
            ),
            5,
        ),
        (
            ConsumerGroupHeartbeatRequest(
                group_id="new",
                member_id="member",
                member_epoch=0,
                rebalance_timeout_ms=10_000,
                subscribed_topic_names=_MANY_NAMES,
                topic_partitions=[],
            ),
            1,
        ),
        (
            ConsumerGroupHeartbeatRequest(
                group_id="new",
                member_id="member",
                member_epoch=1,
                topic_partitions=[
                    TopicPartitions(topic_id=bytes(15) + b"t", partitions=[number])
                    for number in range(50_000)
                ],
            ),
            1,
        ),
    ]


@attack("a member with 30,000 protocols, assignments or topics", memory=128 * MB, prepare=prepare)
def members_that_say_much(target: Target) -> None:
    for request, version in member_requests():
        call(target, request, version)


# -- topics -------------------------------------------------------------------------------------------------


def topic_requests() -> list[tuple[Request, int]]:
    names = _MANY_NAMES
    return [
        (CreateTopicsRequest(topics=[CreatableTopic(name=n, num_partitions=1) for n in names]), 7),
        (DeleteTopicsRequest(topics=[DeleteTopicState(name=n) for n in names]), 6),
        (CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=n, count=2) for n in names]), 3),
        (
            MetadataRequest(
                topics=[MetadataRequestTopic(name=n) for n in names], allow_auto_topic_creation=False
            ),
            12,
        ),
        (
            MetadataRequest(topics=[MetadataRequestTopic(topic_id=n.encode().rjust(16)) for n in names]),
            12,
        ),
        (DescribeTopicPartitionsRequest(topics=[TopicRequest(name=n) for n in names]), 0),
        (DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=n, partitions=[0]) for n in names]), 4),
        (
            DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=n, partitions=[DeleteRecordsPartition(partition_index=0, offset=0)]
                    )
                    for n in names
                ]
            ),
            2,
        ),
        (
            OffsetForLeaderEpochRequest(
                topics=[
                    OffsetForLeaderTopic(
                        topic="many",
                        partitions=[
                            OffsetForLeaderPartition(partition=number % _PARTITIONS)
                            for number in range(50_000)
                        ],
                    )
                ]
            ),
            4,
        ),
        *[
            (
                ListOffsetsRequest(
                    topics=[
                        ListOffsetsTopic(
                            name=n, partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
                        )
                        for n in names
                    ]
                ),
                7,
            )
            for timestamp in (-1, 1)
        ],
        (
            CreateAclsRequest(
                creations=[
                    AclCreation(
                        resource_type=2,
                        resource_name=n,
                        resource_pattern_type=3,
                        principal="User:x",
                        host="*",
                        operation=3,
                        permission_type=3,
                    )
                    for n in names
                ]
            ),
            3,
        ),
    ]


@attack("requests about 30,000 topics", memory=128 * MB, prepare=prepare, kafka_takes_it=True)
def requests_about_many_topics(target: Target) -> None:
    for request, version in topic_requests():
        call(target, request, version, may_close=True)


@attack("Metadata that creates topics, for 30,000 names", memory=128 * MB, settings={"max.partitions": 600})
def metadata_that_creates_many_topics(target: Target) -> None:
    call(target, MetadataRequest(topics=[MetadataRequestTopic(name=n) for n in _MANY_NAMES]), 12)


@attack("Fetch of 20,000 topics that waits", prepare=prepare)
def fetch_of_20_000_topics(target: Target) -> None:
    topics = [
        FetchTopic(topic=f"name-{number}", partitions=[FetchPartition(partition=0, partition_max_bytes=1000)])
        for number in range(20_000)
    ]
    with target.client() as client:
        request = FetchRequest(max_wait_ms=1_000, min_bytes=1, max_bytes=1000, topics=topics)
        answer = client.call(request, 12)
    assert answer.error_code == 0
    assert len(answer.responses) == 20_000


# -- settings -----------------------------------------------------------------------------------------------


def alter_groups(count: int) -> IncrementalAlterConfigsRequest:
    setting = AlterableConfig(name="consumer.session.timeout.ms", config_operation=0, value="45000")
    return IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(resource_type=_GROUP, resource_name=f"invented-{n}", configs=[setting])
            for n in range(count)
        ]
    )


@attack("settings for 100,000 invented groups", memory=128 * MB, kafka_takes_it=True)
def settings_for_invented_groups(target: Target) -> None:
    call(target, alter_groups(100_000), 1, may_close=True)


@attack("settings for 2,000 groups", kafka_takes_it=True)
def settings_for_2_000_groups(target: Target) -> None:
    call(target, alter_groups(2_000), 1)


@attack("DescribeConfigs of 30,000 invented groups", memory=192 * MB, kafka_takes_it=True)
def describe_configs_of_invented_groups(target: Target) -> None:
    resources = [DescribeConfigsResource(resource_type=_GROUP, resource_name=n) for n in _MANY_NAMES]
    call(target, DescribeConfigsRequest(resources=resources), 4)
