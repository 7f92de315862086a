"""A coordinator of consumer groups without a broker: its log is a list, time and topics are set by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ottla.cluster.image import ClusterImage, PartitionState, TopicImage
from ottla.completion import Completion
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.group import Caller, GroupSettings
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_environment import ConsumerSettings
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.records import Entry, decode_entry, encode_entry
from ottla.coordinator.runtime.effects import Reply
from ottla.coordinator.topic_matches import TopicMatches
from ottla.protocol.errors import ApiError
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

GROUP = "g"


class World:
    """What a broker is to its groups, and the log that they write."""

    def __init__(self, **settings: Any) -> None:
        self.consumer_settings = ConsumerSettings(**{"assignment_interval_ms": 0, **settings})
        self.group_settings = GroupSettings(initial_rebalance_delay_ms=0)
        self.image = ClusterImage()
        self.topic_matches = TopicMatches()
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.timers: dict[Any, tuple[int, Any]] = {}
        self.groups = GroupShard(self.group_settings, self)
        self._made = 0

    # What `GroupEnvironment` asks for

    def settings(self, group_id: str) -> ConsumerSettings:
        return self.consumer_settings

    def member_count(self) -> int:
        return sum(len(group.members) for group in self.groups if isinstance(group, ConsumerGroup))

    # Topics

    def topic(self, name: str, partitions: int) -> bytes:
        """Make a topic, or give it more partitions."""
        known = self.image.topics.get(name)
        self._made += 1
        topic_id = known.id if known is not None else self._made.to_bytes(16, "big")
        states = (PartitionState((1,), (1,), 1),) * partitions
        self._set_topics({**self.image.topics, name: TopicImage(name, topic_id, states)})
        return topic_id

    def drop_topic(self, name: str) -> None:
        self._set_topics({key: topic for key, topic in self.image.topics.items() if key != name})

    def _set_topics(self, topics: dict[str, TopicImage]) -> None:
        self.image = ClusterImage.of(
            version=self.image.version + 1,
            cluster_id="c",
            controller_id=1,
            brokers={},
            topics=topics,
            configs={},
        )

    # Running

    @property
    def group(self) -> ConsumerGroup:
        group = self.groups.get(GROUP)
        assert isinstance(group, ConsumerGroup), group
        return group

    def run(self, command: Callable[[GroupShard, Reply, GroupEffects], None]) -> list[Any]:
        """Run a command as the runtime does, and return what was answered."""
        answers: list[Any] = []
        effects = GroupEffects(self.now_ms)
        reply: Reply = Completion()
        reply.then(answers.append, answers.append)
        command(self.groups, reply, effects)
        self._apply(effects)
        return answers

    def _apply(self, effects: GroupEffects) -> None:
        entries = [self._logged(entry) for entry in effects.records]
        self.groups.adopt(effects)
        for entry in entries:
            self._replay(self.groups, entry)
        for key, timer in effects.timers.items():
            self.timers.pop(key, None)
            if timer is not None:
                self.timers[key] = (self.now_ms + timer.delay_ms, timer)
        for reply, answer in effects.answers:
            reply.resolve(answer)

    @staticmethod
    def _replay(groups: GroupShard, entry: Entry) -> None:
        groups.replay(0, -1, -1, entry)

    def _logged(self, entry: Entry) -> Entry:
        encoded = encode_entry(entry)
        self.log.append(encoded)
        decoded = decode_entry(*encoded)
        assert decoded is not None
        return decoded

    def advance(self, ms: int) -> None:
        """Let time pass, with the timers that expire in it."""
        end = self.now_ms + ms
        while due := [(at, key) for key, (at, _) in self.timers.items() if at <= end]:
            at, key = min(due)
            self.now_ms = max(self.now_ms, at)
            timer = self.timers.pop(key)[1]
            effects = GroupEffects(self.now_ms)
            self.groups.on_timer(timer, effects)
            self._apply(effects)
        self.now_ms = end

    def reloaded(self) -> GroupShard:
        """The groups as a new coordinator reads them from the log."""
        groups = GroupShard(self.group_settings, self)
        for key, value in self.log:
            entry = decode_entry(key, value)
            assert entry is not None
            self._replay(groups, entry)
        return groups

    def fail_over(self) -> None:
        """A new coordinator takes over: what is not in the log is gone."""
        self.groups = self.reloaded()
        self.timers.clear()
        effects = GroupEffects(self.now_ms)
        self.groups.resume(effects)
        self._apply(effects)

    # Members

    def beat(
        self, member_id: str, epoch: int, *, version: int = 1, client_id: str = "client", **fields: Any
    ) -> ConsumerGroupHeartbeatResponse:
        """One ConsumerGroupHeartbeat; raises the ApiError that a client would be told."""
        owned = fields.pop("owned", None)
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            topic_partitions=None if owned is None else listed(owned),
            **fields,
        )
        caller = Caller(client_id, "/127.0.0.1", version)
        (response,) = self.run(
            lambda groups, reply, effects: groups.consumer_heartbeat(request, caller, reply, effects)
        )
        if isinstance(response, ApiError):
            raise response
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        return response

    def join(
        self, member_id: str, *topics: str, regex: str | None = None, **fields: Any
    ) -> ConsumerGroupHeartbeatResponse:
        return self.beat(
            member_id,
            0,
            owned=set(),
            rebalance_timeout_ms=fields.pop("rebalance_timeout_ms", 60_000),
            subscribed_topic_names=list(topics) if topics or regex is None else None,
            subscribed_topic_regex=regex,
            **fields,
        )

    def set(self, **settings: Any) -> None:
        self.consumer_settings = replace(self.consumer_settings, **settings)


Place = tuple[bytes, int]


def listed(places: set[Place]) -> list[TopicPartitions]:
    by_topic: dict[bytes, list[int]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(partition)
    return [TopicPartitions(topic_id=topic, partitions=partitions) for topic, partitions in by_topic.items()]


def places(response: ConsumerGroupHeartbeatResponse) -> set[Place] | None:
    """What the answer tells the member to own; None when it does not say."""
    if response.assignment is None:
        return None
    return {
        (each.topic_id, index) for each in response.assignment.topic_partitions for index in each.partitions
    }


class Client:
    """A member that does what it is told: gives back what is not in its assignment and takes the rest."""

    def __init__(
        self, world: World, member_id: str, *topics: str, regex: str | None = None, **fields: Any
    ) -> None:
        self.world = world
        self.member_id = member_id
        self.fields = fields
        self.owned: set[Place] = set()
        self._take(world.join(member_id, *topics, regex=regex, **fields))

    def _take(self, response: ConsumerGroupHeartbeatResponse) -> None:
        self.epoch = response.member_epoch
        told = places(response)
        if told is not None:
            self.owned = told

    def beat(self) -> None:
        self._take(self.world.beat(self.member_id, self.epoch, owned=self.owned))

    def leave(self) -> None:
        self.world.beat(self.member_id, -1)
        self.owned = set()


def settle(*clients: Client, rounds: int = 20) -> None:
    """Let all members send heartbeats until the group is stable."""
    for _ in range(rounds):
        for client in clients:
            client.beat()
        if clients[0].world.group.state_name == "Stable":
            return
    raise AssertionError(f"{clients[0].world.group} does not become stable")


def numbers(client: Client) -> list[int]:
    return sorted(partition for _, partition in client.owned)
