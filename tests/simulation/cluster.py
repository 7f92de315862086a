"""One run of a cluster from a seed: three or five brokers, clients and faults, promises checked all along.

    python -m simulation.cluster --seeds 200 --first 1 --jobs 2

prints a line for each run that broke a promise, with its seed, and how many runs there were.

Topics have three replicas and `min.insync.replicas=2`; producers are idempotent and wait for all. At the end
all faults are mended: then all replicas get in sync again in a bounded time, with equal logs that hold all
that was acknowledged, read and committed, and the cluster serves. It also does while the disk of one broker,
a leader, is full or fails and nothing else is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.testing.simulation.world import World
from simulation.clients import (
    Consumer,
    Member,
    Producer,
    answered,
    committed_offsets,
    whole_log,
)
from simulation.cluster_checks import ReplicaChecks
from simulation.cluster_clients import ClusterClient
from simulation.cluster_faults import Faults
from simulation.history import History, Partition, Violation
from simulation.running import outcome, run_seeds_with_faults

SECONDS = 40.0
HEAL_SECONDS = 120.0
TOPIC, PARTITIONS = "orders", 2
GROUP = "readers"
CONFIGS: list[dict[str, int]] = [{}, {"segment.ms": 5000}, {"flush.messages": 1}]
"""What the topic is made with: one of these."""
KEPT_FREE = [-1, 0]
"""`log.dir.min.free.bytes`, one of these: producers are refused in time, or by the disk itself."""
SETTINGS = {
    "group.initial.rebalance.delay.ms": 100,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 3,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "auto.create.topics.enable": "false",
    "replica.lag.time.max.ms": 4000,
    "broker.session.timeout.ms": 5000,
    "broker.heartbeat.interval.ms": 1000,
    "log.segment.delete.delay.ms": 1000,
    "log.flush.offset.checkpoint.interval.ms": 5000,
    "leader.imbalance.check.interval.seconds": 10,
}


@dataclass(frozen=True)
class Report:
    seed: int
    violation: str
    trace: str
    requests: int
    acknowledged: int
    read: int
    commits: int
    epochs: int
    faults: dict[str, int] = field(default_factory=dict)
    healed: float = 0.0
    log: str = ""

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        return (
            f"seed {self.seed}: {self.violation or 'ok'} ({self.requests} requests, "
            f"{self.acknowledged} acknowledged, {self.read} read, {self.commits} commits, "
            f"{self.epochs} leader epochs; {faults}; whole after {self.healed:.1f} s)"
        )


class Run:
    def __init__(self, seed: int, *, kinds: tuple[str, ...] = (), seconds: float = SECONDS) -> None:
        """`kinds` are the faults to choose from, by default all."""
        self.world = World(seed)
        self._seconds = seconds
        size = 5 if self.world.rng("size").random() < 0.2 else 3
        settings = {**SETTINGS, "log.dir.min.free.bytes": self.world.rng("space").choice(KEPT_FREE)}
        self.brokers = {
            n: self.world.broker(f"broker-{n}", {**settings, "node.id": n}) for n in range(1, size + 1)
        }
        self.history = History(flushed=frozenset())
        self.faults = Faults(self.world, self.brokers)
        self.checks = ReplicaChecks(self.brokers, self.world.registry.tree, self.faults.is_incomplete)
        self._kinds = {
            name: fault for name, fault in self.faults.kinds().items() if not kinds or name in kinds
        }
        self._healed = 0.0
        client = self._client("last producer")
        self._last_producer = Producer("last", client, self.history, self.world.rng("last"), may_lose=False)
        self.world.loop.after_step = self._step

    def _step(self) -> None:
        self.faults.note_states()
        self.checks.check(self.world.loop.ran)

    def report(self) -> Report:
        violation, log = outcome(self.world, self._scenario(), self._seconds + 10 * HEAL_SECONDS)
        return Report(
            self.world.seed,
            violation,
            self.world.trace,
            sum(self.world.deliveries[broker.name] for broker in self.brokers.values()),
            self.history.acknowledged,
            self.history.read,
            self.history.commits,
            self.checks.epochs,
            dict(self.faults.counts),
            self._healed,
            log if violation else "",
        )

    def _client(self, host: str) -> ClusterClient:
        return ClusterClient(self.world, host, self.brokers)

    async def _scenario(self) -> None:
        await asyncio.gather(*(self.faults.start(broker) for broker in self.brokers.values()))
        everything = [(TOPIC, n) for n in range(PARTITIONS)]
        configs = self.world.rng("configs").choice(CONFIGS)
        await self._create(self._client("admin"), TOPIC, PARTITIONS, configs)
        clients = self._start_clients(everything)
        faults = asyncio.create_task(self.faults.run(self._seconds, self._kinds))
        await self._unless_violated(faults, clients)
        for task in clients:
            task.cancel()
        for result in await asyncio.gather(*clients, return_exceptions=True):
            if isinstance(result, Violation):
                raise result
        await self._heal(everything)
        await self._serve_with_a_bad_disk(everything)
        await self._heal(everything)
        await self._check(everything)
        for broker in self.brokers.values():
            await self._within(broker.stop(), f"{broker.name} to stop")

    async def _unless_violated(self, work: asyncio.Task[None], others: list[asyncio.Task[None]]) -> None:
        """Wait for `work`; the other tasks end only by what they found out."""
        await asyncio.wait([work, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in [*others, work]:
            if task.done():
                task.result()
        await work

    def _start_clients(self, everything: list[Partition]) -> list[asyncio.Task[None]]:
        world, history = self.world, self.history
        tasks = []
        for n in range(3):
            name = f"producer-{n}"
            producer = Producer(name, self._client(name), history, world.rng(name), may_lose=False)
            tasks.append(asyncio.create_task(producer.run(everything, 0.4)))
        for partition in everything:
            consumer = Consumer(self._client(f"consumer of {partition}"), history, may_lose=False)
            tasks.append(asyncio.create_task(consumer.run(partition)))
        for n in range(2):
            member = Member(GROUP, self._client(f"member-{n}"), history, TOPIC, PARTITIONS)
            tasks.append(asyncio.create_task(member.run()))
        tasks.append(asyncio.create_task(self._make_and_delete_topics()))
        return tasks

    # -- topics ---------------------------------------------------------------------------------------

    async def _create(
        self, client: ClusterClient, name: str, partitions: int, configs: Mapping[str, int] | None = None
    ) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=3,
            configs=[CreatableTopicConfig(name=k, value=str(v)) for k, v in (configs or {}).items()],
        )
        while True:
            response = await answered(client, CreateTopicsRequest(topics=[topic], timeout_ms=5000))
            code = error_of(response.topics[0].error_code)
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            if not code.retriable and code is not ErrorCode.INVALID_REPLICATION_FACTOR:
                raise Violation(f"{name} could not be created: {code.name}")
            await asyncio.sleep(0.5)

    async def _make_and_delete_topics(self) -> None:
        """Topics come and go, sometimes under the same name, with records in them."""
        client, rng = self._client("admin-2"), self.world.rng("topics")
        for count in range(1000):
            await asyncio.sleep(rng.uniform(1.0, 8.0))
            name = f"short-{rng.randrange(3)}"
            await self._create(client, name, 1)
            producer = Producer(f"short-lived-{count}", client, self.history, rng, may_lose=False)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rng.uniform(0.5, 10.0)):
                    await producer.send((name, 0), 3)
            await self._delete(client, name)
            self.history.delete_topic(name)

    async def _delete(self, client: ClusterClient, name: str) -> None:
        while True:
            response = await answered(client, DeleteTopicsRequest(topic_names=[name], timeout_ms=5000), 5)
            code = error_of(response.responses[0].error_code)
            if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                return
            if not code.retriable:
                raise Violation(f"{name} could not be deleted: {code.name}")
            await asyncio.sleep(0.5)

    # -- what must hold -------------------------------------------------------------------------------

    async def _serve_with_a_bad_disk(self, partitions: list[Partition]) -> None:
        """A leader's disk breaks, and others lead."""
        registered = self.checks.registered_state(TOPIC, 0)
        assert registered is not None
        await self.faults.break_disk(self.brokers[registered[1].leader])
        for _ in range(3):
            await self._send_one_to_each(partitions)

    async def _send_one_to_each(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            what = f"a record to be acknowledged in {partition}"
            await self._within(self._last_producer.send(partition, 1), what)

    async def _heal(self, partitions: list[Partition]) -> None:
        """All faults are over: the cluster becomes whole, and serves."""
        loop = self.world.loop
        began = loop.time()
        await self._within(self.faults.mend(), "all brokers to run")
        await self._send_one_to_each(partitions)
        while found := self.checks.differences():
            if loop.time() > began + HEAL_SECONDS:
                raise Violation(f"after {HEAL_SECONDS:g} s without faults: {'; '.join(found)}")
            await asyncio.sleep(0.2)
        self._healed = loop.time() - began

    async def _within(self, work: object, what: str) -> None:
        try:
            async with asyncio.timeout(HEAL_SECONDS):
                await work  # type: ignore[misc]
        except TimeoutError:
            raise Violation(f"{HEAL_SECONDS:g} s without faults were too short for {what}") from None

    async def _check(self, partitions: list[Partition]) -> None:
        client = self._client("checker")
        for place in partitions:
            self.history.check_log(place, await whole_log(client, place))
        offsets = await committed_offsets(client, GROUP, TOPIC, list(range(PARTITIONS)))
        for n, offset in offsets.items():
            self.history.check_commit(GROUP, (TOPIC, n), offset)
        await client.close()


def run(seed: int, *, kinds: tuple[str, ...] = (), seconds: float = SECONDS) -> Report:
    return Run(seed, kinds=kinds, seconds=seconds).report()


if __name__ == "__main__":
    sys.exit(run_seeds_with_faults(run, __doc__, SECONDS))
