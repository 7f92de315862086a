"""The transactions of one stage, as its driver begins and ends them: one batch, one transaction, one epoch.

For each batch the driver takes the next epoch of the stage's transactional id. That aborts what an earlier
run has left open, and from then on no earlier epoch can write or commit; only then is the mark read that says
whether the batch is committed already (`batch_marks`). In this order the answer is final. Later batches of
the same process go on from its own epoch, which a broker refuses when another driver has taken over; the mark
need not be read again then.

What ends in doubt is not guessed: when the answer to the commit does not come, the batch fails, and the next
run of it asks the mark.
"""

from __future__ import annotations

import logging
import time

from ottla.pipeline.topics.batch_marks import MARKS, BatchMark, contradicts, newest
from ottla.pipeline.topics.options import SinkOptions
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol_client.group_offsets import Committed, committed_offsets
from ottla.protocol_client.transaction_steps import (
    TransactionalProducer,
    begin_producer,
    can_continue,
    commit_with,
    end_transaction,
    takes_transactions,
)
from ottla.protocol_client.wire import BrokerUnreachable, UnsupportedByBroker, Wire

log = logging.getLogger("ottla.pipeline")

DEFAULT_TIMEOUT_MS = 900_000
"""The most that brokers allow unless told otherwise (transaction.max.timeout.ms)."""
_SHORTEST_MS = 1_000
_ABORT_PATIENCE = 5.0
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
_NEVER = (
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
)
_NO_COORDINATOR = (
    "No broker coordinates transactions: transaction.state.log.replication.factor may ask for more brokers"
    ' than there are. delivery="at-least-once" does without'
)


class NoTransactions(Exception):
    """The broker has no transactions, or not for us; the text says which."""


class TakenOver(Exception):
    """Another run of the stage has begun; this one must not go on."""


class TookTooLong(Exception):
    """The coordinator aborted the transaction because it was open for longer than its timeout."""


