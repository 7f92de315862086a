"""Bad records are written to dead letters, also over crashes, and never delay good ones."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ottla.pipeline import dead_letters, lake, sink, stage, topic
from ottla.pipeline.building import BuiltStage
from ottla.pipeline.connectors import Connection, cut_to
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker
from pipeline.stage_runs import Got, StageRuns


@pytest.fixture
def runs(spark: SparkSession, broker: InProcessBroker, tmp_path: Path) -> StageRuns:
    return StageRuns(spark, broker, tmp_path)


@pytest.fixture
def never_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("the batch was read twice")

    monkeypatch.setattr(Connection, "read_range", refuse)


@pytest.fixture
def always_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bad record is small enough to travel with the metric."""
    monkeypatch.setattr(dead_letters, "LARGEST", -1)


def letters(runs: StageRuns, stage_name: str) -> list[Got]:
    return runs.records(f"{runs.prefix}.{stage_name}.dead-letters")


def offsets(found: list[Got]) -> list[int]:
    return [int(each.headers["ottla.offset"] or b"-1") for each in found]


def copying(runs: StageRuns, source: str, target: str, **arguments: Any) -> Any:
    @stage(
        topic(source, json="id long", **arguments.pop("reading", {})),
        to=topic(target),
        name="copy",
        **arguments,
    )
    def copy(frame: DataFrame) -> DataFrame:
        return frame.withColumn("ok", F.lit(True))

    return copy


def ids(runs: StageRuns, target: str) -> list[int]:
    return [json.loads(each.value or b"")["id"] for each in runs.records(target)]


def test_a_dead_letter_describes_the_record_and_the_batch_is_read_once(
    runs: StageRuns, never_read_again: None
) -> None:
    source, target = runs.name("in"), runs.name("out")
    with Wire(runs.broker.bootstrap_servers) as wire, Producer(wire, source) as producer:
        producer.add(None, b'{"id": 1}')
        producer.add(b"key", b'{"id": "x"}', [("trace", b"7"), ("empty", None)])
        producer.add(None, b"\xff\x00")
        producer.add(None, b'{"id": 2}')
    runs.run(copying(runs, source, target))
    assert ids(runs, target) == [1, 2]
    first, second = letters(runs, "copy")
    assert (first.key, first.value) == (b"key", b'{"id": "x"}')
    assert first.headers == {
        "trace": b"7",
        "empty": None,
        "ottla.reason": b'wrong type for field id: text "x" where bigint is expected',
        "ottla.stage": b"copy",
        "ottla.topic": source.encode(),
        "ottla.partition": b"0",
        "ottla.offset": b"1",
    }
    assert (second.key, second.value) == (None, b"\xff\x00")
    assert second.headers["ottla.reason"] == b"not UTF-8 text: byte 0xff at position 0"


def test_a_dead_letter_above_the_topic_limit_is_truncated(runs: StageRuns) -> None:
    source, target = runs.name("in", None), runs.name("out")
    for name in (source, f"{runs.prefix}.copy.dead-letters"):
        runs.broker.create_topic(name, config={"max.message.bytes": 5_000})
    bad = random.Random(1).randbytes(4_900)
    runs.produce(source, [b'{"id": 1}', bad])
    runs.run(copying(runs, source, target))
    assert ids(runs, target) == [1]
    (letter,) = letters(runs, "copy")
    assert letter.value is not None
    assert letter.value == bad[: len(letter.value)]
    assert letter.headers["ottla.offset"] == b"1"
    assert letter.headers["ottla.cut"] == b"value cut to %d of 4900 bytes" % len(letter.value)


def test_dead_letters_for_sparks_connector_are_truncated_to_its_request_size(spark: SparkSession) -> None:
    headers = [("ottla.reason", bytearray(b"r" * 50))]
    rows = [(bytearray(b"k"), bytearray(b"v" * 3_000), headers), (None, bytearray(b"short"), headers)]
    types = "key binary, value binary, headers array<struct<key string, value binary>>"
    cut, whole = cut_to(spark.createDataFrame(rows, types), 2_000).collect()
    size = len(cut.value)
    assert 1_500 < size < 2_000
    assert bytes(cut.headers[-1].value) == b"value cut to %d of 3000 bytes" % size
    assert (bytes(whole.value), len(whole.headers)) == (b"short", 1)


