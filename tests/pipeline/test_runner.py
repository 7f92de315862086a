"""Pipelines run on a real Spark and a real broker: what stages do when all is well, and when it is not."""

from __future__ import annotations

import io
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.backoff import BackOff
from ottla.pipeline.checkpoints import StageBusy
from ottla.pipeline.declarations import StageError
from ottla.pipeline.running.display import PlainDisplay
from ottla.pipeline.running.loading import Pipeline
from ottla.pipeline.running.progress import Phase
from ottla.pipeline.running.runner import Outcome, PipelineFailed, Refused, Runner, run
from ottla.pipeline.running.status import look
from ottla.pipeline.stages import stage, topic
from ottla.protocol_client.group_offsets import committed_offsets
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire
from pipeline.pipeline_runs import ID, LIMIT, copy, ids, running, until, write
from pipeline.stage_runs import StageRuns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.testing.in_process import InProcessBroker

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def runs(spark: SparkSession, broker: InProcessBroker, tmp_path: Path) -> StageRuns:
    return StageRuns(spark, broker, tmp_path)


def choking(source: str, to: str, name: str, on: Path) -> Callable[..., Any]:
    """The same, but it fails at the id that stands in the file `on`."""
    from pyspark.sql import functions as F

    path = str(on)

    def checked(number: int) -> int:
        if str(number) in Path(path).read_text().split():
            raise ValueError(f"cannot stand {number}")
        return number

    @stage(topic(source, json=ID), to=topic(to), name=name)
    def choked(records: DataFrame) -> DataFrame:
        return records.select(F.udf(checked, "long")("id").alias("id"))

    return choked


def into(runs: StageRuns, name: str, partition: int, values: list[bytes]) -> None:
    with Wire(runs.broker.bootstrap_servers) as wire, Producer(wire, name) as producer:
        for value in values:
            producer.add(None, value, partition=partition)


def once(runs: StageRuns, *functions: Callable[..., Any], **options: Any) -> Outcome:
    return run(
        list(functions),
        name=runs.prefix,
        bootstrap=runs.broker.bootstrap_servers,
        checkpoints=runs.folder / "checkpoints",
        spark=runs.spark,
        **options,
    )


def test_a_run_processes_records_end_to_end_and_the_next_run_continues(runs: StageRuns) -> None:
    source, middle, end = runs.name("in", 2), runs.name("middle", None), runs.name("out", None)
    second, first = copy(middle, end, "second"), copy(source, middle, "first")
    write(runs, source, 1, 2, 3)
    outcome = once(runs, second, first)
    assert ids(runs, end) == [1, 2, 3]
    assert [each.phase for each in outcome.stages] == [Phase.finished, Phase.finished]
    assert outcome["second"].rows == 3
    assert outcome["second"].lag_records == 0
    write(runs, source, 4)
    assert once(runs, second, first).rows == 2
    assert ids(runs, end) == [1, 2, 3, 4]
    with Wire(runs.broker.bootstrap_servers) as wire:
        groups = [committed_offsets(wire, f"ottla.{runs.prefix}.{name}") for name in ("first", "second")]
        found = look(Pipeline.load([second, first], name=runs.prefix), runs.context().checkpoints, wire)
    # In the topic between them the end of each transaction has an offset, too.
    assert [sum(each.offset for each in group.values()) for group in groups] == [4, 6]
    status = found.stages[1]
    assert (status.stage, status.running, status.phase, status.batch) == ("first", False, "finished", 1)
    assert (status.lag_records, status.lag_seconds, status.error) == (0, 0.0, None)
    assert sum(status.offsets[source].values()) == 4


def test_a_failing_stage_is_restarted_beside_a_healthy_one(runs: StageRuns, tmp_path: Path) -> None:
    source, good, bad = runs.name("in", 2), runs.name("good", None), runs.name("bad", None)
    poison = tmp_path / "poison"
    poison.write_text("13")
    out, err = io.StringIO(), io.StringIO()
    with running(
        runs,
        copy(source, good, "healthy"),
        choking(source, bad, "choking", poison),
        display=PlainDisplay(out, err),
    ) as run:
        into(runs, source, 0, [b'{"id": 12}'])
        into(runs, source, 1, [b'{"id": 13}'])
        until(lambda: run["choking"].restarts >= 3 and run["healthy"].rows == 2, "three failures")
        failed = run["choking"]
        assert failed.error.startswith("ValueError: cannot stand 13 (")
        assert "test_runner.py" in failed.error
        until(lambda: run["choking"].lag_records == 2, "its lag")
        assert run["choking"].lag_seconds > 0
        with Wire(runs.broker.bootstrap_servers) as wire:
            pipeline = run.runner.pipeline
            until(
                lambda: look(pipeline, runs.context().checkpoints, wire).stages[1].error == failed.error,
                "the error in the status",
            )
            seen = look(pipeline, runs.context().checkpoints, wire).stages
        assert [each.running for each in seen] == [True, True]
        poison.write_text("")
        write(runs, source, 14)
        until(lambda: run["choking"].rows == 3 and run["healthy"].rows == 3, "recovery")
    assert ids(runs, good) == [12, 13, 14]
    # The first attempt may have written 12 before it failed on 13; later attempts have not.
    assert ids(runs, bad) in ([12, 13, 14], [12, 12, 13, 14])
    assert run["healthy"].restarts == 0
    assert "choking: restarting: again in 0.1 s: ValueError: cannot stand 13" in err.getvalue()
    trace = (tmp_path / "checkpoints" / "choking" / "errors.log").read_text()
    assert "Traceback (most recent call last):" in trace
    assert "ValueError: cannot stand 13" in trace


