"""CreateTopics (19), DeleteTopics (20) and CreatePartitions (37): asking the controller for change.

A broker that is not the controller forwards these requests (`forwarding`).
Each topic of a request succeeds or fails for itself. The handlers sort out what the wire allows and the
controller does not (a topic named twice, a name beside an id), hand the rest over in portions, and answer
when this broker has taken over the outcome, so that the client's next Metadata request shows it, and the
leaders of new partitions have too, if that does not take long.

Version notes. CreateTopics 5 answers the topic's whole configuration, each value with its source.
DeleteTopics 6 names topics by name or id, before that there are names only. Results stand in the order of the
request; topics named twice come last (CreatePartitions: first), once.

A CreateTopics for more than 10,000 partitions is refused as a whole, as in Kafka.

The request's timeout has no effect: the outcome is known in milliseconds. Kafka answers REQUEST_TIMED_OUT to
a timeout of 0 and does nothing, though clients that send 0 mean "do not wait for all brokers".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from ottla.broker.controller_channel import LEADERS_SECONDS
from ottla.broker.dispatch import RequestContext
from ottla.broker.portions import MAX_CHANGES, TOO_MANY_PARTITIONS, in_portions
from ottla.broker.ports import (
    ChannelAccess,
    Configuration,
    ControllerAccess,
    ImageAccess,
    ImageFollowing,
    SlicedWork,
)
from ottla.broker.request_scheduler import Steps
from ottla.cluster.image import TopicImage
from ottla.cluster.topic_rules import CLUSTER_METADATA_TOPIC, MorePartitions, NewTopic, PlannedTopic
from ottla.config.keys import show
from ottla.config.table import TOPIC_KEYS
from ottla.config.values import Source, topic_config
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.schema import ZERO_UUID

NAMED_TWICE = "Duplicate topic name."
_AT_A_TIME = 100
"""Topics, or partitions of new topics, that are changed together; other requests are served in between."""


class TopicAdministration(
    ChannelAccess, Configuration, ControllerAccess, ImageAccess, ImageFollowing, SlicedWork, Protocol
):
    """Topics are changed by the controller; the answer leaves when the change counts here."""


async def create_topics(
    broker: TopicAdministration, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    named = Counter(topic.name for topic in request.topics)
    asked = [topic for topic in request.topics if named[topic.name] == 1]
    outcomes: list[PlannedTopic | ApiError]
    if _too_many_partitions(broker, asked):
        outcomes = [ApiError(ErrorCode.POLICY_VIOLATION, TOO_MANY_PARTITIONS)] * len(asked)
    else:
        version, outcomes = 0, []
        for some in _by_partitions(asked):
            outcome = await broker.controller.create_topics(
                [_new_topic(topic) for topic in some], validate_only=request.validate_only
            )
            version = outcome.version
            outcomes += outcome.results
            await asyncio.sleep(0)  # where nothing is to be written, nothing else gives way
        await broker.caught_up(version)
        if not request.validate_only:
            made = (result.topic for result in outcomes if not isinstance(result, ApiError))
            await _leaders_follow(broker, version, made, request.timeout_ms)
    return await broker.in_slices(_creation(broker, asked, outcomes, named, context.version), context)


async def _leaders_follow(
    broker: TopicAdministration, version: int, topics: Iterable[TopicImage], timeout_ms: int
) -> None:
    """Clients go from the answer to the leaders, which should know their partitions by then."""
    leaders = {state.leader for topic in topics for state in topic.partitions}
    timeout = min(max(timeout_ms, 0) / 1000, LEADERS_SECONDS)
    await broker.channel.leaders_follow(version, leaders, timeout)


def _too_many_partitions(broker: TopicAdministration, topics: Sequence[CreatableTopic]) -> bool:
    """As Kafka counts: those that are asked for, and one at least for each topic."""
    default = max(broker.config["num.partitions"], 1)
    counts = (
        default if topic.num_partitions < 0 and not topic.assignments else _partition_count(topic)
        for topic in topics
    )
    return len(topics) > 1 and sum(counts) > MAX_CHANGES


def _partition_count(topic: CreatableTopic) -> int:
    return max(topic.num_partitions, len(topic.assignments), 1)


def _by_partitions(topics: Sequence[CreatableTopic]) -> Iterator[list[CreatableTopic]]:
    """Portions of topics with a bounded number of partitions. One topic is not divided."""
    some: list[CreatableTopic] = []
    partitions = 0
    for topic in topics:
        count = _partition_count(topic)
        if some and partitions + count > _AT_A_TIME:
            yield some
            some, partitions = [], 0
        some.append(topic)
        partitions += count
    if some:
        yield some


def _creation(
    broker: TopicAdministration,
    asked: Sequence[CreatableTopic],
    outcomes: Sequence[PlannedTopic | ApiError],
    named: Counter[str],
    version: int,
) -> Steps[CreateTopicsResponse]:
    results = []
    # Topics without settings of their own look alike.
    plain: list[CreatableTopicConfigs] | None = None
    for topic, result in zip(asked, outcomes, strict=True):
        if isinstance(result, ApiError):
            answer = CreatableTopicResult(
                name=topic.name, error_code=result.code, error_message=result.message
            )
        else:
            answer = _created(result)
            if version >= 5 and result.configs:
                answer.configs = _configs(broker, result)
            elif version >= 5:
                plain = answer.configs = plain or _configs(broker, result)
        results.append(answer)
        yield
    results += [
        CreatableTopicResult(name=name, error_code=ErrorCode.INVALID_REQUEST, error_message=NAMED_TWICE)
        for name in _named_twice(named)
    ]
    results.sort(key=lambda result: result.name == CLUSTER_METADATA_TOPIC)  # last of all, as in Kafka
    return CreateTopicsResponse(topics=results)


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(each.partition_index, each.broker_ids) for each in topic.assignments],
        configs={config.name: config.value for config in topic.configs},
    )


def _created(plan: PlannedTopic) -> CreatableTopicResult:
    topic = plan.topic
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=None,
    )


def _configs(broker: TopicAdministration, plan: PlannedTopic) -> list[CreatableTopicConfigs]:
    """Every topic key with its value and where that comes from: the topic, or the broker key behind it."""
    values = topic_config(broker.config, plan.configs)
    listed = []
    for name in sorted(TOPIC_KEYS):
        key = TOPIC_KEYS[name]
        if key.internal:
            continue
        behind = (broker.config.source(synonym.name) for synonym in key.synonyms)
        source = Source.TOPIC if name in plan.configs else min(behind, default=Source.DEFAULT)
        listed.append(
            CreatableTopicConfigs(
                name=name,
                value=None if key.sensitive else show(values[name]),
                config_source=source,
                is_sensitive=key.sensitive,
            )
        )
    return listed


def _named_twice(named: Counter[str]) -> Iterable[str]:
    return (name for name, times in named.items() if times > 1)


async def delete_topics(
    broker: TopicAdministration, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    if context.version < 6:
        states = [DeleteTopicState(name=name) for name in request.topic_names]
    else:
        states = request.topics
    refused: list[DeletableTopicResult] = []
    asked = await broker.in_slices(_deletable(broker, states, refused), context)
    if not broker.config["delete.topic.enable"]:
        disabled = ApiError(ErrorCode.TOPIC_DELETION_DISABLED)
        return DeleteTopicsResponse(responses=[_not_deleted(topic, disabled) for topic in asked] + refused)
    version, results = 0, []
    for some in in_portions(asked, _AT_A_TIME):
        outcome = await broker.controller.delete_topics(some)
        version = outcome.version
        results += [
            _not_deleted(topic, result)
            if isinstance(result, ApiError)
            else DeletableTopicResult(name=result.name, topic_id=result.id)
            for topic, result in zip(some, outcome.results, strict=True)
        ]
        await asyncio.sleep(0)
    await broker.caught_up(version)
    return DeleteTopicsResponse(responses=results + refused)


def _not_deleted(topic: str | bytes, error: ApiError) -> DeletableTopicResult:
    name, topic_id = (None, topic) if isinstance(topic, bytes) else (topic, ZERO_UUID)
    return DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=error.code, error_message=error.message
    )


def _deletable(
    broker: TopicAdministration, states: Iterable[DeleteTopicState], refused: list[DeletableTopicResult]
) -> Steps[list[str | bytes]]:
    """The topics that are named once and one way; results for the others go to `refused`."""

    def refuse(name: str | None, topic_id: bytes, message: str) -> None:
        refused.append(
            DeletableTopicResult(
                name=name,
                topic_id=topic_id,
                error_code=ErrorCode.INVALID_REQUEST,
                error_message=message,
            )
        )

    names: Counter[str] = Counter()
    ids: Counter[bytes] = Counter()
    for number, state in enumerate(states):
        if not number % _AT_A_TIME:
            yield
        if state.name is None and state.topic_id == ZERO_UUID:
            refuse(None, ZERO_UUID, "Neither topic name nor id were specified.")
        elif state.name is None:
            ids[state.topic_id] += 1
        elif state.topic_id == ZERO_UUID:
            names[state.name] += 1
        else:
            refuse(state.name, state.topic_id, "You may not specify both topic name and topic id.")
    for name in _named_twice(names):
        refuse(name, ZERO_UUID, NAMED_TWICE)
    for topic_id in [each for each, times in ids.items() if times > 1]:
        refuse(None, topic_id, "Duplicate topic id.")
    asked: list[str | bytes] = []
    for name in [each for each, times in names.items() if times == 1]:
        topic = broker.image.topics.get(name)
        if topic is not None and topic.id in ids:
            refuse(name, topic.id, "The provided topic name maps to an ID that was already supplied.")
            del ids[topic.id]
        else:
            asked.append(name)
    return asked + [each for each, times in ids.items() if times == 1]


async def create_partitions(
    broker: TopicAdministration, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    named = Counter(topic.name for topic in request.topics)
    results = [
        CreatePartitionsTopicResult(
            name=name, error_code=ErrorCode.INVALID_REQUEST, error_message=NAMED_TWICE
        )
        for name in _named_twice(named)
    ]
    asked = [topic for topic in request.topics if named[topic.name] == 1]
    version = 0
    grown: list[TopicImage] = []
    for some in in_portions(asked, _AT_A_TIME):
        outcome = await broker.controller.create_partitions(
            [_more_partitions(topic) for topic in some], validate_only=request.validate_only
        )
        version = outcome.version
        for topic, result in zip(some, outcome.results, strict=True):
            answer = CreatePartitionsTopicResult(name=topic.name)
            if isinstance(result, ApiError):
                answer.error_code, answer.error_message = result.code, result.message
            else:
                grown.append(result)
            results.append(answer)
        await asyncio.sleep(0)
    await broker.caught_up(version)
    if not request.validate_only:
        await _leaders_follow(broker, version, grown, request.timeout_ms)
    return CreatePartitionsResponse(results=results)


def _more_partitions(topic: CreatePartitionsTopic) -> MorePartitions:
    if topic.assignments is None:
        return MorePartitions(topic.name, topic.count)
    return MorePartitions(topic.name, topic.count, [each.broker_ids for each in topic.assignments])
