"""CreateTopics, DeleteTopics, CreatePartitions: the life of a topic."""

from __future__ import annotations

from typing import Any

from differential.peer import Peer
from differential.scenario import Answers, scenario
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

MADE_UP_ID = bytes(15) + b"\x07"


def _create(
    peer: Peer, version: int, *topics: CreatableTopic, validate_only: bool = False, timeout: int = 10_000
) -> Any:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=timeout, validate_only=validate_only)
    return peer.call(request, version)


def _topic(name: str, partitions: int = 1, replicas: int = 1, **configs: str | None) -> CreatableTopic:
    settings = [
        CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
    ]
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=settings)


def _assigned(
    name: str, *assignments: tuple[int, list[int]], partitions: int = -1, replicas: int = -1
) -> CreatableTopic:
    manual = [CreatableReplicaAssignment(partition_index=i, broker_ids=brokers) for i, brokers in assignments]
    return CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replicas, assignments=manual
    )


@scenario(CreateTopicsRequest)
def creating_good_topics(peer: Peer, version: int) -> Answers:
    name = peer.named("t")
    yield "created", _create(peer, version, _topic(name, 3))
    peer.settle(name, 3)
    yield "exists", _create(peer, version, _topic(name, 3))
    yield "exists, validate only", _create(peer, version, _topic(name, 3), validate_only=True)
    yield "two", _create(peer, version, _topic(peer.named("a")), _topic(peer.named("b"), 2))
    yield (
        "with configs",
        _create(
            peer,
            version,
            _topic(
                peer.named("c"), 1, 1, retention_ms="1000", cleanup_policy="compact", max_message_bytes="5"
            ),
        ),
    )
    yield "null config value", _create(peer, version, _topic(peer.named("d"), 1, 1, retention_ms=None))
    yield "no topics", _create(peer, version)
    yield "no time", _create(peer, version, _topic(peer.named("e")), timeout=0)
    yield "negative time", _create(peer, version, _topic(peer.named("f")), timeout=-1)


@scenario(CreateTopicsRequest)
def validating_only(peer: Peer, version: int) -> Answers:
    name = peer.named("t")
    yield "good", _create(peer, version, _topic(name, 2), validate_only=True)
    yield "again", _create(peer, version, _topic(name, 2), validate_only=True)
    yield "bad", _create(peer, version, _topic(name, 0), validate_only=True)
    yield "not there", peer.metadata(name)


@scenario(CreateTopicsRequest)
def defaults(peer: Peer, version: int) -> Answers:
    for partitions, replicas in ((-1, -1), (-1, 1), (2, -1)):
        name = peer.named(f"t{partitions}{replicas}".replace("-", "m"))
        yield f"{partitions} {replicas}", _create(peer, version, _topic(name, partitions, replicas))


@scenario(CreateTopicsRequest)
def bad_names(peer: Peer, version: int) -> Answers:
    for name in ("", ".", "..", "a b", "a/b", "a\0b", "größe", "x" * 250, "__cluster_metadata"):
        yield f"{name[:20]!r} of {len(name)}", _create(peer, version, _topic(name), validate_only=True)
    dotted, scored = peer.named("a.b"), peer.named("a_b")
    yield "dots", _create(peer, version, _topic(dotted))
    yield "underscores", _create(peer, version, _topic(scored))
    both = peer.named("x.y"), peer.named("x_y")
    yield "both at once", _create(peer, version, *map(_topic, both))


@scenario(CreateTopicsRequest)
def bad_numbers(peer: Peer, version: int) -> Answers:
    for partitions, replicas in (
        (0, 1),
        (-2, 1),
        (1, 0),
        (1, -2),
        (1, 2),
        (1, 32767),
        (0, 0),
        (10_001, 1),
        (2_147_483_647, 1),
    ):
        topic = _topic(peer.named("t"), partitions, replicas)
        yield f"{partitions} {replicas}", _create(peer, version, topic, validate_only=True)


@scenario(CreateTopicsRequest)
def the_same_topic_twice(peer: Peer, version: int) -> Answers:
    name, other = peer.named("t"), peer.named("other")
    yield "twice", _create(peer, version, _topic(name), _topic(other), _topic(name, 2))
    yield "exists", peer.metadata(name).error_code


