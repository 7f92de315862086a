"""The offsets of a commit in portions, so that others are served in between and no batch becomes too large.

Used by OffsetCommit and TxnOffsetCommit. Each partition has its own error code; an error of the group, or of
the log, stands for all of a portion.
"""

from __future__ import annotations

from typing import Protocol

from ottla.broker.group_requests import GroupCommand
from ottla.coordinator.group import NewOffset, OffsetCommit
from ottla.coordinator.group_effects import GroupEffects
from ottla.coordinator.group_shard import GroupShard
from ottla.coordinator.runtime.effects import Reply
from ottla.coordinator.runtime.shard import TransactionalProducer
from ottla.protocol.errors import ApiError, ErrorCode

_OFFSETS_AT_A_TIME = 250
_METADATA_AT_A_TIME = 256 << 10
"""Bytes of metadata that are written together; a batch may not be larger than `max.message.bytes`."""


class PartitionAnswer(Protocol):
    """The entry of a partition in the response."""

    error_code: int


class Portion:
    """Offsets that are written together, and the answers about them."""

    __slots__ = ("_answers", "_size", "offsets")

    def __init__(self) -> None:
        self._size = 0
        self.offsets: list[NewOffset] = []
        self._answers: list[PartitionAnswer] = []

    @property
    def is_full(self) -> bool:
        return len(self.offsets) >= _OFFSETS_AT_A_TIME or self._size >= _METADATA_AT_A_TIME

    def add(self, offset: NewOffset, answer: PartitionAnswer) -> None:
        self.offsets.append(offset)
        self._answers.append(answer)
        self._size += len(offset.metadata)

    def command(self, commit: OffsetCommit, producer: TransactionalProducer | None = None) -> GroupCommand:
        """Commits the portion, which `commit` holds, in the transaction of `producer` if there is one."""

        def run(groups: GroupShard, reply: Reply, effects: GroupEffects) -> None:
            outcomes = groups.commit(commit, effects)
            for answer, outcome in zip(self._answers, outcomes, strict=True):
                answer.error_code = outcome
            effects.answer(reply, None)

        def refused(error: ApiError) -> None:
            too_large = error.code is ErrorCode.RECORD_LIST_TOO_LARGE
            self.refuse(ErrorCode.INVALID_COMMIT_OFFSET_SIZE if too_large else error.code)

        return GroupCommand(commit.group_id, run, refused, producer)

    def refuse(self, code: ErrorCode) -> None:
        for answer in self._answers:
            answer.error_code = code


def add(portions: list[Portion], offset: NewOffset, answer: PartitionAnswer) -> None:
    """Add an offset to the last portion, or to a new one if that is full."""
    if portions[-1].is_full:
        portions.append(Portion())
    portions[-1].add(offset, answer)
