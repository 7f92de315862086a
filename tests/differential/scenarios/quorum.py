"""DescribeQuorum, UnregisterBroker and UpdateFeatures."""

from __future__ import annotations

from typing import Any

from differential.peer import Peer
from differential.scenario import Answers, scenario
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    QuorumRequestPartition,
    QuorumRequestTopic,
)
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest
from ottla.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

METADATA = "__cluster_metadata"


@scenario(DescribeQuorumRequest)
def the_quorum(peer: Peer, version: int) -> Answers:
    def ask(*topics: tuple[str, list[int]]) -> Any:
        wanted = [
            QuorumRequestTopic(
                topic_name=name,
                partitions=[QuorumRequestPartition(partition_index=each) for each in partitions],
            )
            for name, partitions in topics
        ]
        return peer.call(DescribeQuorumRequest(topics=wanted), version)

    yield "the metadata", ask((METADATA, [0]))
    yield "another topic", ask((peer.topic("t"), [0]))
    yield "another partition", ask((METADATA, [1]))
    yield "more partitions", ask((METADATA, [0, 1]))
    yield "more topics", ask((METADATA, [0]), (peer.named("nobody"), [0]))
    yield "no partitions", ask((METADATA, []))
    yield "no topics", ask()


@scenario(UnregisterBrokerRequest)
def brokers_that_are_not_registered(peer: Peer, version: int) -> Answers:
    for broker_id in (99, -1):
        yield str(broker_id), peer.call(UnregisterBrokerRequest(broker_id=broker_id), version)


@scenario(UpdateFeaturesRequest)
def features_that_do_not_exist(peer: Peer, version: int) -> Answers:
    def ask(*levels: int, **more: Any) -> Any:
        updates = [FeatureUpdateKey(feature=f"f{i}", max_version_level=n) for i, n in enumerate(levels)]
        return peer.call(UpdateFeaturesRequest(feature_updates=updates, **more), version)

    for level in (1, 0, -1):
        yield f"level {level}", ask(level)
    yield "two", ask(1, 1)
    yield "none", ask()
    if version >= 1:
        yield "to validate", ask(1, validate_only=True)