@scenario(CreateTopicsRequest)
def bad_configs(peer: Peer, version: int) -> Answers:
    configs: dict[str, dict[str, str]] = {
        "unknown": {"no_such_config": "1"},
        "not a number": {"retention_ms": "soon"},
        "out of range": {"retention_ms": "-5"},
        "a wrong word": {"cleanup_policy": "burn"},
        "a word too many": {"cleanup_policy": "compact,burn"},
        "an empty list": {"cleanup_policy": ""},
        "a wrong codec": {"compression_type": "rar"},
        "too large a segment": {"segment_bytes": "99999999999"},
        "too small a segment": {"segment_bytes": "1"},
        "a wrong level": {"compression_gzip_level": "12"},
        "in sync 0": {"min_insync_replicas": "0"},
        "not a boolean": {"preallocate": "perhaps"},
        "a wrong time type": {"message_timestamp_type": "Now"},
        "a ratio above 1": {"min_cleanable_dirty_ratio": "1.5"},
        "an old format": {"message_format_version": "2.0"},
        "max below min lag": {"min_compaction_lag_ms": "10", "max_compaction_lag_ms": "5"},
        "local above whole retention": {"retention_ms": "10", "local_retention_ms": "50"},
    }
    for name, values in configs.items():
        topic = _topic(peer.named("t"), 1, 1, **values)
        yield name, _create(peer, version, topic, validate_only=True)
    twice = _topic(peer.named("t"))
    twice.configs = [CreatableTopicConfig(name="retention.ms", value=v) for v in ("1", "2")]
    yield "twice", _create(peer, version, twice)


@scenario(CreateTopicsRequest)
def manual_assignment(peer: Peer, version: int) -> Answers:
    name = peer.named("t")
    good = {
        "two partitions": _assigned(name, (0, [1]), (1, [1])),
        "in any order": _assigned(name, (1, [1]), (0, [1])),
    }
    bad = {
        "with numbers": _assigned(name, (0, [1]), partitions=1, replicas=1),
        "with partitions only": _assigned(name, (0, [1]), partitions=1),
        "with replicas only": _assigned(name, (0, [1]), replicas=1),
        "a gap": _assigned(name, (0, [1]), (2, [1])),
        "not from 0": _assigned(name, (1, [1])),
        "twice": _assigned(name, (0, [1]), (0, [1])),
        "negative": _assigned(name, (-1, [1])),
        "no brokers": _assigned(name, (0, [])),
        "an unknown broker": _assigned(name, (0, [9])),
        "a broker twice": _assigned(name, (0, [1, 1])),
        "different factors": _assigned(name, (0, [1]), (1, [1, 2])),
    }
    for what, topic in {**bad, **good}.items():
        yield what, _create(peer, version, topic, validate_only=True)
    yield "created", _create(peer, version, good["two partitions"])
    peer.settle(name, 2)
    yield "metadata", peer.metadata(name)


@scenario(CreateTopicsRequest)
def good_beside_bad(peer: Peer, version: int) -> Answers:
    good = peer.named("good")
    yield "both", _create(peer, version, _topic("a/b"), _topic(good), _topic(peer.named("bad"), 0))
    peer.settle(good, 1)
    yield "good", peer.metadata(good)
    yield "bad", peer.metadata(peer.named("bad")).error_code


def _delete(peer: Peer, version: int, *names: str) -> Any:
    request = DeleteTopicsRequest(
        topic_names=list(names), topics=[DeleteTopicState(name=name) for name in names], timeout_ms=10_000
    )
    return peer.call(request, version)


@scenario(DeleteTopicsRequest)
def deleting_by_name(peer: Peer, version: int) -> Answers:
    one, two, three = (peer.topic(name) for name in ("one", "two", "three"))
    yield "one", _delete(peer, version, one)
    yield "one again", _delete(peer, version, one)
    yield "two and unknown", _delete(peer, version, two, peer.named("nobody"))
    yield "twice", _delete(peer, version, three, three)
    yield "three", _delete(peer, version, three)
    yield "nothing", _delete(peer, version)
    yield "an impossible name", _delete(peer, version, "a/b")
    yield "an empty name", _delete(peer, version, "")
    peer.until(lambda: peer.metadata(one).error_code == 3, "the topic to be gone")
    yield "gone", peer.metadata(one)
    yield "fetch", peer.fetch(one, 0, 18, max_wait_ms=0)
    yield "produce", peer.produce(one, peer.batch(), 12)


