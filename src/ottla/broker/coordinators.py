"""The coordinators of a broker and what belongs to them: groups, transactions, markers, verification.

A broker coordinates the groups and transactions whose partitions of `__consumer_offsets` and
`__transaction_state` it leads. `follow` tells the coordinators which these are: after each change of the
cluster image, of the logs that are there, and of the fencing of this broker. Handlers use the coordinators
themselves. Markers are written, and transactions verified, for partitions that this broker leads and for
coordinators on any broker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from ottla.broker.group_environment import BrokerGroupEnvironment
from ottla.broker.group_projector import GroupProjector
from ottla.broker.image_follower import ImageChange
from ottla.broker.limits import group_settings
from ottla.broker.maintenance import Maintenance
from ottla.broker.marker_writing import write_markers
from ottla.broker.membership import Membership
from ottla.broker.ports import (
    ChannelAccess,
    Configuration,
    ImageAccess,
    PartitionAccess,
    Time,
    TopicNames,
    WaitingForOffsets,
)
from ottla.broker.transaction_markers import TransactionMarkers
from ottla.broker.transaction_verification import (
    VERIFICATION,
    Retries,
    TransactionVerification,
    coordinator_of,
)
from ottla.broker.transactions import transaction_coordinator
from ottla.cluster.image import ClusterImage
from ottla.cluster.topic_ids import id_text
from ottla.coordinator.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from ottla.coordinator.member_memory import Account
from ottla.coordinator.runtime.loading import InThread
from ottla.coordinator.transactions.coordinator import TRANSACTION_TOPIC
from ottla.metrics import Histogram
from ottla.scheduler import Scheduler


class CoordinatorHost(
    ChannelAccess,
    Configuration,
    ImageAccess,
    PartitionAccess,
    Time,
    TopicNames,
    WaitingForOffsets,
    Protocol,
):
    """What coordinators use of their broker."""


class Coordinators:
    def __init__(
        self,
        node_id: int,
        broker: CoordinatorHost,
        *,
        membership: Callable[[], Membership],
        maintenance: Maintenance,
        scheduler: Scheduler,
        in_thread: InThread,
        account: Account,
        rebalance_seconds: Histogram,
        may_be_replaced: Callable[[], bool],
    ) -> None:
        """`membership` is asked for when the broker has joined its cluster, `may_be_replaced` whether others
        may lead what this broker believes to lead. Chores are added to the maintenance."""
        self._broker = broker
        self.replicas, self.purgatory = broker.replicas, broker.purgatory
        self.group_environment = BrokerGroupEnvironment(
            clock=broker.clock,
            image=lambda: broker.image,
            config=lambda: broker.config,
            count_members=lambda: self.groups.consumer_member_count(),
        )
        self.groups = GroupCoordinator(
            group_settings(broker.config),
            environment=self.group_environment,
            topic_id=lambda name: topic.id if (topic := broker.image.topics.get(name)) else None,
            clock=broker.clock,
            scheduler=scheduler,
            purgatory=broker.purgatory,
            in_thread=in_thread,
            commit_timeout_ms=lambda: broker.config["offsets.commit.timeout.ms"],
            compression=broker.config["offsets.topic.compression.codec"],
            account=account,
            rebalance_seconds=rebalance_seconds,
            may_be_replaced=may_be_replaced,
        )
        maintenance.add(
            "forgetting offsets",
            maintenance.seconds("offsets.retention.check.interval.ms"),
            self.groups.expire_offsets,
        )
        self._markers = TransactionMarkers(
            node_id,
            lambda: broker.image,
            lambda: membership().peers,
            partial(write_markers, self),
            lambda: membership().has_newest_image(),
        )
        self.transactions = transaction_coordinator(
            broker,
            self._markers,
            maintenance,
            scheduler=scheduler,
            in_thread=in_thread,
            may_be_replaced=may_be_replaced,
        )
        self.verification = TransactionVerification(
            node_id,
            lambda transactional_id: coordinator_of(broker.image, transactional_id),
            self.transactions,
            lambda broker_id: membership().peers.client(broker_id, VERIFICATION),
            broker.clock.monotonic,
            lambda: broker.config["transaction.partition.verification.enable"],
            lambda: Retries(
                broker.config["add.partitions.to.txn.retry.backoff.ms"] / 1000,
                broker.config["add.partitions.to.txn.retry.backoff.max.ms"] / 1000,
            ),
        )
        self._projector = GroupProjector(
            node_id,
            self.groups,
            lambda: membership().registry,
            broker.topic_name,
            lambda: id_text(topic.id) if (topic := broker.image.topics.get(OFFSETS_TOPIC)) else "",
        )

    def configure(self) -> None:
        """When the broker has joined its cluster, and when its settings have changed since."""
        self._projector.configure(is_wanted=self._broker.config["group.registry.projection"])

    def follow(self, image: ClusterImage) -> None:
        """Tell the coordinators which partitions of their topics are led here."""
        for name, coordinator in ((OFFSETS_TOPIC, self.groups), (TRANSACTION_TOPIC, self.transactions)):
            topic = image.topics.get(name)
            coordinator.follow(len(topic.partitions) if topic else 0, self.replicas.led(name))

    async def image_changed(self, change: ImageChange) -> None:
        self.follow(change.image)
        if change.deleted_topics:
            await self.groups.forget_topics(change.deleted_topics)

    async def stop(self) -> None:
        await self._projector.stop()
        await self.verification.stop()
        await self._markers.stop()
        await self.transactions.stop()
        await self.groups.stop()
