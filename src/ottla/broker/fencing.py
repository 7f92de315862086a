"""A broker that may have been replaced fences itself: it leads, coordinates and controls nothing.

The registry hands the place of a broker to others when its session is over. The broker has to stop before
that, by its own clock, since it may be cut off and not hear of it (`Registry.may_be_over`). It goes on when
it is registered again and its image shows the new registration (`Membership.is_fenced`): in that image the
controller has taken away what it may not lead any more.

Each request asks by itself whether the broker is fenced, so none is answered in between. Here is what must
happen without a request: those that wait are answered with an error, and groups are ended and loaded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger("ottla.broker")

LOOK_SECONDS = 0.25
_TRUST_SECONDS = 0.05
"""So long a broker that was not fenced counts as not fenced: requests ask for each of their partitions."""


class Fencing:
    def __init__(
        self, check: Callable[[], bool], now: Callable[[], float], changed: Callable[[], None]
    ) -> None:
        """`check` says whether the broker may have been replaced. `changed` is called on a change."""
        self._check = check
        self._now = now
        self._changed = changed
        self._clear_until = float("-inf")
        self._was_fenced = False
        self._task: asyncio.Task[None] | None = None

    def is_fenced(self) -> bool:
        now = self._now()
        if now < self._clear_until:
            return False
        if self._check():
            return True
        self._clear_until = now + _TRUST_SECONDS
        return False

    def holds_back(self) -> bool:
        """Whether it is fenced, or parts that have ended because of it are not told yet to begin again."""
        return self.is_fenced() or self._was_fenced

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._look_on(), name="fencing")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _look_on(self) -> None:
        while True:
            try:
                self.look()
            except Exception:
                logger.exception("the parts of the broker could not be told that it is fenced; trying again")
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        is_fenced = self.is_fenced()
        if is_fenced == self._was_fenced:
            return
        if is_fenced:
            logger.warning(
                "the registry may have ended this broker's session: it leads and coordinates nothing until "
                "it is registered again"
            )
        else:
            logger.warning("this broker is registered, and leads what the cluster says")
        self._changed()
        self._was_fenced = is_fenced
