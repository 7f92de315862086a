"""The one launcher of Spark: every pipeline, test and benchmark gets its session here.

A PySpark session out of the box wants a Java from the machine, keeps 1 GB, takes `python3` from the PATH
for its workers, writes pages of log, forks processes for every checkpoint file and cuts each shuffle in 200
pieces. `spark_session` settles all of it, in a way that every single setting can be overruled: by
`settings`, by `spark-defaults.conf`, or by Spark's own environment variables.

Ctrl-C belongs to the program, not to Spark. A terminal sends it to all processes of the foreground group, so
the JVM and its Python workers are started outside that group; and PySpark's handler, which cancels every
running job, is replaced by the one that was there before. So a program may finish its batch first. The JVM
still ends with the program, however that ends: it reads from a pipe that closes.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ottla.pipeline.spark import archive, connector_jars, error_output
from ottla.pipeline.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("ottla.pipeline")

#: Renames one temporary file per checkpoint entry. The default of Spark runs several processes for each
#: (chmod, readlink) on a local disk and makes a micro-batch three times slower.
CHECKPOINT_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
#: Settings of this launcher; they never reach Spark.
LOG_FILE = "ottla.log.file"
ARCHIVE = "ottla.archive"
COMPILE = "ottla.compile"

CONNECTORS = ("ottla", "kafka")

_FAST_PYTHON = Path(__file__).parent / "python_launcher" / "python"
_QUIET = Path(__file__).parent / "log4j2.properties"
_GIGABYTE = 1 << 30
_COMPILE_QUICKLY = "-XX:TieredStopAtLevel=1"
_SHORT_LIVED = f"{_COMPILE_QUICKLY} -XX:+UseSerialGC"
_launching = threading.Lock()


class SparkFailed(RuntimeError):
    """Spark could not be started; the message says what was tried."""


def spark_session(
    app: str,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    connector: str = "ottla",
) -> SparkSession:
    """The Spark session of this process, started if there is none.

    `master` is Spark's: `local[2]`, `spark://host:7077`, or `sc://host:15002` for a Spark Connect server;
    without it `spark.master` of the settings or of `spark-submit`, else all cores of this machine.
    `connector="kafka"` adds Spark's JVM connector, for `format("kafka")`. Three settings are ours:
    `ottla.log.file`, a file for Spark's log with its warnings and stack traces; `ottla.archive`, `auto` or
    `off`; and `ottla.compile`, `full`, or `quick` for a program that has little to do: Java leaves out the
    compiler that makes the best code, which takes half the CPU time of a start.
    """
    if connector not in CONNECTORS:
        raise ValueError(f"no connector {connector!r}: there are {' and '.join(CONNECTORS)}")
    given = {name: str(value) for name, value in (settings or {}).items()}
    log_file = given.pop(LOG_FILE, None)
    archiving = _one_of(ARCHIVE, given, "auto", "off")
    compiling = _one_of(COMPILE, given, "full", "quick")
    master = master or given.get("spark.master")
    with _launching, _interrupts_kept():
        if master and master.startswith("sc://"):
            return _connected(app, master, given)
        ours = "PYSPARK_GATEWAY_PORT" not in os.environ
        _take_python(given, fast=ours and (master or "local").startswith("local"))
        if connector == "kafka":
            given["spark.jars"] = ",".join(filter(None, [given.get("spark.jars"), _kafka_jars()]))
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            return _submitted(app, master, given)
        options = [f"-Dlog4j2.configurationFile={_log_configuration(log_file)}"]
        if log_file:
            options.append(f"-Dottla.log.file={Path(log_file).absolute()}")
        if compiling == "quick":
            options.append(_COMPILE_QUICKLY)
        return _own_driver(app, master or "local[*]", given, options, archiving == "auto")


def _one_of(name: str, given: dict[str, str], *values: str) -> str:
    """Take a setting of ours out of those of Spark; the first of its values is the default."""
    value = given.pop(name, values[0])
    if value not in values:
        raise ValueError(f"{name} is {' or '.join(values)}, not {value!r}")
    return value


def _kafka_jars() -> str:
    try:
        return connector_jars.jars()
    except connector_jars.ConnectorMissing as missing:
        raise SparkFailed(str(missing)) from missing


def _own_driver(
    app: str, master: str, given: Mapping[str, str], options: Sequence[str], archiving: bool
) -> SparkSession:
    """A session whose driver JVM is a child of this process; the one that runs, if one does."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None or SparkContext._active_spark_context is not None:
        return _session(given)
    wanted = {**_defaults(master), **given, "spark.app.name": app, "spark.master": master}
    if SparkContext._gateway is None:
        java = find_java()
        found = archive.find(java) if archiving else None
        try:
            _launch(java, wanted, options, found)
        except SparkFailed:
            if found is None:
                raise
            # An archive that passes every check and still stops the JVM costs a start, once.
            archive.discard(found)
            _launch(java, wanted, options, None)
        if archiving and found is None:
            archive.make_at_exit(java)
    return _session_here(wanted)


