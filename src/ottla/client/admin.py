"""The admin client: topics, configurations, groups, offsets and the cluster, of any Kafka broker.

Every call asks the cluster, waits at most `timeout` seconds and gives plain dataclasses, or raises an
error that names what it was about. Where several things are asked for at once, all are tried before the
first error is raised. `AsyncAdmin` has the same methods as coroutines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from ottla.client.admin_results import (
    Broker,
    Cluster,
    ConfigValue,
    Group,
    GroupDescription,
    GroupMember,
    NewTopic,
    PartitionDescription,
    TopicDescription,
)
from ottla.client.configuration import client_config, make_client
from ottla.client.errors import ClientError, ClosedError, TimedOutError, error_from
from ottla.client.librdkafka import confluent_kafka
from ottla.client.records import TopicPartition

T = TypeVar("T")
_EXISTS = "TOPIC_ALREADY_EXISTS"
_TOPIC = confluent_kafka.admin.ResourceType.TOPIC
_BROKER = confluent_kafka.admin.ResourceType.BROKER


class Admin:
    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] = "localhost:9092",
        *,
        client_id: str | None = None,
        timeout: float = 30.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        settings = client_config(bootstrap_servers, client_id, {}, config)
        self._client: confluent_kafka.admin.AdminClient | None = make_client(
            confluent_kafka.admin.AdminClient, settings, {}
        )
        self._timeout = timeout

    # -- topics -------------------------------------------------------------------------------------------

    def create_topics(
        self, *topics: NewTopic | str, exist_ok: bool = False, validate_only: bool = False
    ) -> None:
        """Create topics; a name alone has the broker's defaults. They can be used when this returns."""
        wanted = [topic if isinstance(topic, NewTopic) else NewTopic(topic) for topic in topics]
        asked = self._ask.create_topics(
            [
                confluent_kafka.admin.NewTopic(
                    each.name,
                    -1 if each.partitions is None else each.partitions,
                    -1 if each.replication_factor is None else each.replication_factor,
                    config={key: str(value) for key, value in each.config.items()},
                )
                for each in wanted
            ],
            request_timeout=self._timeout,
            validate_only=validate_only,
        )
        self._all(asked, "cannot create the topic {!r}", allowed=_EXISTS if exist_ok else None)
        if not validate_only:
            self._until(lambda: {each.name for each in wanted} <= set(self.list_topics(internal=True)))

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
        *,
        exist_ok: bool = False,
    ) -> None:
        self.create_topics(NewTopic(name, partitions, replication_factor, config or {}), exist_ok=exist_ok)

    def delete_topics(self, *names: str) -> None:
        asked = self._ask.delete_topics(list(names), request_timeout=self._timeout)
        self._all(asked, "cannot delete the topic {!r}")

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics; those with two underscores, like `__consumer_offsets`, only if asked
        for.
        """
        found = self._call(lambda: self._ask.list_topics(timeout=self._timeout), "cannot list topics").topics
        return sorted(name for name in found if internal or not name.startswith("__"))

    def describe_topics(self, *names: str) -> dict[str, TopicDescription]:
        asked = self._ask.describe_topics(
            confluent_kafka.TopicCollection(list(names)), request_timeout=self._timeout
        )
        found = self._all(asked, "cannot describe the topic {!r}")
        return {
            name: TopicDescription(
                name,
                str(each.topic_id),
                bool(each.is_internal),
                tuple(
                    PartitionDescription(part.id, _id(part.leader), _ids(part.replicas), _ids(part.isr))
                    for part in each.partitions
                ),
            )
            for name, each in found.items()
        }

    def add_partitions(self, topic: str, total: int) -> None:
        """Let the topic have `total` partitions. Keys may go to other partitions from then on."""
        asked = self._ask.create_partitions(
            [confluent_kafka.admin.NewPartitions(topic, total)], request_timeout=self._timeout
        )
        self._all(asked, "cannot add partitions to {!r}")
        self._until(lambda: len(self.describe_topics(topic)[topic].partitions) >= total)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before these offsets; -1 stands for all. The new first offsets."""
        asked = self._ask.delete_records(_positions(before), request_timeout=self._timeout)
        found = self._all(asked, "cannot delete records of {!r}")
        return {_key(each): result.low_watermark for each, result in found.items()}

    # -- configurations -----------------------------------------------------------------------------------

    def topic_config(self, topic: str) -> dict[str, ConfigValue]:
        return self._config(_TOPIC, topic)

    def broker_config(self, broker: int) -> dict[str, ConfigValue]:
        return self._config(_BROKER, str(broker))

    def alter_topic_config(self, topic: str, changes: Mapping[str, object]) -> None:
        """Set these keys and leave the others; None takes a key back to its default."""
        self._alter_config(_TOPIC, topic, changes)

    def alter_broker_config(self, broker: int, changes: Mapping[str, object]) -> None:
        """As `alter_topic_config`, for what a broker lets change at run time."""
        self._alter_config(_BROKER, str(broker), changes)

    def _config(self, kind: Any, name: str) -> dict[str, ConfigValue]:
        resource = confluent_kafka.admin.ConfigResource(kind, name)
        asked = self._ask.describe_configs([resource], request_timeout=self._timeout)
        [entries] = self._all(asked, f"cannot read the configuration of {name!r}").values()
        return {
            key: ConfigValue(each.value, each.is_default, each.is_read_only, each.is_sensitive)
            for key, each in sorted(entries.items())
        }

    def _alter_config(self, kind: Any, name: str, changes: Mapping[str, object]) -> None:
        operations = confluent_kafka.admin.AlterConfigOpType
        entries = [
            confluent_kafka.admin.ConfigEntry(
                key,
                None if value is None else str(value),
                incremental_operation=operations.DELETE if value is None else operations.SET,
            )
            for key, value in changes.items()
        ]
        resource = confluent_kafka.admin.ConfigResource(kind, name, incremental_configs=entries)
        asked = self._ask.incremental_alter_configs([resource], request_timeout=self._timeout)
        self._all(asked, f"cannot change the configuration of {name!r}")

    # -- groups and offsets -------------------------------------------------------------------------------

    def list_groups(self) -> list[Group]:
        asked = self._ask.list_consumer_groups(request_timeout=self._timeout)
        found = self._call(lambda: asked.result(self._timeout + 1), "cannot list groups")
        if found.errors:
            raise error_from(found.errors[0].args[0], "cannot list the groups of every broker")
        return sorted(
            (Group(each.group_id, _name(each.state), _name(each.type)) for each in found.valid),
            key=lambda group: group.id,
        )

    def describe_groups(self, *groups: str) -> dict[str, GroupDescription]:
        asked = self._ask.describe_consumer_groups(list(groups), request_timeout=self._timeout)
        found = self._all(asked, "cannot describe the group {!r}")
        return {name: _group(each) for name, each in found.items()}

    def delete_groups(self, *groups: str) -> None:
        """Delete groups that have no members, with their offsets."""
        asked = self._ask.delete_consumer_groups(list(groups), request_timeout=self._timeout)
        self._all(asked, "cannot delete the group {!r}")

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """The offsets that a group has committed: the next ones that it will read."""
        request = confluent_kafka.ConsumerGroupTopicPartitions(group)
        asked = self._ask.list_consumer_group_offsets([request], request_timeout=self._timeout)
        [found] = self._all(asked, "cannot read the offsets of the group {!r}").values()
        return {_key(each): each.offset for each in found.topic_partitions if each.offset >= 0}

    def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets of a group that has no members."""
        request = confluent_kafka.ConsumerGroupTopicPartitions(group, _positions(offsets))
        asked = self._ask.alter_consumer_group_offsets([request], request_timeout=self._timeout)
        [found] = self._all(asked, "cannot set the offsets of the group {!r}").values()
        for each in found.topic_partitions:
            if each.error is not None:
                raise error_from(each.error, f"cannot set the offset of the group {group!r} in {_key(each)}")

    def group_lag(self, group: str) -> dict[TopicPartition, int]:
        """How many records each partition has after the group's committed offset."""
        committed = self.group_offsets(group)
        ends = self.offsets(*committed) if committed else {}
        return {each: max(0, ends[each] - offset) for each, offset in committed.items()}

    def offsets(
        self, *partitions: TopicPartition | str, at: int | Literal["earliest", "latest"] = "latest"
    ) -> dict[TopicPartition, int]:
        """First or next offsets, or those of the first records at or after a time (ms); a topic means all of
        it.

        A partition without a record at or after the time has its end.
        """
        wanted = [each for given in partitions for each in self._partitions(given)]
        specs: Any = confluent_kafka.admin.OffsetSpec
        spec = specs.for_timestamp(at) if isinstance(at, int) else getattr(specs, at)()
        found = self._list_offsets(wanted, spec)
        late = [each for each, offset in found.items() if offset < 0]
        return found | (self._list_offsets(late, specs.latest()) if late else {})

    def _list_offsets(self, partitions: Iterable[TopicPartition], spec: Any) -> dict[TopicPartition, int]:
        wanted = {confluent_kafka.TopicPartition(*each): spec for each in partitions}
        if not wanted:
            return {}
        asked = self._ask.list_offsets(wanted, request_timeout=self._timeout)
        return {
            _key(each): result.offset
            for each, result in self._all(asked, "cannot read offsets of {!r}").items()
        }

    def _partitions(self, given: TopicPartition | str) -> list[TopicPartition]:
        if isinstance(given, TopicPartition):
            return [given]
        return [
            TopicPartition(given, each.partition) for each in self.describe_topics(given)[given].partitions
        ]

    # -- cluster ------------------------------------------------------------------------------------------

    def describe_cluster(self) -> Cluster:
        asked = self._ask.describe_cluster(request_timeout=self._timeout)
        found = self._call(lambda: asked.result(self._timeout + 1), "cannot describe the cluster")
        brokers = (Broker(each.id, each.host, each.port, each.rack) for each in found.nodes)
        return Cluster(
            found.cluster_id, _id(found.controller), tuple(sorted(brokers, key=lambda each: each.id))
        )

    # -- asking -------------------------------------------------------------------------------------------

    @property
    def _ask(self) -> confluent_kafka.admin.AdminClient:
        if self._client is None:
            raise ClosedError("the admin client is closed")
        return self._client

    def _all(
        self, asked: Mapping[Any, Future[Any]], doing: str, allowed: str | None = None
    ) -> dict[Any, Any]:
        """The results of all; the first error is raised after the last has ended."""
        results: dict[Any, Any] = {}
        errors: list[ClientError] = []
        for name, future in asked.items():
            about = (
                doing.format(name if isinstance(name, str) else str(_key(name))) if "{" in doing else doing
            )
            try:
                results[name] = self._call(partial(future.result, self._timeout + 1), about)
            except ClientError as error:
                if error.name != allowed or allowed is None:
                    errors.append(error)
        if errors:
            raise errors[0]
        return results

    def _call(self, step: Callable[[], T], doing: str) -> T:
        try:
            return step()
        except confluent_kafka.KafkaException as failure:
            raise error_from(failure.args[0], doing) from failure
        except TimeoutError as late:
            raise TimedOutError(f"{doing}: no answer within {self._timeout:g} s") from late
        except ValueError as failure:
            raise ClientError(f"{doing}: {failure}") from failure

    def _until(self, true: Callable[[], bool]) -> None:
        """What the controller did is known to the other brokers a moment later."""
        deadline = time.monotonic() + self._timeout
        while not true() and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self) -> None:
        self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _id(node: Any) -> int | None:
    return None if node is None or node.id < 0 else node.id


def _ids(nodes: Iterable[Any]) -> tuple[int, ...]:
    return tuple(each.id for each in nodes)


def _name(value: Any) -> str:
    return "unknown" if value is None else str(value.name).lower()


def _key(partition: confluent_kafka.TopicPartition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def _positions(offsets: Mapping[TopicPartition, int]) -> list[confluent_kafka.TopicPartition]:
    return [confluent_kafka.TopicPartition(*each, offset) for each, offset in offsets.items()]


def _group(found: Any) -> GroupDescription:
    members = tuple(
        GroupMember(
            each.member_id,
            each.client_id,
            each.host,
            each.group_instance_id,
            tuple(sorted(map(_key, each.assignment.topic_partitions))) if each.assignment else (),
        )
        for each in found.members
    )
    return GroupDescription(
        found.group_id,
        _name(found.state),
        _name(found.type),
        found.partition_assignor,
        _id(found.coordinator),
        members,
    )
