"""Tables made of topics, joined by real stages: fresh in every batch, the same in one that runs again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from ottla.pipeline import StageError, sink, stage, table, topic
from ottla.pipeline.connectors import Connection, Offsets
from ottla.pipeline.tables import versions
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker
from pipeline.pipeline_runs import running, until
from pipeline.stage_runs import StageRuns

CUSTOMER = "id long, name string"


@pytest.fixture
def runs(spark: SparkSession, broker: InProcessBroker, tmp_path: Path) -> StageRuns:
    return StageRuns(spark, broker, tmp_path)


class Shop:
    """Customers, clicks, and a stage that gives clicks the names of customers."""

    def __init__(self, runs: StageRuns, partitions: int = 1, **arguments: Any) -> None:
        self.runs = runs
        self.customers = runs.name("customers", partitions)
        self.clicks = runs.name("clicks")
        self.named = runs.name("named")
        self.arguments = arguments
        self.batches: list[list[tuple[int, str | None]]] = []
        self.failing = False

    def customer(self, id: int, name: str | None) -> None:
        value = None if name is None else json.dumps({"name": name}).encode()
        self.runs.produce(self.customers, [(str(id).encode(), value)])

    def click(self, *customers: int) -> None:
        self.runs.produce(self.clicks, [json.dumps({"customer": each}).encode() for each in customers])

    def store(self, rows: DataFrame, batch_id: int) -> None:
        found = [(row.customer, row.name) for row in rows.collect()]
        self.batches.append(sorted(found))
        if self.failing:
            raise RuntimeError("the sink is away")

    def stage(self) -> Callable[..., Any]:
        @stage(
            topic(self.clicks, json="customer long"),
            table(topic=self.customers, key="id", json=CUSTOMER),
            to=sink(self.store),
            name="enrich",
            **self.arguments,
        )
        def enrich(clicks: DataFrame, customers: DataFrame) -> DataFrame:
            found = clicks.join(customers, clicks.customer == customers.id, "left")
            return found.select("customer", "name")

        return enrich

    def run(self) -> list[tuple[int, str | None]]:
        """Run over what is there; returns what the last batch gave."""
        self.runs.run(self.stage())
        return self.batches[-1]


@pytest.mark.slow
def test_a_batch_joins_with_the_latest_value_of_each_key(runs: StageRuns) -> None:
    shop = Shop(runs, partitions=3)
    for id, name in ((1, "Ada"), (2, "Bob"), (1, "Ada L."), (3, "Cy")):
        shop.customer(id, name)
    shop.click(1, 2, 3, 4)
    assert shop.run() == [(1, "Ada L."), (2, "Bob"), (3, "Cy"), (4, None)]
    shop.customer(2, None)
    shop.customer(3, "Cyd")
    shop.customer(4, "Dan")
    shop.click(1, 2, 3, 4)
    assert shop.run() == [(1, "Ada L."), (2, None), (3, "Cyd"), (4, "Dan")]


@pytest.mark.slow
def test_an_empty_topic_is_an_empty_table(runs: StageRuns) -> None:
    shop = Shop(runs)
    shop.click(1)
    assert shop.run() == [(1, None)]
    shop.customer(1, "Ada")
    shop.click(1)
    assert shop.run() == [(1, "Ada")]


@pytest.mark.slow
def test_only_what_is_new_is_read_of_the_topic(runs: StageRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[Offsets, Offsets]] = []
    plain = Connection.read_range

    def noting(self: Connection, spark: Any, options: Any, start: Offsets, end: Offsets) -> DataFrame:
        read.append((start, end))
        return plain(self, spark, options, start, end)

    monkeypatch.setattr(Connection, "read_range", noting)
    monkeypatch.setattr(versions, "SMALL", 2)
    shop = Shop(runs, bad="drop")
    expected: list[tuple[int, int]] = []
    for number in range(4):  # the third change is one too many for the part of what is recent
        shop.customer(number, f"name {number}")
        shop.click(*range(number + 1))
        assert shop.run() == [(each, f"name {each}") for each in range(number + 1)]
        expected.append((number, number + 1))
    shop.click(0)
    assert shop.run() == [(0, "name 0")]
    place = (shop.customers, 0)
    assert [(start[place], end[place]) for start, end in read] == expected
    folder = runs.context().checkpoints.stage("enrich").table_folder(0)
    kept = sorted(each.name for each in folder.list() if each.is_folder)
    assert kept == ["data-3-base"]


def test_a_batch_that_runs_again_joins_with_the_same_version(runs: StageRuns) -> None:
    shop = Shop(runs)
    shop.customer(1, "Ada")
    shop.click(1)
    shop.run()
    shop.customer(1, "Ada L.")
    shop.click(1)
    shop.failing = True
    with pytest.raises(StreamingQueryException, match="the sink is away"):
        shop.run()
    shop.customer(1, "Ada King")
    with Wire(runs.broker.bootstrap_servers) as wire:  # what the version was made of is gone
        partition = DeleteRecordsPartition(partition_index=0, offset=2)
        request = DeleteRecordsTopic(name=shop.customers, partitions=[partition])
        wire.call(DeleteRecordsRequest(topics=[request], timeout_ms=10_000))
    shop.failing = False
    assert shop.run() == [(1, "Ada L.")]
    shop.click(1)
    assert shop.run() == [(1, "Ada King")]


@pytest.mark.slow
def test_files_of_a_version_that_was_not_noted_do_not_count(
    runs: StageRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(runs)
    shop.customer(1, "Ada")
    shop.click(1)
    shop.run()
    shop.customer(1, "Ada L.")
    shop.click(1)

    def full(self: versions.Notes, query_id: str | None, noted: list[versions.Version]) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(versions.Notes, "write", full)
        with pytest.raises(StreamingQueryException, match="No space left on device"):
            shop.run()
    assert shop.batches == [[(1, "Ada")]], "a batch ran before its version was noted"
    shop.customer(1, "Ada King")
    assert shop.run() == [(1, "Ada King")]


@pytest.mark.slow
def test_a_table_whose_files_are_gone_is_loaded_anew(runs: StageRuns) -> None:
    shop = Shop(runs)
    shop.customer(1, "Ada")
    shop.click(1)
    shop.run()
    folder = runs.context().checkpoints.stage("enrich").table_folder(0)
    folder.remove_tree("data-0-base")
    shop.click(1)
    assert shop.run() == [(1, "Ada")]


@pytest.mark.slow
def test_records_that_cannot_be_read_are_dead_letters_and_leave_the_row_as_it_was(runs: StageRuns) -> None:
    shop = Shop(runs)
    shop.customer(1, "Ada")
    runs.produce(shop.customers, [(b"1", b"{"), (None, b'{"id": 2, "name": "Bob"}')])
    shop.click(1, 2)
    assert shop.run() == [(1, "Ada"), (2, None)]
    letters = runs.records(f"{runs.prefix}.enrich.dead-letters")
    told = {(each.headers["ottla.offset"], each.headers["ottla.reason"]) for each in letters}
    assert told == {
        (b"1", b"not JSON: expecting property name enclosed in double quotes at character 1"),
        (b"2", b"a record of a table needs a key"),
    }


def test_a_stage_that_fails_on_bad_records_fails_on_those_of_its_table(runs: StageRuns) -> None:
    shop = Shop(runs, bad="fail")
    runs.produce(shop.customers, [(b"1", b"{")])
    shop.click(1)
    with pytest.raises(StreamingQueryException, match=r"bad record in .*customers, partition 0, offset 0"):
        shop.run()


@pytest.mark.slow
def test_a_table_is_kept_up_to_date_while_the_stage_runs(runs: StageRuns) -> None:
    shop = Shop(runs)
    shop.customer(1, "Ada")
    with running(runs, shop.stage()):
        for name in ("Ada L.", "Ada King"):
            shop.customer(1, name)
            shop.click(1)
            until(lambda name=name: shop.batches and shop.batches[-1] == [(1, name)], name)  # type: ignore[misc]


def test_a_key_that_no_column_can_be_read_from_is_refused(runs: StageRuns) -> None:
    clicks, customers = runs.name("clicks"), runs.name("customers")

    @stage(
        topic(clicks, json="id long"),
        table(topic=customers, key="id", json="id struct<a long>"),
        to=topic(runs.name("named")),
    )
    def enrich(one: DataFrame, other: DataFrame) -> DataFrame:
        return one

    with pytest.raises(StageError, match="a record's key cannot be read as"):
        runs.build(enrich)