def _submitted(app: str, master: str | None, given: Mapping[str, str]) -> SparkSession:
    """A session in the JVM of `spark-submit`, which has settled memory, log and most likely the master."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    submitted = dict(SparkConf().getAll())
    master = master or submitted.get("spark.master", "local[*]")
    ours = {name: value for name, value in _defaults(master).items() if name not in submitted}
    return _session_here({**ours, **given, "spark.app.name": app, "spark.master": master})


def _session_here(settings: Mapping[str, str]) -> SparkSession:
    """A session whose driver is this program with its JVM."""
    session = _session(settings)
    session.sparkContext._accumulatorServer.handle_error = accumulators_failed  # type: ignore[method-assign]
    return session


def _session(settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def accumulators_failed(request: object, client_address: object) -> None:
    """For PySpark's server of accumulators, within an `except`: it prints a trace for every error.

    When the JVM is gone that is one more, beside the message of those who use it.
    """
    is_end = isinstance(sys.exc_info()[1], EOFError | ConnectionError)
    log.log(logging.DEBUG if is_end else logging.ERROR, "Spark's accumulators are lost", exc_info=True)


def _launch(java: Java, wanted: Mapping[str, str], given: Sequence[str], archived: Path | None) -> None:
    """Start the driver's JVM; its command line settles memory, log and archive for its whole life."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    options = list(given)
    if archived is not None:
        options += archive.java_options(archived)
    if "spark.driver.extraJavaOptions" in wanted:
        options.append(wanted["spark.driver.extraJavaOptions"])
    conf = SparkConf(loadDefaults=False)
    conf.setAll([*wanted.items(), ("spark.driver.extraJavaOptions", " ".join(options))])
    environment = {
        **java.environment(),
        # The JVM that only puts the command line together lives for a moment: no compiling, no threads.
        "SPARK_LAUNCHER_OPTS": os.environ.get("SPARK_LAUNCHER_OPTS", _SHORT_LIVED),
    }
    if wanted.get("spark.driver.bindAddress") == "127.0.0.1":
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    output = error_output.begin()
    failure: PySparkRuntimeError | None = None
    with _environment(environment):
        try:
            popen = {"start_new_session": True, "stderr": output.descriptor}
            gateway = launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            failure = error
        finally:
            output.close()
    if failure is not None:
        output.drain(5.0)  # what it said comes before what we say
        memory = wanted.get("spark.driver.memory", "Spark's default")
        raise SparkFailed(
            f"Spark's JVM ended before it was ready; what it said is above. It was {java}, "
            f"spark.driver.memory {memory}."
        ) from failure
    SparkContext._ensure_initialized(gateway=gateway)


