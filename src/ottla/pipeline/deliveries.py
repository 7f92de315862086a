"""Which outputs of a batch are written, so that a batch that runs again writes only what is missing.

Spark runs a batch again after every failure. Without a note, an output that was written before another one
failed would get its rows once more with each attempt. `Deliveries` remembers in memory what the current batch
has written, for restarts in the same process, and on disk when a batch fails, for the next process. A batch
that ends well costs nothing more.

The note on disk counts only for the same batch of the same query over the same offsets. If Spark's checkpoint
was put back, a batch of the same number may hold other records, and then all of it is written.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from ottla.pipeline.checkpoints import CheckpointError, StageFolder

log = logging.getLogger("ottla.pipeline")

NAME = "delivered.json"


@dataclass
class _Batch:
    query_id: str | None
    number: int
    done: set[str] = field(default_factory=set)


class Deliveries:
    """What the last batch of one stage has written. Used by one thread at a time."""

    def __init__(self, folder: StageFolder) -> None:
        self._folder = folder
        self._batch: _Batch | None = None

    def begin(self, query_id: str | None, number: int) -> bool:
        """A batch starts. True when it ran before and did not come to its end, or Spark did not note it."""
        current = self._batch
        if current is not None and (current.query_id, current.number) == (query_id, number):
            return True
        self._batch = _Batch(query_id, number)
        if current is not None:
            return False  # the batch before was in this process, so nothing older can count
        noted = self._read(query_id, number)
        if noted is None:
            return False
        self._batch.done = noted
        return True

    def is_done(self, output: str) -> bool:
        return self._batch is not None and output in self._batch.done

    def done(self, output: str) -> None:
        """All rows of this output are acknowledged."""
        assert self._batch is not None
        self._batch.done.add(output)

    def failed(self) -> None:
        """The batch did not come to its end. Where the note cannot be written, memory has to do."""
        batch = self._batch
        if batch is None:
            return
        try:
            self._folder.write_json(
                NAME,
                {
                    "query": batch.query_id,
                    "batch": batch.number,
                    "offsets": self._offsets(batch.number),
                    "done": sorted(batch.done),
                },
            )
        except (OSError, CheckpointError) as problem:
            log.warning("%s of stage %s cannot be written: %s", NAME, self._folder.name, problem)

    def _read(self, query_id: str | None, number: int) -> set[str] | None:
        try:
            noted: Any = self._folder.read_json(NAME)
            if noted is None or (noted["query"], noted["batch"]) != (query_id, number):
                return None
            offsets = self._offsets(number)
        except (OSError, CheckpointError, ValueError, KeyError) as problem:
            log.warning("%s of stage %s cannot be read: %s", NAME, self._folder.name, problem)
            return None
        return set(noted["done"]) if offsets[-1] is not None and offsets == noted["offsets"] else None

    def _offsets(self, number: int) -> list[Any]:
        """Where the batch begins and ends, as Spark's checkpoint has it."""
        return [self._folder.offsets_of(each) if each >= 0 else None for each in (number - 1, number)]
