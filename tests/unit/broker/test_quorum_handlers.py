"""DescribeQuorum, UnregisterBroker, UpdateFeatures and ListConfigResources, by one broker and by three."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import ottla.testing
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumRequestPartition,
    QuorumRequestTopic,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.list_config_resources import ListConfigResourcesRequest
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest
from ottla.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process_cluster import InProcessCluster

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with ottla.testing.cluster(3, topics=["t"]) as cluster:
        yield cluster


@pytest.fixture(params=["controller", "another broker"])
def wire(request: pytest.FixtureRequest, cluster: InProcessCluster) -> Iterator[Wire]:
    controller = cluster.controller()
    asked = controller if request.param == "controller" else min({1, 2, 3} - {controller})
    with Wire(cluster[asked].direct_servers) as wire:
        yield wire


def quorum(wire: Wire, *partitions: tuple[str, int], version: int = 2) -> DescribeQuorumResponse:
    topics = [
        QuorumRequestTopic(topic_name=name, partitions=[QuorumRequestPartition(partition_index=index)])
        for name, index in partitions or [("__cluster_metadata", 0)]
    ]
    response: DescribeQuorumResponse = wire.call(DescribeQuorumRequest(topics=topics), version=version)
    return response


def test_the_controller_leads_the_quorum_of_all_brokers(cluster: InProcessCluster, wire: Wire) -> None:
    response = quorum(wire)
    (partition,) = response.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (0, cluster.controller())
    assert partition.leader_epoch == partition.high_watermark >> 32 > 0
    assert [voter.replica_id for voter in partition.current_voters] == [1, 2, 3]
    assert partition.observers == []
    ports = {node.node_id: [each.port for each in node.listeners] for node in response.nodes}
    assert ports == {node: [cluster[node].port] for node in (1, 2, 3)}


def test_all_voters_reach_the_high_watermark(wire: Wire) -> None:
    deadline = time.monotonic() + 30
    while True:
        (partition,) = quorum(wire).topics[0].partitions
        if all(each.log_end_offset == partition.high_watermark for each in partition.current_voters):
            break
        assert time.monotonic() < deadline, partition
    now = time.time() * 1000
    for voter in partition.current_voters:
        assert now - 60_000 < voter.last_caught_up_timestamp <= voter.last_fetch_timestamp <= now + 1000


@pytest.mark.parametrize("version", [0, 1])
def test_older_versions_of_the_quorum_leave_fields_out(wire: Wire, version: int) -> None:
    response = quorum(wire, version=version)
    (partition,) = response.topics[0].partitions
    assert response.nodes == []
    assert all((each.last_fetch_timestamp > 0) == (version >= 1) for each in partition.current_voters)


def test_only_the_partition_of_the_metadata_has_a_quorum(wire: Wire) -> None:
    asked = [[("t", 0)], [("__cluster_metadata", 1)], [("__cluster_metadata", 0), ("t", 0)]]
    for partitions in asked:
        response = quorum(wire, *partitions)
        codes = [each.error_code for topic in response.topics for each in topic.partitions]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * len(partitions)
        assert response.nodes == []
    empty = wire.call(
        DescribeQuorumRequest(topics=[QuorumRequestTopic(topic_name="__cluster_metadata")]), version=2
    )
    assert empty.topics[0].partitions == []


def test_a_running_broker_cannot_be_unregistered(wire: Wire) -> None:
    response = wire.call(UnregisterBrokerRequest(broker_id=3))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert "Stop it" in response.error_message


def test_a_broker_that_is_not_there_is_not_registered(wire: Wire) -> None:
    assert wire.call(UnregisterBrokerRequest(broker_id=9)).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize("version", [0, 1, 2])
def test_features_that_do_not_exist_cannot_be_switched_on(wire: Wire, version: int) -> None:
    update = FeatureUpdateKey(feature="metadata.version", max_version_level=1)
    response = wire.call(UpdateFeaturesRequest(feature_updates=[update]), version=version)
    assert (response.error_code, response.results) == (ErrorCode.INVALID_UPDATE_VERSION, [])
    assert "metadata.version" in response.error_message
    assert wire.call(UpdateFeaturesRequest(), version=version).error_code == 0


def transaction_version(wire: Wire) -> int:
    """As clients are told; 0: it is not switched on."""
    told = wire.call(ApiVersionsRequest(client_software_name="x", client_software_version="1"))
    (supported,) = told.supported_features
    assert (supported.name, supported.min_version, supported.max_version) == ("transaction.version", 0, 2)
    assert told.finalized_features_epoch > 0
    return next((each.max_version_level for each in told.finalized_features), 0)


def test_the_level_of_a_feature_is_lowered_only_as_a_downgrade(wire: Wire) -> None:
    def update(level: int, kind: int = 1, *, validate_only: bool = False) -> int:
        wanted = FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=kind)
        request = UpdateFeaturesRequest(feature_updates=[wanted], validate_only=validate_only)
        return int(wire.call(request, version=2).error_code)

    upgrade, downgrade = 1, 2
    assert transaction_version(wire) == 2
    assert update(1, upgrade) == ErrorCode.INVALID_UPDATE_VERSION
    assert update(3, upgrade) == ErrorCode.INVALID_UPDATE_VERSION
    assert update(1, 9) == ErrorCode.INVALID_UPDATE_VERSION
    assert update(0, downgrade, validate_only=True) == 0
    assert transaction_version(wire) == 2
    assert update(0, downgrade) == 0
    assert transaction_version(wire) == 0
    assert update(2, downgrade) == ErrorCode.INVALID_UPDATE_VERSION
    assert update(2, upgrade) == 0
    assert transaction_version(wire) == 2


def test_clients_that_cannot_read_features_from_level_0_on_are_not_told_what_is_supported(
    wire: Wire,
) -> None:
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    told = wire.call(request, version=3)
    assert told.supported_features == []
    assert [each.name for each in told.finalized_features] == ["transaction.version"]


def resources(wire: Wire, *kinds: int) -> list[tuple[int, str]]:
    response = wire.call(ListConfigResourcesRequest(resource_types=list(kinds)), version=1)
    assert response.error_code == 0
    return [(each.resource_type, each.resource_name) for each in response.config_resources]


def test_topics_brokers_and_configured_groups_are_listed(wire: Wire) -> None:
    setting = AlterableConfig(name="consumer.session.timeout.ms", value="50000")
    group = AlterConfigsResource(resource_type=GROUP, resource_name="g", configs=[setting])
    wire.call(IncrementalAlterConfigsRequest(resources=[group]))
    nodes = ["1", "2", "3"]
    assert resources(wire, TOPIC) == [(TOPIC, "t")]
    assert resources(wire, BROKER) == [(BROKER, node) for node in nodes]
    assert resources(wire, GROUP) == [(GROUP, "g")]
    assert resources(wire, CLIENT_METRICS) == []
    assert {kind for kind, _ in resources(wire)} == {TOPIC, BROKER, LOGGER, GROUP}


def test_version_0_lists_client_metrics_of_which_there_are_none(wire: Wire) -> None:
    response = wire.call(ListConfigResourcesRequest(), version=0)
    assert (response.error_code, response.config_resources) == (0, [])


@pytest.mark.parametrize("kinds", [[1], [TOPIC, 99]])
def test_resource_types_that_do_not_exist_are_refused(wire: Wire, kinds: list[int]) -> None:
    response = wire.call(ListConfigResourcesRequest(resource_types=kinds), version=1)
    assert (response.error_code, response.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])
