"""Which version of a table of a topic a batch joins with: decided without Spark and without a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.pipeline import StageError, stage, table, topic
from ottla.pipeline.checkpoints import Checkpoints
from ottla.pipeline.declarations import Changelog, Stage
from ottla.pipeline.running.loading import Pipeline
from ottla.pipeline.tables.versions import (
    DELETIONS_KEPT,
    LARGEST,
    SMALL,
    Notes,
    Span,
    Version,
    is_folded,
    next_step,
    with_next,
)

CLICKS = topic("clicks", json="user string")
CUSTOMERS = table(topic="customers", key="id", json="id string, name string")
BEFORE = Version(4, "id", {0: 10, 1: 20}, 1000.0, base="data-0-base", base_rows=100)


def span(ends: dict[int, int], starts: dict[int, int] | None = None, topic_id: str = "id") -> Span:
    return Span(topic_id, {**dict.fromkeys(ends, 0), **(starts or {})}, ends)


def joined(*inputs: Any, **arguments: Any) -> Stage:
    def enrich(clicks: Any, customers: Any) -> Any:
        return clicks

    found: Stage = stage(*inputs, **{"to": topic("named"), **arguments})(enrich).__stage__  # type: ignore[attr-defined]
    return found


def test_the_first_version_reads_the_whole_topic() -> None:
    step = next_step(None, span({0: 10, 1: 20}, {1: 5}), 0.0)
    assert (step.from_nothing, step.records, step.why) == (True, 25, "")


def test_the_next_version_reads_what_is_new_also_in_new_partitions() -> None:
    step = next_step(BEFORE, span({0: 12, 1: 20, 2: 3}), 1001.0)
    assert not step.from_nothing
    assert (dict(step.starts), dict(step.ends)) == ({0: 10, 1: 20, 2: 0}, {0: 12, 1: 20, 2: 3})
    assert step.records == 5


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (span({0: 12, 1: 20}, topic_id="other"), "made anew"),
        (span({0: 12}), "fewer partitions"),
        (span({0: 9, 1: 20}), "shorter"),
        (span({0: 12, 1: 20}, {0: 11}), "deleted before they were read"),
    ],
)
def test_a_topic_that_is_not_the_one_that_was_read_is_loaded_anew(found: Span, why: str) -> None:
    step = next_step(BEFORE, found, 1001.0)
    assert step.from_nothing
    assert why in step.why
    assert dict(step.starts) == dict(found.starts)


def test_a_table_that_may_have_missed_deletions_is_loaded_anew() -> None:
    late = BEFORE.looked_at + DELETIONS_KEPT + 1
    assert next_step(BEFORE, span({0: 12, 1: 20}), late).from_nothing
    assert not next_step(BEFORE, span({0: 10, 1: 20}), late).from_nothing  # nothing was written meanwhile


def test_a_few_changes_do_not_write_the_whole_table_again() -> None:
    few = next_step(BEFORE, span({0: 12, 1: 20}), 1001.0)
    many = next_step(BEFORE, span({0: 10 + SMALL + 1, 1: 20}), 1001.0)
    assert is_folded(None, few)
    assert not is_folded(BEFORE, few)
    assert is_folded(BEFORE, many)
    large = Version(4, "id", BEFORE.offsets, 1000.0, base="b", base_rows=100 * SMALL)
    assert not is_folded(large, many)
    assert is_folded(large, next_step(large, span({0: 10 + LARGEST + 1, 1: 20}), 1001.0))


def test_the_versions_of_the_last_two_batches_are_kept() -> None:
    versions = [Version(number, "id", {0: number}, 0.0) for number in (3, 4)]
    assert [each.batch for each in with_next(versions, Version(5, "id", {}, 0.0))] == [4, 5]
    assert [each.batch for each in with_next(versions, Version(4, "id", {}, 0.0))] == [3, 4]


def test_notes_count_for_their_query_and_declaration_alone(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path).stage("enrich")
    Notes(folder, 0, "as declared").write("query", [BEFORE])
    assert Notes(folder, 0, "as declared").read("query") == [BEFORE]
    assert Notes(folder, 0, "as declared").read("another query") == []
    assert Notes(folder, 0, "declared anew").read("query") == []
    assert Notes(folder, 1, "as declared").read("query") == []


def test_a_table_of_a_declared_topic_takes_its_key() -> None:
    declared = table(topic=topic("customers", json="id long", key="id"))
    assert isinstance(declared, Changelog)
    assert (declared.key, declared.title) == ("id", "table of topic customers")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topic": "customers", "source": "x.parquet", "json": "id long"}, "are for tables in files"),
        ({"topic": "customers", "jsn": "id long"}, "did you mean json"),
        ({"topic": topic("customers", json="id long"), "json": "id long"}, "inside topic"),
        ({"topic": "customers", "json": "id long", "key": 7}, "the name of a column"),
        ({"source": "x.parquet", "key": "id"}, "needs topic="),
        ({}, "a path, a function or a topic"),
    ],
)
def test_mistakes_in_the_declaration_of_a_table_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(StageError, match=text):
        table(**arguments)


@pytest.mark.parametrize(
    ("inputs", "arguments", "text"),
    [
        ((CLICKS, table(topic="customers", key="id")), {}, "Give a schema"),
        ((CLICKS, table(topic=topic(pattern="c", json="id long"))), {}, "a table is one topic"),
        ((CLICKS, CUSTOMERS), {"to": topic("customers")}, "read and written by the same stage"),
        ((CLICKS, CUSTOMERS), {"trigger": "real-time", "bad": "drop"}, "no batches"),
        ((CLICKS, CUSTOMERS), {"dead_letters": "customers"}, "reads its own dead letters"),
        ((CUSTOMERS, CUSTOMERS), {}, "at least one topic"),
    ],
)
def test_stages_that_cannot_join_a_table_are_refused(inputs: Any, arguments: Any, text: str) -> None:
    with pytest.raises(StageError, match=text):
        joined(*inputs, **arguments)


def test_a_table_named_twice_is_refused() -> None:
    with pytest.raises(StageError, match="named twice"):

        @stage(CLICKS, CUSTOMERS, CUSTOMERS, to=topic("named"))
        def enrich(clicks: Any, one: Any, other: Any) -> Any:
            return clicks


def test_a_stage_that_writes_the_table_goes_before_the_stage_that_joins_it() -> None:
    @stage(CLICKS, CUSTOMERS, to=topic("named"))
    def enrich(clicks: Any, customers: Any) -> Any:
        return clicks

    @stage(topic("raw", json="id string"), to=topic("customers"))
    def import_customers(raw: Any) -> Any:
        return raw

    pipeline = Pipeline.load([enrich, import_customers], name="shop")
    assert [each.name for each in pipeline.feeders(pipeline.stage("enrich"))] == ["import_customers"]
