"""The driver's side of a stage's transactions: who is fenced, what the mark tells, and what happens to
a batch whose topic is deleted, whose transaction expires, or whose broker has a full disk or refuses."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import ottla.testing
from ottla.pipeline.running.causes import lasts
from ottla.pipeline.topics import stage_transactions, writing
from ottla.pipeline.topics.batch_marks import BatchMark
from ottla.pipeline.topics.links import Link, Producership
from ottla.pipeline.topics.options import OptionError, SinkOptions
from ottla.pipeline.topics.stage_transactions import (
    NoTransactions,
    StageTransactions,
    TakenOver,
    TookTooLong,
)
from ottla.pipeline.topics.writing import TransactionLost, Writer, WriteRefused
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol_client.admin import delete_topic
from ottla.protocol_client.group_offsets import Committed
from ottla.protocol_client.transaction_steps import TransactionalProducer, commit_with
from ottla.protocol_client.transactions import describe_transaction
from ottla.protocol_client.wire import Wire
from ottla.storage.files import RealDisk
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.in_process import InProcessBroker
from pipeline.pipeline_runs import until
from pipeline.scripted_broker import ScriptedBroker
from pipeline.stage_runs import StageRuns

MARK = BatchMark("query", 0, "offsets")
Drive = Callable[..., StageTransactions]


@pytest.fixture
def runs(broker: InProcessBroker, tmp_path_factory: pytest.TempPathFactory) -> StageRuns:
    return StageRuns(None, broker, tmp_path_factory.mktemp("runs"))  # type: ignore[arg-type]  # without Spark


@pytest.fixture
def driver(runs: StageRuns) -> Iterator[Drive]:
    """Makes drivers of the same stage."""
    made: list[StageTransactions] = []

    def make(**options: float) -> StageTransactions:
        given = SinkOptions(runs.broker.bootstrap_servers, **options)  # type: ignore[arg-type]
        made.append(StageTransactions(given, f"ottla.{runs.prefix}"))
        return made[-1]

    yield make
    for each in made:
        each.close()


def _send(
    runs: StageRuns,
    producer: TransactionalProducer | None,
    target: str,
    value: bytes,
    delivery_timeout: float = 30,
) -> None:
    assert producer is not None
    options = SinkOptions(runs.broker.bootstrap_servers, target, delivery_timeout=delivery_timeout)
    link = Link(options.bootstrap, "test", 5.0, 5.0)
    writer = Writer(
        link, options, Producership(producer.producer_id, producer.epoch, producer.transactional_id)
    )
    try:
        writer.write(pa.RecordBatch.from_pydict({"value": [value]}))
        writer.finish()
    finally:
        link.wire.close()


def _values(runs: StageRuns, target: str) -> list[bytes | None]:
    return [each.value for each in runs.records(target)]


def test_an_older_driver_is_fenced_and_knows_it(runs: StageRuns, driver: Drive) -> None:
    target = runs.name("out")
    older, newer = driver(), driver()
    first = older.begin(MARK)
    _send(runs, first, target, b"of the older")
    _send(runs, newer.begin(MARK), target, b"of the newer")
    with pytest.raises(TransactionLost):
        _send(runs, first, target, b"too late")
    with pytest.raises(TakenOver):
        older.commit(MARK, target)
    told = older.abort()
    assert isinstance(told, TakenOver)
    assert lasts(f"{TakenOver.__module__}.TakenOver: {told}"), "the older run ends instead of trying again"
    newer.commit(MARK, target)
    assert _values(runs, target) == [b"of the newer"]
    older._newest = True  # as if it had been between two batches
    with pytest.raises(TakenOver):
        older.begin(BatchMark("query", 1, "offsets"))


def test_a_task_that_outlives_its_batch_begins_no_transaction_that_nobody_ends(
    runs: StageRuns, driver: Drive
) -> None:
    """Spark gives the Python processes of a job that failed or was stopped some seconds to end."""
    target = runs.name("out")
    failing = driver()
    producer = failing.begin(MARK)
    _send(runs, producer, target, b"of the batch")
    assert failing.abort() is None
    with pytest.raises(TransactionLost):
        _send(runs, producer, target, b"late")
    with Wire(runs.broker.bootstrap_servers) as wire:
        assert describe_transaction(wire, failing.transactional_id).state != "Ongoing"
    _send(runs, failing.begin(MARK), target, b"again")
    failing.commit(MARK, target)
    assert _values(runs, target) == [b"again"]


def test_the_mark_tells_the_next_driver_what_is_committed(
    runs: StageRuns, driver: Drive, caplog: pytest.LogCaptureFixture
) -> None:
    target = runs.name("out")
    first = driver()
    for number in range(2):
        mark = BatchMark("query", number, "offsets")
        _send(runs, first.begin(mark), target, b"%d" % number)
        first.commit(mark, target)
    assert driver().begin(BatchMark("query", 1, "offsets")) is None
    assert driver().begin(BatchMark("query", 2, "offsets")) is not None
    assert driver().begin(BatchMark("after a reset", 1, "offsets")) is not None
    assert not caplog.records
    assert driver().begin(BatchMark("query", 1, "other offsets")) is not None
    assert "the checkpoint is older than the topics" in caplog.text


def test_a_mark_counts_beside_later_ones_of_a_checkpoint_that_was_put_back(
    runs: StageRuns, driver: Drive
) -> None:
    """Marks are kept with a topic that their batch has written to, so those of several topics are there."""
    one, two = runs.name("one"), runs.name("two")
    for mark, target in ((BatchMark("query", 9, "before"), one), (BatchMark("query", 5, "after"), two)):
        run = driver()
        _send(runs, run.begin(mark), target, b"once")
        run.commit(mark, target)
    assert driver().begin(BatchMark("query", 5, "after")) is None
    assert driver().begin(BatchMark("query", 5, "other offsets")) is not None


def test_a_mark_that_is_pending_when_its_driver_dies_does_not_count(runs: StageRuns, driver: Drive) -> None:
    """The driver dies between the mark and the commit: the next one aborts both and writes the batch."""
    target = runs.name("out")
    producer = driver().begin(MARK)
    _send(runs, producer, target, b"of the first")
    assert producer is not None
    with Wire(runs.broker.bootstrap_servers) as wire:
        marked = {(target, 0): Committed(0, MARK.as_metadata())}
        commit_with(wire, producer, f"ottla.{runs.prefix}.transactions", marked, 10)
    second = driver()
    _send(runs, second.begin(MARK), target, b"of the second")
    second.commit(MARK, target)
    assert _values(runs, target) == [b"of the second"]


def test_a_transaction_that_takes_too_long_is_told_so(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The coordinator aborts it; the next run of the batch is not in the way of that."""
    name = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    with ottla.testing.broker(settings={name: 50}) as own:
        runs = StageRuns(None, own, tmp_path_factory.mktemp("own"))  # type: ignore[arg-type]
        target = runs.name("out")
        options = SinkOptions(own.bootstrap_servers, transaction_timeout_ms=200)
        slow = StageTransactions(options, "slow")
        _send(runs, slow.begin(MARK), target, b"slow")
        with Wire(own.bootstrap_servers) as wire:
            until(lambda: describe_transaction(wire, "slow").state == "CompleteAbort", "the abort")
        with pytest.raises(TookTooLong, match=r"kafka\.transaction\.timeout\.ms"):
            slow.commit(MARK, target)
        assert isinstance(slow.abort(), TookTooLong)
        again = StageTransactions(SinkOptions(own.bootstrap_servers), "slow")
        _send(runs, again.begin(MARK), target, b"again")
        again.commit(MARK, target)
        assert _values(runs, target) == [b"again"]
        slow.close()
        again.close()


