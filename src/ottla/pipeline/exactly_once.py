"""A stage's topics and dead letters, each batch in one transaction: there once, or not at all.

Lakes and sinks of the stage are written before, by rules of their own (`building`). Then the transaction is
begun, if there is anything to write to a topic; all jobs of the batch write into it, and the commit makes
records, dead letters and the mark of the batch count together (`topics/stage_transactions.py`). Whatever
fails before that leaves nothing that a reader of committed records would see.

All stages that write topics do so where they can. Where they cannot, they write at least once and one line
says why; a stage with delivery="exactly-once" does not run there. A stage that has written in transactions
and writes at least once now first ends what the last driver has left: an open transaction is aborted, so that
it keeps no reader waiting, and a batch that is committed is not written again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.pipeline.connectors import CUT_LETTERS, Connection
from ottla.pipeline.declarations import Stage, StageError, Topic
from ottla.pipeline.topics.batch_marks import BatchMark, digest_of
from ottla.pipeline.topics.exact_writing import TransactionWrites, write_in_transaction
from ottla.pipeline.topics.options import SinkOptions
from ottla.pipeline.topics.stage_transactions import NoTransactions, StageTransactions
from ottla.protocol.errors import ApiError
from ottla.protocol_client.transaction_steps import TransactionalProducer
from ottla.protocol_client.wire import BrokerUnreachable, parse_bootstrap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.pipeline.checkpoints import StageFolder

log = logging.getLogger("ottla.pipeline")

NOTE = "transactions.json"
"""In the stage's folder once it has written in transactions."""


def exactly_once(
    spark: SparkSession, stage: Stage, connection: Connection, folder: StageFolder, name: str
) -> ExactlyOnce | None:
    """How the stage writes its topics; None for at least once. `name` is that of its consumer group."""
    if connection.in_memory or not _writes_topics(stage):
        return None
    if stage.delivery != "at-least-once":
        speculation = str(spark.conf.get("spark.speculation", "false")).lower() == "true"
        reason = reason_against(stage, connection, speculation)
        if reason is None:
            return ExactlyOnce(stage, connection, folder, name)
        if stage.delivery == "exactly-once":
            raise _impossible(stage, reason)
        _tell(stage.name, name, reason)
    if connection.connector == "ottla" and not stage.real_time and folder.read_json(NOTE) is not None:
        return ExactlyOnce(stage, connection, folder, name, ends=True)
    return None


def reason_against(stage: Stage, connection: Connection, speculation: bool) -> str | None:
    """Why the stage cannot write exactly once, as far as that is seen without asking the broker."""
    if connection.connector != "ottla":
        return "Spark's own connector has no transactions"
    if stage.real_time:
        return "there are no batches in real time"
    if speculation:
        return "spark.speculation runs copies of tasks, which must not write twice"
    places: dict[str, set[tuple[str, int]]] = {}
    for output in stage.outputs:
        if isinstance(output, Topic):
            options = SinkOptions.parse(connection.sink_options(output.name or "", output.options))
            if options.acks != -1 or not options.idempotent:
                return f"{output.title} has options without acks=all or without idempotence"
            places[f"{output.title} at {options.bootstrap}"] = set(parse_bootstrap(options.bootstrap))
    if stage.bad == "dead-letter":
        letters = SinkOptions.parse(connection.sink_options("", CUT_LETTERS))
        if letters.acks != -1 or not letters.idempotent:
            return "dead letters have options without acks=all or without idempotence"
        places[f"dead letters at {letters.bootstrap}"] = set(parse_bootstrap(letters.bootstrap))
    (first, brokers), *others = places.items()
    for other, at in others:
        if at.isdisjoint(brokers):
            return f"a transaction is of one cluster, and there are {first} and {other}"
    return None


def _impossible(stage: Stage, reason: object) -> StageError:
    return StageError(f'stage {stage.name}: delivery="exactly-once" is not possible: {reason}')


@cache
def _tell(stage: str, name: str, reason: str) -> None:
    """Once in a process: a stage is built again with each start. `name` tells pipelines apart."""
    log.warning("stage %s writes its topics at least once, not exactly once: %s", stage, reason)


