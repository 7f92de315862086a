"""Whether a run with `once` has anything to do: known from the checkpoint and the broker, without Spark."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.pipeline import stage, topic
from ottla.pipeline.checkpoints import Checkpoints, StageFolder
from ottla.pipeline.fingerprint import declared_shape
from ottla.pipeline.running import input_topics
from ottla.pipeline.running.display import SilentDisplay
from ottla.pipeline.running.input_topics import has_little_to_read, is_idle
from ottla.pipeline.running.loading import Pipeline
from ottla.pipeline.running.progress import Board, Phase
from ottla.pipeline.running.runner import idle_outcome
from ottla.pipeline.topics.offsets_file import OffsetsFile
from ottla.protocol_client.group_offsets import committed_offsets
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker

_numbers = itertools.count(1)


class Shop:
    """A stage that has read the three records of its topic, as its checkpoint says."""

    def __init__(self, broker: InProcessBroker, folder: Path) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap_servers
        self.topic = f"idle{next(_numbers)}"
        self.checkpoints = Checkpoints(folder)
        self.pipeline = self.of(self.topic)
        broker.create_topic(self.topic)
        self.produce(3)
        self.checkpoint("clean", {self.topic: {"0": 3}})

    def of(self, source: str, **arguments: Any) -> Pipeline:
        @stage(topic(source, json="id long"), **{"to": topic(f"{self.topic}.clean"), **arguments})
        def clean(records: Any) -> Any:
            return records

        return Pipeline.load([clean], name=self.topic)

    def produce(self, count: int) -> None:
        with Wire(self.bootstrap) as wire, Producer(wire, self.topic) as producer:
            for number in range(count):
                producer.add(None, json.dumps({"id": number}).encode())

    def checkpoint(self, name: str, offsets: dict[str, dict[str, int]], batch: int = 0) -> StageFolder:
        """What Spark and a run leave behind for a stage that has committed this batch."""
        folder = self.checkpoints.stage(name)
        self.plan(folder, offsets, batch)
        spark = Path(folder.spark_checkpoint)
        (spark / "commits").mkdir(exist_ok=True)
        (spark / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (spark / "metadata").write_text(json.dumps({"id": "a query"}))
        shape = {**declared_shape(self.pipeline.stage(name)), "stateful": []}
        folder.write_json("fingerprint.json", {"version": 1, "shape": shape})
        OffsetsFile(folder.offsets_file(0)).begin(offsets, self.ids())
        return folder

    def plan(self, folder: StageFolder, offsets: dict[str, dict[str, int]], batch: int) -> None:
        planned = Path(folder.spark_checkpoint) / "offsets"
        planned.mkdir(parents=True, exist_ok=True)
        (planned / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offsets)}')

    def ids(self) -> dict[str, bytes]:
        with Wire(self.bootstrap) as wire:
            return {each.name: each.topic_id for each in wire.metadata([self.topic]).topics if each.name}

    @property
    def idle(self) -> bool:
        return is_idle(self.pipeline, self.checkpoints, self.bootstrap)


@pytest.fixture
def shop(broker: InProcessBroker, tmp_path: Path) -> Shop:
    return Shop(broker, tmp_path)


def test_a_stage_that_has_read_everything_has_nothing_to_do(shop: Shop) -> None:
    assert shop.idle
    board = Board(["clean"], lambda: 0.0)
    outcome = idle_outcome(shop.pipeline, shop.checkpoints, shop.bootstrap, board, SilentDisplay())
    assert (outcome["clean"].phase, outcome["clean"].lag_records) == (Phase.finished, 0)
    with Wire(shop.bootstrap) as wire:
        found = committed_offsets(wire, f"ottla.{shop.topic}.clean")
    assert [each.offset for each in found.values()] == [3]


def test_a_new_record_is_something_to_do(shop: Shop) -> None:
    shop.produce(1)
    assert not shop.idle


def test_only_records_that_are_not_read_yet_count_as_work(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_topics, "FEW", 2)
    shop.produce(2)
    assert has_little_to_read(shop.pipeline, shop.checkpoints, shop.bootstrap)
    shop.produce(1)
    assert not has_little_to_read(shop.pipeline, shop.checkpoints, shop.bootstrap)
    unread = Checkpoints(Path(shop.checkpoints.root) / "other")
    assert not has_little_to_read(shop.pipeline, unread, shop.bootstrap)
    assert not has_little_to_read(shop.pipeline, shop.checkpoints, "127.0.0.1:1")


def test_a_planned_batch_is_something_to_do(shop: Shop) -> None:
    shop.plan(shop.checkpoints.stage("clean"), {shop.topic: {"0": 3}}, 1)
    assert not shop.idle


def test_a_checkpoint_that_is_ahead_of_the_topic_is_for_the_run_to_report(shop: Shop) -> None:
    shop.checkpoint("clean", {shop.topic: {"0": 9}})
    assert not shop.idle


def test_a_partition_that_was_never_read_is_something_to_do(shop: Shop) -> None:
    shop.checkpoint("clean", {shop.topic: {}})
    assert not shop.idle


def test_a_topic_made_anew_is_for_the_run_to_report(shop: Shop) -> None:
    folder = shop.checkpoints.stage("clean")
    OffsetsFile(folder.offsets_file(0)).begin({shop.topic: {"0": 0}}, {shop.topic: b"another id......"})
    assert not shop.idle


def test_a_stage_that_is_declared_anew_is_checked_by_the_run(shop: Shop) -> None:
    shop.pipeline = shop.of(shop.topic, mode="update")
    assert not shop.idle


def test_a_stage_without_a_checkpoint_has_something_to_do(shop: Shop, tmp_path: Path) -> None:
    shop.checkpoints = Checkpoints(tmp_path / "another")
    assert not shop.idle


def test_a_broker_that_is_away_is_for_the_run_to_report(shop: Shop) -> None:
    assert not is_idle(shop.pipeline, shop.checkpoints, "127.0.0.1:1")


def test_a_stage_whose_input_was_never_written_waits_for_its_feeder(shop: Shop) -> None:
    (first,) = shop.pipeline.stages
    (second,) = shop.of(f"{shop.topic}.clean", to=topic(f"{shop.topic}.last"), name="last").stages
    shop.pipeline = replace(shop.pipeline, stages=(first, second))
    assert shop.idle
