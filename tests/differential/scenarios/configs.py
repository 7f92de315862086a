"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: what is set, from where, and what may be set."""

from __future__ import annotations

from typing import Any

from differential.peer import Peer
from differential.scenario import Answers, scenario
from ottla.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig as IncrementalConfig,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from ottla.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.list_config_resources import ListConfigResourcesRequest

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def _describe(
    peer: Peer,
    version: int,
    name: str,
    keys: list[str] | None = None,
    kind: int = TOPIC,
    synonyms: bool = False,
    documentation: bool = False,
) -> Any:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=synonyms, include_documentation=documentation
    )
    return peer.call(request, version)


@scenario(DescribeConfigsRequest)
def a_topic(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", configs={"retention.ms": "12345", "cleanup.policy": "compact,delete"})
    yield "all", _describe(peer, version, topic)
    yield "with synonyms", _describe(peer, version, topic, synonyms=True)
    yield "some", _describe(peer, version, topic, ["retention.ms", "segment.bytes", "no.such.key"])
    yield "no keys", _describe(peer, version, topic, [])
    yield (
        "with documentation",
        _documented(_describe(peer, version, topic, ["retention.ms"], documentation=True)),
    )


def _documented(answer: Any) -> Any:
    """Whether each config says what it is for; the words are each broker's own."""
    return [(config.name, bool(config.documentation)) for config in answer.results[0].configs]


@scenario(DescribeConfigsRequest)
def a_broker(peer: Peer, version: int) -> Answers:
    keys = ["message.max.bytes", "log.retention.hours", "log.retention.ms", "node.id", "log.cleanup.policy"]
    yield "all", _describe(peer, version, "1", kind=BROKER)
    yield "with synonyms", _describe(peer, version, "1", keys, kind=BROKER, synonyms=True)
    yield "the default of all brokers", _describe(peer, version, "", kind=BROKER)
    yield "another broker", _describe(peer, version, "2", keys, kind=BROKER)
    yield "not a number", _describe(peer, version, "one", keys, kind=BROKER)


@scenario(DescribeConfigsRequest)
def unknown_resources(peer: Peer, version: int) -> Answers:
    yield "topic", _describe(peer, version, peer.named("nobody"))
    yield "an impossible topic", _describe(peer, version, "a/b")
    yield "an empty topic", _describe(peer, version, "")
    for kind in (0, 1, 3, 127, -1):
        yield f"kind {kind}", _describe(peer, version, "1", kind=kind)
    yield "nothing", peer.call(DescribeConfigsRequest(resources=[]), version)
    topic = peer.topic("t")
    twice = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=["retention.ms"])
    ] * 2
    yield "twice", peer.call(DescribeConfigsRequest(resources=twice), version)


def _alter(
    peer: Peer,
    version: int,
    name: str,
    configs: dict[str, str | None],
    kind: int = TOPIC,
    validate_only: bool = False,
) -> Any:
    resource = AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterableConfig(name=key, value=value) for key, value in configs.items()],
    )
    return peer.call(AlterConfigsRequest(resources=[resource], validate_only=validate_only), version)


def _set_configs(peer: Peer, topic: str) -> dict[str, Any]:
    """The configs that a topic does not have from elsewhere."""
    results = _describe(peer, 4, topic).results[0]
    return {config.name: config.value for config in results.configs if config.config_source == 1}


def _set_to(peer: Peer, topic: str, expected: dict[str, str]) -> dict[str, Any]:
    """What is set, once it is as expected: Kafka's broker applies it a moment after the answer."""
    peer.until(lambda: _set_configs(peer, topic) == expected, f"configs of {topic} to be {expected}")
    return _set_configs(peer, topic)


