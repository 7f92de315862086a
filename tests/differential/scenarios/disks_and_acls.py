"""DescribeLogDirs, and the ACL calls of a broker without an authorizer."""

from __future__ import annotations

from typing import Any

from differential.peer import Peer
from differential.scenario import Answers, scenario
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest


@scenario(DescribeLogDirsRequest)
def log_dirs(peer: Peer, version: int) -> Answers:
    one, three = peer.topic("one"), peer.topic("three", partitions=3)
    peer.fill(one, 2, each=3)
    peer.fill(three, 1, partition=1, size=500)

    def ask(*topics: tuple[str, list[int]]) -> Any:
        wanted = [DescribableLogDirTopic(topic=name, partitions=partitions) for name, partitions in topics]
        return peer.call(DescribeLogDirsRequest(topics=wanted), version)

    yield "one", ask((one, [0]))
    yield "some", ask((three, [0, 1]), (one, [0]))
    yield "a topic twice", ask((three, [0]), (three, [1]))
    yield "unknown partition", ask((one, [0, 5]))
    yield "unknown topic", ask((peer.named("nobody"), [0]))
    yield "no partitions", ask((one, []))
    yield "no topics", ask()
    everything = peer.call(DescribeLogDirsRequest(topics=None), version)
    for result in everything.results:
        result.topics = [topic for topic in result.topics if topic.name.startswith(peer.named(""))]
    yield "all", everything


@scenario(DescribeAclsRequest)
def describing_acls(peer: Peer, version: int) -> Answers:
    anything = DescribeAclsRequest(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    )
    yield "any", peer.call(anything, version)
    one = DescribeAclsRequest(
        resource_type_filter=2, resource_name_filter="t", pattern_type_filter=3, principal_filter="User:a",
        host_filter="*", operation=3, permission_type=3,
    )  # fmt: skip
    yield "one", peer.call(one, version)
    yield (
        "of an unknown type",
        peer.call(
            DescribeAclsRequest(
                resource_type_filter=0, pattern_type_filter=1, operation=1, permission_type=1
            ),
            version,
        ),
    )


@scenario(CreateAclsRequest)
def creating_acls(peer: Peer, version: int) -> Answers:
    acl = AclCreation(
        resource_type=2, resource_name="t", resource_pattern_type=3, principal="User:a", host="*",
        operation=3, permission_type=3,
    )  # fmt: skip
    yield "one", peer.call(CreateAclsRequest(creations=[acl]), version)
    yield "two", peer.call(CreateAclsRequest(creations=[acl, acl]), version)
    yield "none", peer.call(CreateAclsRequest(creations=[]), version)


@scenario(DeleteAclsRequest)
def deleting_acls(peer: Peer, version: int) -> Answers:
    wanted = DeleteAclsFilter(
        resource_type_filter=2,
        resource_name_filter="t",
        pattern_type_filter=3,
        operation=3,
        permission_type=3,
    )
    yield "one", peer.call(DeleteAclsRequest(filters=[wanted]), version)
    yield "two", peer.call(DeleteAclsRequest(filters=[wanted, wanted]), version)
    yield "none", peer.call(DeleteAclsRequest(filters=[]), version)
