"""Whatever members do, a classic group keeps its promises.

Clients join, sync, send heartbeats, change their minds, leave, die without a word and come back; between them
the log refuses, followers are slow and coordinators change. After every step the promises are checked:

- no partition has two owners in one generation;
- generations only grow, as the members of one coordinator and as the log see them;
- a new coordinator that reads the log has the state of the old one;
- when all members stop, every request has been answered and the group is empty.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.classic_phases import Phase
from ottla.coordinator.group import GroupSettings
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.consumer_protocol import read_assignment
from ottla.protocol.messages.leave_group import MemberIdentity
from unit.coordinator.simulated import Answer, Simulated

PARTITIONS = 7
SETTINGS = GroupSettings(max_size=5)

chance = st.randoms(use_true_random=False) | st.randoms(use_true_random=True)


class Client:
    """A consumer, as far as the coordinator can tell; it takes one step at a time."""

    def __init__(self, number: int, rng: Random) -> None:
        self.instance = f"i{number}" if number % 3 == 0 else None
        self.version = rng.choice([3, 4, 8, 9])
        self.rng = rng
        self.forget()

    def forget(self) -> None:
        """Die without leaving; a client that comes back has no member id."""
        self.member_id = ""
        self.generation = -1
        self.joining: Answer | None = None
        self.syncing: Answer | None = None
        self.joined: Any = None
        self.topics: tuple[str, ...] = ("t",)

    def step(self, world: World) -> None:
        if self.joining is not None:
            if not self.joining.waits:
                self._joined(self.joining)
            return
        if self.syncing is not None:
            if not self.syncing.waits:
                self._synced(world, self.syncing)
            return
        if self.joined is not None:
            shares = self._decide() if self.joined.leader == self.member_id else None
            self.syncing = world.sync(self, shares)
            self.joined = None
            return
        if self.generation < 0:
            self.joining = world.join(self)
            return
        self._live(world)

    def _live(self, world: World) -> None:
        what = self.rng.random()
        if what < 0.9:
            code = world.shard.heartbeat(self.member_id, self.generation, instance=self.instance)
            self._after(code)
        elif what < 0.94:
            self.topics = self.rng.choice([("t",), ("t", "u")])
            self.joining = world.join(self)
        elif what < 0.97:
            leaving = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
            world.shard.leave(leaving)
            self.forget()
        else:
            self.forget()

    def _joined(self, answer: Answer) -> None:
        self.joining = None
        if answer.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.value.member_id
        elif answer.error:
            self._after(ErrorCode(answer.error))  # type: ignore[call-arg]
        else:
            self.joined = answer.value
            self.member_id, self.generation = self.joined.member_id, self.joined.generation_id
            if self.joined.skip_assignment:
                self.joined = None

    def _synced(self, world: World, answer: Answer) -> None:
        self.syncing = None
        if answer.error:
            self._after(ErrorCode(answer.error))  # type: ignore[call-arg]
        else:
            world.owns(self, answer.value.assignment)

    def _after(self, code: ErrorCode) -> None:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.forget()
        elif code:
            self.generation = -1

    def _decide(self) -> dict[str, set[int]]:
        members = [member.member_id for member in self.joined.members]
        shares: dict[str, set[int]] = {member: set() for member in members}
        for partition in range(PARTITIONS):
            shares[self.rng.choice(members)].add(partition)
        return shares


class World:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.shard = Simulated(SETTINGS)
        self.clients = [Client(number, rng) for number in range(7)]
        self.answers: list[Answer] = []
        self.owners: dict[int, dict[int, str]] = defaultdict(dict)
        self.newest = 0

    # -- what clients do ----------------------------------------------------------------------------------

    def join(self, client: Client) -> Answer:
        answer = self.shard.join(
            client.member_id,
            instance=client.instance,
            topics=client.topics,
            version=client.version,
            session_ms=self.rng.choice([6_000, 10_000]),
            rebalance_ms=self.rng.choice([6_000, 20_000]),
        )
        self.answers.append(answer)
        return answer

    def sync(self, client: Client, shares: dict[str, set[int]] | None) -> Answer:
        answer = self.shard.sync(client.member_id, client.generation, shares, instance=client.instance)
        self.answers.append(answer)
        return answer

    def owns(self, client: Client, assigned: bytes) -> None:
        """A member got its assignment in a generation: no other member may have got the same partitions."""
        name = client.instance or client.member_id
        for topic in read_assignment(assigned).assigned_partitions if assigned else ():
            for partition in topic.partitions:
                owner = self.owners[client.generation].setdefault(partition, name)
                assert owner == name, f"partition {partition} is owned by {owner} and {name}"

    # -- what happens to them -----------------------------------------------------------------------------

    def step(self) -> None:
        partition = self.shard.partition
        what = self.rng.random()
        if partition.refuses is not None and what < 0.3:
            partition.refuses = None
        elif what < 0.75:
            for client in self.rng.sample(self.clients, 4):
                client.step(self)
        elif what < 0.91:
            self.shard.scheduler.run(self.rng.choice([1, 500, 500, 3_000, 3_000, 12_000]))
        elif what < 0.92:
            partition.refuses = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")
        elif what < 0.96:
            partition.is_slow = not partition.is_slow
            self.shard.commit_all()
        elif what < 0.98:
            self.say_nonsense()
        else:
            self.fail_over()
        self.check()

    def say_nonsense(self) -> None:
        ids = [client.member_id for client in self.clients] + ["", "nobody", "client-1"]
        instance = self.rng.choice([None, None, "i0", "i3", "i9"])
        member_id, generation = self.rng.choice(ids), self.rng.randint(-1, self.newest + 1)
        kind = self.rng.randrange(3)
        if kind == 0:
            self.answers.append(self.shard.sync(member_id, generation, {member_id: {0}}, instance=instance))
        elif kind == 1:
            self.shard.heartbeat(member_id, generation, instance=instance)
        else:
            self.answers.append(self.shard.join(member_id, instance=instance, protocols=("other",)))

    def fail_over(self) -> None:
        """Another broker takes over with what was committed; the old one answers all waiting requests."""
        old = self.shard
        kept, end = [], 0
        for batch in old.partition.batches:
            end += int.from_bytes(batch[57:61], "big")  # the count of its records
            if end <= old.partition.high_watermark:
                kept.append(batch)
        old.shard.end()
        self.shard = Simulated(SETTINGS, kept, old.ids)
        self.newest = 0

    # -- what must be true --------------------------------------------------------------------------------

    def check(self) -> None:
        group = self.shard.groups.get("g")
        if group is None:
            return
        assert isinstance(group, ClassicGroup)
        assert group.generation >= self.newest, "generations only grow"
        self.newest = group.generation
        if group.phase is Phase.STABLE:
            given = [
                partition
                for member in group.members.values()
                if member.assignment
                for topic in read_assignment(member.assignment).assigned_partitions
                for partition in topic.partitions
            ]
            assert len(given) == len(set(given)), "no partition has two owners"
            assert group.leader in group.members
        if group.phase in (Phase.STABLE, Phase.EMPTY) and group.generation:
            # With no limit of size, since a group that is too large would rebalance at once.
            loaded = Simulated(GroupSettings(), self.shard.partition.batches).groups.get("g")
            assert loaded is not None
            assert durable(loaded) == durable(group), "replay gives the same state"
        for member in group.members.values():
            if group.phase is not Phase.PREPARING:
                assert member.joining is None

    def stop_all(self) -> None:
        partition = self.shard.partition
        partition.refuses, partition.is_slow = None, False
        self.shard.commit_all()
        self.shard.scheduler.run(600_000)
        assert not [answer for answer in self.answers if answer.waits], "every request is answered"
        group = self.shard.groups.get("g")
        assert group is None or group.state_name == "Empty"
        assert not self.shard.shard._timers
        assert not self.shard.shard._waiting


def durable(group: Any) -> Any:
    return (
        group.phase,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader,
        group.since_ms,
        [
            (
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol),
                member.assignment,
            )
            for member in group.members.values()
        ],
    )


@settings(max_examples=examples(20, 200), deadline=None, suppress_health_check=list(HealthCheck))
@given(chance)
def test_invariants_of_classic_groups_hold_for_random_members(rng: Random) -> None:
    world = World(rng)
    for _ in range(150):
        world.step()
    world.stop_all()


def test_the_random_members_reach_stable_generations() -> None:
    """The property would hold for a group that never does anything."""
    stable = generations = 0
    for seed in range(10):
        world = World(Random(seed))
        for _ in range(300):
            world.step()
            group = world.shard.groups.get("g")
            stable += group is not None and group.state_name == "Stable"
        generations += len(world.owners)
    assert stable > 100
    assert generations > 20
