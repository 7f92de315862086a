"""Questions and orders about topics, as plain functions over `Wire`.

Changes go to the controller and are tried again when it has moved. Every function returns what a caller wants
to know and raises ApiError for what the broker refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.schema import Request
from ottla.protocol_client.wire import BrokerUnreachable, Patience, UnsupportedByBroker, Wire, check

TOPIC = 2
"""Resource type of a topic in the configuration requests."""

DEFAULT_SOURCE = 5
SOURCES = {1: "topic", 2: "broker, dynamic", 3: "cluster, dynamic", 4: "broker file", 5: "default"}

_SET, _DELETE = 0, 1
_MIN_ISR = "min.insync.replicas"
_TOPICS_AT_A_TIME = 500


class Setting(NamedTuple):
    """A configuration value and where it comes from (a key of SOURCES)."""

    name: str
    value: str | None
    source: int


def create_topic(
    wire: Wire,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] = {},
) -> CreatableTopicResult:
    """Create a topic; -1 leaves a number to the broker's defaults."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=k, value=v) for k, v in configs.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=_timeout(wire))
    result: CreatableTopicResult = _change(wire, request, lambda response: response.topics)[0]
    return result


def delete_topic(wire: Wire, name: str) -> None:
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=_timeout(wire)
    )
    _change(wire, request, lambda response: response.responses)


def grow_topic(wire: Wire, name: str, total: int) -> None:
    """Give the topic so many partitions in all."""
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=total, assignments=None)], timeout_ms=_timeout(wire)
    )
    _change(wire, request, lambda response: response.results)


def reassign(wire: Wire, replicas: Mapping[tuple[str, int], Sequence[int]]) -> None:
    """Give partitions, by topic and index, these replicas; the first is the preferred leader."""
    by_topic: dict[str, list[ReassignablePartition]] = {}
    for (topic, index), brokers in replicas.items():
        partition = ReassignablePartition(partition_index=index, replicas=list(brokers))
        by_topic.setdefault(topic, []).append(partition)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=each) for topic, each in by_topic.items()],
        timeout_ms=_timeout(wire),
    )
    _change(
        wire,
        request,
        lambda response: [response, *(each for topic in response.responses for each in topic.partitions)],
    )


def alter_topic(wire: Wire, name: str, settings: Mapping[str, str], unset: Iterable[str] = ()) -> None:
    """Set some configurations of the topic and put others back to their defaults; the rest stays."""
    changes = [AlterableConfig(name=k, config_operation=_SET, value=v) for k, v in settings.items()]
    changes += [AlterableConfig(name=k, config_operation=_DELETE, value=None) for k in unset]
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=changes)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    _change(wire, request, lambda response: response.responses)


def topic_settings(wire: Wire, name: str, node: int | None = None) -> list[Setting]:
    """The whole configuration of a topic, by name, as any broker or `node` knows it.

    After a change the controller is the first to know it.
    """
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource])
    response: DescribeConfigsResponse = wire.call(request, node=node)
    result = response.results[0]
    check(result.error_code, result.error_message)
    return sorted(Setting(c.name, c.value, c.config_source) for c in result.configs)


def min_in_sync_replicas(wire: Wire, names: Sequence[str]) -> dict[str, int]:
    """min.insync.replicas of topics. A topic that is deleted meanwhile is left out."""
    found = {}
    for start in range(0, len(names), _TOPICS_AT_A_TIME):
        resources = [
            DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=[_MIN_ISR])
            for name in names[start : start + _TOPICS_AT_A_TIME]
        ]
        response: DescribeConfigsResponse = wire.call(DescribeConfigsRequest(resources=resources))
        for result in response.results:
            for config in result.configs:
                if config.name == _MIN_ISR and config.value is not None:
                    found[result.resource_name] = int(config.value)
    return found


def describe_cluster(wire: Wire) -> DescribeClusterResponse:
    """The brokers, fenced ones included where the broker knows the word, and the controller."""
    response: DescribeClusterResponse = wire.call(DescribeClusterRequest(include_fenced_brokers=True))
    check(response.error_code, response.error_message)
    return response


def replica_sizes(wire: Wire) -> dict[tuple[int, str, int], int]:
    """Bytes on disk of every replica, by (broker, topic, partition).

    What cannot be found out is left out: a broker that does not offer the question, or does not answer.
    """
    sizes = {}
    if not wire.nodes:
        wire.metadata([])
    for node in wire.nodes:
        try:
            response: DescribeLogDirsResponse = wire.call(DescribeLogDirsRequest(topics=None), node=node)
        except (BrokerUnreachable, UnsupportedByBroker):
            continue
        for directory in response.results:
            for topic in directory.topics:
                for partition in topic.partitions:
                    if not partition.is_future_key:
                        sizes[node, topic.name, partition.partition_index] = partition.partition_size
    return sizes


def _change(wire: Wire, request: Request, results: Callable[[Any], list[Any]]) -> list[Any]:
    """Send `request` to the controller; its results when all of them are good, the first error otherwise."""
    patience = Patience(wire.request_timeout)
    while True:
        found = results(wire.call(request, node=wire.controller()))
        try:
            for result in found:
                check(result.error_code, result.error_message)
        except ApiError as error:
            if error.code != ErrorCode.NOT_CONTROLLER:
                raise
            wire.controller_id = -1
            patience.pause(error)
        else:
            return found


def _timeout(wire: Wire) -> int:
    return int(wire.request_timeout * 1000)
