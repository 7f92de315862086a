"""Brokers of one cluster know the same topics and settings, whichever of them a client asks for a change."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster.brokers import Cluster, until
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

TOPIC, BROKER, LOGGER = 2, 4, 8


async def test_a_topic_created_through_any_broker_is_known_to_all(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        for through in (1, 2, 3):
            name = f"topic-{through}"
            await cluster.create_topic(through, name, partitions=6)
            described = await cluster.topic(through, name)  # at once, at the broker that was asked
            leaders = [partition.leader_id for partition in described.partitions]
            assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
            for index, leader in enumerate(leaders):  # at once, at the leaders of its partitions
                assert cluster.brokers[leader].replicas.leader(name, index)
        await cluster.settled()
        for broker in cluster.brokers.values():
            assert set(broker.image.topics) == {"topic-1", "topic-2", "topic-3"}


async def test_topics_grow_and_go_through_any_broker(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2)
        await cluster.settled()
        (other,) = cluster.others
        await cluster.create_topic(other, "t", partitions=1)
        more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=4, assignments=None)])
        (grown,) = (await cluster.call(other, more)).results
        assert not grown.error_code
        assert len((await cluster.topic(other, "t")).partitions) == 4
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
        (deleted,) = (await cluster.call(other, gone)).responses
        assert not deleted.error_code
        assert (await cluster.topic(other, "t")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await until(lambda: all(not broker.directory.logs for broker in cluster.brokers.values()))


async def test_each_item_of_a_forwarded_request_is_answered_for_itself(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2)
        await cluster.settled()
        (other,) = cluster.others
        await cluster.create_topic(other, "t")
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="t"), DeleteTopicState(name="unknown")])
        answers = {each.name: each for each in (await cluster.call(other, gone)).responses}
        assert not answers["t"].error_code
        assert answers["unknown"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _setting(kind: int, name: str, key: str, value: str) -> AlterConfigsResource:
    config = AlterableConfig(name=key, config_operation=0, value=value)
    return AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])


async def test_settings_changed_through_any_broker_take_effect_on_all(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2)
        await cluster.settled()
        (other,) = cluster.others
        await cluster.create_topic(other, "t", partitions=2)
        request = IncrementalAlterConfigsRequest(
            resources=[
                _setting(TOPIC, "t", "max.message.bytes", "1234"),
                _setting(BROKER, "", "message.max.bytes", "2345678"),
            ]
        )
        answers = (await cluster.call(other, request)).responses
        assert [each.error_code for each in answers] == [0, 0]
        assert cluster.brokers[other].config["message.max.bytes"] == 2345678  # at once where it was asked for
        await cluster.settled()
        for broker in cluster.brokers.values():
            assert broker.config["message.max.bytes"] == 2345678
            assert broker.image.config(TOPIC, "t") == {"max.message.bytes": "1234"}


async def test_a_broker_that_is_not_the_controller_takes_settings_of_its_own(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2)
        await cluster.settled()
        (other,) = cluster.others
        request = IncrementalAlterConfigsRequest(
            resources=[
                _setting(LOGGER, str(other), "ottla.unheard", "DEBUG"),
                _setting(BROKER, str(other), "message.max.bytes", "2345678"),
                _setting(BROKER, str(cluster.controller), "message.max.bytes", "3456789"),
            ]
        )
        answers = (await cluster.call(other, request)).responses
        assert [each.resource_type for each in answers] == [LOGGER, BROKER, BROKER]
        assert [each.error_code for each in answers][1:] == [0, ErrorCode.INVALID_REQUEST]
        assert cluster.brokers[other].config["message.max.bytes"] == 2345678
        assert cluster.brokers[cluster.controller].config["message.max.bytes"] != 2345678


async def test_producer_ids_of_all_brokers_differ(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await cluster.start(1, 2, 3)
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        calls = [cluster.call(broker, request) for broker in (1, 2, 3) for _ in range(50)]
        answers = await asyncio.gather(*calls)
        assert {answer.error_code for answer in answers} == {0}
        assert len({answer.producer_id for answer in answers}) == 150


async def test_clients_find_coordinators_through_any_broker(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings={"offsets.topic.num.partitions": 6}) as cluster:
        await cluster.start(1, 2, 3)
        await cluster.settled()
        keys = [f"group-{number}" for number in range(30)]
        found = {}
        for broker in (*cluster.others, cluster.controller):
            answer = await cluster.call(broker, FindCoordinatorRequest(key_type=0, coordinator_keys=keys))
            assert {each.error_code for each in answer.coordinators} == {0}
            found[broker] = [(each.node_id, each.port) for each in answer.coordinators]
        assert found[1] == found[2] == found[3]
        assert {node for node, _ in found[1]} == {1, 2, 3}
        for node, port in found[1]:
            assert port == cluster.brokers[node].endpoints[0].port


async def test_a_topic_is_created_by_asking_any_broker_for_it(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings={"num.partitions": 4}) as cluster:
        await cluster.start(1, 2)
        await cluster.settled()
        (other,) = cluster.others
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True)
        (topic,) = (await cluster.call(other, request)).topics
        assert not topic.error_code
        assert len(topic.partitions) == 4


async def test_groups_have_a_coordinator_when_enough_brokers_are_there_for_its_topic(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings={"offsets.topic.replication.factor": 2}) as cluster:
        await cluster.start(1)
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
        (found,) = (await cluster.call(1, request)).coordinators
        assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        assert "__consumer_offsets" not in cluster.brokers[1].image.topics
        await cluster.start(2)
        await cluster.settled()
        (found,) = (await cluster.call(2, request)).coordinators
        assert not found.error_code
        topic = cluster.brokers[2].image.topics["__consumer_offsets"]
        assert {len(state.replicas) for state in topic.partitions} == {2}
