"""The table of APIs: each request with its response, its versions and where it becomes flexible.

`APIS` holds what we can read and write. Which of them a broker answers is the broker's business: it
advertises the ones it has handlers for.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.begin_shutdown import BeginShutdownRequest, BeginShutdownResponse
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from ottla.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from ottla.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from ottla.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.explain_group import ExplainGroupRequest, ExplainGroupResponse
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.fetch_image import FetchImageRequest, FetchImageResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.forward import ForwardRequest, ForwardResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from ottla.protocol.messages.log_state import (
    CompactLogsRequest,
    CompactLogsResponse,
    DescribeLogStateRequest,
    DescribeLogStateResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.messages.report_disk import ReportDiskRequest, ReportDiskResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from ottla.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from ottla.protocol.schema import NO_VERSIONS, Request, Response

PRODUCE = 0
FETCH = 1
API_VERSIONS = 18
FIRST_OWN = 1000  # from here on API keys are ours, not Kafka's

_NEVER = 32767


class Api(NamedTuple):
    """One API. `advertised_min` may lie below what is implemented; see Produce."""

    key: int
    name: str
    request: type[Request]
    response: type[Response]
    min_version: int
    max_version: int
    advertised_min: int
    flexible_from: int

    def response_header_version(self, version: int) -> int:
        """1 has tagged fields. The response to ApiVersions never has, because its reader cannot know yet."""
        return 1 if version >= self.flexible_from and self.key != API_VERSIONS else 0

    def common_version(self, offered: tuple[int, int], at_most: int | None = None) -> int | None:
        """The highest version, up to `at_most`, that we and a peer that offers this range speak; None if
        there is none."""
        ours = self.max_version if at_most is None else min(self.max_version, at_most)
        version = min(ours, offered[1])
        return version if version >= max(self.min_version, offered[0]) else None


def _api(request: type[Request], response: type[Response]) -> Api:
    return Api(
        key=request.api_key,
        name=request.__name__.removesuffix("Request"),
        request=request,
        response=response,
        min_version=request.versions.first,
        max_version=request.versions.last,
        # Old librdkafka looks for Produce 0 to decide about compression, so Kafka shows it without having it.
        advertised_min=0 if request.api_key == PRODUCE else request.versions.first,
        flexible_from=_NEVER if request.flexible == NO_VERSIONS else request.flexible.first,
    )


_ALL = (
    _api(ProduceRequest, ProduceResponse),
    _api(FetchRequest, FetchResponse),
    _api(ListOffsetsRequest, ListOffsetsResponse),
    _api(MetadataRequest, MetadataResponse),
    _api(OffsetCommitRequest, OffsetCommitResponse),
    _api(OffsetFetchRequest, OffsetFetchResponse),
    _api(FindCoordinatorRequest, FindCoordinatorResponse),
    _api(JoinGroupRequest, JoinGroupResponse),
    _api(HeartbeatRequest, HeartbeatResponse),
    _api(LeaveGroupRequest, LeaveGroupResponse),
    _api(SyncGroupRequest, SyncGroupResponse),
    _api(DescribeGroupsRequest, DescribeGroupsResponse),
    _api(ListGroupsRequest, ListGroupsResponse),
    _api(ApiVersionsRequest, ApiVersionsResponse),
    _api(CreateTopicsRequest, CreateTopicsResponse),
    _api(DeleteTopicsRequest, DeleteTopicsResponse),
    _api(DeleteRecordsRequest, DeleteRecordsResponse),
    _api(InitProducerIdRequest, InitProducerIdResponse),
    _api(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    _api(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
    _api(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
    _api(EndTxnRequest, EndTxnResponse),
    _api(WriteTxnMarkersRequest, WriteTxnMarkersResponse),
    _api(TxnOffsetCommitRequest, TxnOffsetCommitResponse),
    _api(DescribeAclsRequest, DescribeAclsResponse),
    _api(CreateAclsRequest, CreateAclsResponse),
    _api(DeleteAclsRequest, DeleteAclsResponse),
    _api(DescribeConfigsRequest, DescribeConfigsResponse),
    _api(AlterConfigsRequest, AlterConfigsResponse),
    _api(DescribeLogDirsRequest, DescribeLogDirsResponse),
    _api(CreatePartitionsRequest, CreatePartitionsResponse),
    _api(DeleteGroupsRequest, DeleteGroupsResponse),
    _api(ElectLeadersRequest, ElectLeadersResponse),
    _api(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
    _api(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse),
    _api(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse),
    _api(OffsetDeleteRequest, OffsetDeleteResponse),
    _api(DescribeQuorumRequest, DescribeQuorumResponse),
    _api(AlterPartitionRequest, AlterPartitionResponse),
    _api(UpdateFeaturesRequest, UpdateFeaturesResponse),
    _api(DescribeClusterRequest, DescribeClusterResponse),
    _api(DescribeProducersRequest, DescribeProducersResponse),
    _api(UnregisterBrokerRequest, UnregisterBrokerResponse),
    _api(DescribeTransactionsRequest, DescribeTransactionsResponse),
    _api(ListTransactionsRequest, ListTransactionsResponse),
    _api(AllocateProducerIdsRequest, AllocateProducerIdsResponse),
    _api(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    _api(ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    _api(ListConfigResourcesRequest, ListConfigResourcesResponse),
    _api(DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
    _api(DescribeLogStateRequest, DescribeLogStateResponse),
    _api(CompactLogsRequest, CompactLogsResponse),
    _api(ExplainGroupRequest, ExplainGroupResponse),
    _api(FetchImageRequest, FetchImageResponse),
    _api(ForwardRequest, ForwardResponse),
    _api(BeginShutdownRequest, BeginShutdownResponse),
    _api(ReportDiskRequest, ReportDiskResponse),
)

APIS: dict[int, Api] = {api.key: api for api in _ALL}
