"""A stage's folder keeps its progress, its shape and where it starts, whatever stops in between."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.pipeline.checkpoints import (
    CheckpointError,
    Checkpoints,
    Fingerprint,
    IncompatibleChange,
    StageBusy,
    StageFolder,
)
from ottla.pipeline.folders import for_spark
from pipeline.stopping_folder import Steps, every_step, folder, hdfs_like

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPE: dict[str, Any] = {
    "inputs": [{"topic": "clicks", "format": "json", "schema": "id bigint", "options": {}}],
    "outputs": [{"topic": "clean"}],
    "stateful": [],
    "mode": "append",
}
QUERY = "0b6d3ee4-6cb8-4d3b-b8ee-8c4f3b4a2b11"


def give_spark_checkpoint(stage: StageFolder, batches: int = 3, committed: int = 2) -> None:
    """What Spark leaves: so many batches planned, so many done, the source 10 records further in each."""
    root = Path(stage.spark_checkpoint)
    for log in ("offsets", "commits"):
        (root / log).mkdir(parents=True, exist_ok=True)
    (root / "metadata").write_text(json.dumps({"id": QUERY}))
    for batch in range(batches):
        offsets = json.dumps({"clicks": {"0": 10 * (batch + 1)}})
        (root / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":{batch}}}\n{offsets}\n-')
        (root / "offsets" / f".{batch}.crc").write_text("sum")
        if batch < committed:
            (root / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_a_stage_that_never_ran_has_no_checkpoint_files(tmp_path: Path) -> None:
    stage = Checkpoints(tmp_path / "new").stage("clean")
    assert stage.query_id() is None
    assert stage.last_committed() is None
    assert stage.committed_offsets() is None
    assert stage.offsets_of(0) is None
    assert stage.starting_options() == {}
    assert stage.read_json("mark.json") is None
    assert not (tmp_path / "new").exists()


def test_spark_is_given_a_folder_below_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Checkpoints("here").stage("clean").spark_checkpoint == str(tmp_path / "here/clean/spark")
    url = (tmp_path / "here").as_uri()
    assert Checkpoints(url).stage("clean").spark_checkpoint == f"{url}/clean/spark"
    assert for_spark("s3://bucket/x?region=eu") == "s3a://bucket/x", "settings of pyarrow's are not Hadoop's"


def test_the_last_committed_batch_is_read_from_sparks_own_logs(tmp_path: Path) -> None:
    stage = Checkpoints(tmp_path).stage("clean")
    give_spark_checkpoint(stage)
    assert stage.query_id() == QUERY
    last = stage.last_committed()
    assert last is not None
    assert (last.batch_id, last.watermark_ms) == (1, 1)
    assert last.offsets == {"0": {"clicks": {"0": 20}}, "1": None}
    assert stage.offsets_of(2) == {"0": {"clicks": {"0": 30}}, "1": None}
    assert stage.offsets_of(3) is None
    assert Checkpoints(tmp_path).stages() == ["clean"]


def test_offset_logs_with_named_sources_are_read_too(tmp_path: Path) -> None:
    stage = Checkpoints(tmp_path).stage("clean")
    give_spark_checkpoint(stage, 1, 1)
    log = Path(stage.spark_checkpoint) / "offsets" / "0"
    log.write_text('v2\n{"batchWatermarkMs":0}\nclicks:{"clicks":{"0":5}}\nusers:-')
    assert stage.committed_offsets() == {"clicks": {"clicks": {"0": 5}}, "users": None}


def test_a_commit_file_emptied_by_power_loss_is_ignored(tmp_path: Path) -> None:
    stage = Checkpoints(tmp_path).stage("clean")
    give_spark_checkpoint(stage)
    (Path(stage.spark_checkpoint) / "commits" / "2").write_bytes(b"")
    last = stage.last_committed()
    assert last is not None
    assert last.batch_id == 1


def test_a_damaged_checkpoint_is_named_with_what_to_do(tmp_path: Path) -> None:
    stage = Checkpoints(tmp_path).stage("clean")
    give_spark_checkpoint(stage)
    (Path(stage.spark_checkpoint) / "offsets" / "1").unlink()
    with pytest.raises(CheckpointError, match="ottla pipeline reset clean"):
        stage.last_committed()


def test_the_checkpoint_of_a_real_query_is_read(tmp_path: Path, spark: SparkSession) -> None:
    stage = Checkpoints(tmp_path).stage("rates")
    query = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 5)
        .load()
        .writeStream.foreachBatch(lambda frame, batch: None)
        .option("checkpointLocation", stage.spark_checkpoint)
        .start()
    )
    try:
        deadline = time.monotonic() + 60
        while query.lastProgress is None or query.lastProgress.batchId < 2:
            assert time.monotonic() < deadline, query.exception()
            time.sleep(0.01)
    finally:
        query.stop()
    last = stage.last_committed()
    assert stage.query_id() == query.id
    assert last is not None
    assert last.batch_id >= 2
    assert last.offsets["0"]["offset"] == 5 * (last.batch_id + 1)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b"])
def test_a_stage_name_that_cannot_be_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="cannot name a stage"):
        Checkpoints(tmp_path).stage(name)


@pytest.mark.parametrize("like_hdfs", [False, True])
def test_an_interrupted_write_leaves_the_old_or_the_new_file(tmp_path: Path, like_hdfs: bool) -> None:
    def open_folder(steps: Steps) -> StageFolder:
        watched = folder(tmp_path, steps)
        return Checkpoints(hdfs_like(tmp_path, type(watched)) if like_hdfs else watched).stage("clean")

    plain = open_folder(Steps())
    plain.write_json("mark.json", "old")
    for _ in every_step(lambda steps: open_folder(steps).write_json("mark.json", "new")):
        assert plain.read_json("mark.json") in ("old", "new")
        plain.write_json("mark.json", "old")
        assert plain.read_json("mark.json") == "old"


def test_an_interrupted_first_write_leaves_a_whole_file_or_none(tmp_path: Path) -> None:
    for like_hdfs in (False, True):

        def write(steps: Steps, like_hdfs: bool = like_hdfs) -> None:
            shutil.rmtree(tmp_path / "clean", ignore_errors=True)
            watched = folder(tmp_path, steps)
            root = hdfs_like(tmp_path, type(watched)) if like_hdfs else watched
            Checkpoints(root).stage("clean").write_json("mark.json", {"a": 1})

        for _ in every_step(write):
            root = hdfs_like(tmp_path) if like_hdfs else tmp_path
            assert Checkpoints(root).stage("clean").read_json("mark.json") in (None, {"a": 1})


def test_a_reset_forgets_everything_and_says_where_to_start(tmp_path: Path) -> None:
    stage = Checkpoints(tmp_path).stage("clean")
    give_spark_checkpoint(stage)
    stage.check_fingerprint(Fingerprint(SHAPE))
    stage.write_json("dead-letters.json", {"0": 3})
    stage.reset("earliest")
    assert stage.query_id() is None
    assert stage.read_json("dead-letters.json") is None
    assert stage.starting_options() == {"startingOffsets": "earliest"}
    assert not Path(stage.spark_checkpoint).exists()
    stage.check_fingerprint(Fingerprint({**SHAPE, "mode": "complete", "stateful": ["count"]}))
    stage.reset("latest")
    assert stage.starting_options() == {"startingOffsets": "latest"}
    stage.reset(1_700_000_000_000)
    assert stage.starting_options() == {
        "startingTimestamp": "1700000000000",
        "startingOffsetsByTimestampStrategy": "latest",
    }
    with pytest.raises(CheckpointError, match="earliest, latest or a time"):
        stage.reset("yesterday")


def test_an_interrupted_reset_is_complete_or_not_begun(tmp_path: Path) -> None:
    outcomes = set()
    plain = Checkpoints(tmp_path).stage("clean")

    def reset(steps: Steps) -> None:
        shutil.rmtree(tmp_path / "clean", ignore_errors=True)
        give_spark_checkpoint(plain)
        plain.check_fingerprint(Fingerprint(SHAPE))
        Checkpoints(folder(tmp_path, steps)).stage("clean").reset("latest")

    for _ in every_step(reset):
        # Whichever question is asked first, the answer is of one world.
        begun = plain.starting_options() == {"startingOffsets": "latest"}
        outcomes.add(begun)
        if begun:
            assert plain.query_id() is None
            assert plain.last_committed() is None
            assert not (tmp_path / "clean/spark").exists()
            assert plain.read_json("fingerprint.json") is None
        else:
            assert plain.query_id() == QUERY
            assert plain.last_committed() is not None
            assert plain.check_fingerprint(Fingerprint(SHAPE)) == []
    assert outcomes == {True, False}


def test_an_interrupted_reset_is_finished_before_spark_starts(tmp_path: Path) -> None:
    questions: list[Callable[[StageFolder], object]] = [
        lambda stage: stage.spark_checkpoint,
        lambda stage: stage.query_id(),
        lambda stage: stage.last_committed(),
        lambda stage: stage.write_json("x.json", 1),
        lambda stage: stage.check_fingerprint(Fingerprint(SHAPE)),
    ]
    for ask in questions:
        plain = Checkpoints(tmp_path).stage("clean")
        give_spark_checkpoint(plain)
        (tmp_path / "clean/start.json").write_text('{"start": "earliest", "removing": true}')
        (tmp_path / "clean/spark/metadata").unlink()  # as far as the removal came
        ask(plain)
        assert not (tmp_path / "clean/spark").exists()


def test_an_unchanged_stage_continues_without_a_message(tmp_path: Path) -> None:
    stage = Checkpoints(tmp_path).stage("clean")
    give_spark_checkpoint(stage)
    assert stage.check_fingerprint(Fingerprint(SHAPE)) == []
    assert stage.check_fingerprint(Fingerprint({**SHAPE, "inputs": tuple(SHAPE["inputs"])})) == []


def changed(**parts: Any) -> Fingerprint:
    return Fingerprint({**SHAPE, **parts})


def test_compatible_changes_are_reported_and_stored(tmp_path: Path) -> None:
    stage = Checkpoints(tmp_path).stage("clean")
    give_spark_checkpoint(stage)
    stage.check_fingerprint(Fingerprint(SHAPE))
    wider = changed(
        inputs=[
            {**SHAPE["inputs"][0], "schema": "id bigint, user string", "options": {"minPartitions": "4"}}
        ],
        outputs=[{"topic": "clean"}, {"lake": "x"}],
    )
    told = stage.check_fingerprint(wider)
    assert [change.path for change in told] == [
        "inputs[0].options.minPartitions",
        "inputs[0].schema",
        "outputs[1].lake",
    ]
    assert all(change.harmless for change in told)
    assert "(none) became 4" in str(told[0])
    assert stage.check_fingerprint(wider) == []


@pytest.mark.parametrize(
    ("shape", "path", "words"),
    [
        (
            changed(inputs=[{**SHAPE["inputs"][0], "topic": "other"}]),
            "inputs[0].topic",
            "clicks became other",
        ),
        (changed(inputs=[*SHAPE["inputs"], {"topic": "users"}]), "inputs[1].topic", "(none) became users"),
        (changed(inputs=[]), "inputs[0].topic", "clicks became (none)"),
        (changed(stateful=["dedup by id"]), "stateful[0]", "(none) became dedup by id"),
        (changed(brand_new="x"), "brand_new", "nothing is known"),
    ],
)
def test_changes_that_a_checkpoint_cannot_follow_are_refused(
    tmp_path: Path, shape: Fingerprint, path: str, words: str
) -> None:
    stage = Checkpoints(tmp_path).stage("clean")
    give_spark_checkpoint(stage)
    stage.check_fingerprint(Fingerprint(SHAPE))
    with pytest.raises(IncompatibleChange) as refused:
        stage.check_fingerprint(shape)
    assert path in [change.path for change in refused.value.changes]
    for said in (words, "undo", "another name", "ottla pipeline reset clean --to earliest"):
        assert said in str(refused.value)
    assert stage.check_fingerprint(Fingerprint(SHAPE)) == [], "a refused shape was remembered"


def test_a_changed_output_mode_is_refused_only_for_stages_with_state(tmp_path: Path) -> None:
    stage = Checkpoints(tmp_path).stage("clean")
    give_spark_checkpoint(stage)
    stage.check_fingerprint(Fingerprint(SHAPE))
    assert [change.harmless for change in stage.check_fingerprint(changed(mode="update"))] == [True]
    stage.reset("earliest")
    give_spark_checkpoint(stage)
    stage.check_fingerprint(changed(stateful=["count"]))
    with pytest.raises(IncompatibleChange, match="mode: append became complete"):
        stage.check_fingerprint(changed(stateful=["count"], mode="complete"))


def test_any_change_is_allowed_before_the_first_batch(tmp_path: Path) -> None:
    stage = Checkpoints(tmp_path).stage("clean")
    stage.check_fingerprint(Fingerprint(SHAPE))
    assert stage.check_fingerprint(changed(stateful=["count"], inputs=[{"topic": "other"}])) == []


def test_a_stage_is_locked_by_one_driver_until_that_ends(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom ottla.pipeline.checkpoints import Checkpoints\n"
        "with Checkpoints(sys.argv[1]).stage('clean').lock():\n"
        "    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    stage = Checkpoints(tmp_path).stage("clean")
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StageBusy, match=f"process {holder.pid}"), stage.lock():
            pass
        with Checkpoints(tmp_path).stage("other").lock():
            pass
    finally:
        holder.kill()
        holder.communicate()
    with stage.lock():
        stage.reset("earliest")
        with pytest.raises(StageBusy), Checkpoints(tmp_path).stage("clean").lock():
            pass
    with stage.lock():
        pass


def test_a_checkpoint_url_without_locks_is_used_without_a_lock(tmp_path: Path) -> None:
    with Checkpoints(hdfs_like(tmp_path)).stage("clean").lock():
        assert list(tmp_path.iterdir()) == []
