"""What this broker tells the controller of its disk, so that others lead what it cannot.

Two things are told. Replicas without a sound log have failed: their logs are offline, or could not be made.
The disk is impaired while it is full (`Space.is_impaired`), and for a while after it refused work of a log
that is sound (`Refusals`): whether it works again shows when the next work is tried, so the broker is taken
back on trial, and later each time that it refuses again.

A report goes out when something has changed, and again to each new controller and under each new broker
epoch. Where all is in order nothing is sent. Logs say so when something goes wrong (`Log.on_trouble`), also
from threads; besides, a chore of the broker looks at all replicas every few seconds. Decision 020.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from ottla.broker.image_follower import ImageChange
from ottla.broker.space import Space
from ottla.clock import Clock
from ottla.cluster.disk_states import HEALTHY, DiskReport, Replica
from ottla.cluster.image import ClusterImage
from ottla.protocol.errors import ApiError
from ottla.storage.log_state import LogState

logger = logging.getLogger("ottla.disk")

FIRST_HOLD, LONGEST_HOLD = 10.0, 60.0
"""Seconds after its last refusal for which a disk counts as impaired, at first and at most."""
_FORGIVEN_AFTER = 600.0
_RETRY_SECONDS = 1.0

Send = Callable[[DiskReport], Awaitable[tuple[int, int]]]
"""Brings a report to the controller: in which controller epoch and broker epoch it was heard, or ApiError."""


class Refusals:
    """For how long a disk that refused work counts as impaired. Pure: time is handed in."""

    def __init__(self) -> None:
        self._hold = FIRST_HOLD
        self._last = float("-inf")

    def refused(self, now: float) -> None:
        if now >= self.until:  # after a trial, or for the first time
            recently = now - self._last < _FORGIVEN_AFTER
            self._hold = min(2 * self._hold, LONGEST_HOLD) if recently else FIRST_HOLD
        self._last = now

    @property
    def until(self) -> float:
        return self._last + self._hold

    def are_recent(self, now: float) -> bool:
        return now < self.until


class LocalReplicas(Protocol):
    def without_log(self) -> Iterable[Replica]:
        """Replicas that belong here and have no sound log, by topic id and number."""
        ...


class DiskReports:
    """`image` is the cluster as this broker knows it."""

    def __init__(
        self,
        node_id: int,
        replicas: LocalReplicas,
        space: Space,
        image: Callable[[], ClusterImage],
        send: Send,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._space = space
        self._image = image
        self._send = send
        self._clock = clock
        self._refusals = Refusals()
        self._report = HEALTHY
        self._heard: DiskReport | None = HEALTHY  # None: that is not known
        self._heard_in = (-1, -1)  # controller epoch and broker epoch
        self._unheard_for = ""  # why the controller did not hear it; told once
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="disk-reports")
        self.look()

    async def stop(self) -> None:
        self._loop = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    # -- what has changed ---------------------------------------------------------------------------------

    def trouble(self, log: LogState) -> None:
        """The disk has refused work of a log, or the log is offline now. Called in any thread."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._take_trouble, log)

    def _take_trouble(self, log: LogState) -> None:
        if log.failure is None:
            self.refused()
        else:
            self.look()

    def refused(self) -> None:
        """The disk has refused work, which may be tried again."""
        self._refusals.refused(self._clock.monotonic())
        if not self._report.impaired:
            self.look()

    def look(self) -> None:
        """Find out how the disk is, and have it told if that is news."""
        impaired = self._space.is_impaired or self._refusals.are_recent(self._clock.monotonic())
        report = DiskReport(impaired, frozenset(self._replicas.without_log()))
        if report != self._report:
            level = logging.INFO if report == HEALTHY else logging.WARNING
            logger.log(level, "%s", _described(report))
            self._report = report
        if self._is_news:
            self._wake.set()

    async def follow(self, change: ImageChange) -> None:
        """Another controller may be there, or this broker be registered anew."""
        if self._is_news:
            self._wake.set()
        if change.delta.brokers and _impaired(change.old) != _impaired(change.image):
            self._space.look()  # brokers may share a disk: then all move at once

    # -- telling the controller ---------------------------------------------------------------------------

    @property
    def _is_news(self) -> bool:
        """The controller does not know it. A new one, or one to which this broker is new, knows nothing."""
        if self._heard is None:
            return True
        image = self._image()
        node = image.brokers.get(self._node_id)
        heard = self._heard_in >= (image.controller_epoch, -1) and (
            node is None or self._heard_in[1] >= node.epoch
        )
        return self._report != (self._heard if heard else HEALTHY)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            now = self._clock.monotonic()
            trial = self._refusals.until - now if self._refusals.are_recent(now) else None
            if not self._is_news:
                try:
                    async with asyncio.timeout(trial):
                        await self._wake.wait()
                except TimeoutError:
                    self.look()
                continue
            report, self._heard = self._report, None
            try:
                self._heard_in = await self._send(report)
                self._heard = report
                self._unheard_for = ""
            except ApiError as error:
                if self._unheard_for != str(error):
                    self._unheard_for = str(error)
                    logger.warning("the controller does not know yet how the disk is, trying on: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception:
                logger.exception("the disk could not be reported by a defect of ours; trying again")
                await asyncio.sleep(_RETRY_SECONDS)


def _impaired(image: ClusterImage) -> set[int]:
    return {broker.id for broker in image.brokers.values() if broker.disk.impaired}


def _described(report: DiskReport) -> str:
    troubles = []
    if report.impaired:
        troubles.append("the disk is full or refuses work: other brokers lead what they can")
    if report.failed:
        troubles.append(f"{len(report.failed)} replicas have no sound log here")
    return "; ".join(troubles) or "the disk and all logs are in order again"
