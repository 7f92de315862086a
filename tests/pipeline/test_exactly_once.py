"""Topics and dead letters of a batch are there once, all or nothing, whatever fails where."""

from __future__ import annotations

import json
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from broker_process import BrokerProcess
from crash.pipeline_process import PipelineProcess, await_true
from ottla.pipeline.running.causes import cause_of, lasts
from ottla.pipeline.running.runner import run
from ottla.pipeline.stages import stage, topic
from ottla.pipeline.topics.batch_marks import BatchMark
from ottla.pipeline.topics.exact_writing import (
    RepeatedTask,
    TransactionWrites,
    WriteFailed,
    _first_attempt,
    _Job,
    _write_rows,
    write_in_transaction,
)
from ottla.pipeline.topics.options import SinkOptions
from ottla.pipeline.topics.stage_transactions import StageTransactions
from ottla.protocol_client.admin import grow_topic
from ottla.protocol_client.partitioner import murmur2
from ottla.protocol_client.transactions import describe_transaction
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker
from pipeline.pipeline_runs import copy
from pipeline.stage_runs import StageRuns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ID = "id long"


class Killed(Exception):
    """Ends a batch as a kill does, with `abort` patched away: nothing is cleaned up behind it."""


@pytest.fixture
def runs(spark: SparkSession, broker: InProcessBroker, tmp_path: Path) -> StageRuns:
    return StageRuns(spark, broker, tmp_path)


def write(runs: StageRuns, name: str, *values: Any) -> None:
    runs.produce(
        name, [each if isinstance(each, bytes) else json.dumps({"id": each}).encode() for each in values]
    )


def ids(runs: StageRuns, name: str, *, committed: bool = True) -> list[int]:
    return [json.loads(each.value or b"")["id"] for each in runs.records(name, committed=committed)]


# A stage


