"""The table against Apache Kafka 4.3.1 itself: a fresh broker is asked for all its keys and what they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))  # for bench, which carries Apache Kafka

from bench.peers.kafka import kafka_peer

from ottla.config.keys import ConfigKey, Mode, show
from ottla.config.table import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol_client.wire import Wire

pytestmark = pytest.mark.slow

DEFAULT = 5
OWN_KEYS = {name for name, key in BROKER_KEYS.items() if key.doc.endswith("Ottla's own key.")}
OWN_DEFAULTS = {
    "node.id",
    "log.dir",
    "max.connections",
    "max.connections.per.ip",
    "queued.max.request.bytes",
    "socket.listen.backlog.size",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[Wire]:
    with kafka_peer() as peer, Wire(peer.bootstrap) as wire:
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        assert wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000)).topics[0].error_code == 0
        yield wire


def keys_of(kafka: Wire, kind: int, name: str) -> dict[str, Any]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = kafka.call(request).results
    assert result.error_code == 0
    return {config.name: config for config in result.configs}


def listed(keys: dict[str, ConfigKey]) -> dict[str, ConfigKey]:
    return {name: key for name, key in keys.items() if not key.internal}


def test_topic_keys_are_kafkas(kafka: Wire) -> None:
    theirs, ours = keys_of(kafka, 2, "t"), listed(dict(TOPIC_KEYS))
    assert set(theirs) == set(ours)
    for name, key in ours.items():
        assert (name, theirs[name].config_type) == (name, key.type)
        if theirs[name].config_source == DEFAULT:
            assert (name, theirs[name].value) == (name, show(key.default))


def test_broker_keys_are_kafkas_and_our_own(kafka: Wire) -> None:
    theirs, ours = keys_of(kafka, 4, "1"), listed(dict(BROKER_KEYS))
    assert set(ours) - set(theirs) == OWN_KEYS
    assert set(theirs) - set(ours) == set()
    for name, config in theirs.items():
        key = ours[name]
        assert (name, config.config_type) == (name, key.type)
        assert (name, config.read_only) == (name, key.mode is Mode.READ_ONLY)
        assert (name, config.is_sensitive) == (name, key.sensitive)
        defaults = [s.value for s in config.synonyms if s.name == name and s.source == DEFAULT]
        if name not in OWN_DEFAULTS:
            assert (name, defaults) == (name, [] if key.default is None else [show(key.default)])


def test_group_keys_are_kafkas(kafka: Wire) -> None:
    theirs = keys_of(kafka, 32, "g")
    assert set(theirs) == set(GROUP_KEYS)
    for name, key in GROUP_KEYS.items():
        assert (name, theirs[name].config_type) == (name, key.type)
        assert (name, theirs[name].value) == (name, show(key.default))
        names = [s.name for s in theirs[name].synonyms]
        assert (name, names) == (name, [s.name for s in key.synonyms] or [name])
