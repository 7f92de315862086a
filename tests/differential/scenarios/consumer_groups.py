"""ConsumerGroupHeartbeat, ConsumerGroupDescribe and what other group requests make of such a group."""

from __future__ import annotations

import time
from typing import Any

from differential.peer import Peer
from differential.scenario import Answers, scenario
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ottla.protocol.messages.sync_group import SyncGroupRequest

CONFIGURED_INTERVAL = 5000


class Group:
    """A group with a name of its own on a peer that has a coordinator for it."""

    def __init__(self, peer: Peer, version: int, *, partitions: int = 3) -> None:
        self.peer, self.version, self.id = peer, version, peer.named("g")
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.id])
        peer.until(lambda: not peer.call(find, 4).coordinators[0].error_code, "a coordinator")
        peer.until(lambda: self.beat("nobody", -1).error_code == 69, "the coordinator to be loaded")
        self.topic = peer.topic("t", partitions)
        peer.until(self._is_assigned, "the coordinator to know the topic")

    def _is_assigned(self) -> bool:
        """Kafka's coordinator learns of a new topic a little later than its broker does."""
        other = self.peer.named("other")
        found = self.join("m", group_id=other).assignment.topic_partitions
        self.beat("m", -1, group_id=other)
        return bool(found)

    def beat(self, member: str, epoch: int, *, owned: list[int] | None = None, **fields: Any) -> Any:
        """A heartbeat. How often to send them is each broker's choice, up to what is configured."""
        fields.setdefault("group_id", self.id)
        if owned is not None:
            fields["topic_partitions"] = (
                [TopicPartitions(topic_id=self.peer.topic_ids[self.topic], partitions=owned)] if owned else []
            )
        request = ConsumerGroupHeartbeatRequest(member_id=member, member_epoch=epoch, **fields)
        answer = self.peer.call(request, self.version)
        if 0 < answer.heartbeat_interval_ms <= CONFIGURED_INTERVAL:
            answer.heartbeat_interval_ms = CONFIGURED_INTERVAL
        return answer

    def join(self, member: str, **fields: Any) -> Any:
        fields = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [self.topic], **fields}
        return self.beat(member, 0, owned=[], **fields)

    def describe(self, version: int = 1) -> Any:
        answer = self.peer.call(ConsumerGroupDescribeRequest(group_ids=[self.id]), version)
        answer.groups[0].members.sort(key=lambda member: member.member_id)
        return answer

    def wait_for_the_assignment_interval(self) -> None:
        over = time.monotonic() + 1.1
        self.peer.until(lambda: time.monotonic() > over, "the next assignment to be allowed")


@scenario(ConsumerGroupHeartbeatRequest)
def heartbeats_that_make_no_sense(peer: Peer, version: int) -> Answers:
    group = Group(peer, version)
    yield "no group", group.join("m", group_id="")
    yield "no member, not joining", group.beat("", 1)
    if version > 0:
        yield "no member", group.join("")
        yield "a blank member", group.join(" ")
    yield "an empty instance", group.join("m", instance_id="")
    yield "an empty rack", group.join("m", rack_id="")
    yield "an epoch too low", group.beat("m", -3)
    yield "leaving for a while without an instance", group.beat("m", -2)
    yield "joining without a timeout", group.join("m", rebalance_timeout_ms=-1)
    yield "joining without partitions", group.beat("m", 0, rebalance_timeout_ms=1, subscribed_topic_names=[])
    yield (
        "joining with partitions",
        group.beat("m", 0, owned=[0], rebalance_timeout_ms=1, subscribed_topic_names=[]),
    )
    yield "joining without a subscription", group.beat("m", 0, owned=[], rebalance_timeout_ms=1)
    yield "an unknown assignor", group.join("m", server_assignor="chance")
    yield "an empty assignor", group.join("m", server_assignor="")
    yield "all of it", group.beat("", -5, group_id="", instance_id="", rack_id="", server_assignor="x")


@scenario(ConsumerGroupHeartbeatRequest)
def a_group_that_does_not_exist(peer: Peer, version: int) -> Answers:
    group = Group(peer, version)
    yield "staying", group.beat("m", 3)
    yield "leaving", group.beat("m", -1)
    yield "leaving for a while", group.beat("m", -2, instance_id="i")
    yield "described", group.describe()


