"""Metadata, DescribeTopicPartitions, DescribeCluster, ApiVersions: what a broker says about itself."""

from __future__ import annotations

from typing import Any

from differential.peer import Closed, Peer
from differential.scenario import SPOKEN, Answers, scenario
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

MADE_UP_ID = bytes(15) + b"\x07"


def _ours(peer: Peer, answer: Any) -> Any:
    """An answer about all topics, without those of other scenarios."""
    if isinstance(answer, Closed):
        return answer
    answer.topics = [topic for topic in answer.topics if topic.name and topic.name.startswith(peer.named(""))]
    return answer


@scenario(MetadataRequest)
def known_topics(peer: Peer, version: int) -> Answers:
    one, three = peer.topic("one"), peer.topic("three", partitions=3)
    for names in ((one,), (three,), (three, one), (one, one)):
        topics = [MetadataRequestTopic(name=name) for name in names]
        yield f"{len(names)} of {names[0]}", peer.call(MetadataRequest(topics=topics), version)
    operations = MetadataRequest(
        topics=[MetadataRequestTopic(name=one)],
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    yield "with operations", peer.call(operations, version)


@scenario(MetadataRequest)
def all_topics_or_none(peer: Peer, version: int) -> Answers:
    peer.topic("one")
    peer.topic("two", partitions=2)
    yield "empty", _ours(peer, peer.call(MetadataRequest(topics=[]), version))
    if version > 0:
        yield "null", _ours(peer, peer.call(MetadataRequest(topics=None), version))


@scenario(MetadataRequest)
def unknown_topics(peer: Peer, version: int) -> Answers:
    known = peer.topic("known")

    def ask(*names: str) -> Any:
        topics = [MetadataRequestTopic(name=name) for name in names]
        return peer.call(MetadataRequest(topics=topics, allow_auto_topic_creation=False), version)

    if version >= 4:  # before, each question for a topic is a wish for it
        yield "one", ask(peer.named("nobody"))
        yield "beside a known one", ask(peer.named("nobody"), known)
        yield "a long name", ask("x" * 249)
        yield "almost an internal name", ask("__consumer_offsets_")
    for name in ("", ".", "..", "a b", "a/b", "x" * 250, "größe"):
        yield f"name {name[:20]!r} of {len(name)}", ask(name)


@scenario(MetadataRequest)
def topics_made_on_first_sight(peer: Peer, version: int) -> Answers:
    name = peer.named("new")
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
    yield "first", peer.call(request, version)
    peer.settle(name, 1)
    yield "then", peer.call(request, version)
    bad = MetadataRequest(topics=[MetadataRequestTopic(name="not/good")], allow_auto_topic_creation=True)
    yield "an impossible name", peer.call(bad, version)


@scenario(MetadataRequest, first=10)
def topics_by_id(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    known = MetadataRequestTopic(name=None, topic_id=peer.topic_id(topic))
    unknown = MetadataRequestTopic(name=None, topic_id=MADE_UP_ID)
    yield "known", peer.call(MetadataRequest(topics=[known]), version)
    yield "unknown", peer.call(MetadataRequest(topics=[unknown]), version)
    yield "both", peer.call(MetadataRequest(topics=[known, unknown]), version)
    named = MetadataRequestTopic(name=topic, topic_id=peer.topic_id(topic))
    yield "id and name", peer.call(MetadataRequest(topics=[named]), version)
    wrong = MetadataRequestTopic(name=topic, topic_id=MADE_UP_ID)
    yield "wrong id and name", peer.call(MetadataRequest(topics=[wrong]), version)
    nothing = MetadataRequestTopic(name=None)
    yield "neither", peer.call(MetadataRequest(topics=[nothing]), version)
    mixed = [MetadataRequestTopic(name=topic), known]
    yield "one by name, one by id", peer.call(MetadataRequest(topics=mixed), version)


@scenario(MetadataRequest)
def the_cluster(peer: Peer, version: int) -> Answers:
    yield "brokers", _ours(peer, peer.call(MetadataRequest(topics=[]), version))
    wanted = MetadataRequest(topics=[], include_cluster_authorized_operations=True)
    yield "operations", _ours(peer, peer.call(wanted, version))


@scenario(DescribeClusterRequest)
def describing_the_cluster(peer: Peer, version: int) -> Answers:
    yield "plain", peer.call(DescribeClusterRequest(), version)
    yield "operations", peer.call(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    for endpoint in (1, 2, 0, 9):
        yield f"endpoint type {endpoint}", peer.call(DescribeClusterRequest(endpoint_type=endpoint), version)
    yield "fenced too", peer.call(DescribeClusterRequest(include_fenced_brokers=True), version)


@scenario(DescribeTopicPartitionsRequest)
def describing_topic_partitions(peer: Peer, version: int) -> Answers:
    names = [peer.topic(name, partitions=3) for name in ("c", "a", "b")]

    def ask(*topics: str, limit: int = 2000, cursor: Cursor | None = None) -> Any:
        wanted = [TopicRequest(name=name) for name in topics]
        request = DescribeTopicPartitionsRequest(topics=wanted, response_partition_limit=limit, cursor=cursor)
        return peer.call(request, version)

    yield "one", ask(names[0])
    yield "all of them", ask(*names)
    yield "twice", ask(names[0], names[0])
    yield "unknown", ask(peer.named("nobody"))
    yield "unknown beside known", ask(peer.named("nobody"), names[1])
    yield "an impossible name", ask("a/b")
    yield "an empty name", ask("")
    for limit in (1, 2, 3, 4, 9, 0, -1):
        yield f"limit {limit}", ask(*names, limit=limit)
    yield "from a cursor", ask(*names, cursor=Cursor(topic_name=names[1], partition_index=1), limit=3)
    yield "from a cursor at the end", ask(*names, cursor=Cursor(topic_name=names[0], partition_index=3))
    yield "from an unknown cursor", ask(*names, cursor=Cursor(topic_name=peer.named("bb"), partition_index=0))
    yield "from a negative cursor", ask(*names, cursor=Cursor(topic_name=names[1], partition_index=-1))


@scenario(ApiVersionsRequest)
def the_versions(peer: Peer, version: int) -> Answers:
    named = ApiVersionsRequest(client_software_name="differential", client_software_version="1.0")
    answer = peer.call(named, version)
    answer.api_keys = [key for key in answer.api_keys if key.api_key in SPOKEN]
    yield "of the APIs of both", answer
    yield "features", (answer.supported_features, answer.finalized_features_epoch >= -1)


@scenario(ApiVersionsRequest)
def a_client_without_a_good_name(peer: Peer, version: int) -> Answers:
    for name, number in (
        ("", ""),
        ("a b", "1"),
        ("-a", "1"),
        ("a", ""),
        ("a", "1 0"),
        ("größe", "1"),
        ("a.b-c", "1.0-x"),
    ):
        request = ApiVersionsRequest(client_software_name=name, client_software_version=number)
        answer = peer.call(request, version)
        yield (
            f"{name!r} {number!r}",
            (answer.error_code, len(answer.api_keys) > 0) if hasattr(answer, "error_code") else answer,
        )