@scenario(AlterConfigsRequest)
def altering_a_topic(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", configs={"segment.ms": "7777"})
    yield "validate only", _alter(peer, version, topic, {"retention.ms": "5"}, validate_only=True)
    yield "still", _set_configs(peer, topic)
    yield "replaced", _alter(peer, version, topic, {"retention.ms": "5", "max.message.bytes": "99"})
    yield "now", _set_to(peer, topic, {"retention.ms": "5", "max.message.bytes": "99"})
    yield "unknown key", _alter(peer, version, topic, {"no.such.key": "5"})
    yield "bad value", _alter(peer, version, topic, {"retention.ms": "soon"})
    yield "null value", _alter(peer, version, topic, {"retention.ms": None})
    yield "cleared", _alter(peer, version, topic, {})
    yield "then", _set_to(peer, topic, {})


@scenario(AlterConfigsRequest)
def altering_what_is_not_there(peer: Peer, version: int) -> Answers:
    yield "topic", _alter(peer, version, peer.named("nobody"), {"retention.ms": "5"})
    yield "an empty topic", _alter(peer, version, "", {"retention.ms": "5"})
    yield "an impossible topic", _alter(peer, version, "a/b", {"retention.ms": "5"})
    yield "another broker", _alter(peer, version, "7", {"log.retention.ms": "5"}, kind=BROKER)
    yield "not a broker", _alter(peer, version, "one", {"log.retention.ms": "5"}, kind=BROKER)
    yield "read-only", _alter(peer, version, "1", {"node.id": "5"}, kind=BROKER)
    for kind in (0, 1, 127):
        yield f"kind {kind}", _alter(peer, version, "1", {"retention.ms": "5"}, kind=kind)
    yield "nothing", peer.call(AlterConfigsRequest(resources=[]), version)
    topic = peer.topic("t")
    resource = AlterConfigsResource(
        resource_type=TOPIC, resource_name=topic, configs=[AlterableConfig(name="retention.ms", value="5")]
    )
    yield "twice", peer.call_or_silence(AlterConfigsRequest(resources=[resource, resource]), version)
    same = AlterConfigsResource(
        resource_type=TOPIC,
        resource_name=topic,
        configs=[AlterableConfig(name="retention.ms", value=v) for v in "56"],
    )
    yield "a key twice", peer.call(AlterConfigsRequest(resources=[same]), version)


def _increment(
    peer: Peer,
    version: int,
    name: str,
    *changes: tuple[str, int, str | None],
    kind: int = TOPIC,
    validate_only: bool = False,
) -> Any:
    resource = IncrementalResource(
        resource_type=kind,
        resource_name=name,
        configs=[IncrementalConfig(name=k, config_operation=o, value=v) for k, o, v in changes],
    )
    return peer.call(
        IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only), version
    )