def test_with_bad_fail_a_bad_record_ends_the_stage_without_duplicates(runs: StageRuns) -> None:
    source, end = runs.name("in", 2), runs.name("out", 2)
    good = list(range(50))
    into(runs, source, 0, [b'{"id": %d}' % each for each in good])
    into(runs, source, 1, [b"bad"])
    with running(runs, copy(source, end, "strict", bad="fail")) as run:
        until(lambda: run["strict"].phase.over or run["strict"].restarts, "the end of the stage")
    assert run["strict"].phase == Phase.failed
    assert run["strict"].restarts == 0
    assert "bad record in" in run["strict"].error
    assert set(Counter(ids(runs, end)).values()) <= {1}
    assert run.outcome is not None
    assert run.outcome.failed


def test_after_a_refused_output_the_next_run_writes_only_the_missing_rows(
    runs: StageRuns,
) -> None:
    """At least once: what is written before a failure stays."""
    source, first, second = runs.name("in"), runs.name("first"), runs.name("second", None)
    runs.broker.create_topic(second, config={"max.message.bytes": 200})

    def both(**small: Any) -> Callable[..., Any]:
        outputs = [topic(first), topic(second, **small)]

        @stage(topic(source, json="id long, text string"), to=outputs, delivery="at-least-once")
        def both(records: DataFrame) -> DataFrame:
            return records

        return both

    runs.produce(source, [b'{"id": 1, "text": "a"}', b'{"id": 2, "text": "%s"}' % (b"b" * 300)])
    with running(runs, both()) as run:
        until(lambda: run["both"].phase.over or run["both"].restarts, "the end of the stage")
    assert run["both"].phase == Phase.failed
    assert "max.message.bytes" in run["both"].error
    assert ids(runs, first) == [1, 2]
    once(runs, both(where="length(text) < 200"))
    assert ids(runs, first) == [1, 2]
    assert set(ids(runs, second)) == {1}


