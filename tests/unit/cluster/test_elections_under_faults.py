"""Random faults of brokers and of the registry: epochs only grow, and all is well when the faults end."""

from __future__ import annotations

import asyncio
import random

import pytest

from ottla.cluster.image import NO_LEADER, PartitionState
from ottla.cluster.layout import Lost, load_image
from ottla.cluster.registry import Unavailable
from ottla.cluster.topic_rules import TopicDefaults
from unit.cluster.members import Fault, ambiguous, failing
from unit.cluster.simulated_members import SESSION_SECONDS, SimulatedCluster, in_cluster

BROKERS = (1, 2, 3, 4)
STEPS = 25


class History:
    """What the controllers published of each partition, and that it never goes back."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], PartitionState] = {}

    def check(self, cluster: SimulatedCluster) -> None:
        active = cluster.active
        if active is None:
            return
        for topic in active.image.topics.values():
            for index, new in enumerate(topic.partitions):
                old = self._last.get((topic.name, index), new)
                assert new.leader_epoch >= old.leader_epoch
                assert new.partition_epoch >= old.partition_epoch
                if new.partition_epoch == old.partition_epoch:
                    assert new == old, "a change has an epoch of its own"
                if new.leader_epoch == old.leader_epoch:
                    assert new.leader == old.leader, "a leader epoch has one leader"
                if new.leader != NO_LEADER:
                    assert new.leader in new.isr
                self._last[topic.name, index] = new


async def one_fault(cluster: SimulatedCluster, rng: random.Random) -> None:
    alive = sorted(cluster.members)
    dead = [broker for broker in BROKERS if broker not in alive]
    match rng.choice(["kill", "start", "start", "stop", "cut", "mend", "registry", "preferred"]):
        case "kill" if alive:
            cluster.kill(rng.choice(alive))
        case "start" if dead:
            await cluster.begin_start(rng.choice(dead), rng.choice([Lost.NOTHING, Lost.NOTHING, Lost.TAIL]))
        case "stop" if len(alive) > 1 and cluster.active is not None:
            await cluster.stop(rng.choice(alive))
        case "cut" if alive:
            cluster.members[rng.choice(alive)].is_cut_off = True
        case "mend":
            for member in cluster.members.values():
                member.is_cut_off = False
        case "registry" if alive:
            faults: list[Fault | None] = [
                ambiguous(happened=rng.random() < 0.5),
                failing(Unavailable("not now")),
                None,
            ]
            cluster.members[rng.choice(alive)].registry.faults = rng.choices(faults, k=3)
        case "preferred" if cluster.active is not None:
            await cluster.active.elect_leaders(None)


@pytest.mark.parametrize("seed", range(8))
def test_all_partitions_are_led_again_when_the_faults_end(seed: int) -> None:
    rng = random.Random(seed)
    history = History()

    async def watch(cluster: SimulatedCluster) -> None:
        while True:
            history.check(cluster)
            await asyncio.sleep(0.05)

    async def scenario(cluster: SimulatedCluster) -> None:
        for number in range(8):
            replicas = rng.sample(BROKERS, rng.randint(1, 4))
            await cluster.create(f"t{number}", tuple(replicas), tuple(reversed(replicas)))
        watching = asyncio.create_task(watch(cluster))
        for _ in range(STEPS):
            try:
                async with asyncio.timeout(30):
                    await one_fault(cluster, rng)
            except Exception as refused:  # noqa: BLE001 - what was asked for may fail, the checks may not
                assert not isinstance(refused, AssertionError), refused
            await asyncio.sleep(rng.choice([0.0, 0.01, 0.5, SESSION_SECONDS]))
        for member in cluster.members.values():
            member.is_cut_off = False
            member.registry.faults = []
        for broker in BROKERS:
            if broker not in cluster.members:
                await cluster.begin_start(broker, Lost.NOTHING)
        await cluster.until(lambda: cluster.active is not None and cluster.unfenced == set(BROKERS), 120.0)
        await asyncio.sleep(3 * SESSION_SECONDS)
        assert not watching.done(), watching.exception()
        image = cluster.image
        for topic in image.topics.values():
            for state in topic.partitions:
                assert state.leader in BROKERS, f"{topic.name} of seed {seed}: {state}"
        loaded = await load_image(
            cluster.members[cluster.controller_id].registry,
            version=image.version,
            controller_id=image.controller_id,
        )
        assert loaded.image.topics == image.topics

    in_cluster(scenario, BROKERS, defaults=TopicDefaults(min_insync_replicas=1 + seed % 3))
