"""Which batch of a stage is committed: a mark that is written in the batch's own transaction.

The mark is the metadata of an offset that a consumer group of the stage commits with the records, so it is
there exactly when they are. A driver that starts reads it before it runs a batch again. It counts only for
the same batch of the same query over the same offsets: a checkpoint that was reset has another query id, and
in one that was put back from a copy a batch of the same number may hold other records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

MARKS = ".transactions"
"""How the name of the consumer group ends that keeps the marks of a stage; before that is its own group's."""


@dataclass(frozen=True, slots=True)
class BatchMark:
    """One batch, as it is known after a crash."""

    query_id: str
    batch_id: int
    offsets: str
    """A digest of where the batch begins and ends."""

    def as_metadata(self) -> str:
        return json.dumps({"query": self.query_id, "batch": self.batch_id, "offsets": self.offsets})

    @classmethod
    def from_metadata(cls, text: str) -> BatchMark | None:
        """None for what is no mark of ours, such as an offset that a person has committed."""
        try:
            found = json.loads(text)
            mark = cls(found["query"], found["batch"], found["offsets"])
        except (ValueError, KeyError, TypeError):
            return None
        texts = isinstance(mark.query_id, str) and isinstance(mark.offsets, str)
        return mark if texts and isinstance(mark.batch_id, int) else None


def digest_of(begin: Mapping[str, Any] | None, end: Mapping[str, Any] | None) -> str:
    """Of the offsets of all sources, as Spark's checkpoint has them."""
    return sha256(json.dumps([begin, end], sort_keys=True).encode()).hexdigest()[:32]


def newest(marks: Iterable[BatchMark | None], query_id: str) -> BatchMark | None:
    """The last batch of the query that is marked. A stage that changed its outputs has several marks."""
    own = [mark for mark in marks if mark is not None and mark.query_id == query_id]
    return max(own, key=lambda mark: mark.batch_id, default=None)


def contradicts(found: BatchMark | None, batch: BatchMark) -> bool:
    """Whether what is committed cannot be what this checkpoint has done: it is older than the topics."""
    if found is None or found == batch:
        return False
    return found.batch_id >= batch.batch_id
