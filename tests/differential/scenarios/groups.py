"""Consumer groups of the classic protocol and their offsets: every API in every version, errors included.

Members get ids of the peer's own choice, so a script calls them by names of its own, and so do the answers.
"""

from __future__ import annotations

import re
from typing import Any

from differential.normalise import field_names
from differential.peer import Peer
from differential.scenario import Answers, scenario
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
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
ASSIGNMENT = b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xff"


class Script:
    """A group of the scenario's own, whose members have names."""

    def __init__(self, peer: Peer, short: str = "g") -> None:
        self.peer = peer
        self.group = peer.named(short)
        peer.until(self._found, "a coordinator")

    def _found(self) -> bool:
        answer = self.peer.call(FindCoordinatorRequest(coordinator_keys=[self.group]), 4)
        return not answer.coordinators[0].error_code

    def call(self, request: Any, version: int) -> Any:
        return _anonymous(self.peer.call(request, version))

    def join(self, version: int, member: str = "", **fields: Any) -> Any:
        """Unlike the others this answer keeps its ids, because the script needs them."""
        settings: dict[str, Any] = {
            "group_id": self.group,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
            **fields,
        }
        return self.peer.call(JoinGroupRequest(member_id=member, **settings), version)

    def new_member(self, version: int = 9) -> str:
        """A member of a group that it forms alone, up to CompletingRebalance."""
        member: str = self.join(version).member_id
        return self.join(version, member).member_id if version >= 4 else member

    def sync(self, version: int, member: str, generation: int, *given: str, **fields: Any) -> Any:
        settings = {"group_id": self.group, "protocol_type": "consumer", "protocol_name": "range", **fields}
        assignments = [SyncGroupRequestAssignment(member_id=m, assignment=ASSIGNMENT) for m in given]
        request = SyncGroupRequest(
            member_id=member, generation_id=generation, assignments=assignments, **settings
        )
        return self.call(request, version)

    def heartbeat(self, version: int, member: str, generation: int, **fields: Any) -> Any:
        request = HeartbeatRequest(group_id=self.group, member_id=member, generation_id=generation)
        for name, value in fields.items():
            setattr(request, name, value)
        return self.call(request, version)

    def commit(self, version: int, partitions: dict[int, int], **fields: Any) -> Any:
        topic = fields.pop("topic", self.peer.named("t"))
        topics = [
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=self.peer.topic_id(topic),
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=0,
                        committed_metadata=fields.get("metadata", "m"),
                    )
                    for index, offset in partitions.items()
                ],
            )
        ]
        fields.pop("metadata", None)
        return self.call(OffsetCommitRequest(**{"group_id": self.group, "topics": topics, **fields}), version)


def _anonymous(message: Any) -> Any:
    """The same answer with the random part of every id taken out."""
    if isinstance(message, str):
        return _UUID.sub("<uuid>", message)
    if isinstance(message, list):
        return [_anonymous(item) for item in message]
    if hasattr(message, "_fields"):
        for name in field_names(message):
            setattr(message, name, _anonymous(getattr(message, name)))
    return message


@scenario(FindCoordinatorRequest)
def finding_a_coordinator(peer: Peer, version: int) -> Answers:
    script = Script(peer)
    for key_type in (0, 2, 3, -1) if version else (0,):
        request = FindCoordinatorRequest(
            key=script.group, coordinator_keys=[script.group, ""], key_type=key_type
        )
        yield f"type {key_type}", peer.call(request, version)


@scenario(JoinGroupRequest)
def joining_alone(peer: Peer, version: int) -> Answers:
    script = Script(peer)
    yield "no group", _anonymous(script.join(version, group_id=""))
    yield "session too short", _anonymous(script.join(version, session_timeout_ms=1))
    yield "session too long", _anonymous(script.join(version, session_timeout_ms=2**31 - 1))
    yield "no protocols", _anonymous(script.join(version, protocols=[]))
    yield "no type", _anonymous(script.join(version, protocol_type=""))
    yield "unknown member", _anonymous(script.join(version, "nobody"))
    first = script.join(version)
    member = first.member_id
    yield "first", _anonymous(first)
    if version >= 4:
        yield "with the id", _anonymous(script.join(version, member))
    yield "again", _anonymous(script.join(version, member))
    yield "sync", script.sync(5, member, 1, member)
    yield "the leader again", _anonymous(script.join(version, member))
    other = [JoinGroupRequestProtocol(name="other", metadata=b"")]
    yield "another protocol", _anonymous(script.join(version, protocols=other))
    yield "another type", _anonymous(script.join(version, protocol_type="connect"))


