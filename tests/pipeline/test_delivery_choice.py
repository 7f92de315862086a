"""Stages write exactly once where they can, say so where they cannot, and change over without loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import ottla.testing
from ottla.pipeline import exactly_once as choice
from ottla.pipeline.checkpoints import Checkpoints
from ottla.pipeline.connectors import Connection
from ottla.pipeline.declarations import StageError
from ottla.pipeline.deliveries import Deliveries
from ottla.pipeline.exactly_once import ExactlyOnce, exactly_once, reason_against
from ottla.pipeline.stages import lake, sink, stage, topic
from ottla.pipeline.topics import stage_transactions
from ottla.pipeline.topics.batch_marks import BatchMark
from ottla.pipeline.topics.stage_transactions import StageTransactions
from ottla.protocol_client.transactions import list_transactions
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker
from pipeline.pipeline_runs import ID, copy, ids, write
from pipeline.stage_runs import StageRuns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Killed(Exception):
    """Ends a batch as a kill does, where nothing is noted or aborted behind it."""


@pytest.fixture
def runs(spark: SparkSession, broker: InProcessBroker, tmp_path: Path) -> StageRuns:
    return StageRuns(spark, broker, tmp_path)


def transactional_ids(runs: StageRuns) -> set[str]:
    with Wire(runs.broker.bootstrap_servers) as wire:
        return {each.transactional_id for each in list_transactions(wire)}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "at least once" in record.getMessage()]


def test_a_stage_writes_in_transactions_unless_it_is_told_not_to(
    runs: StageRuns, caplog: pytest.LogCaptureFixture
) -> None:
    source, exact, plain = runs.name("in"), runs.name("exact"), runs.name("plain")
    write(runs, source, 1)
    runs.run(copy(source, exact, "exact"))
    runs.run(copy(source, plain, "plain", delivery="at-least-once"))
    assert (ids(runs, exact), ids(runs, plain)) == ([1], [1])
    used = transactional_ids(runs)
    assert f"ottla.{runs.prefix}.exact" in used
    assert f"ottla.{runs.prefix}.plain" not in used
    assert told(caplog) == []


def test_without_transactions_a_stage_writes_at_least_once_and_says_why(
    runs: StageRuns, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, letters = runs.name("in"), runs.name("out"), runs.name("letters")
    runs.produce(source, [b'{"id": 1}', b"bad"])
    monkeypatch.setattr(stage_transactions, "takes_transactions", lambda wire: False)

    runs.run(copy(source, target, "old", dead_letters=letters))
    assert ids(runs, target) == [1]
    assert [each.value for each in runs.records(letters)] == [b"bad"]
    runs.build(copy(source, target, "old", dead_letters=letters))
    (line,) = told(caplog)
    assert line.startswith("stage old writes its topics at least once, not exactly once: the broker has no")
    with pytest.raises(Exception, match='delivery="exactly-once" is not possible: the broker has no trans'):
        runs.run(copy(source, target, "strict", delivery="exactly-once"))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"kafka.acks": "1"}, "acks=all"),
        ({"kafka.enable.idempotence": "false"}, "idempotence"),
    ],
)
def test_options_that_rule_transactions_out_are_told(
    runs: StageRuns, caplog: pytest.LogCaptureFixture, how: dict[str, str], reason: str
) -> None:
    source, target = runs.name("in"), runs.name("out")

    def declared(delivery: str | None) -> Callable[..., Any]:
        @stage(topic(source, json=ID), to=topic(target, options=how), delivery=delivery, name="copy")
        def copy(rows: DataFrame) -> DataFrame:
            return rows

        return copy

    runs.build(declared(None))
    runs.build(declared(None))  # as after a failure
    (line,) = told(caplog)
    assert reason in line
    runs.build(declared("at-least-once"))
    assert len(told(caplog)) == 1
    with pytest.raises(StageError, match=f"is not possible: .*{reason}"):
        runs.build(declared("exactly-once"))


def test_topics_of_several_clusters_are_written_at_least_once(
    runs: StageRuns, caplog: pytest.LogCaptureFixture
) -> None:
    """A transaction is of one cluster, and so is the producer id that writes to it."""
    source, here = runs.name("in"), runs.name("here")
    write(runs, source, 1, 2)
    with ottla.testing.broker() as other:
        there = {"kafka.bootstrap.servers": other.bootstrap_servers}
        elsewhere = StageRuns(runs.spark, other, runs.folder)
        target = elsewhere.name("there")

        @stage(topic(source, json=ID), to=[topic(here), topic(target, options=there)])
        def both(rows: DataFrame) -> DataFrame:
            return rows

        @stage(topic(source, json=ID), to=topic(target, options=there), bad="drop")
        def away(rows: DataFrame) -> DataFrame:
            return rows

        runs.run(both)
        assert (ids(runs, here), ids(elsewhere, target)) == ([1, 2], [1, 2])
        (line,) = told(caplog)
        assert other.bootstrap_servers in line
        runs.run(away)
        assert ids(elsewhere, target) == [1, 1, 2, 2]
        assert transactional_ids(elsewhere) == {f"ottla.{runs.prefix}.away"}


def test_options_of_dead_letters_rule_transactions_out_too() -> None:
    """They are in the transaction, and could be lost from it when a leader dies."""
    settings = {"kafka.acks": "1"}
    given = {"kafka.acks": "all", "kafka.enable.idempotence": "true"}

    def reason(**arguments: Any) -> str | None:
        declared: Any = stage(topic("a", json=ID), name="s", **arguments)(lambda rows: rows)
        return reason_against(declared.__stage__, Connection("ottla", "b:1", settings), speculation=False)

    for to in (lake("x"), topic("x", options=given)):
        assert "dead letters have options without acks=all" in (reason(to=to) or "")
    assert reason(to=topic("x", options=given), bad="drop") is None


@pytest.mark.parametrize("value", ["true", "True"])
def test_speculative_execution_is_known_in_each_spelling(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, value: str
) -> None:
    """A setting that is given in Python as True is "True" to Spark, which takes it."""
    declared: Any = stage(topic("a", json=ID), to=topic("b"), name="s")(lambda rows: rows)
    session: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda *names: value))
    folder = Checkpoints(tmp_path).stage("s")
    assert exactly_once(session, declared.__stage__, Connection("ottla", "b:1"), folder, value) is None
    assert "spark.speculation" in told(caplog)[0]


def test_the_longest_transaction_timeout_of_the_outputs_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int | None] = []

    class Recorded(StageTransactions):
        def begin(self, batch: BatchMark) -> None:
            chosen.append(self._given_timeout)

    monkeypatch.setattr(choice, "StageTransactions", Recorded)
    first = topic("a")
    for timeouts in ((), ("20000",), ("20000", "60000", "30000")):
        others = [topic("b", options={"kafka.transaction.timeout.ms": each}) for each in timeouts]
        declared: Any = stage(topic("in", json=ID), to=[first, *others], name="s")(lambda rows: rows)
        folder = Checkpoints(tmp_path).stage("s")
        exactly = ExactlyOnce(declared.__stage__, Connection("ottla", "b:1"), folder, "s")
        exactly.begin(BatchMark("query", 0, "offsets"), exactly.parsed("a", first.options))
    assert chosen == [None, 20_000, 60_000]


def test_delivery_has_two_values_and_is_for_topics() -> None:
    with pytest.raises(StageError, match="exactly-once"):
        copy("a", "b", "wrong", delivery="exactly once")

    def store(rows: DataFrame, batch_id: int) -> None:
        raise AssertionError

    with pytest.raises(StageError, match="sink store is called again with the same batch"):
        stage(topic("a", json=ID), to=sink(store), delivery="exactly-once", name="s")(lambda rows: rows)
    stage(topic("a", json=ID), to=lake("x"), delivery="exactly-once", name="s")(lambda rows: rows)


def test_sparks_connector_reads_committed_records_unless_told_otherwise() -> None:
    source = topic("a", json=ID)
    theirs = Connection("kafka", "b:1").source_options(source, "g", {}, "f")
    assert theirs["kafka.isolation.level"] == "read_committed"
    chosen = topic("a", json=ID, options={"kafka.isolation.level": "read_uncommitted"})
    assert Connection("kafka", "b:1").table_options(chosen)["kafka.isolation.level"] == "read_uncommitted"


def test_a_checkpoint_goes_on_when_the_delivery_changes(
    runs: StageRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, one, two = runs.name("in"), runs.name("one"), runs.name("two")

    def run(delivery: str | None, number: int, **dies: Any) -> None:
        @stage(topic(source, json=ID), to=[topic(one), topic(two)], delivery=delivery, name="both")
        def both(rows: DataFrame) -> DataFrame:
            return rows

        write(runs, source, number)
        with monkeypatch.context() as patched:
            for name, function in dies.items():
                owner = Connection if name == "write" else StageTransactions
                patched.setattr(owner, name, function)
            patched.setattr(StageTransactions, "abort", lambda transactions: None)
            patched.setattr(Deliveries, "failed", lambda deliveries: None)
            if dies:
                with pytest.raises(Exception, match="Killed"):
                    runs.run(both)
            else:
                runs.run(both)

    plain, commit = Connection.write, StageTransactions.commit

    def die_between(connection: Connection, rows: DataFrame, topic: str, options: Any) -> None:
        if topic == two:
            raise Killed
        plain(connection, rows, topic, options)

    def die_before(*arguments: Any) -> None:
        raise Killed

    def die_after(transactions: StageTransactions, mark: BatchMark, topic: str) -> None:
        commit(transactions, mark, topic)
        raise Killed

    run("at-least-once", 1, write=die_between)
    run(None, 2)
    assert (ids(runs, one), ids(runs, two)) == ([1, 1, 2], [1, 2]), "the batch that was half written is whole"
    run(None, 3, commit=die_before)
    run("at-least-once", 4)
    assert ids(runs, two) == [1, 2, 3, 4], "the open transaction is aborted, or readers would wait for it"
    run(None, 5, commit=die_after)
    run("at-least-once", 6)
    assert ids(runs, one) == [1, 1, 2, 3, 4, 5, 6], "the batch that is committed is not written again"