def test_outputs_and_dead_letters_of_a_batch_are_there_together_and_once(
    runs: StageRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies with everything written and nothing committed, then with all of it committed."""
    source, one, two = runs.name("in"), runs.name("one", 2), runs.name("two")
    letters = runs.name("letters")
    write(runs, source, 1, b"not json", 2)

    @stage(
        topic(source, json=ID),
        to=[topic(one), topic(two, where="id > 1")],
        dead_letters=letters,
        delivery="exactly-once",
    )
    def both(rows: DataFrame) -> DataFrame:
        return rows

    def seen() -> tuple[list[int], list[int], int]:
        return sorted(ids(runs, one)), ids(runs, two), len(runs.records(letters))

    commit = StageTransactions.commit

    def die_before(*arguments: Any) -> None:
        raise Killed

    def die_after(transactions: StageTransactions, mark: BatchMark, topic: str) -> None:
        commit(transactions, mark, topic)
        raise Killed

    monkeypatch.setattr(StageTransactions, "abort", lambda transactions: None)
    for dies, expected in ((die_before, ([], [], 0)), (die_after, ([1, 2], [2], 1))):
        monkeypatch.setattr(StageTransactions, "commit", dies)
        with pytest.raises(Exception, match="Killed"):
            runs.run(both)
        assert seen() == expected
    assert sorted(ids(runs, one, committed=False)) == [1, 1, 2, 2]  # aborted ones are in the log
    monkeypatch.setattr(StageTransactions, "commit", commit)
    write(runs, source, 3)
    runs.run(both)
    assert seen() == ([1, 2, 3], [2, 3], 1)


def test_a_batch_that_fails_half_way_leaves_nothing_to_see(runs: StageRuns) -> None:
    source, one, two = runs.name("in"), runs.name("one"), runs.name("two")
    write(runs, source, 1, 2)

    @stage(topic(source, json=ID), to=[topic(one), topic(two, partition="p")], delivery="exactly-once")
    def both(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("id", "cast(id as int) p")

    with pytest.raises(Exception, match="has no partition"):
        runs.run(both)
    assert runs.records(one) == runs.records(two) == []
    with Wire(runs.broker.bootstrap_servers) as wire:  # and it does not keep readers waiting
        assert describe_transaction(wire, f"ottla.{runs.prefix}.both").state == "Empty"


KILLED_AFTER_ITS_COMMIT = """
import os
import signal

from ottla.pipeline import stage, topic
from ottla.pipeline.topics.stage_transactions import StageTransactions

commit = StageTransactions.commit


def commit_and_die(*arguments):
    commit(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)


StageTransactions.commit = commit_and_die


@stage(topic({source!r}, json="id long"), to=topic({target!r}))
def copied(rows):
    return rows
"""


@pytest.mark.timeout(900)
def test_rows_are_there_once_after_a_kill_of_the_driver_and_of_the_broker(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies after a commit that Spark has not noted, the broker before the next commit."""
    source, target, checkpoints = "in", "out", tmp_path / "checkpoints"
    file = tmp_path / "killed.py"
    file.write_text(KILLED_AFTER_ITS_COMMIT.format(source=source, target=target))
    with BrokerProcess(tmp_path) as running:
        runs = StageRuns(spark, running, tmp_path)  # type: ignore[arg-type]
        with Wire(running.bootstrap_servers) as wire:
            for name in (source, target):
                wire.topic(name, create=True, patience=30)
        write(runs, source, *range(20))
        with PipelineProcess(file, running.bootstrap_servers, checkpoints, source) as driver:
            driver.start("--once")
            process = driver.process
            assert process is not None
            await_true(lambda: process.poll() is not None, "the driver did not die", driver.text)
            assert process.returncode == -signal.SIGKILL, driver.text()
            assert driver.position("copied").open == range(1)
        write(runs, source, *range(20, 40))
        commits: list[BatchMark] = []
        commit = StageTransactions.commit

        def through_a_crash(transactions: StageTransactions, mark: BatchMark, topic: str) -> None:
            commits.append(mark)
            running.kill()
            running.start()
            commit(transactions, mark, topic)

        monkeypatch.setattr(StageTransactions, "commit", through_a_crash)
        run(
            [copy(source, target, "copied")],
            name="killed",
            bootstrap=running.bootstrap_servers,
            checkpoints=checkpoints,
            spark=spark,
        )
        assert sorted(ids(runs, target)) == list(range(40))
        assert [mark.batch_id for mark in commits] == [1]


# Jobs and tasks


@pytest.fixture
def transactions(runs: StageRuns) -> Iterator[StageTransactions]:
    made = StageTransactions(SinkOptions(runs.broker.bootstrap_servers), f"ottla.{runs.prefix}")
    yield made
    made.close()


MARK = BatchMark("query", 0, "offsets")


def test_rows_of_many_tasks_keep_their_partitions_and_order(
    runs: StageRuns, transactions: StageTransactions
) -> None:
    target = runs.name("out", 3)
    rows = runs.spark.range(0, 3000, 1, 4).selectExpr("string(id % 7) as key", "string(id) as value")
    options = SinkOptions(runs.broker.bootstrap_servers, target, batch_bytes=2_000, compression="lz4")
    producer = transactions.begin(MARK)
    assert producer is not None
    writes = TransactionWrites(producer)
    write_in_transaction(rows.where("id < 2000"), options, writes)
    write_in_transaction(rows.where("id >= 2000"), options, writes)
    assert (writes.records, runs.records(target)) == (3000, [])
    transactions.commit(MARK, target)
    found = runs.records(target)
    assert sorted(int(each.value or b"") for each in found) == list(range(3000))
    for key in range(7):
        of_key = [each for each in found if each.key == b"%d" % key]
        assert [int(each.value or b"") for each in of_key] == list(range(key, 3000, 7))
        assert {each.partition for each in of_key} == {(murmur2(b"%d" % key) & 0x7FFFFFFF) % 3}


def test_a_topic_that_grows_within_a_transaction_takes_all_rows_once(
    runs: StageRuns, transactions: StageTransactions
) -> None:
    target = runs.name("out", 2)
    rows = runs.spark.range(0, 400, 1, 3).selectExpr("string(id) as key", "string(id) as value")
    options = SinkOptions(runs.broker.bootstrap_servers, target)
    producer = transactions.begin(MARK)
    assert producer is not None
    writes = TransactionWrites(producer)
    write_in_transaction(rows.where("key < 200"), options, writes)
    with Wire(runs.broker.bootstrap_servers) as wire:
        grow_topic(wire, target, 5)
    # Workers keep what they know of a topic; another name of the client has them ask again.
    write_in_transaction(rows.where("key >= 200"), replace(options, client_id="later"), writes)
    transactions.commit(MARK, target)
    found = runs.records(target)
    assert sorted(int(each.value or b"") for each in found) == list(range(400))
    assert {each.partition for each in found if int(each.value or b"") >= 200} == set(range(5))


def test_batches_that_travelled_encoded_are_halved_and_cut_to_what_the_topic_takes(
    runs: StageRuns, transactions: StageTransactions
) -> None:
    target = runs.name("out", None)
    runs.broker.create_topic(target, 1, {"max.message.bytes": 2000})
    headers = "array(named_struct('key', 'a', 'value', cast('b' as binary))) as headers"
    values = "case when id = 5 then repeat('y', 5000) else concat(id, repeat('x', 300)) end as value"
    rows = runs.spark.range(0, 40, 1, 2).selectExpr("string(id) as key", values, headers)
    options = SinkOptions(
        runs.broker.bootstrap_servers, target, compression="gzip", cut_oversized=True, batch_bytes=1 << 20
    )
    producer = transactions.begin(MARK)
    assert producer is not None
    write_in_transaction(rows, options, TransactionWrites(producer))
    transactions.commit(MARK, target)
    found = {each.key: each for each in runs.records(target)}
    assert len(found) == len(runs.records(target)) == 40
    assert found[b"3"].value == b"3" + b"x" * 300
    assert found[b"3"].headers == {"a": b"b"}


@contextmanager
def task(attempt: int) -> Iterator[None]:
    """As in a task of stage 3."""
    context = TaskContext()
    vars(context).update(_attemptNumber=attempt, _stageId=3)
    before = TaskContext.get()
    TaskContext._setTaskContext(context)
    try:
        yield
    finally:
        TaskContext._setTaskContext(before)


def test_a_task_that_is_started_again_writes_nothing() -> None:
    with task(attempt=1), pytest.raises(RepeatedTask):
        _first_attempt([])
    with task(attempt=0):
        assert _first_attempt([]) == 3


def test_rows_that_cannot_be_computed_say_so_in_each_attempt() -> None:
    """Spark tells of the last attempt only."""

    def rows() -> Iterator[Any]:
        yield "a batch"
        raise ValueError("price is negative")

    with task(attempt=1), pytest.raises(ValueError, match="price is negative"):
        _first_attempt(rows())


def test_a_task_that_cannot_write_reports_why_instead_of_being_started_again(
    runs: StageRuns, transactions: StageTransactions
) -> None:
    target = runs.name("out", None)
    runs.broker.create_topic(target, 1, {"max.message.bytes": 500})
    options = SinkOptions(runs.broker.bootstrap_servers, target)
    producer = transactions.begin(MARK)
    assert producer is not None
    large = pa.RecordBatch.from_pydict({"value": [b"x" * 1000]})
    with task(attempt=0):
        (report,) = _write_rows(_Job(options, producer, {}), iter([large, large]))
    assert "WriteRefused" in json.loads(report["report"][0].as_py())["failed"]
    for tasks in (1, 2):
        rows = runs.spark.range(0, 20_000, 1, tasks).selectExpr("repeat('x', 1000) as value")
        with pytest.raises(WriteFailed) as failure:
            write_in_transaction(rows, options, TransactionWrites(producer))
        text = "".join(traceback.format_exception(failure.value))
        assert lasts(text), "another attempt does not help"
        assert cause_of(failure.value).what.startswith(f"partition 0 of topic '{target}': a record of")
