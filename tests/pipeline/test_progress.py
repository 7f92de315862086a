"""Progress as plain values: batches, rates, offsets, back-off, and why a stage failed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest

from ottla.backoff import BackOff
from ottla.pipeline.checkpoints import Checkpoints
from ottla.pipeline.running.causes import LONGEST, cause_of, root_cause, with_error_output
from ottla.pipeline.running.progress import Batch, Board, Phase, as_offsets, read_batch
from ottla.pipeline.running.status import StatusFiles
from ottla.pipeline.spark.error_output import ErrorOutput

PROGRESS = {
    "id": "5a46d9aa",
    "name": "agg",
    "batchId": 3,
    "batchDuration": 536,
    "numInputRows": 10,
    "durationMs": {"addBatch": 372, "latestOffset": 100, "triggerExecution": 535},
    "eventTime": {"watermark": "2026-11-15T12:50:54.467Z"},
    "stateOperators": [
        {"numRowsTotal": 3, "memoryUsedBytes": 1808},
        {"numRowsTotal": 4, "memoryUsedBytes": 100},
    ],
    "observedMetrics": {"ottla.input.0": {"rows": 10, "bad": 2}, "mine": {"bad": 7}},
    "sources": [
        {"endOffset": {"clicks": {"0": 12, "1": 7}}, "numInputRows": 10},
        {"endOffset": '{"clicks": {"0": 9}, "users": {"0": 1}}'},
    ],
}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# Batches


def test_a_batch_is_read_from_what_spark_reports() -> None:
    batch = read_batch(PROGRESS)
    assert batch.number == 3
    assert batch.rows == 10
    assert batch.state_rows == 7
    assert batch.state_bytes == 1908
    assert batch.watermark == "2026-11-15T12:50:54.467Z"
    assert batch.bad == 2


def test_waiting_for_records_is_not_counted_as_work() -> None:
    assert read_batch(PROGRESS).seconds == pytest.approx(0.436)


def test_a_partition_that_two_sources_read_is_read_as_far_as_both_have() -> None:
    assert read_batch(PROGRESS).offsets == {"clicks": {0: 9, 1: 7}, "users": {0: 1}}


@pytest.mark.parametrize("value", [None, 3, "3", "not json", {"0": 1}, {"t": {"x": 1}}, [1]])
def test_offsets_of_sources_that_are_no_topics_are_left_out(value: object) -> None:
    assert as_offsets(value) == {}


def test_a_stage_without_state_has_no_state_rows() -> None:
    assert read_batch({"batchId": 0, "stateOperators": []}).state_rows is None


def test_rows_dropped_by_a_watermark_are_counted() -> None:
    operators = [{"numRowsDroppedByWatermark": 3}, {"numRowsDroppedByWatermark": 4}, {"numRowsTotal": 1}]
    assert read_batch({"batchId": 1, "stateOperators": operators}).late == 7
    board = Board(["a"], Clock())
    board.batch_done("a", Batch(0, 10, 1.0, late=2, bad=1))
    board.batch_done("a", Batch(1, 10, 1.0, late=3))
    assert (board["a"].late, board["a"].bad) == (5, 1)
    assert board["a"].document()["late"] == 5


def test_a_run_without_batches_keeps_what_is_known_of_the_last_batch(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    board = Board(["a"], Clock())
    board.batch_done("a", Batch(7, 10, 1.5, state_rows=42))
    StatusFiles(checkpoints, board).end()
    StatusFiles(checkpoints, Board(["a"], Clock())).end()
    told = checkpoints.stage("a").read_json("status.json")
    assert (told["batch"], told["batch_rows"], told["batch_seconds"], told["state_rows"]) == (7, 10, 1.5, 42)
    assert told["rows"] == 0


# The board


def test_the_rate_counts_the_last_seconds_only() -> None:
    clock = Clock()
    board = Board(["a"], clock)
    for _ in range(20):
        clock.now += 1
        board.batch_done("a", Batch(0, 500, 1.0))
    assert board.snapshot()[0].rows_per_second == pytest.approx(500, rel=0.15)
    clock.now += 11
    assert board.snapshot()[0].rows_per_second == 0


def test_rows_of_a_long_batch_count_over_the_time_it_took() -> None:
    clock = Clock()
    board = Board(["a"], clock)
    clock.now += 60
    board.batch_done("a", Batch(0, 60_000, 60.0))
    assert board.snapshot()[0].rows_per_second == pytest.approx(1_000)
    clock.now += 5
    assert board.snapshot()[0].rows_per_second == pytest.approx(500)


def test_a_young_stage_is_not_judged_by_ten_seconds() -> None:
    clock = Clock()
    board = Board(["a"], clock)
    clock.now += 2
    board.batch_done("a", Batch(0, 1000, 2.0))
    assert board.snapshot()[0].rows_per_second == pytest.approx(500)


def test_totals_add_up_and_state_is_the_newest() -> None:
    board = Board(["a"], Clock())
    board.batch_done("a", Batch(0, 5, 1.0, state_rows=3, bad=1))
    board.batch_done("a", Batch(1, 7, 1.0, state_rows=2, bad=2))
    now = board["a"]
    assert (now.rows, now.batches, now.bad, now.state_rows) == (12, 2, 3, 2)


def test_offsets_stay_when_a_batch_has_none() -> None:
    board = Board(["a"], Clock())
    board.batch_done("a", Batch(0, 5, 1.0, offsets={"t": {0: 5}}))
    board.batch_done("a", Batch(1, 0, 1.0))
    batch = board["a"].batch
    assert batch is not None
    assert batch.number == 1
    assert batch.offsets == {"t": {0: 5}}


def test_observers_are_notified_once_per_change() -> None:
    told: list[tuple[str, str]] = []
    board = Board(["a", "b"], Clock())
    board.observe(lambda progress, event: told.append((progress.stage, event)))
    board.enter("a", Phase.waiting, "for topic x")
    board.enter("a", Phase.waiting, "for topic x")
    board.failed("a", "boom", Phase.restarting, "in 1 s", restart=True)
    board.lag("a", 5, 1.0)
    board.batch_done("a", Batch(0, 1, 1.0))
    assert told == [("a", "waiting"), ("a", "restarting"), ("a", "progress")]
    assert board["a"].restarts == 1
    assert board["a"].error == "boom"
    assert board["b"].restarts == 0


def test_a_snapshot_is_json() -> None:
    board = Board(["a"], Clock())
    board.batch_done("a", read_batch(PROGRESS))
    document = json.loads(json.dumps(board["a"].document()))
    assert document["stage"] == "a"
    assert document["offsets"]["clicks"] == {"0": 9, "1": 7}
    assert document["error"] is None


# Back-off


def test_pauses_double_up_to_a_limit() -> None:
    back_off = BackOff(first=1, limit=10)
    assert [back_off.failed(0) for _ in range(6)] == [1, 2, 4, 8, 10, 10]


def test_failures_for_weeks_do_not_overflow() -> None:
    back_off = BackOff()
    assert {back_off.failed(0) for _ in range(5000)} <= {1, 2, 4, 8, 16, 32, 60}


def test_the_back_off_is_reset_after_a_healthy_period() -> None:
    back_off = BackOff(healthy=60)
    back_off.failed(0)
    back_off.started(1)
    assert back_off.failed(30) == 2
    back_off.started(32)
    assert back_off.failed(100) == 1
    assert back_off.failures == 1


# Causes

QUERY = """
=== Streaming Query ===
Identifier: udf [id = 20cb3961, runId = cbb183b1]
Current Committed Offsets: {}
Traceback (most recent call last): not one
"""
IN_WORKER = (
    """[STREAM_FAILED] Query [id = 20cb3961, runId = cbb183b1] terminated with exception: \
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink. \
Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/pyspark/sql/utils.py", line 163, in call
    self.func(DataFrame(jdf, wrapped_session_jdf), batch_id)
  File "/home/ann/shop.py", line 16, in bad
    if x>3: raise ValueError("boom with\\ntwo lines")
      ^^^^^^^^^^^^^^^^^
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/home/ann/shop.py", line 16, in bad
    if x>3: raise ValueError("boom with\\ntwo lines")
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: boom with
two lines
 SQLSTATE: 39000 SQLSTATE: XXKST"""
    + QUERY
)
IN_SPARK = (
    """[STREAM_FAILED] Query [id = 539fc707, runId = a2a176dc] terminated with exception: \
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred. Return Message: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/errors/exceptions/captured.py", line 262, in deco
    raise converted from None
