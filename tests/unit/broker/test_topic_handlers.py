"""CreateTopics, DeleteTopics and CreatePartitions over the wire, as Apache Kafka 4.3.1 was seen to answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

import ottla.testing
from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from ottla.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.schema import ZERO_UUID
from ottla.protocol_client.wire import Wire

UNKNOWN_ID = b"x" * 16
_numbers = count()


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with ottla.testing.broker() as broker, Wire(broker.bootstrap_servers) as wire:
        yield wire


@pytest.fixture
def name() -> str:
    return f"topic-{next(_numbers)}"


def create(
    wire: Wire, *topics: CreatableTopic, version: int = 7, validate_only: bool = False
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    results: list[CreatableTopicResult] = wire.call(request, version=version).topics
    return results


def new(name: str, partitions: int = 1, replicas: int = 1, **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=k.replace("_", "."), value=v) for k, v in configs.items()],
    )


def delete(wire: Wire, *states: DeleteTopicState) -> list[DeletableTopicResult]:
    results: list[DeletableTopicResult] = wire.call(
        DeleteTopicsRequest(topics=list(states)), version=6
    ).responses
    return results


def grow(
    wire: Wire, *topics: CreatePartitionsTopic, validate_only: bool = False, version: int = 3
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(topics=list(topics), validate_only=validate_only)
    results: list[CreatePartitionsTopicResult] = wire.call(request, version=version).results
    return results


def partitions(wire: Wire, name: str) -> int | None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    (topic,) = wire.call(request).topics
    return len(topic.partitions) if topic.error_code == 0 else None


def outcomes(results: list[CreatableTopicResult] | list[DeletableTopicResult]) -> dict[str | None, str]:
    return {result.name: error_of(result.error_code).name for result in results}


@pytest.mark.parametrize("version", range(2, 8))
def test_a_created_topic_is_visible_when_its_response_arrives(wire: Wire, name: str, version: int) -> None:
    (result,) = create(wire, new(name, 3), version=version)
    assert (result.error_code, result.error_message) == (0, None)
    assert partitions(wire, name) == 3
    assert (result.num_partitions, result.replication_factor) == ((3, 1) if version >= 5 else (-1, -1))
    assert (result.topic_id != ZERO_UUID) == (version >= 7)
    assert bool(result.configs) == (version >= 5)


def test_the_response_contains_the_configuration_of_the_topic_with_its_sources(wire: Wire, name: str) -> None:
    (result,) = create(wire, new(name, retention_ms="1000"))
    configs = {config.name: config for config in result.configs or []}
    assert len(configs) == 33
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == ("delete", 5)
    assert result.topic_config_error_code == 0


def test_a_broker_setting_behind_a_topic_key_is_the_source() -> None:
    with (
        ottla.testing.broker(settings={"log.retention.hours": 1}) as broker,
        Wire(broker.bootstrap_servers) as wire,
    ):
        (result,) = create(wire, new("t"))
    configs = {config.name: config for config in result.configs or []}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("3600000", 4)


def test_validate_only_answers_like_a_creation_but_creates_nothing(wire: Wire, name: str) -> None:
    (result,) = create(wire, new(name, 2), validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 2)
    assert partitions(wire, name) is None


def test_a_refused_topic_has_an_empty_list_of_configs(wire: Wire) -> None:
    (result,) = create(wire, new("a b"))
    assert result.configs == []
    assert (result.num_partitions, result.replication_factor, result.topic_id) == (-1, -1, ZERO_UUID)


def test_topics_named_twice_are_refused_once_and_at_the_end(wire: Wire, name: str) -> None:
    results = create(wire, new(name), new("__cluster_metadata"), new(name, 2), new(f"{name}-x"))
    assert [(result.name, result.error_message) for result in results] == [
        (f"{name}-x", None),
        (name, "Duplicate topic name."),
        ("__cluster_metadata", "Creation of internal topic __cluster_metadata is prohibited."),
    ]
    assert partitions(wire, name) is None


def test_replicas_can_be_placed_by_hand(wire: Wire, name: str) -> None:
    topic = new(name, -1, -1)
    topic.assignments = [CreatableReplicaAssignment(partition_index=n, broker_ids=[1]) for n in range(2)]
    (result,) = create(wire, topic)
    assert (result.error_code, result.num_partitions) == (0, 2)


def test_invalid_topic_configs_are_refused(wire: Wire, name: str) -> None:
    (result,) = create(wire, new(name, retention_ms="soon"))
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert "retention.ms" in (result.error_message or "")


def test_the_largest_number_of_partitions_is_a_setting() -> None:
    with ottla.testing.broker(max_partitions=5) as broker, Wire(broker.bootstrap_servers) as wire:
        assert outcomes(create(wire, new("a", 4), new("b", 2))) == {"a": "NONE", "b": "POLICY_VIOLATION"}


@pytest.mark.parametrize("version", range(1, 6))
def test_topics_are_deleted_by_name(wire: Wire, name: str, version: int) -> None:
    create(wire, new(name))
    request = DeleteTopicsRequest(topic_names=[name, "nobody"])
    deleted, unknown = wire.call(request, version=version).responses
    assert (deleted.name, deleted.error_code) == (name, 0)
    assert (unknown.name, unknown.error_code) == ("nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert partitions(wire, name) is None


def test_topics_are_deleted_by_id_and_answered_with_both(wire: Wire, name: str) -> None:
    topic_id = create(wire, new(name))[0].topic_id
    deleted, unknown = delete(
        wire, DeleteTopicState(topic_id=topic_id), DeleteTopicState(topic_id=UNKNOWN_ID)
    )
    assert (deleted.name, deleted.topic_id, deleted.error_code) == (name, topic_id, 0)
    assert (unknown.name, unknown.topic_id) == (None, UNKNOWN_ID)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert partitions(wire, name) is None


def test_a_topic_to_delete_must_be_given_once_by_name_or_id(wire: Wire, name: str) -> None:
    topic_id = create(wire, new(name))[0].topic_id
    by_name, by_id = DeleteTopicState(name=name), DeleteTopicState(topic_id=topic_id)
    for states, message in (
        ([by_name, by_name], "Duplicate topic name."),
        ([by_id, by_id], "Duplicate topic id."),
        ([by_name, by_id], "The provided topic name maps to an ID that was already supplied."),
        (
            [DeleteTopicState(name=name, topic_id=topic_id)],
            "You may not specify both topic name and topic id.",
        ),
        ([DeleteTopicState()], "Neither topic name nor id were specified."),
    ):
        (result,) = delete(wire, *states)
        assert (result.error_code, result.error_message) == (ErrorCode.INVALID_REQUEST, message)
    assert partitions(wire, name) == 1


def test_topic_deletion_can_be_switched_off() -> None:
    with ottla.testing.broker(delete_topic_enable="false") as broker, Wire(broker.bootstrap_servers) as wire:
        create(wire, new("t"))
        assert outcomes(delete(wire, DeleteTopicState(name="t"))) == {"t": "TOPIC_DELETION_DISABLED"}
        assert partitions(wire, "t") == 1


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added(wire: Wire, name: str, version: int) -> None:
    create(wire, new(name))
    more = CreatePartitionsTopic(name=name, count=3, assignments=None)
    (would,) = grow(wire, more, validate_only=True, version=version)
    assert would.error_code == 0 and partitions(wire, name) == 1
    (result,) = grow(wire, more, version=version)
    assert (result.error_code, result.error_message) == (0, None)
    assert partitions(wire, name) == 3


def test_create_partitions_refuses_per_topic(wire: Wire, name: str) -> None:
    create(wire, new(name, 2), new(f"{name}-x"))
    by_hand = [CreatePartitionsAssignment(broker_ids=[1])]
    results = grow(
        wire,
        CreatePartitionsTopic(name="nobody", count=3, assignments=None),
        CreatePartitionsTopic(name=name, count=2, assignments=None),
        CreatePartitionsTopic(name=f"{name}-x", count=2, assignments=by_hand),
        CreatePartitionsTopic(name="twice", count=1, assignments=None),
        CreatePartitionsTopic(name="twice", count=2, assignments=None),
    )
    assert [(result.name, error_of(result.error_code).name) for result in results] == [
        ("twice", "INVALID_REQUEST"),
        ("nobody", "UNKNOWN_TOPIC_OR_PARTITION"),
        (name, "INVALID_PARTITIONS"),
        (f"{name}-x", "NONE"),
    ]
    assert partitions(wire, f"{name}-x") == 2
