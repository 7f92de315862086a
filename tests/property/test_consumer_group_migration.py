"""Members of both protocols live in one group, and no partition ever has two readers.

A group begins as a classic one and is taken over. Members of either protocol come, go, fall silent, and take
their steps in any order; those of the classic protocol are eager or cooperative.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.protocol.errors import ApiError, ErrorCode
from unit.coordinator.consumer_world import GROUP, Client, World
from unit.coordinator.old_client import OldClient, classic_group

PARTITIONS = 4
GONE = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_MEMBER_EPOCH}


class Story:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(may_downgrade=False, session_timeout_ms=10_000)
        self.world.topic("t", PARTITIONS)
        self.old: list[OldClient] = [classic_group(self.world, eager=self.rng.random() < 0.5)]
        self.new: list[Client] = [Client(self.world, "m0", "t")]
        self._named = 0

    def step(self) -> None:
        weights = {
            self.new_joins: 2,
            self.old_joins: 2,
            self.new_beats: 12,
            self.old_acts: 20,
            self.leaves: 2,
            self.dies: 1,
            self.time_passes: 2,
            self.fails_over: 1,
        }
        (event,) = self.rng.choices(list(weights), list(weights.values()))
        event()
        self.check()

    def new_joins(self) -> None:
        if len(self.new) < 4:
            self._named += 1
            self.new.append(Client(self.world, f"m{self._named}", "t"))

    def old_joins(self) -> None:
        if len(self.old) < 3 and isinstance(self.world.groups.get(GROUP), ConsumerGroup):
            if not self.world.group.members:
                return  # an empty group would become a classic one, which needs a leader
            client = OldClient(self.world, "t", eager=self.rng.random() < 0.5)
            client.join()
            client.joined()
            self.old.append(client)

    def new_beats(self) -> None:
        if self.new:
            client = self.rng.choice(self.new)
            try:
                client.beat()
            except ApiError as error:
                assert error.code in GONE
                self.new.remove(client)

    def old_acts(self) -> None:
        if self.old:
            client = self.rng.choice(self.old)
            try:
                self._act(client)
            except ApiError as error:
                if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                    self._rejoin(client)
                else:
                    assert error.code in GONE, error
                    self.old.remove(client)

    def _act(self, client: OldClient) -> None:
        """Fetch the share after a JoinGroup, else send a heartbeat and join again when told to."""
        if not client.synced:
            client.sync()
        elif client.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin(client)

    def _rejoin(self, client: OldClient) -> None:
        if client.eager:
            client.owned = set()
        try:
            client.join()
        except ApiError as error:
            assert error.code in GONE, error
            self.old.remove(client)
        else:
            client.joined()

    def leaves(self) -> None:
        if self.new and self.rng.random() < 0.5:
            client = self.rng.choice(self.new)
            self.new.remove(client)
            if client.member_id in self.world.group.members:
                client.leave()
        elif len(self.old) > 1:
            old = self.rng.choice(self.old)
            self.old.remove(old)
            old.leave()

    def dies(self) -> None:
        if len(self.new) > 1:
            self.new.remove(self.rng.choice(self.new))

    def time_passes(self) -> None:
        self.world.advance(self.rng.choice([100, 3_000, 11_000]))
        known = self.world.group.members
        self.new = [client for client in self.new if client.member_id in known]
        self.old = [client for client in self.old if client.member_id in known]

    def fails_over(self) -> None:
        self.world.fail_over()

    def check(self) -> None:
        readers = [{index for _, index in client.owned} for client in self.new]
        readers += [client.owned for client in self.old]
        reading = [index for owned in readers for index in owned]
        assert len(reading) == len(set(reading)), "two members read one partition"
        again = self.world.reloaded().get(GROUP)
        assert isinstance(again, ConsumerGroup)
        for field in ("epoch", "members", "target_epoch", "target", "_owners"):
            assert getattr(again.state, field) == getattr(self.world.group.state, field), field

    def settle(self) -> None:
        if not self.new:
            self.new_joins()
        for _ in range(60):
            for _ in range(len(self.new) + 1):
                self.new_beats()
            for _ in range(3 * len(self.old)):
                self.old_acts()
            self.check()
            self.world.advance(500)
        while not all(client.synced for client in self.old):
            self.old_acts()
        assert self.world.group.state_name == "Stable", self.world.group.members
        readers = [{index for _, index in client.owned} for client in self.new]
        readers += [client.owned for client in self.old]
        assert set().union(*readers) == set(range(PARTITIONS)), readers


@settings(max_examples=examples(20, 200), deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(1, 80))
def test_members_of_both_protocols_never_share_a_partition(seed: int, length: int) -> None:
    story = Story(seed)
    for _ in range(length):
        story.step()
    story.settle()
