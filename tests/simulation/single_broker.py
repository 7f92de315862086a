"""One run of a single broker from a seed: clients at work, faults at random moments, promises checked.

    python -m simulation.single_broker --seeds 200 --first 1 --jobs 2

prints a line for each run that broke a promise, with its seed, and how many runs there were.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import gc
import io
import logging
import os
import sys
import time
import traceback
from dataclasses import dataclass
from functools import partial
from random import Random

from ottla.peer.client import PeerClient
from ottla.protocol.errors import error_of
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.testing.simulation.world import World
from simulation.clients import (
    Consumer,
    Member,
    Producer,
    answered,
    committed_offsets,
    fetch_once,
)
from simulation.history import History, Partition, Violation

SECONDS = 60.0
FLUSHED, CACHED = "flushed", "cached"
PARTITIONS = 2
GROUP = "readers"
_EARLIEST, _LATEST = -2, -1
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


class _VirtualTime(logging.Formatter):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def format(self, record: logging.LogRecord) -> str:
        return f"{self._world.loop.time():10.6f} {record.levelname} {record.name}: {super().format(record)}"


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
        violation = ""
        log = io.StringIO()
        handler = logging.StreamHandler(log)
        handler.setFormatter(_VirtualTime(self.world))
        logger = logging.getLogger("ottla")
        logger.addHandler(handler)
        logger.propagate = False
        try:
            self.world.run(asyncio.wait_for(self._scenario(), SECONDS * 10))
            if self.world.loop.defects:
                violation = f"an uncaught error: {self.world.loop.defects[0]}"
        except Violation as broken:
            violation = str(broken)
        except TimeoutError:
            violation = "the run did not come to its end"
        except Exception:  # noqa: BLE001 - a defect of the broker or of the simulation: told with its seed
            violation = traceback.format_exc()
        finally:
            self.world.end()
            logger.removeHandler(handler)
            logger.propagate = True
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
            log.getvalue() if violation else "",
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
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Violation):
                raise outcome
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
            self.history.check_log(partition, await self._whole_log(client, partition))
        offsets = await committed_offsets(client, GROUP, FLUSHED, list(range(PARTITIONS)))
        for n, offset in offsets.items():
            self.history.check_commit(GROUP, (FLUSHED, n), offset)
        await client.close()

    async def _whole_log(self, client: PeerClient, partition: Partition) -> dict[int, str]:
        start, end = [await self._offset(client, partition, which) for which in (_EARLIEST, _LATEST)]
        if start and partition[0] == FLUSHED:
            raise Violation(f"{partition} begins at {start}, though nothing was ever deleted")
        log: dict[int, str] = {}
        while start < end:
            error, records = await fetch_once(client, partition, start, 0)
            if error is not None or not records:
                raise Violation(f"{partition} ends at {end}, but offset {start} gives {error or 'nothing'}")
            log.update(records)
            start = records[-1][0] + 1
        return log

    async def _offset(self, client: PeerClient, partition: Partition, which: int) -> int:
        asked = ListOffsetsPartition(partition_index=partition[1], timestamp=which)
        topic = ListOffsetsTopic(name=partition[0], partitions=[asked])
        request = ListOffsetsRequest(replica_id=-1, topics=[topic])
        response = await answered(client, request, version=6)
        found = response.topics[0].partitions[0]
        if found.error_code:
            raise Violation(f"{partition} has no offsets: {error_of(found.error_code).name}")
        return int(found.offset)


def run(seed: int, *, slow_disk: bool = False) -> Report:
    return Run(seed, slow_disk=slow_disk).report()


def _begin_process() -> None:
    """A run leaves little garbage, and what was imported leaves none: looking for it is a tenth of a run."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many runs")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--slow-disk", action="store_true", help="a disk that is slow at times")
    parser.add_argument("--verbose", action="store_true", help="print every run")
    parser.add_argument("--log", action="store_true", help="print the broker's log of a run that failed")
    arguments = parser.parse_args()
    began = time.monotonic()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    failed = 0
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs, initializer=_begin_process) as pool:
        for report in pool.map(partial(run, slow_disk=arguments.slow_disk), seeds):
            failed += bool(report.violation)
            if report.violation or arguments.verbose:
                print(report, flush=True)
            if report.violation and arguments.log:
                print(report.log, flush=True)
    seconds = time.monotonic() - began
    print(f"{len(seeds)} runs in {seconds:.1f} s ({len(seeds) / seconds * 60:.0f} a minute), {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
