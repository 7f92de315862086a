"""Compaction beside the event loop: tasks that look for the dirtiest log, have it cleaned, and look again.

There are `log.cleaner.threads` of them, each with a process of its own for the work on records. What blocks
on the disk goes to a thread; only the quick steps, those that change a log others use, run on the loop. When
nothing is due the tasks sleep for `log.cleaner.backoff.ms`, or until a request asks for a topic to be
compacted now.

A task does not end by an error: the cleaner keeps what goes wrong with a log to that log, and anything else
is logged, counted (`defects`) and followed by the next round.

Files are found by the name of their folder, which a topic that is deleted and made again uses a second time.
So work on a topic is ended (`release`) before its logs are deleted; none begins until they are (`forget`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ottla.clock import Clock
from ottla.config.values import BrokerConfig
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.replication.partition import Partition
from ottla.storage.checkpoints import TopicPartition
from ottla.storage.cleaning.cleaner import Cleaner, CleanerSettings
from ottla.storage.cleaning.decisions import Cleanability
from ottla.storage.cleaning.job import CleaningJob, Outcomes, Progress, run
from ottla.storage.cleaning.state import CleaningState
from ottla.storage.cleaning.worker import CleanerProcess
from ottla.storage.files import Disk, RealDisk
from ottla.storage.log import Log
from ottla.storage.log_directory import LogDirectory

logger = logging.getLogger("ottla.cleaner")

_LOOK_SECONDS = 0.05  # spent looking for dirty logs in one iteration of the loop
_MOST_THREADS = 32  # started only when used
_SMALLEST_MEMORY = 1 << 20
_FREE_WHEN_IDLE = 30.0  # seconds after which a process without work is let go


class Cleaning:
    """`config` gives the settings of the broker as they are now; `free_space` what a pass may write."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        directory: LogDirectory,
        disk: Disk,
        clock: Clock,
        partitions: Iterable[Partition],
        free_space: Callable[[], int | None],
    ) -> None:
        self._config = config
        self._disk = disk
        self._clock = clock
        self._partitions = partitions
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving: list[asyncio.Task[None]] = []  # cancelled, and finishing a step
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="ottla-cleaner")
        self._processes: list[CleanerProcess] = []
        self._wake = asyncio.Event()
        self.cleaner = Cleaner(directory, disk, clock, run_job=self._run_job)
        self.cleaner.free_space = free_space
        self._in_process = isinstance(disk, RealDisk)
        self._local_process: dict[str, CleanerProcess] = {}  # by the name of the log they work on
        self._released: set[str] = set()  # topics that are being deleted
        self._ended = asyncio.Event()  # a pass has come to its end
        self.defects = 0

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.configure()

    def configure(self) -> None:
        """As many tasks as `log.cleaner.threads` says now."""
        config = self._config()
        count = config["log.cleaner.threads"] if config["log.cleaner.enable"] else 0
        loop = asyncio.get_running_loop()
        while len(self._tasks) < count:
            process = CleanerProcess()
            self._processes.append(process)
            self._tasks.append(loop.create_task(self._work(process), name=f"cleaner-{len(self._tasks)}"))
        while len(self._tasks) > count:
            self._processes.pop().close()
            task = self._tasks.pop()
            task.cancel()
            self._leaving.append(task)

    async def stop(self) -> None:
        """End the processes; a swap that has begun is finished first."""
        for process in self._processes:
            process.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._leaving, return_exceptions=True)
        self._tasks.clear()
        self._threads.shutdown()

    async def release(self, topics: Collection[str]) -> None:
        """The logs of these topics are about to be deleted: return when no pass works on them any more."""
        self._released.update(topics)
        while running := [key for key, state in self._states_of(topics) if state.running]:
            for topic, partition in running:
                self.cleaner.states[topic, partition].stopping = True
                process = self._local_process.get(f"{topic}-{partition}")
                if process is not None:
                    process.interrupt()
            self._ended.clear()
            await self._ended.wait()

    def _states_of(self, topics: Collection[str]) -> list[tuple[TopicPartition, CleaningState]]:
        return [(key, state) for key, state in self.cleaner.states.items() if key[0] in topics]

    def forget(self, topic: str) -> None:
        """The topic was deleted; one made again under its name begins anew."""
        self._released.discard(topic)
        for key in [key for key in self.cleaner.states if key[0] == topic]:
            self.cleaner.forget(*key)

    # -- what is known ------------------------------------------------------------------------------------

    def state(self, topic: str, index: int) -> CleaningState:
        """How the compaction of a partition stands."""
        return self.cleaner.states.get((topic, index)) or CleaningState()

    def cleanability(self, partition: Partition) -> Cleanability:
        """How much of a compacted partition is clean. ApiError when its log is offline."""
        return self.cleaner.cleanability(partition.log, partition.last_stable_offset)

    # -- orders -------------------------------------------------------------------------------------------

    def compact_now(self, partition: Partition) -> None:
        """Compact all of a partition, the active segment and young records included, as soon as may be."""
        log = partition.log
        if not self._tasks:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "compaction is switched off on this broker (log.cleaner.enable or log.cleaner.threads)",
            )
        if not log.config.is_compacted:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"{log.topic} has cleanup.policy={','.join(log.config.cleanup_policy)}; "
                "only topics with compact in it are compacted",
            )
        if partition.high_watermark == log.end_offset:
            log.roll()
        state = self.cleaner.state(log)
        state.uncleanable = state.problem = None
        state.asked_for = True
        self._wake.set()

    # -- the work -----------------------------------------------------------------------------------------

    def _settings(self) -> CleanerSettings:
        config = self._config()
        share = config["log.cleaner.dedupe.buffer.size"] // max(config["log.cleaner.threads"], 1)
        return CleanerSettings(
            max(share, _SMALLEST_MEMORY),
            config["log.cleaner.io.buffer.load.factor"],
            config["log.cleaner.io.max.bytes.per.second"] / max(config["log.cleaner.threads"], 1),
        )

    async def _work(self, process: CleanerProcess) -> None:
        clock = self._clock
        idle_since = clock.monotonic()
        while True:
            try:
                if await self._work_once(process):
                    idle_since = clock.monotonic()
                    continue
                if clock.monotonic() - idle_since > _FREE_WHEN_IDLE and process.pid is not None:
                    await self._in_thread(process.retire)
            except Exception:
                self.defects += 1
                logger.exception("compaction failed by a defect of ours; going on")
            await self._rest()

    async def _work_once(self, process: CleanerProcess) -> bool:
        """Clean the log that needs it most; False when none does."""
        self.cleaner.settings = self._settings()
        chosen = await self._choose()
        if chosen is None:
            return False
        log, stable_offset = chosen
        if log.topic in self._released:  # while we were looking
            return False
        self._local_process[log.name] = process
        try:
            await self._clean(log, stable_offset)
        finally:
            self._local_process.pop(log.name, None)
            self._ended.set()
        return True

    async def _rest(self) -> None:
        seconds = max(self._config()["log.cleaner.backoff.ms"], 50) / 1000
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _choose(self) -> tuple[Log, int] | None:
        """The log to clean next. With many partitions the looking itself gives the loop back now and then."""
        clock = self._clock
        logs = []
        since = clock.monotonic()
        for partition in self._partitions:
            log = partition.log
            if not log.config.is_compacted or log.topic in self._released:
                continue
            candidate = self.cleaner.candidate(log, partition.last_stable_offset)
            if candidate is not None and candidate.is_due:
                logs.append((log, partition.last_stable_offset))
            if clock.monotonic() - since > _LOOK_SECONDS:
                await asyncio.sleep(0)
                since = clock.monotonic()
        return self.cleaner.choose(logs)

    async def _clean(self, log: Log, stable_offset: int) -> None:
        """Drive the cleaner's steps. When cancelled, what is under way is brought to an end first."""
        steps = self.cleaner.clean(log, stable_offset)
        cancelled = False
        try:
            work = next(steps)
            while True:
                future = self._in_thread(work)
                while not future.done():
                    try:
                        await asyncio.shield(asyncio.wait([future]))
                    except asyncio.CancelledError:
                        cancelled = True
                try:
                    outcome = future.result()
                except Exception as problem:  # noqa: BLE001 - the cleaner reports it
                    work = steps.throw(problem)
                else:
                    work = steps.send(outcome)
        except StopIteration:
            pass
        if cancelled:
            raise asyncio.CancelledError

    def _in_thread(self, work: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _run_job(self, job: CleaningJob, progress: Progress) -> Outcomes:
        """A disk that is not the machine's own is known in this process only."""
        if not self._in_process:
            return run(job, self._disk, progress=progress)
        return self._local_process[job.name].run(job, progress)