@scenario(ConsumerGroupHeartbeatRequest)
def the_life_of_a_group(peer: Peer, version: int) -> Answers:
    group = Group(peer, version)
    yield "a joins", group.join("a")
    yield "described", group.describe(version)
    yield "a asks again", group.join("a")
    yield "a stays", group.beat("a", 2)
    yield "a tells what it owns", group.beat("a", 2, owned=[0, 1, 2])
    yield (
        "a tells everything",
        group.beat(
            "a", 2, owned=[0, 1, 2], rebalance_timeout_ms=60_000, subscribed_topic_names=[group.topic]
        ),
    )
    group.wait_for_the_assignment_interval()
    yield "b joins", group.join("b")
    yield "b waits", group.beat("b", 3)
    yield "a is told", group.beat("a", 2)
    yield "while a gives back", group.describe(version)
    yield "a is silent about it", group.beat("a", 2)
    yield "a holds on", group.beat("a", 2, owned=[0, 1, 2])
    yield "b waits still", group.beat("b", 3)
    yield "a confirms", group.beat("a", 2, owned=[0, 1])
    yield "b gets it", group.beat("b", 3)
    yield "at rest", group.describe(version)
    yield "a with its last epoch", group.beat("a", 2, owned=[0, 1])
    yield "a with its last epoch and too much", group.beat("a", 2, owned=[0, 1, 2])
    yield "a with its last epoch, saying nothing", group.beat("a", 2)
    yield "a from the future", group.beat("a", 9)
    yield "a stranger", group.beat("x", 3)
    yield "a stranger leaves", group.beat("x", -1)
    yield "a chooses", group.beat("a", 3, server_assignor="range")
    yield "chosen", group.describe(version)
    yield "b leaves", group.beat("b", -1)
    yield "one is gone", group.describe(version)
    group.wait_for_the_assignment_interval()
    yield "a gets all", group.beat("a", 3)
    yield "a changes its mind", group.beat("a", 4, subscribed_topic_names=[])
    yield "a leaves", group.beat("a", -1)
    yield "empty", group.describe(version)


@scenario(ConsumerGroupHeartbeatRequest)
def ids_of_members(peer: Peer, version: int) -> Answers:
    group = Group(peer, version)
    answer = group.join("" if version == 0 else "own")
    yield "has an id", len(answer.member_id) > 0
    answer.member_id = "<id>"
    yield "joined", answer


@scenario(ConsumerGroupHeartbeatRequest)
def static_members(peer: Peer, version: int) -> Answers:
    group = Group(peer, version)
    yield "joins", group.join("s1", instance_id="i")
    yield "another of that name", group.join("s2", instance_id="i")
    yield "another stays", group.beat("s2", 2, instance_id="i")
    yield "under another name", group.beat("s1", 2, instance_id="j")
    yield "without its name", group.beat("s1", 2)
    yield "goes", group.beat("s1", -2, instance_id="i")
    yield "away", group.describe()
    yield "stays after going", group.beat("s1", 2, instance_id="i")
    yield "goes twice", group.beat("s1", -2, instance_id="i")
    yield "a stranger goes", group.beat("sx", -2, instance_id="i")
    yield "comes back", group.join("s3", instance_id="i")
    yield "back", group.describe()
    yield "the old one", group.beat("s1", 2, instance_id="i")
    yield "the old one leaves", group.beat("s1", -1, instance_id="i")
    yield "the old one without its name", group.beat("s1", 2)
    yield "goes again", group.beat("s3", -2, instance_id="i")
    yield "comes back as itself", group.join("s3", instance_id="i")
    yield "leaves", group.beat("s3", -1, instance_id="i")
    yield "empty", group.describe()
    yield "nobody of that name", group.beat("s3", -2, instance_id="i")


