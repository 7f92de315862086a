"""The transaction coordinator as a part of the broker: what it is given, and what it does now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ottla.broker.maintenance import Maintenance
from ottla.broker.ports import ChannelAccess, Configuration, ImageAccess, Time, WaitingForOffsets
from ottla.broker.transaction_markers import TransactionMarkers
from ottla.cluster import features
from ottla.coordinator.runtime.loading import InThread
from ottla.coordinator.transactions.coordinator import TransactionCoordinator, TransactionSettings
from ottla.scheduler import Scheduler

_COMMIT_TIMEOUT_MS = 30_000
"""So long a client waits for the replicas of `__transaction_state`; Kafka takes its request timeout."""

_COUNT_SECONDS = 10.0


class TransactionHost(ChannelAccess, Configuration, ImageAccess, Time, WaitingForOffsets, Protocol):
    """What the coordinator uses of its broker."""


def transaction_coordinator(
    broker: TransactionHost,
    markers: TransactionMarkers,
    maintenance: Maintenance,
    *,
    scheduler: Scheduler,
    in_thread: InThread,
    may_be_replaced: Callable[[], bool],
) -> TransactionCoordinator:
    coordinator = TransactionCoordinator(
        TransactionSettings(
            commit_timeout_ms=lambda: _COMMIT_TIMEOUT_MS,
            expiration_ms=lambda: broker.config["transactional.id.expiration.ms"],
            most_ids=lambda: broker.config["transactional.id.max.per.broker"],
            server_version=lambda: features.level(broker.image, features.TRANSACTION_VERSION),
        ),
        clock=broker.clock,
        scheduler=scheduler,
        purgatory=broker.purgatory,
        in_thread=in_thread,
        next_producer_id=lambda: broker.channel.next_producer_id(),
        send_markers=markers.send,
        may_be_replaced=may_be_replaced,
    )
    maintenance.add(
        "aborting transactions that ran out of time",
        maintenance.seconds("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        coordinator.abort_overdue,
    )
    maintenance.add(
        "forgetting transactional ids",
        maintenance.seconds("transaction.remove.expired.transaction.cleanup.interval.ms"),
        coordinator.forget_expired,
    )
    maintenance.add("counting transactional ids", lambda: _COUNT_SECONDS, coordinator.forget_idlest)
    return coordinator
