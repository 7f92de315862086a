"""What we speak: one handler file per request family, and the table from API key to function.

A handler takes what it uses of the broker as a small protocol. `HandlerPorts` is all of them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ottla.broker.dispatch import Handler
from ottla.broker.fetch_attempt import RecordReading
from ottla.broker.handlers.acls import create_acls, delete_acls, describe_acls
from ottla.broker.handlers.api_versions import Advertising, api_versions
from ottla.broker.handlers.config_resources import list_config_resources
from ottla.broker.handlers.configs import describe_configs
from ottla.broker.handlers.consumer_groups import (
    ConsumerGroupAccess,
    consumer_group_describe,
    consumer_group_heartbeat,
)
from ottla.broker.handlers.controller_requests import (
    ControllerRequests,
    allocate_producer_ids,
    alter_partition,
    begin_shutdown,
    fetch_image,
    forward,
    report_disk,
)
from ottla.broker.handlers.delete_records import RecordDeletion, delete_records
from ottla.broker.handlers.describe_producers import describe_producers
from ottla.broker.handlers.explain import explain_group
from ottla.broker.handlers.fetch import fetch
from ottla.broker.handlers.find_coordinator import CoordinatorLookup, find_coordinator
from ottla.broker.handlers.forwarding import FORWARDED
from ottla.broker.handlers.group_admin import delete_groups, describe_groups, list_groups
from ottla.broker.handlers.group_offsets import GroupOffsetAccess, offset_commit, offset_delete, offset_fetch
from ottla.broker.handlers.groups import GroupMembership, heartbeat, join_group, leave_group, sync_group
from ottla.broker.handlers.log_dirs import LogDirAccess, describe_log_dirs
from ottla.broker.handlers.log_state import LogStateAccess, compact_logs, describe_log_state
from ottla.broker.handlers.metadata import (
    ClusterDescription,
    describe_cluster,
    describe_topic_partitions,
    metadata,
)
from ottla.broker.handlers.offsets import OffsetLookup, list_offsets, offset_for_leader_epoch
from ottla.broker.handlers.produce import produce
from ottla.broker.handlers.producer_ids import ProducerIdAllocation, init_producer_id
from ottla.broker.handlers.transaction_admin import (
    TransactionDescription,
    describe_transactions,
    list_transactions,
)
from ottla.broker.handlers.transactions import (
    TransactionRequests,
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
)
from ottla.broker.handlers.txn_offset_commit import TransactionalOffsets, txn_offset_commit
from ottla.broker.handlers.write_txn_markers import write_txn_markers
from ottla.broker.marker_writing import MarkerWriting
from ottla.broker.producing import RecordWriting
from ottla.cluster import features
from ottla.cluster.image import ClusterImage
from ottla.protocol.apis import APIS
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)


class HandlerPorts(
    Advertising,
    ClusterDescription,
    ConsumerGroupAccess,
    ControllerRequests,
    CoordinatorLookup,
    GroupMembership,
    GroupOffsetAccess,
    LogDirAccess,
    LogStateAccess,
    MarkerWriting,
    OffsetLookup,
    ProducerIdAllocation,
    RecordDeletion,
    RecordReading,
    RecordWriting,
    TransactionalOffsets,
    TransactionDescription,
    TransactionRequests,
    Protocol,
):
    """What the handlers use of the broker."""


HANDLERS: dict[int, Handler[HandlerPorts]] = {
    0: produce,
    1: fetch,
    2: list_offsets,
    3: metadata,
    8: offset_commit,
    9: offset_fetch,
    10: find_coordinator,
    11: join_group,
    12: heartbeat,
    13: leave_group,
    14: sync_group,
    15: describe_groups,
    16: list_groups,
    18: api_versions,
    21: delete_records,
    22: init_producer_id,
    23: offset_for_leader_epoch,
    24: add_partitions_to_txn,
    25: add_offsets_to_txn,
    26: end_txn,
    27: write_txn_markers,
    28: txn_offset_commit,
    29: describe_acls,
    30: create_acls,
    31: delete_acls,
    32: describe_configs,
    35: describe_log_dirs,
    42: delete_groups,
    47: offset_delete,
    60: describe_cluster,
    61: describe_producers,
    65: describe_transactions,
    66: list_transactions,
    68: consumer_group_heartbeat,
    69: consumer_group_describe,
    74: list_config_resources,
    75: describe_topic_partitions,
    1000: describe_log_state,
    1001: compact_logs,
    1002: explain_group,
    **FORWARDED,
}


BROKER_HANDLERS: dict[int, Handler[HandlerPorts]] = {
    56: alter_partition,
    67: allocate_producer_ids,
    1100: fetch_image,
    1101: forward,
    1102: begin_shutdown,
    1103: report_disk,
}
"""What brokers ask of each other, on the listener for other brokers only."""


def advertised_by(handlers: Mapping[int, object], image: ClusterImage) -> ApiVersionsResponse:
    """The answer to ApiVersions: exactly what has a handler, and the features of the cluster."""
    return ApiVersionsResponse(
        supported_features=[
            SupportedFeatureKey(name=name, min_version=levels.lowest, max_version=levels.highest)
            for name, levels in features.SUPPORTED.items()
        ],
        finalized_features_epoch=image.version,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in features.finalized(image).items()
        ],
        api_keys=[
            ApiVersion(api_key=key, min_version=APIS[key].advertised_min, max_version=APIS[key].max_version)
            for key in sorted(handlers)
        ],
    )