def _connected(app: str, url: str, settings: Mapping[str, str]) -> SparkSession:
    """A session on a Spark Connect server: no JVM here, the server's settings hold."""
    # PySpark would end the whole program, without an error, when one of these is not there.
    missing = [name for name in ("grpc", "grpc_status", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkFailed(
            f"Spark Connect ({url}) needs {', '.join(missing)}; pip install 'pyspark[connect]' brings it all"
        )
    ours = {"spark.sql.session.timeZone": "UTC", "spark.app.name": app, "spark.remote": url}
    return _session({**ours, **settings})


def _take_python(given: Mapping[str, str], *, fast: bool) -> None:
    """Let Spark's workers run this Python or the one named for them, not some `python3` of the PATH.

    `fast` for workers that a JVM of ours starts: they go through a launcher that makes their start cheap.
    """
    named = given.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    if named and named != str(_FAST_PYTHON):
        os.environ["PYSPARK_PYTHON"] = named
    elif fast:
        os.environ.update(PYSPARK_PYTHON=str(_FAST_PYTHON), OTTLA_PYTHON=sys.executable)
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable


def _defaults(master: str) -> dict[str, str]:
    """What Spark is told unless someone says otherwise."""
    ours = {
        "spark.driver.memory": os.environ.get("SPARK_DRIVER_MEMORY") or driver_memory(master),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
        # Stages share the cores fairly; first come, first served would let one long batch stop the others.
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if importlib.util.find_spec("pandas") is None:
        # Spark hands rows to Python functions through pandas if it can, and warns at every one if it cannot.
        ours["spark.sql.execution.pythonUDF.arrow.enabled"] = "false"
    if _on_this_machine(master):
        ours["spark.driver.host"] = ours["spark.driver.bindAddress"] = "127.0.0.1"
    if master.startswith("local"):
        # Every piece of a shuffle is a task, for a stateful stage in every batch; more than cores only wait.
        ours["spark.sql.shuffle.partitions"] = str(_local_cores(master))
    for name in _site_defaults():
        ours.pop(name, None)
    return ours


def driver_memory(master: str) -> str:
    """A heap that leaves memory for the rest of the machine: Python workers live outside of it.

    On a local master the driver does all the work and gets a quarter of the memory, 1 to 8 GB. The driver
    of a cluster only plans: an eighth, 1 to 2 GB.
    """
    share, most = (4, 8) if master.startswith("local") else (8, 2)
    megabytes = min(max(_memory() // share, _GIGABYTE), most * _GIGABYTE) >> 20
    return f"{megabytes}m"


def _memory() -> int:
    """The memory this process may use: the machine's, or less inside a container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return min(machine, int(Path(limit).read_text()))
        except (OSError, ValueError):  # no such control group, or no limit: "max"
            continue
    return machine


def _local_cores(master: str) -> int:
    """How many tasks run at a time on `local`, `local[3]`, `local[*]` or `local[3,2]`."""
    inside = master.partition("[")[2].rstrip("]").split(",")[0]
    if inside == "*":
        return os.cpu_count() or 1
    return int(inside) if inside.isdigit() else 1


def _on_this_machine(master: str) -> bool:
    """Whether no other machine needs to reach the driver, so that it listens on the loopback only."""
    return master.startswith("local") or urlsplit(master).hostname in ("127.0.0.1", "localhost")


def _site_defaults() -> set[str]:
    """The settings that spark-defaults.conf makes: what a site decided comes before what we would."""
    folder = os.environ.get("SPARK_CONF_DIR")
    home = os.environ.get("SPARK_HOME")
    if not folder and not home:
        return set()
    try:
        lines = Path(folder or f"{home}/conf", "spark-defaults.conf").read_text().splitlines()
    except OSError:
        return set()
    stripped = (line.strip() for line in lines)
    return {line.replace("=", " ").split()[0] for line in stripped if line and not line.startswith("#")}


def _log_configuration(log_file: str | None) -> Path:
    return _QUIET.with_name("log4j2-file.properties") if log_file else _QUIET


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Undo what PySpark does to Ctrl-C when a context starts: its handler cancels all running jobs."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes started inside; the program's own environment is its own."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