@scenario(DeleteTopicsRequest, first=6)
def deleting_by_id(peer: Peer, version: int) -> Answers:
    one, two = peer.topic("one"), peer.topic("two")

    def delete(*states: DeleteTopicState) -> Any:
        return peer.call(DeleteTopicsRequest(topics=list(states), timeout_ms=10_000), version)

    by_id = DeleteTopicState(name=None, topic_id=peer.topic_id(one))
    yield "known", delete(by_id)
    yield "again", delete(by_id)
    yield "unknown", delete(DeleteTopicState(name=None, topic_id=MADE_UP_ID))
    yield "neither", delete(DeleteTopicState(name=None))
    yield "both", delete(DeleteTopicState(name=two, topic_id=peer.topic_id(two)))
    two_by_id = DeleteTopicState(name=None, topic_id=peer.topic_id(two))
    yield "once by name, once by id", delete(DeleteTopicState(name=two), two_by_id)
    yield "twice", delete(two_by_id, two_by_id)
    yield "at last", delete(two_by_id)


@scenario(DeleteTopicsRequest)
def a_name_is_free_again(peer: Peer, version: int) -> Answers:
    name = peer.topic("t")
    peer.fill(name, 2)
    stale = peer.topic_id(name)
    yield "deleted", _delete(peer, version, name)
    peer.until(lambda: peer.metadata(name).error_code == 3, "the topic to be gone")
    peer.until(lambda: not _create(peer, 7, _topic(name, 2)).topics[0].error_code, "the name to be free")
    peer.settle(name, 2)
    yield "new id", peer.topic_id(name) != stale
    yield "empty", peer.list_offsets(name, {0: -1, 1: -2}, 7)
    peer.topic_ids["stale"] = stale
    yield "fetch by the old id", peer.fetch("stale", 0, 18, max_wait_ms=0)
    yield "produce by the old id", peer.produce("stale", peer.batch(), 13)


@scenario(CreatePartitionsRequest)
def adding_partitions(peer: Peer, version: int) -> Answers:
    name, other = peer.topic("t"), peer.topic("other")

    def add(*topics: tuple[str, int, list[list[int]] | None], validate_only: bool = False) -> Any:
        wanted = [
            CreatePartitionsTopic(
                name=topic,
                count=count,
                assignments=None
                if assignments is None
                else [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments],
            )
            for topic, count, assignments in topics
        ]
        request = CreatePartitionsRequest(topics=wanted, timeout_ms=10_000, validate_only=validate_only)
        return peer.call(request, version)

    yield "validate only", add((name, 3, None), validate_only=True)
    yield "to 3", add((name, 3, None))
    peer.settle(name, 3)
    yield "metadata", peer.metadata(name)
    yield "to 3 again", add((name, 3, None))
    yield "to 2", add((name, 2, None))
    yield "to 0", add((name, 0, None))
    yield "to -1", add((name, -1, None))
    yield "to very many", add((name, 10_010, None), validate_only=True)
    yield "unknown", add((peer.named("nobody"), 2, None))
    yield "an impossible name", add(("a/b", 2, None))
    yield "twice", add((name, 4, None), (name, 5, None))
    yield "some good, some bad", add((other, 2, None), (name, 1, None), validate_only=True)
    yield "assigned", add((name, 4, [[1]]))
    peer.settle(name, 4)
    yield "assigned to nobody", add((name, 5, [[]]))
    yield "assigned to an unknown broker", add((name, 5, [[7]]))
    yield "a broker twice", add((name, 5, [[1, 1]]))
    yield "too few assignments", add((name, 6, [[1]]))
    yield "too many assignments", add((name, 5, [[1], [1]]))
    yield "no assignments", add((name, 5, []), validate_only=True)
    yield "nothing", add()