def test_a_batch_whose_topic_is_deleted_fails_and_is_written_to_the_new_one(
    runs: StageRuns, driver: Drive
) -> None:
    target = runs.name("out")
    first = driver(delivery_timeout=0.5)
    _send(runs, first.begin(MARK), target, b"gone")
    with Wire(runs.broker.bootstrap_servers) as wire:
        delete_topic(wire, target)
    with pytest.raises(ApiError) as failure:
        first.commit(MARK, target)
    assert failure.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert first.abort() is None
    runs.broker.create_topic(target, 1)
    second = driver()
    _send(runs, second.begin(MARK), target, b"new")
    second.commit(MARK, target)
    assert _values(runs, target) == [b"new"]
    assert driver().begin(MARK) is None


@pytest.mark.parametrize(
    ("code", "expected"),
    [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, WriteRefused), (ErrorCode.UNKNOWN_SERVER_ERROR, ApiError)],
)
def test_a_topic_that_may_not_be_written_in_a_transaction_is_named(
    runs: StageRuns, monkeypatch: pytest.MonkeyPatch, code: ErrorCode, expected: type[Exception]
) -> None:
    def refuse(*arguments: object) -> None:
        raise ApiError(code)

    monkeypatch.setattr(writing, "add_partitions", refuse)
    target = runs.name("out")
    with pytest.raises(expected, match=f"partition 0 of topic '{target}': "):
        _send(runs, TransactionalProducer("ottla.x", 1, 0), target, b"refused")


