"""What Spark reports about its queries, sorted by the thread that watches each query.

Spark calls a listener on a thread of its own, one call after the other for all queries; a slow call
there holds up all others. So the listener only takes a note and puts it on the queue of the stage's watcher.
A queue holds the notes of one start of one query: the batches that were finished since the watcher looked
last.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A batch was committed; `progress` is Spark's JSON about it."""

    progress: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """The query is over; nothing comes after this."""

    error: str


Note = BatchDone | Ended


class QueryNotes(StreamingQueryListener):
    """The listener. `expect` a name, start the query of that name, then read its notes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: dict[str, SimpleQueue[Note]] = {}
        self._running: dict[str, SimpleQueue[Note]] = {}

    def expect(self, name: str) -> SimpleQueue[Note]:
        """The queue for the query that will be started under this name."""
        notes: SimpleQueue[Note] = SimpleQueue()
        with self._lock:
            self._expected[name] = notes
        return notes

    # Called by Spark, `onQueryStarted` before the call that starts the query returns.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        with self._lock:
            notes = self._expected.pop(event.name or "", None)
            if notes is not None:
                self._running[str(event.runId)] = notes

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        notes = self._running.get(str(event.progress.runId))
        if notes is not None:
            notes.put(BatchDone(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            notes = self._running.pop(str(event.runId), None)
        if notes is not None:
            notes.put(Ended(event.exception or ""))
