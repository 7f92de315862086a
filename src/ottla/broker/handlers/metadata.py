"""Metadata (3), DescribeCluster (60) and DescribeTopicPartitions (75): what the cluster looks like.

All three read the cluster image and nothing else, so they answer at once. Only a Metadata request that
creates the topics it asks for has to wait, for the controller and then for this broker to know the outcome.
They tell of the brokers that the client can reach on the listener it came in by (`client_view`).

Metadata, version notes. 0: an empty list asks for all topics; later null does and empty asks for none. 4: the
request may forbid creation. 6: a leader without the client's listener is LISTENER_NOT_FOUND, before that
LEADER_NOT_AVAILABLE. 10 and 11 have a field for topic ids but Kafka refuses to look at it; 12 answers by
id. A request with ids is answered by ids alone, whatever names stand beside them. A topic created on the way
is in the answer (Kafka says UNKNOWN_TOPIC_OR_PARTITION and lets the client ask again).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol

from ottla.broker.client_view import ClientView, PartitionView, endpoints_on
from ottla.broker.creation_rate import CreationRate
from ottla.broker.dispatch import RequestContext
from ottla.broker.portions import in_portions
from ottla.broker.ports import (
    ChannelAccess,
    ClientLogging,
    Configuration,
    ImageAccess,
    ImageFollowing,
    SelfFencing,
    SlicedWork,
    Time,
)
from ottla.broker.request_scheduler import Steps
from ottla.cluster.image import TopicImage
from ottla.cluster.topic_rules import CLUSTER_METADATA_TOPIC, NewTopic, check_name, is_internal
from ottla.printable import listed
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from ottla.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.schema import ZERO_UUID

logger = logging.getLogger("ottla.metadata")


class ClusterDescription(
    ChannelAccess,
    ClientLogging,
    Configuration,
    ImageAccess,
    ImageFollowing,
    SelfFencing,
    SlicedWork,
    Time,
    Protocol,
):
    """The cluster, and the topics that come to be because a client asked for them."""

    @property
    def creation_rate(self) -> CreationRate: ...


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


# Kafka numbers its ACL operations: READ 3, WRITE 4, CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8,
# CLUSTER_ACTION 9, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11, IDEMPOTENT_WRITE 12. Without an authorizer
# everybody may do all of them.
TOPIC_OPERATIONS = _bits(3, 4, 5, 6, 7, 8, 10, 11)
CLUSTER_OPERATIONS = _bits(5, 7, 8, 9, 10, 11, 12)
NOT_ASKED = -(1 << 31)

_CREATED_AT_A_TIME = 100

BROKER_ENDPOINT = 1
CONTROLLER_ENDPOINT = 2


def metadata(
    broker: ClusterDescription, request: MetadataRequest, context: RequestContext
) -> MetadataResponse | Steps[Any]:
    topics = request.topics
    if topics is None or (not topics and context.version == 0):
        return _all_topics(broker, request, context)
    if context.version < 12:
        by_id = any(topic.name is None or topic.topic_id != ZERO_UUID for topic in topics)
        return _refused(topics) if by_id else _by_name(broker, request, topics, context)
    if any(topic.topic_id != ZERO_UUID for topic in topics):
        return _by_id(broker, request, topics, context)
    if any(topic.name is None for topic in topics):
        return _refused(topics)
    return _by_name(broker, request, topics, context)


def _view(broker: ClusterDescription, context: RequestContext) -> ClientView:
    return ClientView(broker.image, context.listener, context.version, broker.fenced_leader)


def _all_topics(
    broker: ClusterDescription, request: MetadataRequest, context: RequestContext
) -> Steps[MetadataResponse]:
    cluster, found = _view(broker, context), []
    for topic in cluster.image.topics.values():
        found.append(_topic(topic, cluster))
        yield
    return _response(cluster, request, found)


def _by_id(
    broker: ClusterDescription,
    request: MetadataRequest,
    topics: Sequence[MetadataRequestTopic],
    context: RequestContext,
) -> Steps[MetadataResponse]:
    cluster, unknown, known = _view(broker, context), [], []
    for topic_id in dict.fromkeys(topic.topic_id for topic in topics if topic.topic_id != ZERO_UUID):
        topic = cluster.image.topics_by_id.get(topic_id)
        if topic is None:
            unknown.append(
                MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
            )
        else:
            known.append(_topic(topic, cluster))
        yield
    return _response(cluster, request, unknown + known)


def _by_name(
    broker: ClusterDescription,
    request: MetadataRequest,
    topics: Sequence[MetadataRequestTopic],
    context: RequestContext,
) -> Steps[Steps[MetadataResponse] | Coroutine[Any, Any, MetadataResponse]]:
    names = list(dict.fromkeys(topic.name or "" for topic in topics))
    if request.allow_auto_topic_creation and broker.config["auto.create.topics.enable"]:
        missing = []
        for name in names:
            if name not in broker.image.topics and _may_be_created(name):
                missing.append(name)
            yield
        if missing:
            return _create_first(broker, request, names, missing, context)
    return _named(broker, request, names, context)


async def _create_first(
    broker: ClusterDescription,
    request: MetadataRequest,
    names: list[str],
    missing: list[str],
    context: RequestContext,
) -> MetadataResponse:
    address, per_minute = context.connection.address, broker.config["auto.create.topics.per.minute"]
    now = broker.clock.monotonic()
    granted = broker.creation_rate.take(address, len(missing), per_minute, now)
    missing, throttled = missing[:granted], missing[granted:]
    if throttled:
        broker.client_log.warning(
            logger,
            address,
            "%s asks for topic %s, not created: more than %d in a minute (auto.create.topics.per.minute)",
            context.peer,
            listed(throttled),
            per_minute,
        )
    if missing:
        version, results = 0, list[str | ApiError]()
        for some in in_portions(missing, _CREATED_AT_A_TIME):
            try:
                outcome = await broker.channel.create_topics([NewTopic(name) for name in some])
            except ApiError as error:  # there is no controller, or it does not answer
                results += [error] * len(some)
                continue
            version = outcome.version
            results += outcome.results
            await asyncio.sleep(0)  # where nothing is to be written, nothing else gives way
        _log_creation(broker, missing, results, context)
        refused = sum(isinstance(result, ApiError) for result in results)
        broker.creation_rate.give_back(address, refused, per_minute, broker.clock.monotonic())
        await broker.caught_up(version)
    answer = _named(broker, request, names, context, frozenset(throttled))
    return await broker.in_slices(answer, context)


def _log_creation(
    broker: ClusterDescription, names: Sequence[str], results: Sequence[object], context: RequestContext
) -> None:
    """One line for the topics that were created and one for those that were not, however many they are."""
    created: list[str] = []
    refused: dict[str, ApiError] = {}
    for name, result in zip(names, results, strict=True):
        if not isinstance(result, ApiError):
            created.append(name)
        elif result.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # by a client that asked at the same time
            refused[name] = result
    address = context.connection.address
    if created:
        text = "created topic %s because %s asked for it"
        broker.client_log.info(logger, address, text, listed(created), context.peer)
    if refused:
        why = next(iter(refused.values())).message
        text = "%s asks for topic %s, not created: %s"
        broker.client_log.warning(logger, address, text, context.peer, listed(refused), why)


def _may_be_created(name: str) -> bool:
    """Internal topics are made by the package that keeps its state in them, with its own settings."""
    return _name_error(name) is None and name != CLUSTER_METADATA_TOPIC and not is_internal(name)


def _named(
    broker: ClusterDescription,
    request: MetadataRequest,
    names: Iterable[str],
    context: RequestContext,
    throttled: frozenset[str] = frozenset(),
) -> Steps[MetadataResponse]:
    cluster, known, unknown = _view(broker, context), [], []
    for name in names:
        topic = cluster.image.topics.get(name)
        if topic is not None:
            known.append(_topic(topic, cluster))
        else:
            absent = (
                ErrorCode.THROTTLING_QUOTA_EXCEEDED
                if name in throttled
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            error = _name_error(name) or absent
            unknown.append(MetadataResponseTopic(error_code=error, name=name, is_internal=is_internal(name)))
        yield
    return _response(cluster, request, known + unknown)


def _name_error(name: str) -> ErrorCode | None:
    try:
        check_name(name)
    except ApiError as error:
        return error.code
    return None


def _response(
    cluster: ClientView, request: MetadataRequest, topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    image = cluster.image
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    cluster_operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=node, host=endpoint.host, port=endpoint.port, rack=image.brokers[node].rack
            )
            for node, endpoint in cluster.reachable.items()
        ],
        cluster_id=image.cluster_id,
        controller_id=cluster.controller,
        topics=topics,
        cluster_authorized_operations=cluster_operations,
    )


def _refused(topics: Sequence[MetadataRequestTopic]) -> MetadataResponse:
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id
            )
            for topic in topics
        ],
        error_code=ErrorCode.INVALID_REQUEST,
    )


def _topic(topic: TopicImage, cluster: ClientView) -> MetadataResponseTopic:
    partitions = []
    # Partitions in the same state share the object, and all but a few are: look at each state once.
    views: dict[int, PartitionView] = {}
    for index, state in enumerate(topic.partitions):
        if cluster.has_failed and (failed := cluster.failed_at(topic.id, index)):
            view: PartitionView | None = cluster.partition(state, failed)
        else:
            view = views.get(id(state))
        if view is None:
            view = views[id(state)] = cluster.partition(state)
        error, leader, replicas, isr, offline = view
        partitions.append(
            MetadataResponsePartition(
                error_code=error,
                partition_index=index,
                leader_id=leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=replicas,
                isr_nodes=isr,
                offline_replicas=offline,
            )
        )
    return MetadataResponseTopic(
        name=topic.name, topic_id=topic.id, is_internal=is_internal(topic.name), partitions=partitions
    )


def describe_cluster(
    broker: ClusterDescription, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """A broker describes brokers only: its controller has no endpoint of its own."""
    if request.endpoint_type != BROKER_ENDPOINT:
        return _wrong_endpoint(request.endpoint_type)
    image = broker.image
    asked = request.include_cluster_authorized_operations
    endpoints = endpoints_on(image, context.listener, fenced=request.include_fenced_brokers)
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id if image.controller_id in endpoints else -1,
        brokers=[
            DescribeClusterBroker(
                broker_id=node,
                host=endpoint.host,
                port=endpoint.port,
                rack=image.brokers[node].rack,
                is_fenced=image.brokers[node].fenced,
            )
            for node, endpoint in endpoints.items()
        ],
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked else NOT_ASKED,
    )


def _wrong_endpoint(endpoint_type: int) -> DescribeClusterResponse:
    if endpoint_type == CONTROLLER_ENDPOINT:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, "
            "but we wanted an endpoint of type CONTROLLER",
        )
    return DescribeClusterResponse(
        error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
        error_message=f"Unsupported endpoint type {endpoint_type}",
    )


def describe_topic_partitions(
    broker: ClusterDescription, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> Steps[DescribeTopicPartitionsResponse]:
    """Topics in the order of their names, up to a number of partitions; the cursor says where to go on.

    With a list of topics the cursor must name one of them. A topic that is cut off or starts at the cursor
    is answered with the partitions that fit, a topic after the limit not at all.
    """
    image, cursor = broker.image, request.cursor
    cluster = ClientView(image, context.listener, fenced_leader=broker.fenced_leader)
    start = cursor.topic_name if cursor else ""
    asked = {topic.name for topic in request.topics}
    names = sorted(name for name in asked or image.topics if name >= start)
    if cursor is not None and (cursor.partition_index < 0 or (asked and start not in names)):
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name)
                for topic in request.topics
            ]
        )
    left = max(1, min(request.response_partition_limit, broker.config["max.request.partition.size.limit"]))
    response = DescribeTopicPartitionsResponse()
    for name in names:
        yield
        if left <= 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = image.topics.get(name)
        if topic is None:
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(
                    error_code=_name_error(name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    name=name,
                    is_internal=is_internal(name),
                    topic_authorized_operations=TOPIC_OPERATIONS,
                )
            )
            continue
        first = cursor.partition_index if cursor and name == start else 0
        described = _described(topic, cluster, first, first + left)
        response.topics.append(described)
        left -= len(described.partitions)
        end = first + len(described.partitions)
        if end < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
    return response


def _described(
    topic: TopicImage, cluster: ClientView, first: int, end: int
) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for index, state in enumerate(topic.partitions[first:end], first):
        error, leader, replicas, isr, offline = cluster.partition(state, cluster.failed_at(topic.id, index))
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=error,
                partition_index=index,
                leader_id=leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=replicas,
                isr_nodes=isr,
                # Null is allowed here, but the Java client does not expect it.
                eligible_leader_replicas=list(state.elr),
                last_known_elr=list(state.last_known_elr),
                offline_replicas=offline,
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