@scenario(JoinGroupRequest, first=5)
def static_members(peer: Peer, version: int) -> Answers:
    script = Script(peer)
    first = script.join(version, group_instance_id="i")
    old = first.member_id
    yield "joined", _anonymous(first)
    yield "synced", script.sync(5, old, 1, old, group_instance_id="i")
    second = script.join(version, group_instance_id="i")
    yield "started again", _anonymous(second)
    yield "the old one joins", _anonymous(script.join(version, old, group_instance_id="i"))
    yield "the old one's heartbeat", script.heartbeat(4, old, 1, group_instance_id="i")
    yield "its share", script.sync(5, second.member_id, 1, group_instance_id="i")
    yield "without its instance", script.heartbeat(4, second.member_id, 1)
    yield "unknown instance", _anonymous(script.join(version, old, group_instance_id="x"))
    leaving = [MemberIdentity(member_id="", group_instance_id="i")]
    yield "removed", script.call(LeaveGroupRequest(group_id=script.group, members=leaving), 5)
    yield "empty", script.call(DescribeGroupsRequest(groups=[script.group]), 5)


@scenario(SyncGroupRequest)
def syncing(peer: Peer, version: int) -> Answers:
    script = Script(peer)
    yield "no such group", script.sync(version, "nobody", 1)
    yield "no group", script.sync(version, "nobody", 1, group_id="")
    member = script.new_member()
    yield "unknown member", script.sync(version, "nobody", 1)
    yield "wrong generation", script.sync(version, member, 7)
    yield "wrong type", script.sync(version, member, 1, protocol_type="connect")
    yield "wrong protocol", script.sync(version, member, 1, protocol_name="other")
    yield "no protocol", script.sync(version, member, 1, protocol_name=None)
    yield "the leader", script.sync(version, member, 1, member)
    yield "again", script.sync(version, member, 1)


@scenario(HeartbeatRequest)
def heartbeats(peer: Peer, version: int) -> Answers:
    script = Script(peer)
    yield "no such group", script.heartbeat(version, "nobody", 1)
    yield "no group", script.heartbeat(version, "nobody", 1, group_id="")
    pending = script.join(9).member_id
    yield "not joined yet", script.heartbeat(version, pending, 0)
    member = script.join(9, pending).member_id
    yield "before the assignment", script.heartbeat(version, member, 1)
    script.sync(5, member, 1, member)
    yield "stable", script.heartbeat(version, member, 1)
    yield "wrong generation", script.heartbeat(version, member, 0)
    yield "unknown member", script.heartbeat(version, "nobody", 1)


@scenario(LeaveGroupRequest)
def leaving(peer: Peer, version: int) -> Answers:
    script = Script(peer)

    def leave(*members: str, group: str = script.group) -> Any:
        listed = [MemberIdentity(member_id=member, reason="so") for member in members]
        request = LeaveGroupRequest(group_id=group, member_id=members[0] if members else "", members=listed)
        return script.call(request, version)

    yield "no such group", leave("nobody")
    yield "no group", leave("nobody", group="")
    member = script.new_member()
    script.sync(5, member, 1, member)
    yield "unknown member", leave("nobody")
    if version >= 3:
        yield "some", leave("nobody", member, member)
        yield "nobody", leave()
    else:
        yield "the member", leave(member)
    yield "heartbeat", script.heartbeat(4, member, 1)
    yield "described", script.call(DescribeGroupsRequest(groups=[script.group]), 5)


@scenario(OffsetCommitRequest)
def committing(peer: Peer, version: int) -> Answers:
    script = Script(peer)
    peer.topic("t", partitions=2)
    yield "simple", script.commit(version, {0: 5, 1: 6})
    yield "unknown partitions", script.commit(version, {0: 5, 7: 1, -1: 1})
    yield "unknown topic", script.commit(version, {0: 5}, topic=peer.named("nobody"))
    yield "no metadata", script.commit(version, {0: 5}, metadata=None)
    yield "long metadata", script.commit(version, {0: 5}, metadata="x" * 4097)
    yield "a negative offset", script.commit(version, {1: -7})
    yield "no topics", script.commit(version, {}, topics=[])
    yield (
        "an unknown group's generation",
        script.commit(
            version, {0: 1}, group_id=peer.named("other"), generation_id_or_member_epoch=1, member_id="m"
        ),
    )
    member = script.new_member()
    at = {"generation_id_or_member_epoch": 1, "member_id": member}
    yield "before the assignment", script.commit(version, {0: 8}, **at)
    script.sync(5, member, 1, member)
    yield "a member", script.commit(version, {0: 8}, **at)
    yield "wrong generation", script.commit(version, {0: 9}, **{**at, "generation_id_or_member_epoch": 2})
    yield "unknown member", script.commit(version, {0: 9}, **{**at, "member_id": "nobody"})
    yield "not a member", script.commit(version, {0: 9})
    everything = OffsetFetchRequest(group_id=script.group, topics=None)
    yield "what there is", peer.call(everything, 7)


