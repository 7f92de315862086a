"""From a decision to registry operations: what to write for a topic made, grown, deleted or configured.

A commit is bounded, so a large topic takes several. The number of partitions in the topic's node is what
counts (`layout`): a creation writes it last, a deletion clears it first, growth raises it last. So a reader
sees a topic whole or not at all at any time, and can recognise what an interrupted change has left behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ottla.cluster import layout
from ottla.cluster.image import TOPIC_CONFIG, ClusterImage, ConfigResource, PartitionState, TopicImage
from ottla.cluster.leadership import MAX_WRITE_BYTES, MAX_WRITE_OPERATIONS
from ottla.cluster.registry import Create, Delete, Operation, Set, operation_bytes
from ottla.cluster.topic_rules import PlannedTopic


@dataclass(frozen=True, slots=True)
class Change:
    """Something to write: its commits, in order, and what it does to the image when all are in."""

    commits: list[list[Operation]]
    topics: Mapping[str, TopicImage | None] | None = None
    partitions: Mapping[str, Mapping[int, PartitionState]] | None = None
    configs: Mapping[ConfigResource, Mapping[str, str] | None] | None = None


def creation(plan: PlannedTopic) -> Change:
    topic, resource = plan.topic, (TOPIC_CONFIG, plan.topic.name)
    path, data = layout.topic_path(topic.name), layout.topic_data(topic.id, len(topic.partitions))
    nodes = _partition_nodes(topic, range(len(topic.partitions)))
    if plan.configs:
        nodes.append(Create(layout.config_path(resource), layout.to_bytes(plan.configs)))
    if len(batches([Create(path, data), *nodes])) == 1:
        nodes.insert(0, Create(path, data))
    else:
        nodes.insert(0, Create(path, layout.topic_data(topic.id, 0)))
        nodes.append(Set(path, data))
    return Change(
        batches(nodes),
        topics={topic.name: topic},
        configs={resource: plan.configs} if plan.configs else None,
    )


def growth(grown: TopicImage, image: ClusterImage) -> Change:
    added = range(len(image.topics[grown.name].partitions), len(grown.partitions))
    nodes = _partition_nodes(grown, added)
    count = layout.topic_data(grown.id, len(grown.partitions))
    nodes.append(Set(layout.topic_path(grown.name), count))
    states = {index: grown.partitions[index] for index in added}
    return Change(batches(nodes), partitions={grown.name: states})


def deletion(topic: TopicImage, image: ClusterImage) -> Change:
    path, resource = layout.topic_path(topic.name), (TOPIC_CONFIG, topic.name)
    nodes: list[Operation] = [
        Delete(layout.partition_path(topic.name, index)) for index in range(len(topic.partitions))
    ]
    if resource in image.configs:
        nodes.append(Delete(layout.config_path(resource)))
    nodes.append(
        Delete(path)
    )  # last: as long as it is there, what is left of the topic is known for leftovers
    if len(batches(nodes)) > 1:
        nodes.insert(0, Set(path, layout.topic_data(topic.id, 0)))
    return Change(batches(nodes), topics={topic.name: None}, configs={resource: None})


def config_change(resource: ConfigResource, new: Mapping[str, str], image: ClusterImage) -> Change:
    """Makes `new` the whole configuration of the resource."""
    path, exists = layout.config_path(resource), resource in image.configs
    nodes: list[Operation] = []
    if new:
        data = layout.to_bytes(new)
        nodes.append(Set(path, data) if exists else Create(path, data))
    elif exists:
        nodes.append(Delete(path))
    return Change([nodes], configs={resource: new or None})


def batches(operations: Sequence[Operation]) -> list[list[Operation]]:
    """The operations in as few commits of the controller as they fit."""
    found: list[list[Operation]] = []
    size = 0
    for operation in operations:
        size += operation_bytes(operation)
        if not found or len(found[-1]) == MAX_WRITE_OPERATIONS or size > MAX_WRITE_BYTES:
            found.append([])
            size = operation_bytes(operation)
        found[-1].append(operation)
    return found


def _partition_nodes(topic: TopicImage, indexes: range) -> list[Operation]:
    return [
        Create(layout.partition_path(topic.name, index), layout.partition_data(topic.partitions[index]))
        for index in indexes
    ]
