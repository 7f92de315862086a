"""DescribeQuorum (55), UnregisterBroker (64) and UpdateFeatures (57): how the controllers of the cluster are.

Kafka's controllers keep the cluster's state in the log of one partition. Here it is in a registry, from
which brokers get a versioned image, and these requests are answered with what corresponds to it.
`__cluster_metadata` has the partition 0, led by the controller in its controller epoch. Its voters are all
registered brokers, as each of them may be elected, and there are no observers. Offsets are versions of the
image: what is in the image is durable in the registry, so the high watermark is the controller's version. The
other brokers have the image that they act on, and last fetched when they asked for news.

A broker registers by its own session with the registry and is not registered any more when it has stopped.
So there is never a registration to remove: UnregisterBroker refuses a broker that runs.

UpdateFeatures changes the levels of features (`cluster/features.py`), all or none, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ottla.broker.client_view import endpoints_on
from ottla.broker.dispatch import RequestContext
from ottla.broker.image_polls import ImagePolls
from ottla.broker.ports import ControllerAccess, ImageAccess, ImageFollowing, Time
from ottla.cluster import features
from ottla.cluster.image import ClusterImage
from ottla.cluster.topic_rules import CLUSTER_METADATA_TOPIC
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    QuorumPartition,
    QuorumTopic,
    ReplicaState,
)
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from ottla.protocol.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_ALL_FAILED = "The update failed for all features since the following feature had an error: "


class FeatureAdministration(ControllerAccess, ImageFollowing, Protocol):
    """Features are changed at the controller, and count here when this returns."""


class QuorumDescription(ControllerAccess, ImageAccess, Time, Protocol):
    @property
    def image_polls(self) -> ImagePolls: ...


def describe_quorum(
    broker: QuorumDescription, request: DescribeQuorumRequest, context: RequestContext
) -> DescribeQuorumResponse:
    """At the controller. Addresses are added where the client asked (`quorum_nodes`)."""
    asked = [
        (topic.topic_name, each.partition_index) for topic in request.topics for each in topic.partitions
    ]
    if asked != [(CLUSTER_METADATA_TOPIC, 0)]:
        return refuse_quorum(request, context.version, ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    image = broker.controller.image
    partition = QuorumPartition(
        leader_id=image.controller_id,
        leader_epoch=image.controller_epoch,
        high_watermark=image.version,
        current_voters=[_voter(broker, node, image) for node in sorted(image.brokers)],
    )
    return DescribeQuorumResponse(
        topics=[QuorumTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])]
    )


def _voter(broker: QuorumDescription, node: int, image: ClusterImage) -> ReplicaState:
    now = broker.clock.now_ms()
    if node == image.controller_id:
        return ReplicaState(
            replica_id=node,
            log_end_offset=image.version,
            last_fetch_timestamp=now,
            last_caught_up_timestamp=now,
        )
    silence = broker.controller.silence_of(node)
    version = broker.image_polls.version_of(node)
    fetched = -1 if silence is None else now - int(silence * 1000)
    return ReplicaState(
        replica_id=node,
        log_end_offset=version,
        last_fetch_timestamp=fetched,
        last_caught_up_timestamp=fetched if version == image.version else -1,
    )


def quorum_nodes(image: ClusterImage, listener: str) -> list[QuorumNode]:
    """Where a client on `listener` reaches the brokers."""
    return [
        QuorumNode(
            node_id=node,
            listeners=[QuorumListener(name=listener, host=endpoint.host, port=endpoint.port)],
        )
        for node, endpoint in sorted(endpoints_on(image, listener, fenced=True).items())
    ]


def refuse_quorum(request: DescribeQuorumRequest, version: int, error: ApiError) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        topics=[
            QuorumTopic(
                topic_name=topic.topic_name,
                partitions=[
                    QuorumPartition(
                        partition_index=each.partition_index,
                        error_code=error.code,
                        error_message=error.message,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def unregister_broker(
    broker: ControllerAccess, request: UnregisterBrokerRequest, context: RequestContext
) -> UnregisterBrokerResponse:
    if request.broker_id in broker.controller.image.brokers:
        why = f"Broker {request.broker_id} is running. Stop it: its registration ends with it."
        error = ApiError(ErrorCode.INVALID_REQUEST, why)
    else:
        why = f"Broker {request.broker_id} is not registered: a registration ends with its broker."
        error = ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, why)
    return refuse_unregistering(request, context.version, error)


def refuse_unregistering(
    request: UnregisterBrokerRequest, version: int, error: ApiError
) -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)


async def update_features(
    broker: FeatureAdministration, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """All or nothing. An update of nothing succeeds."""
    wanted = {each.feature: str(each.max_version_level) for each in request.feature_updates}

    def change(_: Mapping[str, str]) -> Mapping[str, str | None]:
        for each in request.feature_updates:
            is_downgrade = context.version == 0 and each.allow_downgrade
            kind = features.SAFE_DOWNGRADE if is_downgrade else each.upgrade_type
            features.check_update(broker.controller.image, each.feature, each.max_version_level, kind)
        return wanted

    try:
        if request.validate_only:
            change({})
        elif wanted:
            outcome = await broker.controller.write_configs({features.RESOURCE: change})
            (result,) = outcome.results
            if isinstance(result, ApiError):
                raise result
            await broker.caught_up(outcome.version)
    except ApiError as error:
        text = f"{_ALL_FAILED}{error.message}"
        return refuse_features(request, context.version, ApiError(error.code, text))
    return UpdateFeaturesResponse(
        results=[UpdatableFeatureResult(feature=each.feature) for each in request.feature_updates]
    )


def refuse_features(request: UpdateFeaturesRequest, version: int, error: ApiError) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