def test_a_stop_finishes_the_batch_without_duplicates(runs: StageRuns, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    source, end = runs.name("in"), runs.name("out", None)
    inside, go_on = str(tmp_path / "inside"), str(tmp_path / "go on")

    def held(number: int) -> int:
        Path(inside).touch()
        deadline = time.monotonic() + LIMIT
        while not Path(go_on).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return number

    @stage(topic(source, json=ID, options={"maxOffsetsPerTrigger": 2}), to=topic(end))
    def slow(records: DataFrame) -> DataFrame:
        return records.select(F.udf(held, "long")("id").alias("id"))

    write(runs, source, 1, 2, 3, 4, 5)
    with running(runs, slow) as run:
        until(Path(inside).exists, "a batch that is inside")
        run.runner.stop.ask()
        until(lambda: run["slow"].phase == Phase.stopping, "stopping")
        assert run["slow"].note.startswith("finishing batch ")
        Path(go_on).touch()
    assert run.outcome is not None
    assert run.outcome.interrupted
    assert run.outcome["slow"].phase == Phase.stopped
    assert run.outcome["slow"].error == ""
    assert ids(runs, end) == [1, 2]
    once(runs, slow)
    assert ids(runs, end) == [1, 2, 3, 4, 5]


def test_a_change_that_a_checkpoint_cannot_follow_refuses_the_start_as_a_whole(runs: StageRuns) -> None:
    source, other, end = runs.name("in"), runs.name("other"), runs.name("out", None)
    write(runs, source, 1)
    once(runs, copy(source, end, "changed"))
    write(runs, source, 2)
    beside = copy(source, runs.name("beside", None), "beside")
    with pytest.raises(Refused, match=r"stage changed .*\n.*other"):
        once(runs, beside, copy(other, end, "changed"))
    assert runs.records(runs.name("beside", None)) == []
    once(runs, copy(source, end, "changed"))
    assert ids(runs, end) == [1, 2]


def test_an_invalid_pipeline_is_refused_before_anything_starts(runs: StageRuns) -> None:
    source = runs.name("in")

    @stage(topic(source, json=ID), to=topic(runs.name("out", None)))
    def wrong(records: DataFrame) -> DataFrame:
        return records.select("nothing")

    with pytest.raises(StageError, match="nothing"):
        once(runs, wrong)


def test_with_once_a_stage_fails_for_good_after_some_attempts(runs: StageRuns, tmp_path: Path) -> None:
    source, good = runs.name("in"), runs.name("good", None)
    poison = tmp_path / "poison"
    poison.write_text("1")
    write(runs, source, 1)
    bad = choking(source, runs.name("bad", None), "choking", poison)
    pipeline = Pipeline.load([bad, copy(source, good, "healthy")], name=runs.prefix)
    out, err = io.StringIO(), io.StringIO()
    quick: dict[str, Any] = {"attempts": 2, "back_off": lambda: BackOff(first=0.05)}
    runner = Runner(pipeline, runs.spark, runs.context(), display=PlainDisplay(out, err), **quick)
    outcome = runner.run(once=True)
    assert [each.stage for each in outcome.failed] == ["choking"]
    assert outcome["choking"].restarts == 1
    assert outcome["healthy"].phase == Phase.finished
    assert ids(runs, good) == [1]
    assert "cannot stand 1" in str(PipelineFailed(outcome))
    (last,) = [line for line in out.getvalue().splitlines() if line.endswith("; finished")]
    assert "healthy: " in last
    assert "lag 0 (0 s)" in last, "how far it is at its end, not before its last batch"


def test_a_python_process_that_dies_says_why_in_the_log_of_its_stage(runs: StageRuns, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    def dying(number: int) -> int:
        os.write(2, b"libfancy.so.3: cannot open shared object file\n")
        os._exit(1)

    source = runs.name("in")
    write(runs, source, 1)

    @stage(topic(source, json=ID), to=topic(runs.name("out", None)))
    def dies(records: DataFrame) -> DataFrame:
        return records.select(F.udf(dying, "long")("id").alias("id"))

    pipeline = Pipeline.load([dies], name=runs.prefix)
    assert Runner(pipeline, runs.spark, runs.context(), attempts=1).run(once=True).failed
    told = (tmp_path / "checkpoints" / "dies" / "errors.log").read_text()
    assert "libfancy.so.3: cannot open shared object file" in told


def test_a_missing_topic_is_waited_for_and_with_once_is_an_error(runs: StageRuns) -> None:
    source, end = runs.name("later", None), runs.name("out", None)
    with pytest.raises(PipelineFailed, match=f"there is no topic {source} to read"):
        once(runs, copy(source, end, "early"))
    with running(runs, copy(source, end, "early")) as run:
        until(lambda: run["early"].phase == Phase.waiting, "waiting")
        assert run["early"].note == f"for topic {source}"
        runs.broker.create_topic(source)
        write(runs, source, 7)
        until(lambda: run["early"].rows == 1, "its record")
    assert ids(runs, end) == [7]


def test_a_broker_that_restarts_shows_as_lag_only(runs: StageRuns) -> None:
    source, end = runs.name("in"), runs.name("out", None)
    with running(runs, copy(source, end, "steady")) as run:
        write(runs, source, 1)
        until(lambda: run["steady"].rows == 1, "the first record")
        runs.broker.stop()
        try:
            until(lambda: run["steady"].lag_records is None, "a lag that is not known")
        finally:
            runs.broker.start()
        write(runs, source, 2)
        until(lambda: run["steady"].rows == 2, "the second record")
    assert ids(runs, end) == [1, 2]
    assert run["steady"].restarts == 0


def test_a_stage_that_runs_is_not_started_a_second_time(runs: StageRuns) -> None:
    source, end = runs.name("in"), runs.name("out", None)
    with running(runs, copy(source, end, "only")) as run:
        until(lambda: run["only"].phase == Phase.running, "running")
        with pytest.raises(StageBusy, match="stage only is being run by process"):
            once(runs, copy(source, end, "only"))


def test_settings_of_a_stage_are_its_own(runs: StageRuns) -> None:
    source, end = runs.name("in"), runs.name("out", None)
    seen = []
    before = runs.spark.conf.get("spark.sql.shuffle.partitions")
    assert before != "7"

    @stage(topic(source, json=ID), to=topic(end), options={"spark.sql.shuffle.partitions": "7"})
    def own(records: DataFrame) -> DataFrame:
        seen.append(records.sparkSession.conf.get("spark.sql.shuffle.partitions"))
        return records

    write(runs, source, 1)
    assert once(runs, own)["own"].rows == 1
    assert seen[-1] == "7"
    assert runs.spark.conf.get("spark.sql.shuffle.partitions") == before