class ExactlyOnce:
    """The transactions of a stage, from one start of its query to the end.

    With `ends` there are to be no more: the first batch ends what earlier runs have left.
    """

    def __init__(
        self, stage: Stage, connection: Connection, folder: StageFolder, name: str, *, ends: bool = False
    ) -> None:
        self.stage = stage
        self.connection = connection
        self.over = False
        """Whether topics are written at least once from now on."""
        self._folder = folder
        self._name = name
        self._ends = ends
        self._noted = False
        self._transactions: StageTransactions | None = None
        self._last: tuple[int, Any] | None = None
        """The number of the last batch, and where it ended."""
        self._options: dict[tuple[str, frozenset[tuple[str, str]]], SinkOptions] = {}

    def of_batch(self, query_id: str, batch_id: int) -> BatchTransaction | None:
        """The transaction of a batch, which is not begun yet; None when there are none any more."""
        if self.over:
            return None
        end = self._folder.offsets_of(batch_id)
        if self._last is not None and self._last[0] == batch_id - 1:
            begin = self._last[1]
        else:
            begin = self._folder.offsets_of(batch_id - 1) if batch_id else None
        self._last = batch_id, end
        return BatchTransaction(self, BatchMark(query_id, batch_id, digest_of(begin, end)))

    def begin(self, mark: BatchMark, options: SinkOptions) -> Begun:
        """Take the next epoch for the batch, by which it is known whether it is committed."""
        if self._transactions is None:
            self._transactions = StageTransactions(self._with_timeout(options), self._name)
        try:
            producer = self._transactions.begin(mark)
        except NoTransactions as problem:
            if self.stage.delivery == "exactly-once":
                raise _impossible(self.stage, problem) from None
            if not self._ends:
                _tell(self.stage.name, self._name, str(problem))
            self.over = True
            return Begun(self._transactions)
        except (ApiError, BrokerUnreachable) as problem:
            if not self._ends:
                raise
            log.warning("stage %s: an earlier run may have left a transaction: %s", self.stage.name, problem)
            self.over = True
            return Begun(self._transactions)
        if self._ends:
            self.over = True
            return Begun(self._transactions, committed=producer is None)
        if not self._noted and self._folder.read_json(NOTE) is None:
            self._folder.write_json(NOTE, {"transactional id": self._name})
        self._noted = True
        return Begun(self._transactions, producer, committed=producer is None)

    def _with_timeout(self, options: SinkOptions) -> SinkOptions:
        """There is one transaction for all outputs, so it gets the longest time that one of them gives."""
        topics = [each for each in self.stage.outputs if isinstance(each, Topic)]
        given = [self.parsed(each.name or "", each.options).transaction_timeout_ms for each in topics]
        longest = max((each for each in given if each), default=options.transaction_timeout_ms)
        return replace(options, transaction_timeout_ms=longest)

    def parsed(self, topic: str, options: Mapping[str, str]) -> SinkOptions:
        known = topic, frozenset(options.items())
        if known not in self._options:
            self._options[known] = SinkOptions.parse(self.connection.sink_options(topic, options))
            for notice in self._options[known].notices:
                log.warning("%s", notice)
        return self._options[known]


class Begun(NamedTuple):
    """How a batch is written: by `producer`, not at all if `committed`, else at least once."""

    transactions: StageTransactions
    producer: TransactionalProducer | None = None
    committed: bool = False


class BatchTransaction:
    """One batch. Begun with its first write, or when asked how it is written."""

    def __init__(self, stage: ExactlyOnce, mark: BatchMark) -> None:
        self._stage = stage
        self._mark = mark
        self._begun: Begun | None = None
        self._writes: TransactionWrites | None = None

    def begin(self, topic: Topic) -> Begun:
        assert topic.name is not None
        return self._begin(self._stage.parsed(topic.name, topic.options))

    def write(self, rows: DataFrame, topic: str, options: Mapping[str, str]) -> None:
        """Write rows to a topic, to be seen when the batch is committed."""
        parsed = self._stage.parsed(topic, options)
        begun = self._begin(parsed)
        if self._writes is not None:
            write_in_transaction(rows, parsed, self._writes)
        elif not begun.committed:
            self._stage.connection.write(rows, topic, options)

    def write_letters(self, letters: DataFrame, topic: str) -> None:
        """Write dead letters the same way; those that are larger than the topic takes are cut."""
        self.write(letters, topic, CUT_LETTERS)

    def commit(self) -> None:
        """All of it counts now. Nothing to do for a batch that has written nothing."""
        if self._writes is None or self._begun is None:
            return
        if self._writes.records:
            try:
                self._begun.transactions.commit(self._mark, min(self._writes.sequences)[0])
            except NoTransactions as problem:
                raise StageError(
                    f'stage {self._stage.stage.name}: {problem}; delivery="at-least-once" does without'
                ) from None
        else:
            self._begun.transactions.nothing_written()
        self._writes = None

    def abort(self) -> Exception | None:
        """Take back what was written. Returns why the transaction was lost before that, if it was."""
        return self._begun.transactions.abort() if self._writes is not None and self._begun else None

    def _begin(self, options: SinkOptions) -> Begun:
        if self._begun is None:
            self._begun = self._stage.begin(self._mark, options)
            if self._begun.producer is not None:
                self._writes = TransactionWrites(self._begun.producer)
        return self._begun


def _writes_topics(stage: Stage) -> bool:
    return stage.bad == "dead-letter" or any(isinstance(each, Topic) for each in stage.outputs)
