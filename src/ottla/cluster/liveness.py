"""Which brokers are alive, as the controller hears it: pure, time is handed in.

A broker is alive when it is registered (its registry session lasts) and asks the controller for the image.
One that has not asked for `session_timeout` is fenced: with the session alone, a broker that is cut off from
the others would stay in sync for ever and every acks=all would wait for it. A broker that has just
registered is fenced until it has taken over an image that shows its registration. The controller's own
broker is never silent.

When a controller does not hear from most brokers, it is more likely that it is cut off than that they all are
silent, so it resigns and lets another stand for election (`should_resign`). The limits of that:

- With one broker there is nobody else. With two nobody is right more often than the other: after the change
  the new controller would not hear the old one either, and resign in turn. Whichever of the two is the
  controller fences the other and serves. So there have to be three registered brokers at least.
- It resigns before it fences the first of them, hence those that were silent for half of the time count, too.
- "Most" is more than half of all, its own broker included. In two halves both would resign for ever.
- If nobody else takes over, the silent brokers are dead or hang, while their registry sessions last. The
  same controller is elected again, and must not resign for the same reason: their partitions have to move.
  It resigns again only after it has heard from most of them.
- At the start of a term all registered brokers count as heard, since they have yet to find the new
  controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_LEAST_TO_RESIGN = 3
_ROUNDING = 0.001
"""A deadline is a little later, so that at that time the difference to the last poll is large enough."""


@dataclass(slots=True)
class _Known:
    epoch: int
    heard: float
    fenced_below: float
    """It is fenced until it has taken over an image of this version."""
    polled: bool = False
    """It has asked this controller, in this term."""


class Liveness:
    """The brokers of one term. `begin` starts the next one."""

    def __init__(self, own_id: int, session_timeout: float) -> None:
        self._own_id = own_id
        self._session_timeout = session_timeout
        self._known: dict[int, _Known] = {}
        self._resigned = False

    def begin(self, epochs: Mapping[int, int], now: float) -> None:
        """A term begins with these brokers registered, of these broker epochs."""
        self._known = {broker: _Known(epoch, now, 0) for broker, epoch in epochs.items()}

    def registered(self, broker: int, epoch: int, now: float) -> None:
        """It is fenced; `shown` says from which image on it need not be."""
        self._known[broker] = _Known(epoch, now, 0 if broker == self._own_id else float("inf"))

    def shown(self, broker: int, version: int) -> None:
        """The image of `version` is the first that shows the registration."""
        if broker != self._own_id:
            self._known[broker].fenced_below = version

    def left(self, broker: int) -> None:
        self._known.pop(broker, None)

    def epoch(self, broker: int) -> int | None:
        known = self._known.get(broker)
        return known.epoch if known is not None else None

    def polled(self, broker: int, epoch: int, version: int, now: float) -> bool:
        """A broker that has taken over `version` asks for what is newer; whether it is no longer fenced."""
        known = self._known.get(broker)
        if known is None or known.epoch != epoch:
            return False
        was_fenced = self.is_fenced(broker, now)
        known.heard = now
        known.polled = True
        if version >= known.fenced_below:
            known.fenced_below = 0
        if self._resigned and 2 * (len(self._others(polled=True)) + 1) > self._count():
            self._resigned = False
        return was_fenced and not self.is_fenced(broker, now)

    def is_fenced(self, broker: int, now: float) -> bool:
        known = self._known.get(broker)
        if known is None:
            return True
        return broker != self._own_id and (known.fenced_below > 0 or self._is_silent(known, now))

    def silence_of(self, broker: int, now: float) -> float | None:
        """Seconds since it has asked; None if it has not asked in this term."""
        known = self._known.get(broker)
        return now - known.heard if known is not None and known.polled else None

    def next_deadline(self, now: float) -> float | None:
        """When the next broker will be silent, if it stays so."""
        ends = [
            self._known[broker].heard + self._session_timeout + _ROUNDING
            for broker in self._others()
            if not self._is_silent(self._known[broker], now)
        ]
        return min(ends, default=None)

    def should_resign(self, now: float) -> bool:
        if self._resigned or self._count() < _LEAST_TO_RESIGN:
            return False
        silences = [now - self._known[broker].heard for broker in self._others()]
        if max(silences) < self._session_timeout:
            return False
        # Brokers that became silent together did so within the time between two polls.
        return 2 * sum(silence >= self._session_timeout / 2 for silence in silences) > self._count()

    def resigned(self) -> None:
        """The controller has resigned because of the silence."""
        self._resigned = True

    def _is_silent(self, known: _Known, now: float) -> bool:
        return now - known.heard >= self._session_timeout

    def _others(self, *, polled: bool = False) -> list[int]:
        return [
            broker
            for broker, known in self._known.items()
            if broker != self._own_id and (known.polled or not polled)
        ]

    def _count(self) -> int:
        return len(self._others()) + 1
