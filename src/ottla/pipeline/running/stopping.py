"""Stopping between two batches.

Spark's `stop()` tears a query out of the batch it is in; what the batch has written so far is written again
by the next run. So a query is stopped where it stands between two batches, and its door for the next one is
shut first: `BatchGate` is the function that Spark calls for every batch. Once a stop was asked for it lets
the batch that is inside finish and turns the next one away, before it has done anything. A batch that was
turned away is run by the next start, from the offsets that Spark wrote down for it.

A second request means at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

MOST_BEHIND = 100
"""Batches that may be finished and not yet be taken notice of."""


class StopAsked(Exception):
    """A batch was turned away because the pipeline is stopping. Nothing of it was done."""


class StopRequest:
    """Whether someone wants the run to end: first after the batches that run, then at once."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._at_once = threading.Event()

    def ask(self) -> None:
        """Once: finish the batches. Again: at once."""
        if self._asked.is_set():
            self._at_once.set()
        self._asked.set()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    @property
    def at_once(self) -> bool:
        return self._at_once.is_set()

    def wait(self, seconds: float) -> bool:
        """Pause; True as soon as a stop is asked for."""
        return self._asked.wait(seconds)


class BatchGate:
    """Around the function that writes the batches of one query."""

    def __init__(
        self, write_batch: Callable[[Any, int], None], backlog: Callable[[], int] = lambda: 0
    ) -> None:
        """`backlog` gives the number of finished batches that the watcher has not seen yet."""
        self._write_batch = write_batch
        self._backlog = backlog
        self._lock = threading.Lock()
        self._shut = False
        self._inside: int | None = None
        self._written: int | None = None
        self.turned_away = False
        self.error: BaseException | None = None
        """What the last batch failed with, as it was raised here."""

    def __call__(self, frame: Any, batch_id: int) -> None:
        # A display that cannot be written to (a pipe without a reader) must not fill the memory with notes.
        while self._backlog() > MOST_BEHIND and not self._shut:
            time.sleep(0.02)
        with self._lock:
            if self._shut:
                self.turned_away = True
                raise StopAsked(f"batch {batch_id} waits for the next start")
            self._inside = batch_id
        try:
            self._write_batch(frame, batch_id)
        except BaseException as error:
            self.error = error
            raise
        else:
            self._written = batch_id
        finally:
            self._inside = None

    def shut(self) -> int | None:
        """Let no further batch in. The number of the last one that got in, which Spark has yet to commit."""
        with self._lock:
            self._shut = True
            return self._inside if self._inside is not None else self._written
