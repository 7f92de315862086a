"""The cluster image on the wire: whole images and deltas as the response to FetchImage, and back.

What comes back equals what was sent. Both directions are generators that yield once per topic, since a whole
image may hold many thousand partitions and other requests are served in between. Most partitions of a cluster
are in one of a few states: equal states become one object again, as in the image of the controller.

`news_from` believes nothing: a response that leads nowhere, goes back or contradicts itself is refused with
`BadImage`, so that the image of a broker only ever grows by changes that fit it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping

from ottla.cluster.disk_states import DiskReport, Replica
from ottla.cluster.image import (
    BrokerNode,
    ClusterImage,
    ConfigResource,
    Endpoint,
    ImageDelta,
    PartitionState,
    TopicImage,
)
from ottla.protocol.messages.fetch_image import (
    FailedReplicas,
    FetchImageResponse,
    ImageBroker,
    ImageConfig,
    ImageConfigEntry,
    ImageEndpoint,
    ImagePartition,
    ImageTopic,
)
from ottla.protocol.schema import ZERO_UUID

WHOLE = -1
"""As the base of a response: it holds the whole image."""
_SAME_CONTROLLER = -1

News = ImageDelta | ClusterImage


class BadImage(ValueError):
    """The response to FetchImage is not an answer to what was asked."""


def nothing_new(version: int) -> FetchImageResponse:
    return FetchImageResponse(base=version, version=version)


def response_of(news: News) -> Generator[None, None, FetchImageResponse]:
    """The response that says `news`."""
    response = FetchImageResponse(version=news.version)
    if isinstance(news, ImageDelta):
        response.base = news.base
        response.controller_id = _SAME_CONTROLLER if news.controller_id is None else news.controller_id
        response.removed_topics = [name for name, topic in news.topics.items() if topic is None]
        for name, states in news.partitions.items():
            response.changed_topics.append(
                ImageTopic(name=name, id=ZERO_UUID, partitions=_partitions(states.items()))
            )
            yield
    else:
        response.base = WHOLE
        response.cluster_id = news.cluster_id
        response.controller_id = news.controller_id
    for topic in news.topics.values():
        if topic is not None:
            partitions = _partitions(enumerate(topic.partitions))
            response.topics.append(ImageTopic(name=topic.name, id=topic.id, partitions=partitions))
            yield
    response.brokers = [_broker(broker) for broker in news.brokers.values() if broker is not None]
    response.removed_brokers = [number for number, broker in news.brokers.items() if broker is None]
    for number, ((kind, name), config) in enumerate(news.configs.items()):
        entries = None if config is None else [ImageConfigEntry(name=k, value=v) for k, v in config.items()]
        response.configs.append(ImageConfig(type=kind, name=name, entries=entries))
        if not number % 100:
            yield
    return response


def news_from(response: FetchImageResponse, known: int) -> Generator[None, None, News | None]:
    """What the response to a broker that has version `known` says; None if nothing is newer."""
    if response.version == known:
        return None
    if response.version < known:
        raise BadImage(f"image {response.version} is older than {known}")
    if response.base not in (WHOLE, known):
        raise BadImage(f"changes of image {response.base} do not fit image {known}")
    whole = response.base == WHOLE
    states: dict[object, PartitionState] = {}
    topics: dict[str, TopicImage | None] = dict.fromkeys(response.removed_topics)
    for topic in response.topics:
        if any(index != partition.index for index, partition in enumerate(topic.partitions)):
            raise BadImage(f"the partitions of topic {topic.name} are not all there")
        found = tuple([_state(partition, states) for partition in topic.partitions])
        topics[topic.name] = TopicImage(topic.name, topic.id, found)
        yield
    changed: dict[str, Mapping[int, PartitionState]] = {}
    for topic in response.changed_topics:
        changed[topic.name] = {each.index: _state(each, states) for each in topic.partitions}
        yield
    brokers: dict[int, BrokerNode | None] = dict.fromkeys(response.removed_brokers)
    brokers.update((broker.id, _broker_node(broker)) for broker in response.brokers)
    configs: dict[ConfigResource, Mapping[str, str] | None] = {}
    for number, config in enumerate(response.configs):
        entries = config.entries
        configs[config.type, config.name] = None if entries is None else {e.name: e.value for e in entries}
        if not number % 100:
            yield
    if not whole:
        return ImageDelta(
            base=response.base,
            version=response.version,
            controller_id=None if response.controller_id == _SAME_CONTROLLER else response.controller_id,
            brokers=brokers,
            topics=topics,
            partitions=changed,
            configs=configs,
        )
    if changed or not response.cluster_id:
        raise BadImage("it is neither a whole image nor a change of one")
    return ClusterImage.of(
        version=response.version,
        cluster_id=response.cluster_id,
        controller_id=response.controller_id,
        brokers={number: broker for number, broker in brokers.items() if broker is not None},
        topics={name: image for name, image in topics.items() if image is not None},
        configs={resource: config for resource, config in configs.items() if config is not None},
    )


def _partitions(states: Iterable[tuple[int, PartitionState]]) -> list[ImagePartition]:
    return [
        ImagePartition(
            index=index,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            replicas=list(state.replicas),
            isr=list(state.isr),
            elr=list(state.elr),
            last_known_elr=list(state.last_known_elr),
            adding=list(state.adding),
        )
        for index, state in states
    ]


def _state(partition: ImagePartition, states: dict[object, PartitionState]) -> PartitionState:
    """The state of a partition; the same object for equal states, which `states` collects."""
    key = (
        tuple(partition.replicas),
        tuple(partition.isr),
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        tuple(partition.elr),
        tuple(partition.last_known_elr),
        tuple(partition.adding),
    )
    state = states.get(key)
    if state is None:
        state = states[key] = PartitionState(*key)
    return state


def _broker(broker: BrokerNode) -> ImageBroker:
    return ImageBroker(
        id=broker.id,
        host=broker.host,
        port=broker.port,
        rack=broker.rack,
        epoch=broker.epoch,
        fenced=broker.fenced,
        endpoints=[
            ImageEndpoint(listener=each.listener, host=each.host, port=each.port) for each in broker.endpoints
        ],
        is_impaired=broker.disk.impaired,
        failed=failed_to_wire(broker.disk.failed),
    )


def _broker_node(broker: ImageBroker) -> BrokerNode:
    return BrokerNode(
        broker.id,
        broker.host,
        broker.port,
        broker.rack,
        broker.epoch,
        broker.fenced,
        tuple(Endpoint(each.listener, each.host, each.port) for each in broker.endpoints),
        DiskReport(broker.is_impaired, failed_from_wire(broker.failed)),
    )


def failed_to_wire(replicas: Iterable[Replica]) -> list[FailedReplicas]:
    topics: dict[bytes, FailedReplicas] = {}
    for topic_id, index in sorted(replicas):
        topics.setdefault(topic_id, FailedReplicas(topic_id=topic_id)).partitions.append(index)
    return list(topics.values())


def failed_from_wire(topics: Iterable[FailedReplicas]) -> frozenset[Replica]:
    return frozenset((topic.topic_id, index) for topic in topics for index in topic.partitions)
