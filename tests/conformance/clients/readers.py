"""How a test takes a number of records from a reader: the same patience for every client."""

from __future__ import annotations

import time

from conformance.clients.model import DEADLINE, Received


class Taking:
    """`take` for readers that can `poll`; what came beyond the count waits for the next take."""

    def __init__(self) -> None:
        self._ahead: list[Received] = []

    def poll(self, seconds: float) -> list[Received]:
        raise NotImplementedError

    def take(self, count: int) -> list[Received]:
        deadline = time.monotonic() + DEADLINE
        while len(self._ahead) < count:
            left = deadline - time.monotonic()
            assert left > 0, (
                f"{len(self._ahead)} of {count} records came in {DEADLINE:.0f} s: {self._ahead[-3:]}"
            )
            self._ahead += self.poll(min(left, 1.0))
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        return taken