@scenario(ConsumerGroupHeartbeatRequest, first=1)
def expressions(peer: Peer, version: int) -> Answers:
    group = Group(peer, version)
    bad = [
        "[",
        "(",
        ")",
        "*",
        "a**",
        "a{2000}",
        "a{2,1}",
        "(?=a)",
        r"a\1",
        "\\",
        "[z-a]",
        "[[:x:]]",
        r"\p{X}",
    ]
    for expression in bad:
        fields = {"subscribed_topic_names": None, "subscribed_topic_regex": expression}
        yield expression, group.join("m", **fields)


@scenario(OffsetCommitRequest)
def commits_of_members(peer: Peer, version: int) -> Answers:
    group = Group(peer, 1)
    yield "joined", group.join("a")

    def commit(
        member: str = "a", epoch: int = 2, instance: str | None = None, group_id: str = group.id
    ) -> Any:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
        topic_id = peer.topic_ids[group.topic]
        topic = OffsetCommitRequestTopic(name=group.topic, topic_id=topic_id, partitions=[partition])
        request = OffsetCommitRequest(
            group_id=group_id,
            member_id=member,
            generation_id_or_member_epoch=epoch,
            group_instance_id=instance if version >= 7 else None,
            topics=[topic],
        )
        return peer.call(request, version)

    yield "right", commit()
    yield "an old epoch", commit(epoch=1)
    yield "a future epoch", commit(epoch=3)
    yield "no epoch", commit(epoch=-1)
    yield "a stranger", commit("x")
    yield "nobody", commit("", -1)
    yield "an instance", commit(instance="i")
    yield "left", group.beat("a", -1)
    yield "nobody, when the group is empty", commit("", -1)
    yield "who left", commit()


@scenario(OffsetFetchRequest, first=8)
def fetches_of_members(peer: Peer, version: int) -> Answers:
    group = Group(peer, 1)
    yield "joined", group.join("a")
    for name, member, epoch in (
        ("right", "a", 2),
        ("an old epoch", "a", 1),
        ("a future epoch", "a", 7),
        ("no epoch", "a", -1),
        ("a stranger", "x", 2),
        ("nobody", None, -1),
    ):
        asked = OffsetFetchRequestGroup(group_id=group.id, member_id=member, member_epoch=epoch, topics=None)
        yield name, peer.call(OffsetFetchRequest(groups=[asked]), version)


@scenario()
def classic_requests_to_a_consumer_group(peer: Peer, version: int) -> Answers:
    group = Group(peer, 1)
    yield "joined", group.join("a")
    yield "b joined", group.join("b")
    for v in range(7):
        yield f"described {v}", peer.call(DescribeGroupsRequest(groups=[group.id]), v)
    listed = peer.call(ListGroupsRequest(types_filter=["Consumer"]), 5)
    yield "listed", [each for each in listed.groups if each.group_id == group.id]
    listed = peer.call(ListGroupsRequest(types_filter=["classic"]), 5)
    yield "listed as classic", [each for each in listed.groups if each.group_id == group.id]
    listed = peer.call(ListGroupsRequest(states_filter=["assigning"]), 5)
    yield "listed by state", [each for each in listed.groups if each.group_id == group.id]
    yield "heartbeat", peer.call(HeartbeatRequest(group_id=group.id, member_id="a", generation_id=2), 4)
    sync = SyncGroupRequest(group_id=group.id, member_id="a", generation_id=2)
    yield "sync", peer.call(sync, 4)
    protocol = JoinGroupRequestProtocol(name="x", metadata=b"")
    join = JoinGroupRequest(
        group_id=group.id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="connect",
        protocols=[protocol],
    )
    yield "join of another kind", peer.call(join, 9)
    yield "delete", peer.call(DeleteGroupsRequest(groups_names=[group.id]), 2)
    leaving = [
        MemberIdentity(member_id="x"),
        MemberIdentity(member_id="b"),
        MemberIdentity(member_id="", group_instance_id="i"),
    ]
    yield "leave", peer.call(LeaveGroupRequest(group_id=group.id, members=leaving), 5)
    yield "left", group.describe()
    yield "a leaves", group.beat("a", -1)
    yield "delete when empty", peer.call(DeleteGroupsRequest(groups_names=[group.id]), 2)
    yield "deleted", group.describe()
