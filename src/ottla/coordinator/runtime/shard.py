"""One partition of a coordinator's topic, led here in one leader epoch, and the state that lives in it.

A command is a function of the state that fills an `Effects`. The shard appends the records to the partition.
Only when the log has taken them does the state change, by its drafts and then by replay of these records; and
only when they are below the high watermark are the answers sent. A log that refuses leaves the state as it
was, and the client gets the error. A command without records is answered after everything that was written
before it is committed, because that is the state it has read. So all answers tell committed state.

If the state cannot be changed after the log has taken the records, memory and log differ. Then the shard
fails and is loaded again.

A producer can have records of a coordinator written in its transaction (offsets, for one). They are replayed
at once with the id of the producer, and count when the marker that commits the transaction is replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ottla.completion import Completion
from ottla.coordinator.runtime.effects import CoordinatorTimer, Reply
from ottla.coordinator.runtime.loading import replay_log
from ottla.coordinator.runtime.state import ShardState
from ottla.coordinator.runtime.timers import ShardTimers
from ottla.printable import shown
from ottla.protocol.batches import NO_PRODUCER_ID
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.records import Record, encode_batch
from ottla.replication.partition import Partition
from ottla.storage.verification import VerificationGuard

if TYPE_CHECKING:
    from ottla.coordinator.runtime.runtime import CoordinatorRuntime

logger = logging.getLogger("ottla.coordinator")

NO_PRODUCER_EPOCH = -1
_RETRY_TIMER_MS = 1000
"""After which an expired timer is handled again, when the log did not take the records."""
_RETRY_FAILED_TIMER_MS = 10_000
"""The same when handling it failed with an exception."""

S = TypeVar("S", bound=ShardState[Any, Any])


class MayBeReplaced(ApiError):
    """This broker may have coordinated the shard, and does not know whether it still does."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(ErrorCode.NOT_COORDINATOR, message)