pyspark.errors.exceptions.captured.ArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide` \
to tolerate divisor being 0 and return NULL instead. SQLSTATE: 22012
== DataFrame ==
"__truediv__" was called from
/home/ann/shop.py:28

 SQLSTATE: 39000 SQLSTATE: XXKST"""
    + QUERY
)
IN_TASK = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage "
    "failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) "
    "(127.0.0.1 executor driver): java.io.IOException: No space left on device\n"
    "\tat java.base/java.io.FileOutputStream.write\n"
    "\nDriver stacktrace: SQLSTATE: XXKST" + QUERY
)


def test_an_exception_of_a_user_function_is_reported_with_its_location() -> None:
    assert str(root_cause(IN_WORKER)) == "ValueError: boom with two lines (shop.py:16, in bad)"


def test_an_analysis_error_of_spark_is_reported_with_the_line_that_caused_it() -> None:
    cause = root_cause(IN_SPARK)
    assert cause.what.startswith("ArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide`")
    assert "SQLSTATE" not in cause.what
    assert cause.where == "shop.py:28"


def test_a_failure_of_the_jvm_alone_is_its_java_exception() -> None:
    assert str(root_cause(IN_TASK)) == "IOException: No space left on device"


def test_the_innermost_java_cause_wins() -> None:
    text = (
        "org.apache.spark.SparkException: Job failed\n\tat x\nCaused by: java.lang.RuntimeException: outer\n"
        "\tat y\nCaused by: java.net.ConnectException: Connection refused\n\tat z"
    )
    assert root_cause(text).what == "ConnectException: Connection refused"


