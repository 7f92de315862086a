"""What a coordinator must provide to run on the runtime: a state machine, and the codec of its records.

There is one state per shard. Commands read it and fill an `Effects`. It changes in three steps, after the log
has taken the records: `adopt` puts drafts in place, `replay` applies each record, `settled` is called when
both are done. A new coordinator gets the same state by `replay` of the whole log.

A record of a transaction is replayed with the id of its producer. It must not count before the marker that
commits the transaction is replayed, and never if the marker aborts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ottla.coordinator.runtime.effects import Effects

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
E = TypeVar("E", bound=Effects[Any])


class RecordCodec(NamedTuple, Generic[R]):
    """How records of a coordinator are written as the key and value of a Kafka record."""

    encode: Callable[[R], tuple[bytes, bytes | None]]
    decode: Callable[[bytes | None, bytes | None], R | None]
    """None for a type that is not known here. `Malformed` when the bytes do not fit their type."""


class ShardState(Protocol[R_contra, E]):
    def new_effects(self, now_ms: int) -> E:
        """For one command."""

    def replay(self, offset: int, producer_id: int, producer_epoch: int, record: R_contra) -> None:
        """Apply a record of the log. `producer_id` is NO_PRODUCER_ID outside of a transaction."""

    def replay_end_transaction_marker(
        self, producer_id: int, producer_epoch: int, *, committed: bool
    ) -> None:
        """The transaction of a producer has ended."""

    def adopt(self, effects: E) -> None:
        """The log has taken the records: put drafts in place. The records are replayed after this."""

    def settled(self, effects: E) -> None:
        """Drafts and records of a command have been applied."""

    def on_timer(self, timer: Any, effects: E) -> None:
        """A timer has expired."""

    def resume(self, effects: E) -> None:
        """The log has been replayed, and this state becomes the active one."""

    def close(self) -> None:
        """The shard has ended."""