@scenario(OffsetFetchRequest)
def fetching_offsets(peer: Peer, version: int) -> Answers:
    script = Script(peer)
    topic, nobody = peer.topic("t", partitions=3), peer.named("nobody")
    script.commit(9, {0: 5, 1: 6})

    def fetch(group: str, wanted: dict[str, list[int]] | None) -> Any:
        new = [
            OffsetFetchRequestTopics(name=name, topic_id=peer.topic_id(name), partition_indexes=indexes)
            for name, indexes in (wanted or {}).items()
        ]
        old = [OffsetFetchRequestTopic(name=n, partition_indexes=i) for n, i in (wanted or {}).items()]
        request = OffsetFetchRequest(
            group_id=group,
            topics=old if wanted is not None else None,
            groups=[OffsetFetchRequestGroup(group_id=group, topics=new if wanted is not None else None)],
            require_stable=version % 2 == 1 and version >= 7,
        )
        return peer.call(request, version)

    yield "some", fetch(script.group, {topic: [0, 2, 9], nobody: [0]})
    yield "none", fetch(script.group, {})
    yield "unknown group", fetch(peer.named("other"), {topic: [0]})
    if version >= 2:
        yield "all", fetch(script.group, None)
        yield "all of an unknown group", fetch(peer.named("other"), None)


@scenario()
def deleting_offsets(peer: Peer, version: int) -> Answers:
    script = Script(peer)
    topic = peer.topic("t", partitions=2)
    script.commit(9, {0: 5, 1: 6})

    def delete(group: str, *partitions: int, name: str = topic) -> Any:
        wanted = [OffsetDeleteRequestPartition(partition_index=index) for index in partitions]
        topics = [OffsetDeleteRequestTopic(name=name, partitions=wanted)]
        return peer.call(OffsetDeleteRequest(group_id=group, topics=topics), 0)

    yield "some", delete(script.group, 0, 7)
    yield "again", delete(script.group, 0)
    yield "unknown topic", delete(script.group, 0, name=peer.named("nobody"))
    yield "unknown group", delete(peer.named("other"), 0)
    yield "no group", delete("", 0)
    yield "left", peer.call(OffsetFetchRequest(group_id=script.group, topics=None), 7)


@scenario(DescribeGroupsRequest)
def describing(peer: Peer, version: int) -> Answers:
    script = Script(peer)
    peer.topic("t")

    def describe() -> Any:
        asked = DescribeGroupsRequest(
            groups=[script.group, peer.named("nobody")], include_authorized_operations=version % 2 == 0
        )
        return script.call(asked, version)

    yield "not there", describe()
    script.commit(9, {0: 5})
    yield "simple", describe()
    member = script.new_member()
    yield "completing", describe()
    script.sync(5, member, 1, member)
    yield "stable", describe()


@scenario(ListGroupsRequest)
def listing(peer: Peer, version: int) -> Answers:
    simple, working = Script(peer, "simple"), Script(peer, "working")
    peer.topic("t")
    simple.commit(9, {0: 5})
    member = working.new_member()
    working.sync(5, member, 1, member)

    def listed(**filters: Any) -> list[Any]:
        answer = peer.call(ListGroupsRequest(**filters), version)
        assert not answer.error_code
        ours = [group for group in answer.groups if group.group_id.startswith(peer.prefix)]
        return sorted(ours, key=lambda group: group.group_id)

    yield "all", listed()
    yield "by state", listed(states_filter=["stable", "Bogus"])
    yield "by type", listed(types_filter=["Classic"])
    yield "of another type", listed(types_filter=["consumer"])


@scenario(DeleteGroupsRequest)
def deleting_groups(peer: Peer, version: int) -> Answers:
    simple, working = Script(peer, "simple"), Script(peer, "working")
    peer.topic("t")
    simple.commit(9, {0: 5})
    working.new_member()
    request = DeleteGroupsRequest(
        groups_names=[simple.group, working.group, peer.named("nobody"), simple.group]
    )
    yield "some", peer.call(request, version)
    yield "gone", peer.call(OffsetFetchRequest(group_id=simple.group, topics=None), 7)