def test_query_ids_are_removed_from_a_failure_message() -> None:
    text = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: no disk SQLSTATE: XXKST"
    assert str(root_cause(text + QUERY)) == "no disk"


def test_a_plan_below_a_message_is_left_out() -> None:
    text = """Traceback (most recent call last):
  File "/home/ann/shop.py", line 9, in clean
    return clicks.select("nope")
pyspark.errors.exceptions.captured.AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with \
name `nope` cannot be resolved. Did you mean one of the following? [`value`]. SQLSTATE: 42703;
'Project ['nope]
+- ~StreamingRelationV2 rate
"""
    assert str(root_cause(text)) == (
        "AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be "
        "resolved. Did you mean one of the following? [`value`]. (shop.py:9, in clean)"
    )


def test_an_exception_caught_in_python_is_reported_the_same_way(tmp_path: Path) -> None:
    scope: dict[str, object] = {}
    exec(compile("def fail():\n    raise KeyError('x')\n", str(tmp_path / "mine.py"), "exec"), scope)
    try:
        scope["fail"]()  # type: ignore[operator]
    except KeyError as error:
        assert str(cause_of(error)) == "KeyError: 'x' (mine.py:2, in fail)"
        assert "mine.py" in traceback.format_exc()


def test_a_cause_is_one_line_of_bounded_length() -> None:
    cause = root_cause("java.lang.IllegalStateException: " + "many words " * 500)
    assert len(cause.what) <= LONGEST
    assert "\n" not in cause.what


def test_an_empty_error_text_still_gives_a_cause() -> None:
    assert root_cause("").what


def test_a_dead_process_is_reported_with_its_last_output() -> None:
    died = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    assert with_error_output(died, "ModuleNotFoundError: x").endswith(
        "What Spark's processes last wrote to their error output:\nModuleNotFoundError: x\n"
    )
    assert with_error_output(died, "") == died
    assert with_error_output("ValueError: no", "ModuleNotFoundError: x") == "ValueError: no"


def test_the_end_of_the_error_output_is_kept() -> None:
    output = ErrorOutput()
    code = "import sys; [print(n, file=sys.stderr) for n in range(300)]; sys.stderr.write('why')"
    subprocess.run([sys.executable, "-c", code], stderr=output.descriptor, check=True)
    output.close()
    deadline = time.monotonic() + 30
    while not output.last_lines().endswith("why") and time.monotonic() < deadline:
        time.sleep(0.01)
    lines = output.last_lines().splitlines()
    assert (lines[0], lines[-2:]) == ("101", ["299", "why"])