class Phase(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    """It could not be loaded, or its state differs from its log. It is loaded again after a while."""
    CLOSED = "closed"


class TransactionalProducer(NamedTuple):
    """In whose transaction the records of a command are written."""

    producer_id: int
    producer_epoch: int
    verification: VerificationGuard | None = None
    """As `Partition.append` takes it."""


class Shard(Generic[S]):
    def __init__(self, partition: Partition, runtime: CoordinatorRuntime[S]) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state: S = runtime.make_state()
        self.phase = Phase.LOADING
        self._runtime = runtime
        self._written = 0  # the offset behind the last record that the state holds
        self._waiting: set[Reply] = set()
        self._delayed: set[Completion[bool]] = set()
        self._timers = ShardTimers(runtime.clock, runtime.scheduler, self._on_timer)

    def __repr__(self) -> str:
        return f"<shard {self.partition.topic}-{self.partition.index} epoch {self.leader_epoch}>"

    # -- commands -----------------------------------------------------------------------------------------

    def run(
        self, command: Callable[[S, Reply, Any], None], producer: TransactionalProducer | None = None
    ) -> Reply:
        """Run a command for a client, which gets a response, or an ApiError."""
        reply: Reply = Completion()
        self._waiting.add(reply)
        try:
            self.execute(lambda state, effects: command(state, reply, effects), producer)
        except ApiError as error:
            self._waiting.discard(reply)
            reply.fail(error)
        except BaseException:
            self._waiting.discard(reply)  # a defect of ours: the caller closes the connection
            raise
        return reply

    def execute(
        self, command: Callable[[S, Any], None], producer: TransactionalProducer | None = None
    ) -> None:
        """Run a command. ApiError when the command or the log refuses; then nothing has changed."""
        state = self.state
        effects = state.new_effects(self._runtime.clock.now_ms())
        command(state, effects)
        records = effects.records
        if records:
            self._written = self._append(records, effects.now_ms, producer, effects.spare_bytes)
        producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
        producer_epoch = NO_PRODUCER_EPOCH if producer is None else producer.producer_epoch
        try:
            state.adopt(effects)
            for offset, record in enumerate(records, self._written - len(records)):
                state.replay(offset, producer_id, producer_epoch, record)
            state.settled(effects)
        except Exception as defect:
            self._runtime.fail(self, defect)
            raise ApiError(ErrorCode.NOT_COORDINATOR) from defect
        for key, timer in effects.timers.items():
            if timer is None:
                self._timers.cancel(key)
            else:
                self._timers.set(key, timer, timer.delay_ms)
        if effects.answers:
            self._answer_when_committed(self._written, effects.answers)

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Completion[None]:
        """Write the marker that ends a producer's transaction, and let its records count, or drop them.

        The result comes when the marker is committed.
        """
        reply: Reply = Completion()
        try:
            self._check_leadership()
            self.partition.check_in_sync()
            info = self.partition.append_marker(
                producer_id,
                producer_epoch,
                commit=committed,
                coordinator_epoch=coordinator_epoch,
                transaction_version=transaction_version,
            )
        except ApiError as error:
            return Completion.failed(self._as_coordinator_error(error))
        self._written = info.last_offset + 1
        try:
            self.state.replay_end_transaction_marker(producer_id, producer_epoch, committed=committed)
        except Exception as defect:  # noqa: BLE001 - the shard fails with it
            self._runtime.fail(self, defect)
            return Completion.failed(ApiError(ErrorCode.NOT_COORDINATOR))
        self._waiting.add(reply)
        self._answer_when_committed(self._written, [(reply, None)])
        return reply

    def _append(
        self,
        records: Iterable[Any],
        now_ms: int,
        producer: TransactionalProducer | None,
        spare_bytes: int | None,
    ) -> int:
        """Write records as one batch; the offset behind them."""
        encode = self._runtime.codec.encode
        rows = [
            Record(index, now_ms, *encode(record), [])  # the offsets are deltas here
            for index, record in enumerate(records)
        ]
        compression = self._runtime.compression
        verification = None
        if producer is None:
            batch = encode_batch(rows, codec=compression)
        else:
            batch = encode_batch(
                rows,
                codec=compression,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transactional=True,
            )
            verification = producer.verification
        partition = self.partition
        most = partition.log.config.max_message_bytes
        if spare_bytes is not None and len(batch) + spare_bytes > most:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{len(batch)} bytes, and {spare_bytes} to spare, do not fit max.message.bytes={most} of "
                f"{partition.topic}",
            )
        self._check_leadership()
        try:
            partition.check_in_sync()
            info = partition.append(memoryview(batch), from_client=False, verification=verification)
            return info.last_offset + 1
        except ApiError as error:
            raise self._as_coordinator_error(error) from error

    def _check_leadership(self) -> None:
        """NOT_COORDINATOR if the state may be older than what others have written."""
        if (
            not self.partition.state.is_leader
            or self.partition.leader_epoch != self.leader_epoch
            or self._runtime.may_be_replaced()
        ):
            raise self._not_coordinator()

    def _not_coordinator(self, message: str | None = None) -> ApiError:
        if self._runtime.may_be_replaced():
            return MayBeReplaced(message)
        return ApiError(ErrorCode.NOT_COORDINATOR, message)

    def _as_coordinator_error(self, error: ApiError) -> ApiError:
        """An error of the partition as clients of a coordinator understand it: retry, or find another
        broker."""
        if error.code in _NOT_AVAILABLE:
            return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
        if error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
            return self._not_coordinator(error.message)
        return error

    # -- answers ------------------------------------------------------------------------------------------

    def _answer_when_committed(self, end: int, answers: Sequence[tuple[Reply, Any]]) -> None:
        try:
            if self._is_committed(end):
                self._send(answers)
                return
        except ApiError as error:
            self._fail_all(answers, error)
            return

        def done(expired: bool) -> None:
            self._delayed.discard(delayed)
            if expired:
                self._fail_all(answers, ApiError(ErrorCode.REQUEST_TIMED_OUT))
            else:
                self._send(answers)

        def failed(error: Exception) -> None:
            self._delayed.discard(delayed)
            self._fail_all(answers, error)

        delayed = self._runtime.purgatory.enter(
            [self.partition], lambda: self._is_committed(end), self._runtime.commit_timeout_ms() / 1000
        )
        self._delayed.add(delayed)
        delayed.then(done, failed)

    def _is_committed(self, end: int) -> bool:
        """Whether all records before `end` are. ApiError if they never will be.

        In another leader epoch offsets mean other records, so a partition that is led by another broker, or
        again by this one, says nothing about ours.
        """
        return self.partition.acknowledged(end, True, self.leader_epoch)

    def _send(self, answers: Iterable[tuple[Reply, Any]]) -> None:
        for reply, response in answers:
            self._waiting.discard(reply)
            try:
                reply.resolve(response)
            except Exception:
                logger.exception("%r: a client could not be answered", self)

    def _fail_all(self, answers: Iterable[tuple[Reply, Any]], error: Exception) -> None:
        if isinstance(error, ApiError):
            error = self._as_coordinator_error(error)
        for reply, _ in answers:
            self._waiting.discard(reply)
            reply.fail(error)

    # -- timers -------------------------------------------------------------------------------------------

    def _on_timer(self, timer: CoordinatorTimer) -> None:
        try:
            self.execute(lambda state, effects: state.on_timer(timer, effects))
        except ApiError as error:
            if self.has_ended:
                return
            # The log refuses. Nothing has changed, so the same must be tried again.
            name = shown(str(timer.key))
            logger.warning("%r cannot write what the timer %s leads to: %s; trying again", self, name, error)
            self._timers.set(timer.key, timer, _RETRY_TIMER_MS)
        except Exception:
            name = shown(str(timer.key))
            logger.exception("%r: handling the timer %s failed; trying again", self, name)
            self._timers.set(timer.key, timer, _RETRY_FAILED_TIMER_MS)

    # -- beginning and end --------------------------------------------------------------------------------

    async def load(self) -> None:
        """Replay the log. The runtime makes the shard active after this."""
        runtime = self._runtime
        began = runtime.clock.monotonic()
        log = self.partition.log
        was_empty = log.log_start_offset == log.end_offset
        end = await replay_log(log, runtime.codec, self.state, runtime.in_thread, lambda: self.has_ended)
        if self.has_ended:
            return
        self._written = end
        self.execute(lambda state, effects: state.resume(effects))
        if not was_empty:
            seconds = runtime.clock.monotonic() - began
            logger.info("%r: loaded up to offset %d in %.3f s", self, end, seconds)

    @property
    def has_ended(self) -> bool:
        """Its state is not that of the partition any more."""
        return self.phase in (Phase.FAILED, Phase.CLOSED)

    def end(self, phase: Phase = Phase.CLOSED) -> None:
        """The partition is coordinated elsewhere, or the shard has failed: waiting clients get an error."""
        self.phase = phase
        self._timers.clear()
        for delayed in self._delayed:
            delayed.cancel()
        self._delayed.clear()
        waiting, self._waiting = self._waiting, set()
        for reply in waiting:
            reply.fail(self._not_coordinator())
        self.state.close()


_NOT_AVAILABLE = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
)
