"""What may be asked of topics, with the codes and texts that Apache Kafka 4.3.1 was seen to answer."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from ottla.cluster.image import BrokerNode, ClusterImage, PartitionState, TopicImage
from ottla.cluster.topic_ids import id_from_text, id_text, random_id
from ottla.cluster.topic_rules import (
    MorePartitions,
    NewTopic,
    PlannedTopic,
    TopicDefaults,
    check_name,
    plan_more_partitions,
    plan_topics,
)
from ottla.protocol.errors import ApiError, ErrorCode

ONE = PartitionState((1,), (1,), 1)


def image(topics: Mapping[str, int] | None = None, brokers: int = 1) -> ClusterImage:
    return ClusterImage.of(
        version=1,
        cluster_id="c",
        controller_id=1,
        brokers={n: BrokerNode(n, "host", 9092) for n in range(1, brokers + 1)},
        topics={
            name: TopicImage(name, name.encode().ljust(16, b"."), (ONE,) * partitions)
            for name, partitions in (topics or {}).items()
        },
        configs={},
    )


def refuse_unknown_keys(configs: Mapping[str, str]) -> None:
    for key in configs:
        if key != "retention.ms":
            raise ApiError(ErrorCode.INVALID_CONFIG, f"unknown {key}")


def plan(
    *requests: NewTopic, cluster: ClusterImage | None = None, defaults: TopicDefaults | None = None
) -> Sequence[PlannedTopic | ApiError]:
    return plan_topics(
        requests,
        cluster or image(),
        defaults=defaults or TopicDefaults(),
        check_configs=refuse_unknown_keys,
        rng=random.Random(0),
    )


def refusal(request: NewTopic, cluster: ClusterImage | None = None) -> tuple[str, str]:
    (result,) = plan(request, cluster=cluster)
    assert isinstance(result, ApiError), result
    return result.code.name, result.message


BAD_CHARACTERS = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a" * 250, f"the length of '{'a' * 250}' is longer than the max allowed length 249"),
        ("a b", f"'a b' {BAD_CHARACTERS}"),
        ("a/b", f"'a/b' {BAD_CHARACTERS}"),
        ("ü", f"'ü' {BAD_CHARACTERS}"),
        ("a\n", f"'a\\n' {BAD_CHARACTERS}"),
    ],
)
def test_names_that_cannot_be_a_folder_are_refused(name: str, reason: str) -> None:
    assert refusal(NewTopic(name, 1, 1)) == ("INVALID_TOPIC_EXCEPTION", f"Topic name is invalid: {reason}")


@pytest.mark.parametrize("name", ["a", "a" * 249, "A.b_c-9", "...", "-", "__consumer_offsets"])
def test_names_of_letters_digits_dots_dashes_and_underscores_are_fine(name: str) -> None:
    check_name(name)


def test_an_existing_topic_name_is_refused() -> None:
    cluster = image({"t": 1})
    assert refusal(NewTopic("t", 1, 1), cluster) == ("TOPIC_ALREADY_EXISTS", "Topic 't' already exists.")
    # Existence is told before anything else that is wrong.
    code, _ = refusal(NewTopic("t", 0, 9, configs={"bad": "1"}), cluster)
    assert code == "TOPIC_ALREADY_EXISTS"


@pytest.mark.parametrize(("existing", "name"), [("a.b", "a_b"), ("a_b", "a.b"), ("a.b_c", "a_b.c")])
def test_names_that_metrics_cannot_distinguish_collide(existing: str, name: str) -> None:
    assert refusal(NewTopic(name, 1, 1), image({existing: 1})) == (
        "INVALID_TOPIC_EXCEPTION",
        f"Topic '{name}' collides with existing topic: {existing}",
    )


def test_the_metadata_log_of_kafka_cannot_be_created() -> None:
    assert refusal(NewTopic("__cluster_metadata", 1, 1)) == (
        "INVALID_REQUEST",
        "Creation of internal topic __cluster_metadata is prohibited.",
    )


@pytest.mark.parametrize(
    ("partitions", "factor", "code", "text"),
    [
        (0, 1, "INVALID_PARTITIONS", "Number of partitions was set to an invalid non-positive value."),
        (-2, 1, "INVALID_PARTITIONS", "Number of partitions was set to an invalid non-positive value."),
        (
            1,
            0,
            "INVALID_REPLICATION_FACTOR",
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            0,
            -2,
            "INVALID_REPLICATION_FACTOR",
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            1,
            2,
            "INVALID_REPLICATION_FACTOR",
            "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be "
            "reached because only 1 broker(s) are registered.",
        ),
        (10_001, 1, "POLICY_VIOLATION", "Excessively large number of partitions per request."),
    ],
)
def test_counts_out_of_range_are_refused(partitions: int, factor: int, code: str, text: str) -> None:
    assert refusal(NewTopic("t", partitions, factor)) == (code, text)


def test_minus_one_takes_the_brokers_defaults() -> None:
    defaults = TopicDefaults(partitions=3, replication_factor=2)
    (made,) = plan(NewTopic("t"), cluster=image(brokers=3), defaults=defaults)
    assert isinstance(made, PlannedTopic)
    assert [len(partition.replicas) for partition in made.topic.partitions] == [2, 2, 2]
    assert all(partition.isr == partition.replicas for partition in made.topic.partitions)
    assert all(partition.leader == partition.replicas[0] for partition in made.topic.partitions)


SAID = "A manual partition assignment was specified, but"
INCLUDES = "The manual partition assignment includes"


@pytest.mark.parametrize(
    ("assignments", "counts", "code", "text"),
    [
        ([(0, [1])], (1, -1), "INVALID_REQUEST", f"{SAID} numPartitions was not set to -1."),
        ([(0, [1])], (-1, 1), "INVALID_REQUEST", f"{SAID} replication factor was not set to -1."),
        (
            [(1, [1])],
            (-1, -1),
            "INVALID_REPLICA_ASSIGNMENT",
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            [(0, [1]), (0, [2])],
            (-1, -1),
            "INVALID_REPLICA_ASSIGNMENT",
            "Found multiple manual partition assignments for partition 0",
        ),
        ([(0, [])], (-1, -1), "INVALID_REPLICA_ASSIGNMENT", f"{INCLUDES} an empty replica list."),
        (
            [(0, [1, 9])],
            (-1, -1),
            "INVALID_REPLICA_ASSIGNMENT",
            f"{INCLUDES} broker 9, but no such broker is registered.",
        ),
        ([(0, [1, 1])], (-1, -1), "INVALID_REPLICA_ASSIGNMENT", f"{INCLUDES} the broker 1 more than once."),
        (
            [(0, [1]), (1, [1, 2])],
            (-1, -1),
            "INVALID_REPLICA_ASSIGNMENT",
            f"{INCLUDES} a partition with 2 replica(s), but this is not consistent with previous partitions, "
            "which have 1 replica(s).",
        ),
    ],
)
def test_manual_assignments_are_checked(
    assignments: list[tuple[int, list[int]]], counts: tuple[int, int], code: str, text: str
) -> None:
    request = NewTopic("t", *counts, assignments=assignments)
    assert refusal(request, image(brokers=2)) == (code, text)


def test_a_manual_assignment_is_used_unchanged() -> None:
    (made,) = plan(NewTopic("t", assignments=[(1, [2, 1]), (0, [1, 2])]), cluster=image(brokers=2))
    assert isinstance(made, PlannedTopic)
    assert [partition.replicas for partition in made.topic.partitions] == [(1, 2), (2, 1)]


def test_configs_are_checked_before_counts() -> None:
    assert refusal(NewTopic("t", 0, 0, configs={"bad": "1"})) == ("INVALID_CONFIG", "unknown bad")
    assert refusal(NewTopic("t", 1, 1, configs={"retention.ms": None})) == (
        "INVALID_CONFIG",
        "Null value not supported for topic configs: retention.ms",
    )


def test_one_refusal_does_not_touch_the_others() -> None:
    results = plan(NewTopic("a", 1, 1), NewTopic("b", 0, 1), NewTopic("c", 1, 1))
    assert [isinstance(result, PlannedTopic) for result in results] == [True, False, True]


def test_the_number_of_partitions_of_a_cluster_is_limited() -> None:
    defaults = TopicDefaults(max_partitions=10)
    results = plan(
        NewTopic("a", 4, 1),
        NewTopic("b", 3, 1),
        NewTopic("c", 2, 1),
        cluster=image({"t": 2}),
        defaults=defaults,
    )
    assert [isinstance(result, PlannedTopic) for result in results] == [True, True, False]
    assert isinstance(results[2], ApiError)
    assert results[2].code is ErrorCode.POLICY_VIOLATION
    assert "max.partitions" in results[2].message


COORDINATORS = ["__consumer_offsets", "__transaction_state"]


@pytest.mark.parametrize("topic", COORDINATORS)
def test_the_topics_of_coordinators_can_be_created_at_the_partition_limit(topic: str) -> None:
    defaults = TopicDefaults(max_partitions=3, offsets_partitions=50, transaction_partitions=50)
    topics = [NewTopic("a", 3), NewTopic("b", 1), NewTopic(topic, 50), NewTopic("c", 1)]
    results = plan(*topics, defaults=defaults)
    assert [isinstance(result, PlannedTopic) for result in results] == [True, False, True, False]
    (too_many,) = plan(NewTopic(topic, 54), defaults=defaults)
    assert isinstance(too_many, ApiError)


def test_the_topics_of_coordinators_do_not_count_for_the_limit_of_partitions() -> None:
    defaults = TopicDefaults(max_partitions=3, offsets_partitions=50, transaction_partitions=40)
    cluster = image({"__consumer_offsets": 50, "__transaction_state": 40})
    (other,) = plan(NewTopic("a", 3), cluster=cluster, defaults=defaults)
    assert isinstance(other, PlannedTopic)
    (other,) = plan(NewTopic("a", 4), cluster=cluster, defaults=defaults)
    assert isinstance(other, ApiError)


def test_a_refused_topic_does_not_count_for_the_limit_of_partitions() -> None:
    defaults = TopicDefaults(max_partitions=3)
    big, small = plan(NewTopic("big", 4, 1), NewTopic("small", 3, 1), defaults=defaults)
    assert isinstance(big, ApiError)
    assert isinstance(small, PlannedTopic)


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (MorePartitions("no", 3), "UNKNOWN_TOPIC_OR_PARTITION", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.text),
        (MorePartitions("t", 2), "INVALID_PARTITIONS", "Topic already has 2 partition(s)."),
        (
            MorePartitions("t", 1),
            "INVALID_PARTITIONS",
            "The topic t currently has 2 partition(s); 1 would not be an increase.",
        ),
        (
            MorePartitions("t", 4, [[1]]),
            "INVALID_REPLICA_ASSIGNMENT",
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            MorePartitions("t", 3, [[9]]),
            "INVALID_REPLICA_ASSIGNMENT",
            f"{INCLUDES} broker 9, but no such broker is registered.",
        ),
        (
            MorePartitions("t", 10_003),
            "POLICY_VIOLATION",
            "Excessively large number of partitions per request.",
        ),
    ],
)
def test_the_partition_count_can_only_grow_within_limits(
    request_: MorePartitions, code: str, text: str
) -> None:
    with pytest.raises(ApiError) as refused:
        plan_more_partitions(request_, image({"t": 2}), defaults=TopicDefaults(), rng=random.Random(0))
    assert (refused.value.code.name, refused.value.message) == (code, text)


def test_new_partitions_follow_the_old_ones_with_the_same_replication_factor() -> None:
    added = plan_more_partitions(
        MorePartitions("t", 4), image({"t": 2}, brokers=3), defaults=TopicDefaults(), rng=random.Random(0)
    )
    assert list(added) == [2, 3]
    assert all(len(state.replicas) == 1 for state in added.values())


def test_growth_counts_against_the_largest_number_of_partitions() -> None:
    with pytest.raises(ApiError) as refused:
        plan_more_partitions(
            MorePartitions("t", 4),
            image({"t": 2}),
            defaults=TopicDefaults(max_partitions=3),
            rng=random.Random(0),
        )
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


def test_ids_are_random_version_four_and_never_look_like_an_option() -> None:
    rng = random.Random(0)
    ids = [random_id(rng) for _ in range(2_000)]
    assert len(set(ids)) == len(ids)
    for raw in ids:
        assert raw[6] >> 4 == 4 and raw[8] >> 6 == 0b10
        assert len(id_text(raw)) == 22 and not id_text(raw).startswith("-")
        assert id_from_text(id_text(raw)) == raw
