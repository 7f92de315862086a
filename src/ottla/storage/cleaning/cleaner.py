"""The cleaner of a data folder: picks a log, has a pass made over it, swaps the result in, remembers.

It does no waiting and knows no threads. `clean` is a generator: between its steps, which run where the log is
used, it hands out work that blocks (reading, writing, syncing) and is sent the outcome. A broker runs that
work in threads and processes beside its event loop; a test, or a tool, runs it on the spot (`clean_now`).

Whatever goes wrong with one log is that log's affair: it is noted in its state and logged. A log that holds
something unreadable is left alone until it is asked for or the broker restarts; after anything else, a
defect of ours included, it is tried again later. No error comes out of `candidate` and `clean`.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

from ottla.clock import Clock
from ottla.protocol.errors import ApiError
from ottla.storage.checkpoints import TopicPartition
from ottla.storage.cleaning.decisions import Candidate, Cleanability, choose, first_dirty_offset, measure
from ottla.storage.cleaning.job import CleaningJob, CleaningResult, Outcomes, Progress, Uncleanable, run
from ottla.storage.cleaning.state import CleaningState, LastCleaning, Overtaken
from ottla.storage.cleaning.swap import Swap, remove_cleaned
from ottla.storage.files import Disk
from ottla.storage.log import Log
from ottla.storage.log_directory import LogDirectory

logger = logging.getLogger("ottla.cleaner")

RETRY_SECONDS = 60.0
"""After which a log whose compaction failed is tried again; others are not kept waiting for it."""

Blocking = Callable[[], Any]
RunJob = Callable[[CleaningJob, Progress], Outcomes]


@dataclass(frozen=True)
class CleanerSettings:
    """The broker's `log.cleaner.*`. `memory` is for one log at a time."""

    memory: int = 128 << 20
    load_factor: float = 0.9
    bytes_per_second: float = float("inf")


