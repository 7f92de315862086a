"""One run of a single broker from a seed: clients at work, faults at random moments, promises checked.

    python -m simulation.single_broker --seeds 200 --first 1 --jobs 2

prints a line for each run that broke a promise, with its seed, and how many runs there were.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from functools import partial
from random import Random

from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.testing.simulation.world import World
from simulation.clients import (
    Consumer,
    Member,
    Producer,
    answered,
    committed_offsets,
    whole_log,
)
from simulation.history import History, Partition, Violation
from simulation.running import outcome, run_seeds, seeds_parser

SECONDS = 60.0
FLUSHED, CACHED = "flushed", "cached"
PARTITIONS = 2
GROUP = "readers"
TOPICS = {FLUSHED: {"flush.messages": 1}, CACHED: {"segment.ms": 5000}}
SETTINGS = {
    "group.initial.rebalance.delay.ms": 100,
    "offsets.topic.num.partitions": 2,
    "log.segment.delete.delay.ms": 1000,
    "log.flush.offset.checkpoint.interval.ms": 5000,
}


@dataclass(frozen=True)
class Report:
    seed: int
    violation: str
    trace: str
    requests: int
    crashes: int
    acknowledged: int
    read: int
    commits: int
    generations: int
    log: str

    def __str__(self) -> str:
        outcome = self.violation or "ok"
        return (
            f"seed {self.seed}: {outcome} ({self.requests} requests, {self.crashes} crashes, "
            f"{self.acknowledged} acknowledged, {self.read} read, {self.commits} commits, "
            f"{self.generations} generations)"
        )


class Run:
    """With `slow_disk` the disk is slow at times, so that writes go to threads and take seconds there."""

    def __init__(self, seed: int, *, slow_disk: bool = False) -> None:
        self.world = World(seed)
        self.slow_disk = slow_disk
        self.broker = self.world.broker("broker-1", SETTINGS)
        self.history = History(flushed=frozenset([FLUSHED]))
        self.rng: Random = self.world.rng("faults")
        self.crashes = 0

    def report(self) -> Report:
        violation, log = outcome(self.world, self._scenario(), SECONDS * 10)
        history = self.history
        return Report(
            self.world.seed,
            violation,
            self.world.trace,
            self.world.deliveries[self.broker.name],
            self.crashes,
            history.acknowledged,
            history.read,
            history.commits,
            history.generations,
            log if violation else "",
        )

    async def _scenario(self) -> None:
        world = self.world
        await self.broker.start()
        await self._create_topics()
        everything = [(topic, n) for topic in TOPICS for n in range(PARTITIONS)]
        tasks = []
        for n in range(3):
            name = f"producer-{n}"
            producer = Producer(name, world.client(name, self.broker), self.history, world.rng(name))
            tasks.append(asyncio.create_task(producer.run(everything, 0.5)))
        for partition in everything:
            consumer = Consumer(world.client(f"consumer of {partition}", self.broker), self.history)
            tasks.append(asyncio.create_task(consumer.run(partition)))
        for n in range(2):
            client = world.client(f"member-{n}", self.broker)
            member = Member(GROUP, client, self.history, FLUSHED, PARTITIONS)
            tasks.append(asyncio.create_task(member.run()))
        faults = asyncio.create_task(self._faults())
        await asyncio.wait([faults, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()  # a client ends only by what it found out
        await faults
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Violation):
                raise result
        await self._check(everything)
        await self.broker.stop()

    async def _create_topics(self) -> None:
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=PARTITIONS,
                replication_factor=1,
                configs=[CreatableTopicConfig(name=k, value=str(v)) for k, v in configs.items()],
            )
            for name, configs in TOPICS.items()
        ]
        client = self.world.client("admin", self.broker)
        response = await answered(client, CreateTopicsRequest(topics=topics, timeout_ms=5000))
        for topic in response.topics:
            if topic.error_code:
                raise Violation(f"{topic.name} could not be created: {topic.error_message}")
        await client.close()

    # -- faults ---------------------------------------------------------------------------------------

    async def _faults(self) -> None:
        """Something happens every few seconds, with at least two crashes; at the end all is well again."""
        rng, loop = self.rng, self.world.loop
        end = loop.time() + SECONDS
        kinds = [self._kill, self._lose_power, self._restart, self._cut, self._reset, self._slow]
        if self.slow_disk:
            kinds += [self._slow_down_disk] * 4
        must = [self._kill, self._lose_power]
        rng.shuffle(must)
        while loop.time() < end:
            await asyncio.sleep(rng.uniform(1.0, 7.0))
            fault = must.pop() if must and rng.random() < 0.5 else rng.choice(kinds)
            await fault()
        for fault in must:
            await fault()
        self.world.network.mend()

    async def _kill(self) -> None:
        if self.rng.random() < 0.7:
            # After the append and before the answer: in the middle of a request.
            request = self.world.delivery(f"producer-{self.rng.randrange(3)}", self.broker.name)
            await asyncio.wait([asyncio.ensure_future(request)], timeout=5.0)
            await asyncio.sleep(self.rng.uniform(0.0, 0.002))
        self.crashes += 1
        self.broker.crash()
        await self._start_again()

    async def _lose_power(self) -> None:
        self.crashes += 1
        self.broker.crash(power=True)
        self.history.lose_power()
        await self._start_again()

    async def _start_again(self) -> None:
        """Start, and sometimes crash in the middle of it."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.0, 3.0))
            start = asyncio.ensure_future(self.broker.start())
            if self.rng.random() < 0.8:
                await start
                return
            await asyncio.sleep(self.rng.uniform(0.0, 0.03))
            self.crashes += 1
            self.broker.crash()
            await start

    async def _restart(self) -> None:
        await self.broker.stop()
        await asyncio.sleep(self.rng.uniform(0.0, 1.0))
        await self.broker.start()

    def _some_client(self) -> str:
        names = ["producer-0", "producer-1", "member-0", "member-1", f"consumer of {(FLUSHED, 0)}"]
        return self.rng.choice(names)

    async def _cut(self) -> None:
        client = self.world.host(self._some_client())
        self.world.network.cut(client, self.broker.host, both=self.rng.random() < 0.5)
        await asyncio.sleep(self.rng.uniform(0.1, 10.0))
        self.world.network.mend()

    async def _reset(self) -> None:
        self.world.network.reset(self.world.host(self._some_client()))

    async def _slow(self) -> None:
        client = self.world.host(self._some_client())
        self.world.network.slow_down(self.broker.host, client, self.rng.uniform(0.1, 2.0))
        await asyncio.sleep(self.rng.uniform(0.1, 5.0))
        self.world.network.slow_down(self.broker.host, client, 0.0)

    async def _slow_down_disk(self) -> None:
        """Writes go to threads, and are done there only after a while. Another fault may come meanwhile."""
        loop, broker = self.world.loop, self.broker.broker
        if broker is None:
            return
        loop.longest_thread_start = self.rng.uniform(0.05, 1.0)
        for partition in broker.replicas:
            broker.replicas.disk.wrote(partition.log.name, 0, 1.0, loop.time())
        loop.call_later(self.rng.uniform(1.0, 8.0), self._speed_up_disk)

    def _speed_up_disk(self) -> None:
        self.world.loop.longest_thread_start = 0.001

    # -- the end --------------------------------------------------------------------------------------

    async def _check(self, partitions: list[Partition]) -> None:
        client = self.world.client("checker", self.broker)
        for partition in partitions:
            log = await whole_log(client, partition, may_lose=partition[0] != FLUSHED)
            self.history.check_log(partition, log)
        offsets = await committed_offsets(client, GROUP, FLUSHED, list(range(PARTITIONS)))
        for n, offset in offsets.items():
            self.history.check_commit(GROUP, (FLUSHED, n), offset)
        await client.close()


def run(seed: int, *, slow_disk: bool = False) -> Report:
    return Run(seed, slow_disk=slow_disk).report()


def main() -> int:
    parser = seeds_parser(__doc__)
    parser.add_argument("--slow-disk", action="store_true", help="a disk that is slow at times")
    arguments = parser.parse_args()
    return run_seeds(partial(run, slow_disk=arguments.slow_disk), arguments)


if __name__ == "__main__":
    sys.exit(main())
