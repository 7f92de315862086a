"""What a batch has written is not written again by its next attempt, and counts for that batch alone."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ottla.pipeline.building import _labels
from ottla.pipeline.checkpoints import Checkpoints, StageFolder
from ottla.pipeline.declarations import Lake, Sink, Topic
from ottla.pipeline.deliveries import Deliveries
from ottla.pipeline.running.causes import lasts
from ottla.pipeline.stages import lake, topic
from pipeline.test_checkpoints import QUERY, give_spark_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> StageFolder:
    found = Checkpoints(tmp_path).stage("copy")
    give_spark_checkpoint(found, batches=3)
    return found


def failed_after(folder: StageFolder, batch: int, *outputs: str) -> Deliveries:
    deliveries = Deliveries(folder)
    assert not deliveries.begin(QUERY, batch)
    for output in outputs:
        deliveries.done(output)
    deliveries.failed()
    return deliveries


def test_a_retry_in_the_same_process_skips_written_outputs(folder: StageFolder) -> None:
    deliveries = failed_after(folder, 2, "a")
    assert deliveries.begin(QUERY, 2)
    assert deliveries.is_done("a")
    assert not deliveries.is_done("b")
    assert not deliveries.begin(QUERY, 3)
    assert not deliveries.is_done("a")


def test_a_complete_but_uncommitted_batch_is_not_written_again(folder: StageFolder) -> None:
    deliveries = Deliveries(folder)
    deliveries.begin(QUERY, 2)
    deliveries.done("a")
    assert deliveries.begin(QUERY, 2)
    assert deliveries.is_done("a")


def test_the_next_process_skips_written_outputs(folder: StageFolder) -> None:
    failed_after(folder, 2, "a")
    later = Deliveries(folder)
    assert later.begin(QUERY, 2)
    assert later.is_done("a")
    assert not later.is_done("b")


@pytest.mark.parametrize(("query", "batch"), [("another-query", 2), (QUERY, 1), (QUERY, 3)])
def test_a_delivery_note_of_another_query_or_batch_is_ignored(
    folder: StageFolder, query: str, batch: int
) -> None:
    failed_after(folder, 2, "a")
    later = Deliveries(folder)
    assert not later.begin(query, batch)
    assert not later.is_done("a")


@pytest.mark.parametrize("batch", [1, 2])
def test_a_delivery_note_is_ignored_when_the_batch_has_other_records(folder: StageFolder, batch: int) -> None:
    failed_after(folder, 2, "a")
    offsets = Path(folder.spark_checkpoint) / "offsets" / str(batch)
    offsets.write_text('v1\n{"batchWatermarkMs":0}\n{"clicks":{"0":29}}\n-')
    later = Deliveries(folder)
    assert not later.begin(QUERY, 2)
    assert not later.is_done("a")


def test_a_note_that_cannot_be_written_is_kept_in_memory(
    folder: StageFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StageFolder, "write_json", full)
    with caplog.at_level(logging.WARNING):
        deliveries = failed_after(folder, 2, "a")
    assert "No space left on device" in caplog.text
    assert deliveries.begin(QUERY, 2)
    assert deliveries.is_done("a")


def test_outputs_have_unique_names() -> None:
    outputs: list[Topic | Lake | Sink] = [
        topic("a"),
        topic("a", where="id > 1"),
        lake("data/a"),
        topic("a"),
        topic("a"),
    ]
    assert _labels(outputs) == ["a", "a where id > 1", "lake data/a", "a #2", "a #3"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x\nottla.pipeline.topics.writing.WriteRefused: partition 0 of topic 'a': too large", True),
        ("ottla.pipeline.declarations.StageError: stage copy: bad record in a", True),
        ("ottla.pipeline.topics.offsets.DataLost: partition 0 of topic 'a' ...\n\nDuring handling ...", True),
        ("ottla.pipeline.lakes.layout.LakeError: lake x has other columns", True),
        ("ottla.pipeline.topics.options.TopicMissing: topic 'a' does not exist", False),
        ("ottla.pipeline.topics.writing.NoSuchTopic: topic 'a' does not exist", False),
        ("ottla.protocol_client.wire.ConnectionLost: 127.0.0.1:9092: refused", False),
        ("OSError: [Errno 28] No space left on device", False),
        ("ValueError: the service said StageError: no", False),
    ],
)
def test_permanent_errors_are_recognised(text: str, expected: bool) -> None:
    assert lasts(f"Traceback (most recent call last):\n  File ...\n{text}") is expected