class Cleaner:
    def __init__(
        self, directory: LogDirectory, disk: Disk, clock: Clock, *, run_job: RunJob | None = None
    ) -> None:
        self.settings = CleanerSettings()
        self.free_space: Callable[[], int | None] = lambda: None  # bytes that a pass may write; None: any
        self.states: dict[TopicPartition, CleaningState] = {}
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._run_job = run_job or (lambda job, progress: run(job, disk, progress=progress))

    def state(self, log: Log) -> CleaningState:
        return self.states.setdefault((log.topic, log.partition), CleaningState())

    def forget(self, topic: str, partition: int) -> None:
        """The partition is gone, or is another one now."""
        self.states.pop((topic, partition), None)

    # -- which log -----------------------------------------------------------------------------------

    def cleanability(self, log: Log, stable_offset: int) -> Cleanability:
        """Where a log stands. `stable_offset`: decided and replicated up to there."""
        checkpoint = self._directory.cleaned_offsets.get((log.topic, log.partition))
        state = self.states.get((log.topic, log.partition))
        return measure(
            log.cleanable_segments(),
            log.config,
            first_dirty=first_dirty_offset(checkpoint, log.log_start_offset, log.end_offset),
            stable_offset=stable_offset,
            now_ms=self._clock.now_ms(),
            ignore_lag=state is not None and state.asked_for,
        )

    def candidate(self, log: Log, stable_offset: int) -> Candidate | None:
        """The log, if it may be compacted at all just now."""
        state = self.states.get((log.topic, log.partition))
        asked_for = state is not None and state.asked_for
        if log.failure is not None or not log.config.is_compacted:
            return None
        if state is not None and (state.running or state.uncleanable):
            return None
        if state is not None and not asked_for and self._clock.monotonic() < state.not_before:
            return None
        try:
            where = self.cleanability(log, stable_offset)
        except Exception as problem:  # noqa: BLE001 - whatever it is, other logs have to be looked at
            self._try_later(log, problem)
            return None
        return Candidate(log.name, where, log.config.min_cleanable_dirty_ratio, asked_for)

    def choose(self, logs: list[tuple[Log, int]]) -> tuple[Log, int] | None:
        """Of logs with their stable offsets the one to compact next, None when none is due."""
        by_name = {}
        candidates = []
        for log, stable_offset in logs:
            candidate = self.candidate(log, stable_offset)
            if candidate is not None:
                by_name[candidate.name] = log, stable_offset
                candidates.append(candidate)
        chosen = choose(candidates)
        return None if chosen is None else by_name[chosen.name]

    # -- cleaning one --------------------------------------------------------------------------------

    def plan(self, log: Log, stable_offset: int) -> CleaningJob | None:
        """The pass to be made, None when there is nothing dirty. Looks at files."""
        where = self.cleanability(log, stable_offset)
        segments = log.cleanable_segments(in_detail=True)
        ends = [segment.base_offset for segment in segments[1:]]
        chosen = [s for s in segments[:-1] if s.base_offset < where.first_uncleanable]
        if not chosen or where.dirty_bytes == 0:
            return None
        return CleaningJob(
            name=log.name,
            folder=str(log.folder),
            segments=chosen,
            segments_end=ends[len(chosen) - 1],
            first_dirty=where.first_dirty,
            first_uncleanable=where.first_uncleanable,
            now_ms=self._clock.now_ms(),
            config=log.config,
            delete_retention_ms=log.config.delete_retention_ms,
            last_of_producer={s.producer_id: s.last_offset for s in log.producers.active if s.batches},
            epoch_of_marker={s.producer_id: s.epoch for s in log.producers.active if not s.batches},
            aborted=log.aborted_transactions(chosen[0].base_offset, ends[len(chosen) - 1]),
            memory=self.settings.memory,
            load_factor=self.settings.load_factor,
            bytes_per_second=self.settings.bytes_per_second,
        )

    def clean(self, log: Log, stable_offset: int) -> Generator[Blocking, Any, bool]:
        """Compact a log; whether it was done. What goes wrong is noted in the log's state and logged."""
        state = self.state(log)
        state.running = True
        state.problem = None
        state.note_progress(0, 0)
        started = self._clock.monotonic()
        try:
            for swap in list(state.unfinished):
                yield from self._complete(log, swap, state)
            # What is cleaned must be on disk: a scan after a crash must not begin within it.
            yield log.flush
            job = self.plan(log, stable_offset)
            if job is None:
                state.asked_for = False
                return False
            self._check_space(job)
            result = yield from self._pass(log, job, state)
        except Uncleanable as problem:
            self._leave_alone(log, problem)
            return False
        except Exception as problem:  # noqa: BLE001 - whatever it is, other logs have to be compacted
            self._try_later(log, problem)
            return False
        finally:
            state.running = False
            log.swapping = False
        self._note_done(log, state, job, result, started)
        return True

    def _leave_alone(self, log: Log, problem: Exception) -> None:
        state = self.state(log)
        state.uncleanable = state.problem = str(problem)
        state.asked_for = False
        state.failures += 1
        logger.error(
            "%s cannot be compacted and is left as it is: %s. `ottla log inspect` shows the file; "
            "`ottla topic compact %s --now` tries again",
            log.name,
            problem,
            log.topic,
        )

    def _try_later(self, log: Log, problem: Exception) -> None:
        state = self.state(log)
        state.problem = str(problem) or repr(problem)
        state.not_before = self._clock.monotonic() + RETRY_SECONDS
        state.asked_for = False
        if isinstance(problem, Overtaken):
            return
        state.failures += 1
        if not isinstance(problem, OSError | ApiError):
            logger.error(
                "%s: compaction failed by a defect of ours, trying again later", log.name, exc_info=problem
            )
        elif log.failure is None:
            logger.warning("%s: compaction failed, trying again later: %s", log.name, problem)

    def _is_here(self, log: Log) -> bool:
        """Whether the folder of this name is still that of the log: a topic may be deleted and made again."""
        return self._directory.logs.get((log.topic, log.partition)) is log and log.failure is None

    def _pass(
        self, log: Log, job: CleaningJob, state: CleaningState
    ) -> Generator[Blocking, Any, CleaningResult]:
        truncations = log.truncations
        key = log.topic, log.partition
        left = [segment.base_offset for segment in job.segments]
        outcomes = self._run_job(job, state.note_progress)
        try:
            while not isinstance(cleaned := (yield partial(next, outcomes)), CleaningResult):
                if state.stopping or not self._is_here(log):
                    raise Overtaken("the log is being deleted")
                log.swapping = True
                swap = Swap(self._disk, log, cleaned, truncations)
                yield swap.promise
                if not self._is_here(log) or not swap.take_place():
                    raise Overtaken("the log was cut or shortened meanwhile")
                state.unfinished.append(swap)
                left = [base for base in left if base not in cleaned.replaces]
                yield from self._complete(log, swap, state)
                log.swapping = False
        except Exception:
            yield outcomes.close
            if left and self._is_here(log):
                yield partial(self._remove_rests, log, left)
            raise
        if self._is_here(log):
            self._directory.cleaned_offsets[key] = cleaned.cleaned_to
            yield self._directory.checkpoint_cleaned
        return cleaned

    def _check_space(self, job: CleaningJob) -> None:
        """A new segment and those it replaces are on the disk together for a while."""
        largest = max(job.config.segment_bytes, *(segment.size for segment in job.segments))
        needed = min(sum(segment.size for segment in job.segments), largest)
        free = self.free_space()
        if free is not None and needed > free:
            raise OSError(
                errno.ENOSPC,
                f"compacting {job.name} may need {needed} bytes for a while, and {max(free, 0)} are free",
            )

    def _complete(self, log: Log, swap: Swap, state: CleaningState) -> Generator[Blocking, Any, None]:
        yield swap.retire_old
        swap.take_name()
        state.unfinished.remove(swap)
        yield swap.settle

    def _remove_rests(self, log: Log, bases: list[int]) -> None:
        for base in bases:
            remove_cleaned(self._disk, log.folder, base)
        self._disk.sync_folder(log.folder)

    def _note_done(
        self, log: Log, state: CleaningState, job: CleaningJob, result: CleaningResult, started: float
    ) -> None:
        state.passes += 1
        if result.cleaned_to >= job.first_uncleanable:
            state.asked_for = False
        state.last = LastCleaning(
            self._clock.now_ms(),
            self._clock.monotonic() - started,
            result.bytes_before,
            result.bytes_after,
            result.records_before,
            result.records_after,
        )
        logger.info(
            "%s: compacted offsets %d to %d in %.1f s: %d bytes became %d, %d records became %d",
            log.name,
            job.first_dirty,
            result.cleaned_to - 1,
            state.last.seconds,
            result.bytes_before,
            result.bytes_after,
            result.records_before,
            result.records_after,
        )


def clean_now(cleaner: Cleaner, log: Log, stable_offset: int) -> bool:
    """Compact a log on the spot, blocking."""
    steps = cleaner.clean(log, stable_offset)
    try:
        work = next(steps)
        while True:
            try:
                outcome = work()
            except Exception as problem:  # noqa: BLE001 - the cleaner reports it
                work = steps.throw(problem)
            else:
                work = steps.send(outcome)
    except StopIteration as end:
        return bool(end.value)