@scenario(IncrementalAlterConfigsRequest)
def changing_a_topic(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", configs={"segment.ms": "7777"})

    def change(*changes: tuple[str, int, str | None], validate_only: bool = False) -> Any:
        return _increment(peer, version, topic, *changes, validate_only=validate_only)

    yield "validate only", change(("retention.ms", SET, "5"), validate_only=True)
    yield "set", change(("retention.ms", SET, "5"))
    yield "is set", _set_to(peer, topic, {"segment.ms": "7777", "retention.ms": "5"})
    yield "deleted", change(("retention.ms", DELETE, None))
    yield "is deleted", _set_to(peer, topic, {"segment.ms": "7777"})
    yield "deleted again", change(("retention.ms", DELETE, None))
    yield "deleted with a value", change(("segment.ms", DELETE, "9"))
    yield "appended", change(("cleanup.policy", APPEND, "compact"))
    yield "is appended", _set_to(peer, topic, {"cleanup.policy": "delete,compact"})
    yield "appended again", change(("cleanup.policy", APPEND, "compact"))
    yield "subtracted", change(("cleanup.policy", SUBTRACT, "delete"))
    yield "is subtracted", _set_to(peer, topic, {"cleanup.policy": "compact"})
    yield "subtracted what is not there", change(("cleanup.policy", SUBTRACT, "delete"))
    yield "subtracted the last", change(("cleanup.policy", SUBTRACT, "compact"))
    yield "appended to a number", change(("retention.ms", APPEND, "5"))
    yield "subtracted from a number", change(("retention.ms", SUBTRACT, "5"))
    yield "an unknown operation", change(("retention.ms", 4, "5"))
    yield "a negative operation", change(("retention.ms", -1, "5"))
    yield "unknown key", change(("no.such.key", SET, "5"))
    yield "unknown key deleted", change(("no.such.key", DELETE, None))
    yield "bad value", change(("retention.ms", SET, "soon"))
    yield "null value", change(("retention.ms", SET, None))
    yield "null appended", change(("cleanup.policy", APPEND, None))
    yield "a key twice", change(("retention.ms", SET, "5"), ("retention.ms", SET, "6"))
    yield "one good, one bad", change(("retention.ms", SET, "5"), ("segment.bytes", SET, "x"))
    yield "no changes", change()


@scenario(IncrementalAlterConfigsRequest)
def changing_what_is_not_there(peer: Peer, version: int) -> Answers:
    yield "topic", _increment(peer, version, peer.named("nobody"), ("retention.ms", SET, "5"))
    yield "an empty topic", _increment(peer, version, "", ("retention.ms", SET, "5"))
    yield "an impossible topic", _increment(peer, version, "a/b", ("retention.ms", SET, "5"))
    for kind in (0, 1, 127):
        yield f"kind {kind}", _increment(peer, version, "1", ("retention.ms", SET, "5"), kind=kind)
    yield "another broker", _increment(peer, version, "7", ("log.retention.ms", SET, "5"), kind=BROKER)
    yield "not a broker", _increment(peer, version, "one", ("log.retention.ms", SET, "5"), kind=BROKER)
    yield "read-only", _increment(peer, version, "1", ("node.id", SET, "5"), kind=BROKER)
    yield (
        "an unknown key of a broker",
        _increment(peer, version, "1", ("no.such.key", SET, "5"), kind=BROKER, validate_only=True),
    )
    yield "nothing", peer.call(IncrementalAlterConfigsRequest(resources=[]), version)
    topic = peer.topic("t")
    resource = IncrementalResource(
        resource_type=TOPIC, resource_name=topic, configs=[IncrementalConfig(name="retention.ms", value="5")]
    )
    yield "twice", peer.call(IncrementalAlterConfigsRequest(resources=[resource, resource]), version)


@scenario(IncrementalAlterConfigsRequest)
def changing_a_broker(peer: Peer, version: int) -> Answers:
    """Dynamic broker configs, per broker and for all, put back at the end."""
    key = "log.flush.interval.messages"

    def seen() -> list[tuple[Any, ...]]:
        config = _describe(peer, 4, "1", [key], kind=BROKER, synonyms=True).results[0].configs[0]
        return [(config.value, config.config_source, [(s.name, s.value, s.source) for s in config.synonyms])]

    yield "before", seen()
    yield "for all", _increment(peer, version, "", (key, SET, "1000001"), kind=BROKER)
    peer.until(lambda: seen()[0][0] == "1000001", "the default of all brokers to be seen")
    yield "seen", seen()
    yield "for one", _increment(peer, version, "1", (key, SET, "1000002"), kind=BROKER)
    peer.until(lambda: seen()[0][0] == "1000002", "the broker's own value to be seen")
    yield "own value seen", seen()
    topic = peer.topic("t")
    yield "a topic inherits", _describe(peer, 4, topic, ["flush.messages"], synonyms=True)
    yield "bad value", _increment(peer, version, "1", (key, SET, "many"), kind=BROKER)
    yield "bad value for all", _increment(peer, version, "", (key, SET, "many"), kind=BROKER)
    yield "deleted for one", _increment(peer, version, "1", (key, DELETE, None), kind=BROKER)
    peer.until(lambda: seen()[0][0] == "1000001", "the broker's own value to be gone")
    yield "deleted for all", _increment(peer, version, "", (key, DELETE, None), kind=BROKER)
    peer.until(lambda: seen()[0][0] not in ("1000001", "1000002"), "the default to be gone")
    yield "after", seen()


@scenario(IncrementalAlterConfigsRequest)
def a_change_takes_effect(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")

    def produced(size: int) -> Any:
        return peer.produce(topic, peer.batch(1, size=size), 9).responses[0].partition_responses[0]

    yield "before", produced(2000)
    yield "set", _increment(peer, version, topic, ("max.message.bytes", SET, "1000"))
    peer.until(lambda: produced(2000).error_code == 10, "the new limit to hold")
    yield "after", produced(2000)
    yield "stamping", _increment(peer, version, topic, ("message.timestamp.type", SET, "LogAppendTime"))
    peer.until(lambda: produced(10).log_append_time_ms > 0, "the broker to stamp the time")


@scenario(ListConfigResourcesRequest)
def listing_resources(peer: Peer, version: int) -> Answers:
    name = peer.topic("listed")

    def ask(*kinds: int) -> Any:
        answer = peer.call(ListConfigResourcesRequest(resource_types=list(kinds)), version)
        of_others = [
            each
            for each in answer.config_resources
            if each.resource_type in (2, 32) and each.resource_name != name
        ]
        answer.config_resources = [each for each in answer.config_resources if each not in of_others]
        return answer

    yield "all", ask()
    if version >= 1:
        for kind in (2, 4, 8, 16, 32, 1, 99, -1):
            yield f"type {kind}", ask(kind)
        yield "two types", ask(8, 4)
        yield "a type twice", ask(2, 2)
        yield "one that does not exist", ask(2, 3)
