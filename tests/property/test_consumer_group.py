"""Whatever happens to a group of the consumer protocol, and in whatever order, its promises hold.

Members come and go, fall silent, lose answers, are slow to give partitions back and change their minds;
topics come, grow and go; the coordinator fails over. A member reads a partition from the moment it is told to
until the moment it stops by itself, which is what "owner" means here.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.protocol.errors import ApiError, ErrorCode
from unit.coordinator.consumer_world import GROUP, Place, World, places

TOPICS = ["a-1", "a-2", "b-1", "b-2"]
EXPRESSIONS = ["a-.*", ".*-2", ".*"]


class Reader:
    """A client: what it reads, and what it has still to stop reading."""

    def __init__(self, member_id: str, instance_id: str | None) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.epoch = 0
        self.reading: set[Place] = set()
        self.told: set[Place] | None = None
        """What it shall read, when that is less than what it reads."""
        self.away = False
        self.subscription: dict[str, Any] = {}
        self.unsure = False
        """An answer did not arrive: like all clients it sends everything next, and is told everything."""


class Story:
    """One run: a world, its readers, and what must be true after each event."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(session_timeout_ms=30_000)
        self.readers: dict[str, Reader] = {}
        self._named = 0
        self._epochs: dict[str, int] = {}
        self._group_epoch = 0
        for topic in TOPICS[:2]:
            self.world.topic(topic, self.rng.randint(1, 5))

    # Events

    def step(self) -> None:
        weights = {
            self.join: 8,
            self.beat: 40,
            self.stop_reading: 30,
            self.leave: 4,
            self.die: 2,
            self.lose_answer: 4,
            self.change: 4,
            self.change_topics: 5,
            self.fail_over: 1,
            self.pass_time: 3,
            self.go_for_a_while: 2,
        }
        (event,) = self.rng.choices(list(weights), list(weights.values()))
        event()
        self.check()

    def _someone(self) -> Reader | None:
        here = [reader for reader in self.readers.values() if not reader.away]
        return self.rng.choice(here) if here else None

    def _subscription(self) -> dict[str, Any]:
        if self.rng.random() < 0.3:
            return {"subscribed_topic_names": [], "subscribed_topic_regex": self.rng.choice(EXPRESSIONS)}
        names = self.rng.sample(TOPICS, self.rng.randint(0, 3))
        return {"subscribed_topic_names": names, "subscribed_topic_regex": ""}

    def join(self) -> None:
        away = [reader for reader in self.readers.values() if reader.away]
        if len(self.readers) >= 6 and not away:
            return
        self._named += 1
        member_id = f"m{self._named}"
        if away and self.rng.random() < 0.7:
            old = self.rng.choice(away)
            del self.readers[old.member_id]
            reader = Reader(member_id, old.instance_id)
        else:
            reader = Reader(member_id, f"i{self._named}" if self.rng.random() < 0.3 else None)
        self.readers[member_id] = reader
        reader.subscription = self._subscription()
        self._send(reader, epoch=0, owned=set(), rebalance_timeout_ms=10_000, **reader.subscription)

    def _send(self, reader: Reader, *, lost: bool = False, **fields: Any) -> None:
        epoch = fields.pop("epoch", reader.epoch)
        if reader.unsure:
            fields.update(reader.subscription, owned=set(reader.reading), rebalance_timeout_ms=10_000)
        try:
            response = self.world.beat(
                reader.member_id,
                epoch,
                instance_id=reader.instance_id,
                **fields,
            )
        except ApiError as error:
            assert error.code in (
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ), error
            # It abandons everything. A real one joins again; here it is gone, and others may come.
            self.readers.pop(reader.member_id)
            return
        reader.unsure = lost
        if lost:
            return
        reader.epoch = response.member_epoch
        told = places(response)
        if told is not None:
            reader.told = told
            reader.reading |= told  # what is new it reads at once, what is not it stops reading later

    def beat(self) -> None:
        reader = self._someone()
        if reader is not None:
            quiet = self.rng.random() < 0.4
            self._send(reader, owned=None if quiet else set(reader.reading))

    def stop_reading(self) -> None:
        reader = self._someone()
        if reader is not None and reader.told is not None:
            reader.reading = set(reader.told)

    def lose_answer(self) -> None:
        reader = self._someone()
        if reader is not None:
            self._send(reader, lost=True, owned=set(reader.reading))

    def change(self) -> None:
        reader = self._someone()
        if reader is not None:
            reader.subscription = self._subscription()
            self._send(reader, owned=set(reader.reading), **reader.subscription)

    def leave(self) -> None:
        reader = self._someone()
        if reader is not None:
            self.readers.pop(reader.member_id)
            reader.reading = set()
            self._send_leave(reader, -1)

    def go_for_a_while(self) -> None:
        reader = self._someone()
        if reader is not None and reader.instance_id is not None:
            reader.away, reader.reading, reader.told = True, set(), None
            if not self._send_leave(reader, -2):
                del self.readers[reader.member_id]

    def _send_leave(self, reader: Reader, epoch: int) -> bool:
        try:
            self.world.beat(reader.member_id, epoch, instance_id=reader.instance_id)
        except ApiError as error:
            assert error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND), error
            return False
        return True

    def die(self) -> None:
        """The process is gone; the group has not noticed yet."""
        reader = self._someone()
        if reader is not None:
            del self.readers[reader.member_id]

    def change_topics(self) -> None:
        topic = self.rng.choice(TOPICS)
        known = self.world.image.topics.get(topic)
        if known is None:
            self.world.topic(topic, self.rng.randint(1, 5))
        elif self.rng.random() < 0.5:
            self.world.topic(topic, len(known.partitions) + self.rng.randint(1, 3))
        else:
            self.world.drop_topic(topic)

    def pass_time(self) -> None:
        """Members that the group gives up notice it by themselves: their client has the same timeout."""
        self.world.advance(self.rng.choice([100, 5_000, 12_000]))
        group = self.world.groups.get(GROUP)
        known = group.members if isinstance(group, ConsumerGroup) else {}
        for member_id in [each for each in self.readers if each not in known]:
            del self.readers[member_id]

    def fail_over(self) -> None:
        self.world.fail_over()

    # Promises

    def check(self) -> None:
        readers = [reader for reader in self.readers.values() if not reader.away]
        reading = [place for reader in readers for place in reader.reading]
        assert len(reading) == len(set(reading)), "two members read one partition"
        group = self.world.groups.get(GROUP)
        if not isinstance(group, ConsumerGroup):
            return
        assert group.state.epoch >= max(self._group_epoch, group.state.target_epoch)
        self._group_epoch = group.state.epoch
        for member in group.members.values():
            assert member.epoch <= group.state.epoch
            if member.epoch > 0:
                assert member.epoch >= self._epochs.get(member.member_id, 0), "an epoch shrank"
                self._epochs[member.member_id] = member.epoch
        owned = [
            (topic, partition)
            for member in group.members.values()
            for given in (member.assigned, member.revoking)
            for topic, partitions in given.items()
            for partition in partitions
        ]
        assert len(owned) == len(set(owned)), "the coordinator gives one partition to two members"
        self._check_log(group)

    def _check_log(self, group: ConsumerGroup) -> None:
        again = self.world.reloaded().get(GROUP)
        assert isinstance(again, ConsumerGroup)
        for field in ("epoch", "metadata_hash", "members", "target_epoch", "target", "regexes", "_static"):
            assert getattr(again.state, field) == getattr(group.state, field), field
        assert again.state._owners == group.state._owners

    def settle(self) -> None:
        """Live members follow the protocol and dead ones expire. Then every partition has an owner."""
        for reader in [each for each in self.readers.values() if each.away]:
            del self.readers[reader.member_id]
        for _ in range(40):
            for reader in list(self.readers.values()):
                if reader.told is not None:
                    reader.reading = set(reader.told)
                self._send(reader, owned=set(reader.reading))
                self.check()
            self.world.advance(1_000)
        group = self.world.groups.get(GROUP)
        if not isinstance(group, ConsumerGroup) or not self.readers:
            return
        assert group.state_name == "Stable", [group, group.members]
        topics = self.world.image.topics
        wanted = {
            (topics[name].id, index)
            for name in group.state.subscribed_topics()
            if name in topics
            for index in range(len(topics[name].partitions))
        }
        for reader in self.readers.values():
            assert reader.told is None or reader.reading == reader.told
        assert {place for reader in self.readers.values() for place in reader.reading} == wanted


@settings(max_examples=examples(25, 300), deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(1, 120))
def test_no_partition_has_two_owners_and_all_are_owned_in_the_end(seed: int, length: int) -> None:
    story = Story(seed)
    for _ in range(length):
        story.step()
    story.settle()
