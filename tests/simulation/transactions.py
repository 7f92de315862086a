"""One run of transactions on a simulated cluster from a seed, checked as Jepsen's Kafka workload does it.

    python -m simulation.transactions --seeds 200 --first 1 --jobs 2

prints a line for each run with an anomaly, with its seed, and how many runs there were.

Three brokers suffer the faults of `cluster_faults`. Writers of both protocols send to random partitions and
poll them in transactions, members of a group transform what they read, readers of both isolation levels
follow; instances turn into zombies, and requests come late or twice. In the end all faults are mended: then
all transactions end and all logs become stable in a bounded time, and what everybody has seen is checked
(`transaction_history.anomalies`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.testing.simulation.world import World
from simulation.clients import answered
from simulation.cluster_checks import ReplicaChecks
from simulation.cluster_clients import ClusterClient
from simulation.cluster_faults import Faults
from simulation.history import History as GroupHistory
from simulation.history import Violation
from simulation.running import outcome, run_seeds_with_faults
from simulation.transactions_clients import Instances, Transformer, Writer, any_request, harmless_when_late
from simulation.transactions_readers import Reader, log_end, stable_offsets
from transaction_history.anomalies import anomalies
from transaction_history.cycles import interleaved
from transaction_history.history import History, Key, Outcome

T = TypeVar("T")

SECONDS = 40.0
HEAL_SECONDS = 120.0
"""After the last fault all replicas are in sync, and all logs are stable, so soon."""
INPUT, OUTPUT, GROUP = "orders", "invoices", "billing"
PARTITIONS = {INPUT: 3, OUTPUT: 2}
PROTOCOLS = {"writer-a": 2, "writer-b": 2, "writer-c": 1}
TRANSFORMERS = {"maker-a": 2, "maker-b": 1}
SETTINGS = {
    "group.initial.rebalance.delay.ms": 100,
    "offsets.topic.num.partitions": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "auto.create.topics.enable": "false",
    "replica.lag.time.max.ms": 4000,
    "broker.session.timeout.ms": 5000,
    "broker.heartbeat.interval.ms": 1000,
    "log.flush.offset.checkpoint.interval.ms": 5000,
    "leader.imbalance.check.interval.seconds": 10,
}


@dataclass(frozen=True)
class Report:
    seed: int
    violation: str
    trace: str
    outcomes: dict[str, int]
    read: int
    transformed: int
    late: int
    interleaved: int
    faults: dict[str, int] = field(default_factory=dict)
    stable: float = 0.0
    log: str = ""

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        outcomes = ", ".join(f"{count} {kind}" for kind, count in self.outcomes.items())
        return (
            f"seed {self.seed}: {self.violation or 'ok'} (transactions: {outcomes}; {self.transformed} with "
            f"offsets committed; {self.read} values read, {self.late} requests late or doubled, "
            f"{self.interleaved} interleaved writes; {faults}; stable after {self.stable:.1f} s)"
        )


class Run:
    def __init__(
        self,
        seed: int,
        *,
        kinds: tuple[str, ...] = (),
        seconds: float = SECONDS,
        settings: Mapping[str, object] = {},
        all_late: bool = False,
    ) -> None:
        """`kinds` are the faults to choose from, by default all. With `all_late`, requests of the first
        protocol that do harm when they are late are late as well."""
        self.world = World(seed)
        self._seconds = seconds
        self._all_late = all_late
        self.brokers = {
            n: self.world.broker(f"broker-{n}", {**SETTINGS, **settings, "node.id": n}) for n in (1, 2, 3)
        }
        self.history = History()
        self.faults = Faults(self.world, self.brokers)
        self._kinds = {
            name: fault for name, fault in self.faults.kinds().items() if not kinds or name in kinds
        }
        self._replicas = ReplicaChecks(self.brokers, self.world.registry.tree, self.faults.is_incomplete)
        self._owners = GroupHistory(flushed=frozenset())
        self._instances: list[Instances] = []
        self._stable = 0.0
        self.world.loop.after_step = self.faults.note_states

    def report(self) -> Report:
        violation, log = outcome(self.world, self._scenario(), self._seconds + 10 * HEAL_SECONDS)
        history = self.history
        return Report(
            self.world.seed,
            violation,
            self.world.trace,
            {each.value: history.count(each) for each in Outcome},
            len({value for _, _, value in history.committed_reads()}),
            sum(bool(each.offsets) and each.outcome is Outcome.COMMITTED for each in history.transactions),
            sum(instances.copies for instances in self._instances),
            interleaved(history),
            dict(self.faults.counts),
            self._stable,
            log if violation else "",
        )

    def _client(self, host: str) -> ClusterClient:
        return ClusterClient(self.world, host, self.brokers)

    async def _scenario(self) -> None:
        await asyncio.gather(*(self.faults.start(broker) for broker in self.brokers.values()))
        await self._create_topics()
        clients = self._start_clients()
        faults = asyncio.create_task(self.faults.run(self._seconds, self._kinds))
        await asyncio.wait([faults, *clients], return_when=asyncio.FIRST_COMPLETED)
        for task in [*clients, faults]:
            if task.done():
                task.result()
        began = self.world.loop.time()
        await self._within(self.faults.mend(), "all brokers to run")
        await self._end_clients(clients)
        await self._within(self._become_stable(began), "all logs to become stable")
        await self._read_everything()
        found = anomalies(self.history)
        if found:
            raise Violation("; ".join(map(str, found[:5])) + f" ({len(found)} anomalies)")

    async def _create_topics(self) -> None:
        topics = [
            CreatableTopic(name=name, num_partitions=count, replication_factor=3)
            for name, count in PARTITIONS.items()
        ]
        client = self._client("admin")
        while True:
            response = await answered(client, CreateTopicsRequest(topics=topics, timeout_ms=5000))
            codes = {error_of(each.error_code) for each in response.topics}
            if codes <= {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
                return
            await asyncio.sleep(0.2)

    @property
    def _keys(self) -> dict[str, list[Key]]:
        return {topic: [(topic, n) for n in range(count)] for topic, count in PARTITIONS.items()}

    def _start_clients(self) -> list[asyncio.Task[None]]:
        world, keys = self.world, self._keys
        work = []
        for name, protocol in PROTOCOLS.items():
            reader = self._reader(f"{name} reads", committed=True)
            writer = Writer(self._instances_of(name, protocol), reader, keys[INPUT])
            work.append(writer.run(0.4))
        for name, protocol in TRANSFORMERS.items():
            member = Transformer(
                GROUP,
                self._client(f"{name} member"),
                self._owners,
                INPUT,
                PARTITIONS[INPUT],
                instances=self._instances_of(name, protocol),
                reader=self._reader(f"{name} reads", committed=True),
                outputs=keys[OUTPUT],
            )
            work.append(member.run())
        for committed in (True, False):
            name = "committed" if committed else "uncommitted"
            reader = self._reader(f"reader of {name}", committed=committed)
            work.append(reader.run(keys[INPUT] + keys[OUTPUT], world.rng(name), 0.5))
        return [asyncio.create_task(each) for each in work]

    def _instances_of(self, name: str, protocol: int) -> Instances:
        may_be_late = any_request if protocol == 2 or self._all_late else harmless_when_late
        instances = Instances(
            name,
            self._client,
            self.history,
            self.world.rng(name),
            protocol=protocol,
            may_be_late=may_be_late,
        )
        self._instances.append(instances)
        return instances

    def _reader(self, name: str, *, committed: bool) -> Reader:
        return Reader(name, self._client(name), self.history, committed=committed)

    # -- the end --------------------------------------------------------------------------------------

    async def _end_clients(self, clients: list[asyncio.Task[None]]) -> None:
        for task in clients:
            task.cancel()
        for result in await asyncio.gather(*clients, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        for instances in self._instances:
            await self._within(instances.end(), f"the requests of {instances.id} to arrive")

    async def _become_stable(self, began: float) -> None:
        """All replicas are equal, and no transaction is open."""
        client = self._client("observer")
        keys = [key for some in self._keys.values() for key in some]
        while True:
            ends = {key: await log_end(client, key) for key in keys}
            is_over = self.world.loop.time() > began + HEAL_SECONDS - 5
            if is_over or (
                not self._replicas.differences() and all(e.stable == e.end for e in ends.values())
            ):
                self.history.ends = ends
                self._stable = self.world.loop.time() - began
                return
            await asyncio.sleep(0.2)

    async def _read_everything(self) -> None:
        if found := self._replicas.differences():
            raise Violation(f"after {HEAL_SECONDS:g} s without faults: {'; '.join(found)}")
        for committed in (True, False):
            name = f"last reader of {'committed' if committed else 'all'}"
            reader = self._reader(name, committed=committed)
            await self._within(reader.read_to(self.history.ends), f"the {name} records")
        offsets = stable_offsets(self._client("last"), GROUP, self._keys[INPUT], self.history)
        for key, last in (await self._within(offsets, "stable offsets")).items():
            self.history.final_offsets[GROUP, key] = max(last.offset, 0)

    async def _within(self, work: Awaitable[T], what: str) -> T:
        try:
            async with asyncio.timeout(HEAL_SECONDS):
                return await work
        except TimeoutError:
            raise Violation(f"{HEAL_SECONDS:g} s without faults were too short for {what}") from None


def run(
    seed: int,
    *,
    kinds: tuple[str, ...] = (),
    seconds: float = SECONDS,
    settings: Mapping[str, object] = {},
    all_late: bool = False,
) -> Report:
    return Run(seed, kinds=kinds, seconds=seconds, settings=settings, all_late=all_late).report()


if __name__ == "__main__":
    sys.exit(run_seeds_with_faults(run, __doc__, SECONDS))
