"""Which partitions a consumer reads: subscriptions, partitions by hand, and rebalances.

Partitions that are revoked are committed first, as far as their records are finished; for those that are lost
nothing is committed. A transaction that has records of a partition that went fails, and a pool is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from ottla.client.commits import Committer, as_offset
from ottla.client.configuration import LOG
from ottla.client.delivery import Delivery, is_incremental
from ottla.client.errors import ClientError, ConfigurationError, error_from
from ottla.client.incoming import Incoming
from ottla.client.librdkafka import confluent_kafka
from ottla.client.record_buffer import Position, RecordBuffer, place_of
from ottla.client.records import TopicPartition
from ottla.client.topic_patterns import subscription

Rebalanced = Callable[[Any, list[TopicPartition]], None]
"""A rebalance callback: the consumer and the partitions that came or went."""
Callbacks = tuple[Rebalanced | None, Rebalanced | None, Rebalanced | None]
"""For partitions that are assigned, revoked and lost."""


class Rebalancing(Incoming):
    """The part of a consumer that has partitions. `Consumer` is the only subclass."""

    def __init__(
        self,
        consumer: confluent_kafka.Consumer,
        config: dict[str, Any],
        group_id: str | None,
        delivery: Delivery,
        committer: Committer,
        callbacks: Callbacks,
    ) -> None:
        super().__init__(consumer, RecordBuffer(), group_id, config["auto.offset.reset"])
        self.config = config
        """What librdkafka was given."""
        self.delivery: Delivery = delivery
        self._committer = committer
        self._callbacks = callbacks
        self._topics: tuple[str | re.Pattern[str], ...] = ()
        self._sent: dict[TopicPartition, Position] = {}
        """Positions that were last put into a transaction."""
        self._revoked_in_transaction: set[TopicPartition] = set()
        self._in_doubt = False
        """It is not known how a transaction ended: nothing is read before the group's commits are."""
        self._in_callback = False
        """The application's own code for a rebalance is running."""
        self._pool: Callable[[list[TopicPartition], bool], None] | None = None
        """A pool that works on the records, told of partitions that go: revoked, or lost."""

    def subscribe(self, *topics: str | re.Pattern[str]) -> None:
        """Read these topics as a member of the group, in place of those before.

        The group is joined when the consumer is first read from: a member that does not read would keep
        partitions from the others.
        """
        if self.group_id is None:
            raise ConfigurationError("a consumer that subscribes needs a group_id")
        names = subscription(topics, posix=self.config["group.protocol"] == "classic")
        self._join = partial(self._subscribe, names)
        self._topics = topics
        self._missing.keep(topic for topic in topics if isinstance(topic, str))

    def _subscribe(self, names: list[str]) -> None:
        try:
            self._consumer.subscribe(
                names, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        except confluent_kafka.KafkaException as failure:
            raise error_from(failure.args[0], f"cannot subscribe to {self._topics}") from failure

    def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """Read these partitions without the group's help; a mapping says from which offset.

        Without an offset reading begins at the group's commit, or as `start` says.
        """
        offsets = dict(partitions) if isinstance(partitions, Mapping) else {}
        names = [TopicPartition(*each) for each in partitions]
        self._join = None
        self._forget(list(self._assigned))
        self._first = {name: offset for name, offset in offsets.items() if offset >= 0}
        self._set_assigned(names)
        self._missing.keep(name.topic for name in names)
        self._consumer.assign(
            [
                confluent_kafka.TopicPartition(*name, offsets.get(name, confluent_kafka.OFFSET_STORED))
                for name in names
            ]
        )

    # -- rebalances ---------------------------------------------------------------------------------------

    def _on_assign(self, _: Any, partitions: list[confluent_kafka.TopicPartition]) -> None:
        names = [TopicPartition(each.topic, each.partition) for each in partitions]
        self._moves += 1
        self._set_assigned(self._assigned.union(names))
        self._starts = {}
        try:
            self._call_back(self._callbacks[0], names)
            for name, each in zip(names, partitions, strict=True):
                if name in self._starts:
                    each.offset = self._first[name] = self._starts[name]
        finally:
            self._starts = None
            if is_incremental(self.config):
                self._consumer.incremental_assign(partitions)
            else:
                self._consumer.assign(partitions)

    def _on_revoke(self, _: Any, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self._revoked(partitions, self._callbacks[1], commit=True)

    def _on_lost(self, _: Any, partitions: list[confluent_kafka.TopicPartition]) -> None:
        names = [f"{each.topic}-{each.partition}" for each in partitions]
        LOG.warning("lost %s: the group took the partitions away, nothing is committed", ", ".join(names))
        self._revoked(partitions, self._callbacks[2] or self._callbacks[1], commit=False)

    def _revoked(
        self, partitions: list[confluent_kafka.TopicPartition], callback: Rebalanced | None, *, commit: bool
    ) -> None:
        names = [TopicPartition(each.topic, each.partition) for each in partitions]
        self._moves += 1
        try:
            if self._pool is not None:
                self._pool(names, not commit)
            self._call_back(callback, names)
            if commit:
                known = self._buffer.positions()
                self._committer.revoked(
                    self._consumer, {name: known[name] for name in names if name in known}
                )
        finally:
            if self.delivery == "exactly-once":
                given = self._buffer.handed_out()
                self._revoked_in_transaction.update(
                    name for name in names if name in given and given[name] != self._sent.get(name)
                )
            self._forget(names)
            self._set_assigned(self._assigned.difference(names))
            for name in names:
                self._first.pop(name, None)

    def _call_back(self, callback: Rebalanced | None, names: list[TopicPartition]) -> None:
        if callback is not None:
            self._in_callback = True
            try:
                callback(self, names)
            finally:
                self._in_callback = False

    def _forget(self, partitions: list[TopicPartition]) -> None:
        super()._forget(partitions)
        self._committer.forget(partitions)
        self._raw = [each for each in self._raw if place_of(each) not in partitions]
        for partition in partitions:
            self._sent.pop(partition, None)

    # -- for ottla.client.transactions --------------------------------------------------------------------

    def positions_for_transaction(self) -> list[confluent_kafka.TopicPartition]:
        """For `producer.transaction(consumer)`: the offsets that go into the transaction."""
        if self._revoked_in_transaction:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in self._revoked_in_transaction)
            raise ClientError(
                f"{names} went to another member of the group within the transaction", retriable=True
            )
        positions = {} if self._in_doubt else self._buffer.handed_out()
        new = {name: each for name, each in positions.items() if each != self._sent.get(name)}
        self._sent.update(new)
        return [as_offset(name, position) for name, position in new.items()]

    def group_metadata(self) -> Any:
        """For `producer.transaction(consumer)`: by this the coordinator knows members that were replaced."""
        return self._consumer.consumer_group_metadata()

    def rewind_to_committed(self) -> None:
        """Read again what was handed out after the last commit, as after a transaction that was aborted."""
        self.rewind_later()
        committed = self.committed()
        for partition in self._assigned:
            self._sent.pop(partition, None)
            offset = committed.get(partition, self._first.get(partition))
            if offset is not None:
                self.seek(partition, offset)
        self._in_doubt = False

    def rewind_later(self) -> None:
        """`rewind_to_committed` before the next read: the brokers may be away, or know no more than we do."""
        self._in_doubt = True
        self._revoked_in_transaction.clear()
        self._buffer.clear()
        self._raw = []

    # -- for ottla.client.pool ----------------------------------------------------------------------------

    def _attach(self, pool: Callable[[list[TopicPartition], bool], None], topics: Iterable[str]) -> None:
        """From now on a pool takes messages, also of these topics, and is told of partitions that go."""
        if self._pool is not None:
            raise ConfigurationError(f"{self!r} has a pool already")
        self._pool = pool
        if set(topics) - set(self._topics):
            self.subscribe(*dict.fromkeys([*self._topics, *topics]))
        self._buffer.settle()
        if self._buffer.holds_records() or self._raw:
            self._read_again()

    def _detach(self) -> None:
        self._pool = None
        self._gap = True  # what the pool had read and not worked on