@pytest.mark.parametrize("where", ["out-0", "__transaction_state"])
def test_a_full_disk_of_the_broker_fails_the_batch_and_loses_nothing(
    where: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    disk = FaultyDisk(RealDisk())
    with ottla.testing.broker(disk=disk) as own:
        runs = StageRuns(None, own, tmp_path_factory.mktemp("own"))  # type: ignore[arg-type]
        target = runs.name("out")

        def attempt(value: bytes, delivery_timeout: float) -> None:
            transactions = StageTransactions(
                SinkOptions(own.bootstrap_servers, delivery_timeout=delivery_timeout), "full"
            )
            try:
                producer = transactions.begin(MARK)
                assert producer is not None
                disk.fail("write", errno.ENOSPC, name=where) if delivery_timeout < 5 else disk.heal()
                _send(runs, producer, target, value, delivery_timeout)
                transactions.commit(MARK, target)
            finally:
                transactions.close()

        with pytest.raises(ApiError):
            attempt(b"not taken", 1.0)
        disk.heal()
        attempt(b"taken", 30.0)
        assert _values(runs, target) == [b"taken"]


def test_a_timeout_that_the_broker_does_not_allow_is_shortened_unless_it_was_given(
    driver: Drive,
) -> None:
    with pytest.raises(OptionError, match="longer than the broker allows"):
        driver(transaction_timeout_ms=3_600_000).begin(MARK)
    chosen = driver()
    chosen._timeout_ms = 3_600_000
    assert chosen.begin(MARK) is not None
    assert chosen._timeout_ms == 900_000


def test_a_broker_without_transactions_is_told() -> None:
    with ScriptedBroker([]) as broker:
        with pytest.raises(NoTransactions, match="the broker has no transactions"):
            StageTransactions(SinkOptions(broker.bootstrap), "ottla.x").begin(MARK)


@pytest.mark.parametrize("step", ["begin_producer", "committed_offsets"])
def test_a_broker_that_does_not_permit_transactions_is_told(
    driver: Drive, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    monkeypatch.setattr(stage_transactions, step, refuse)
    with pytest.raises(NoTransactions, match=r"the broker refuses transactions: .* group ottla"):
        driver().begin(MARK)


def test_a_cluster_that_has_no_coordinator_is_told_with_what_to_do(
    driver: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may pass, so it is no reason to write at least once."""

    def none(*arguments: object, **named: object) -> None:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    monkeypatch.setattr(stage_transactions, "begin_producer", none)
    with pytest.raises(ApiError, match=r"replication\.factor .* does without"):
        driver().begin(MARK)
