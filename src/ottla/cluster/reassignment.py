"""Which replicas a partition may get: more of them, or the same in another order. Pure.

A reassignment is under way while not all of the replicas that it added are in sync (`PartitionState.adding`).
Replicas are never taken away here, so it cannot be cancelled either.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.cluster.image import ClusterImage, PartitionState
from ottla.cluster.partition_rules import with_replicas
from ottla.protocol.errors import ApiError, ErrorCode


class Reassignment(NamedTuple):
    topic: str
    partition: int
    replicas: tuple[int, ...] | None
    """None: cancel the reassignment that is under way."""


def reassigned(
    wanted: Reassignment, image: ClusterImage, *, min_isr: int, same_factor: bool
) -> PartitionState:
    """The state with the replicas that are wanted; the same object if it has them. ApiError says why not."""
    state = image.partition(wanted.topic, wanted.partition)
    if state is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if wanted.replicas is None:
        if state.adding:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Replicas can only be added yet, and {list(state.adding)} were: it cannot be cancelled.",
            )
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    replicas = wanted.replicas
    if not replicas or len(set(replicas)) < len(replicas):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{list(replicas)} is not a list of different brokers."
        )
    unknown = [broker for broker in replicas if broker not in image.brokers]
    if set(unknown) - set(state.replicas):
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Broker {unknown[0]} is not registered.")
    missing = [broker for broker in state.replicas if broker not in replicas]
    if missing:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Replicas can only be added yet, and broker {missing[0]} is left out of {list(state.replicas)}.",
        )
    if same_factor and len(replicas) != len(state.replicas):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The request forbids that the number of replicas changes from {len(state.replicas)}.",
        )
    return with_replicas(state, replicas, min_isr=min_isr)