@pytest.mark.parametrize("others", ["none", "a topic", "a lake and a topic"])
def test_no_dead_letter_is_lost_when_rows_are_computed_in_parts(
    runs: StageRuns, tmp_path: Path, others: str
) -> None:
    """A sink may look at some rows only. And rows that are kept for the next output may get lost, as with an
    executor, and are computed again."""
    source, target = runs.name("in", 2), runs.name("out")
    with Wire(runs.broker.bootstrap_servers) as wire, Producer(wire, source) as producer:
        for number in range(8):
            value = b"bad %d" % number if number % 2 else b'{"id": %d}' % number
            producer.add(None, value, partition=number // 4)

    def look(rows: DataFrame, batch_id: int) -> None:
        context = runs.spark.sparkContext._jsc
        for number in list(context.getPersistentRDDs()):
            context.sc().unpersistRDD(number, True)
        assert rows.take(1)

    topics: list[Any] = [topic(target)]
    to = {"none": [], "a topic": topics, "a lake and a topic": [lake(tmp_path / "l"), *topics]}

    @stage(topic(source, json="id long", options={"minPartitions": 2}), to=[sink(look), *to[others]])
    def copy(frame: DataFrame) -> DataFrame:
        return frame

    runs.run(copy)
    assert ids(runs, target) == ([] if others == "none" else [0, 2, 4, 6])
    assert sorted(each.value or b"" for each in letters(runs, "copy")) == [
        b"bad %d" % n for n in (1, 3, 5, 7)
    ]


def test_clean_data_makes_no_dead_letters(runs: StageRuns, never_read_again: None) -> None:
    source, target = runs.name("in"), runs.name("out")
    runs.produce(source, [b'{"id": 1}'])
    runs.run(copying(runs, source, target))
    assert letters(runs, "copy") == []


def test_many_bad_records_are_found_by_reading_their_batch_again(
    runs: StageRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "KEPT", 3)
    source, target = runs.name("in", 2), runs.name("out")
    small_batches = {"options": {"maxOffsetsPerTrigger": 10}}
    with Wire(runs.broker.bootstrap_servers) as wire, Producer(wire, source) as producer:
        for number in range(20):
            producer.add(
                b"k%d" % number, b"bad" if number % 2 else b'{"id": %d}' % number, partition=number // 10
            )
    query = runs.run(copying(runs, source, target, reading=small_batches))
    assert query.lastProgress is not None
    assert query.lastProgress.batchId >= 1
    found = letters(runs, "copy")
    places = sorted(
        (each.headers["ottla.partition"], each.headers["ottla.offset"], each.key) for each in found
    )
    expected = [(b"%d" % (n // 10), b"%d" % (n % 10), b"k%d" % n) for n in range(1, 20, 2)]
    assert places == sorted(expected)
    assert {each.headers["ottla.reason"] for each in found} == {b"not JSON: expecting value at character 0"}
    assert sorted(ids(runs, target)) == list(range(0, 20, 2))


def test_bad_records_of_all_topics_of_an_unanchored_pattern_are_reported(
    runs: StageRuns, always_read_again: None
) -> None:
    one, other, target = runs.name("in"), runs.name("in-eu"), runs.name("out")

    @stage(topic(pattern=rf"{runs.prefix}\.in", json="id long"), to=topic(target), name="copy")
    def copy(frame: DataFrame) -> DataFrame:
        return frame

    runs.produce(one, [b'{"id": 1}', b"bad"])
    runs.produce(other, [b"bad", b"bad", b"bad"])
    runs.run(copy)
    found = [(each.headers["ottla.topic"], each.headers["ottla.offset"]) for each in letters(runs, "copy")]
    eu = other.encode()
    assert sorted(found) == [(one.encode(), b"1"), (eu, b"0"), (eu, b"1"), (eu, b"2")]


def test_a_batch_that_is_read_again_starts_where_the_stage_started(
    runs: StageRuns, always_read_again: None
) -> None:
    source = runs.name("in")
    runs.produce(source, [b"bad0", b"bad1", b"bad2"])
    begin = {source: {"0": 1}}
    target = runs.name("out")
    runs.run(copying(runs, source, target, reading={"options": {"startingOffsets": begin}}))
    runs.produce(source, [b"bad3"])
    runs.run(copying(runs, source, target, reading={"options": {"startingOffsets": begin}}))
    assert offsets(letters(runs, "copy")) == [1, 2, 3]


def test_a_stage_that_starts_at_the_end_reports_no_earlier_bad_records(
    runs: StageRuns, always_read_again: None
) -> None:
    source, target = runs.name("in"), runs.name("out")
    latest = {"options": {"startingOffsets": "latest"}}
    runs.produce(source, [b"bad0"])
    runs.run(copying(runs, source, target, reading=latest))
    runs.produce(source, [b"bad1"])
    runs.run(copying(runs, source, target, reading=latest))
    assert offsets(letters(runs, "copy")) == [1]


@pytest.mark.parametrize("read_again", [False, True])
def test_a_crash_before_the_dead_letters_loses_none(
    runs: StageRuns, monkeypatch: pytest.MonkeyPatch, read_again: bool
) -> None:
    if read_again:
        monkeypatch.setattr(dead_letters, "LARGEST", -1)
    source, target = runs.name(f"in{read_again}"), runs.name(f"out{read_again}")
    runs.produce(source, [b'{"id": 1}', b"bad"])
    copy = copying(runs, source, target)

    def crash(*arguments: Any) -> None:
        raise RuntimeError("the power went out")

    with monkeypatch.context() as broken:
        broken.setattr(dead_letters.DeadLetters, "deliver", crash)
        with pytest.raises(StreamingQueryException, match="the power went out"):
            runs.run(copy)
    assert letters(runs, "copy") == []
    runs.run(copy)
    assert offsets(letters(runs, "copy")) == [1]
    assert ids(runs, target) == [1], "what was written before the failure is not written again"


def test_a_crash_after_the_dead_letters_leaves_them_there_once(runs: StageRuns) -> None:
    source, target = runs.name("in"), runs.name("out")
    runs.produce(source, [b"bad"])
    copy = copying(runs, source, target)
    built = runs.build(copy)

    def write_and_crash(frame: DataFrame, batch_id: int) -> None:
        built.write_batch(frame, batch_id)
        raise RuntimeError("the power went out")

    with pytest.raises(StreamingQueryException, match="the power went out"):
        runs.start(built, write_and_crash).awaitTermination()
    runs.run(copy)
    assert offsets(letters(runs, "copy")) == [0]


def test_an_output_that_skips_its_batch_hides_no_bad_record(
    runs: StageRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Delta table does with a batch that it knows: then nothing is computed, and nothing counted."""
    monkeypatch.setattr(BuiltStage, "_write", lambda *arguments: None)
    source = runs.name("in")
    runs.produce(source, [b'{"id": 1}', b"bad"])
    runs.run(copying(runs, source, "nowhere"))
    assert offsets(letters(runs, "copy")) == [1]


def test_each_input_of_a_join_has_its_own_bad_records(runs: StageRuns) -> None:
    left, right, target = runs.name("left"), runs.name("right"), runs.name("out")

    @stage(topic(left, json="id long"), topic(right, json="id long, s string"), to=topic(target))
    def both(one: DataFrame, other: DataFrame) -> DataFrame:
        return other.drop("_source").join(one.drop("_source"), "id")

    runs.produce(left, [b"bad left", b'{"id": 1}'])
    runs.produce(right, [b'{"id": 1, "s": "x"}', b"bad right"])
    runs.run(both)
    assert ids(runs, target) == [1]
    found = {
        (each.headers["ottla.topic"], each.headers["ottla.offset"], each.value)
        for each in letters(runs, "both")
    }
    assert found == {(left.encode(), b"0", b"bad left"), (right.encode(), b"1", b"bad right")}


def test_bad_records_of_an_input_that_is_used_twice_are_reported(runs: StageRuns) -> None:
    source, target = runs.name("in"), runs.name("out")

    @stage(topic(source, json="id long"), to=topic(target))
    def twice(frame: DataFrame) -> DataFrame:
        return frame.union(frame)

    runs.produce(source, [b'{"id": 1}', b"bad"])
    runs.run(twice)
    assert ids(runs, target) == [1, 1]
    assert offsets(letters(runs, "twice")) == [1]


def test_bad_records_can_be_dropped(runs: StageRuns, never_read_again: None) -> None:
    source, target = runs.name("in"), runs.name("out")
    runs.produce(source, [b"bad", b'{"id": 1}'])
    query = runs.run(copying(runs, source, target, bad="drop"))
    assert ids(runs, target) == [1]
    assert letters(runs, "copy") == []
    assert query.lastProgress is not None
    assert query.lastProgress.observedMetrics["ottla.input.0"].bad == 1


def test_a_stage_can_be_set_to_fail_on_bad_records_with_the_reason(runs: StageRuns) -> None:
    source, target = runs.name("in"), runs.name("out")
    runs.produce(source, [b'{"id": 1}', b'{"id": "x"}'])
    words = rf"bad record in {source}, partition 0, offset 1: wrong type for field id"
    with pytest.raises(StreamingQueryException, match=words):
        runs.run(copying(runs, source, target, bad="fail"))
    assert letters(runs, "copy") == []


def test_dead_letters_go_where_the_stage_says(runs: StageRuns) -> None:
    source, target, own = runs.name("in"), runs.name("out"), runs.name("own")
    runs.produce(source, [b"bad"])
    runs.run(copying(runs, source, target, dead_letters=own))
    assert [each.value for each in runs.records(own)] == [b"bad"]