class StageTransactions:
    """Begins and ends the transactions of a stage, one at a time. Used by one thread at a time."""

    def __init__(self, options: SinkOptions, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.group = transactional_id + MARKS
        """The consumer group that keeps the mark."""
        self._patience = options.delivery_timeout
        self._given_timeout = options.transaction_timeout_ms
        self._timeout_ms = options.transaction_timeout_ms or DEFAULT_TIMEOUT_MS
        self._wire = Wire(
            options.bootstrap,
            client_id=options.client_id,
            connect_timeout=options.connect_timeout,
            request_timeout=options.request_timeout,
        )
        self._producer: TransactionalProducer | None = None
        self._newest = False
        """Whether the last transaction ended as it should, so that the producer is the newest if it still can
        go on from its epoch."""
        self._began = 0.0

    def close(self) -> None:
        self._wire.close()

    def begin(self, batch: BatchMark) -> TransactionalProducer | None:
        """Who writes the batch; None when it is committed already.

        Raises NoTransactions when the broker has none, TakenOver when another driver runs the stage.
        """
        try:
            if self._newest and self._producer is not None and can_continue(self._wire):
                self._producer, known = self._next_epoch(self._producer), True
            else:
                if not takes_transactions(self._wire):
                    raise NoTransactions("the broker has no transactions")
                self._producer, known = self._next_epoch(None), False
            self._newest = False
            self._began = time.monotonic()
            return self._producer if known or not self._is_committed(batch) else None
        except UnsupportedByBroker as error:
            raise NoTransactions(f"the broker has no transactions ({error})") from None
        except ApiError as error:
            if error.code in _NEVER:
                raise self._refused(error) from None
            if error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
                raise ApiError(error.code, f"{error.message} {_NO_COORDINATOR}") from None
            raise

    def commit(self, batch: BatchMark, topic: str) -> None:
        """Commit what was written, and with it the mark, which is kept with a partition of `topic`."""
        assert self._producer is not None
        marked = {(topic, 0): Committed(batch.batch_id, batch.as_metadata())}
        try:
            commit_with(self._wire, self._producer, self.group, marked, self._patience)
            end_transaction(self._wire, self._producer, commit=True, patience=self._patience)
        except ApiError as error:
            raise self._told(error) from None
        self._newest = True

    def nothing_written(self) -> None:
        """The batch had no rows: there is nothing to commit."""
        self._newest = True

    def abort(self) -> Exception | None:
        """Abort as far as that can be done now: the next epoch does it in any case.

        Returns why the transaction was lost before, if it was.
        """
        if self._producer is None:
            return None
        try:
            end_transaction(self._wire, self._producer, commit=False, patience=_ABORT_PATIENCE)
        except ApiError as error:
            if error.code in _FENCED:
                return self._told(error)
        except (BrokerUnreachable, UnsupportedByBroker):
            return None
        self._shut_out(self._producer)
        return None

    def _shut_out(self, producer: TransactionalProducer) -> None:
        """Take the next epoch, if that can be done now, and use it for nothing.

        Tasks of the batch may still run. What they write would begin the next transaction of their epoch, and
        if the stage is not started again, nobody ends that before its timeout.
        """
        try:
            if can_continue(self._wire):
                begin_producer(self._wire, self.transactional_id, self._timeout_ms, _ABORT_PATIENCE, producer)
        except (ApiError, BrokerUnreachable, UnsupportedByBroker):
            return

    def _next_epoch(self, current: TransactionalProducer | None) -> TransactionalProducer:
        while True:
            try:
                return begin_producer(
                    self._wire, self.transactional_id, self._timeout_ms, self._patience, current
                )
            except ApiError as error:
                if error.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT and self._shorten():
                    continue
                if error.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                    raise _too_long_for_broker(self._timeout_ms) from None
                if current is not None and error.code in _FENCED:
                    raise self._taken_over() from None
                raise

    def _shorten(self) -> bool:
        """The broker allows less than our default: ask for less."""
        if self._given_timeout is not None or self._timeout_ms <= _SHORTEST_MS:
            return False
        self._timeout_ms = max(self._timeout_ms // 2, _SHORTEST_MS)
        return True

    def _is_committed(self, batch: BatchMark) -> bool:
        offsets = committed_offsets(self._wire, self.group, stable=True, patience=self._patience)
        marks = [BatchMark.from_metadata(each.metadata) for each in offsets.values()]
        if batch in marks:  # not only the newest: a mark of another topic may be of a time that was put back
            return True
        found = newest(marks, batch.query_id)
        if contradicts(found, batch):
            assert found is not None
            log.warning(
                "%s: batch %d is to be written, but the topics have batch %d of this query, of other records"
                " or later ones: the checkpoint is older than the topics. Records may be there twice",
                self.transactional_id,
                batch.batch_id,
                found.batch_id,
            )
        return False

    def _told(self, error: ApiError) -> Exception:
        """In words: a fenced producer was replaced, by another driver or at the end of its time."""
        if error.code in _NEVER:
            return self._refused(error)
        if error.code not in _FENCED:
            return error
        if time.monotonic() - self._began < self._timeout_ms / 1000:
            return self._taken_over()
        return TookTooLong(
            f"the transaction of the batch was open for longer than {self._timeout_ms} ms and was aborted;"
            " give smaller batches (maxOffsetsPerTrigger), or a larger kafka.transaction.timeout.ms, which"
            " the broker's transaction.max.timeout.ms limits"
        )

    def _refused(self, error: ApiError) -> NoTransactions:
        return NoTransactions(
            f"the broker refuses transactions: {error.message} The transactional id is"
            f" {self.transactional_id}, the group {self.group}"
        )

    def _taken_over(self) -> TakenOver:
        return TakenOver(
            f"another run of this stage has taken over (transactional id {self.transactional_id}); this one"
            " ends, so that nothing is written twice. Pipelines that are to run side by side need files of"
            " different names"
        )


def _too_long_for_broker(timeout_ms: int) -> Exception:
    from ottla.pipeline.topics.options import OptionError

    return OptionError(
        f"kafka.transaction.timeout.ms is {timeout_ms}, longer than the broker allows"
        " (transaction.max.timeout.ms)"
    )
