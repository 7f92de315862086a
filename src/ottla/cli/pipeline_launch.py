"""What the commands of `ottla pipeline` share: the file's pipeline, Spark for it, checks before a start."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.failure import Failure, usage
from ottla.cli.options import parse_pairs
from ottla.cli.output import say, seconds_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.pipeline.building import RunContext
    from ottla.pipeline.checkpoints import Checkpoints
    from ottla.pipeline.declarations import Stage
    from ottla.pipeline.running.loading import Pipeline


class Connector(StrEnum):
    ottla = "ottla"
    kafka = "kafka"


def stage_of(pipeline: Pipeline, name: str) -> Stage:
    from ottla.pipeline.running.loading import CannotLoad

    try:
        return pipeline.stage(name)
    except CannotLoad as error:
        raise usage(error.what, error.advice) from None


def need_spark() -> None:
    from importlib.util import find_spec

    for name in ("pyspark", "pyarrow"):
        if find_spec(name) is None:
            raise Failure(
                f"pipelines need {name}, which is not installed",
                "`pip install 'ottla[spark]'` brings Spark and all that it needs.",
            )


class Launch:
    """The pipeline of a file, and Spark for it, which is started when it is first needed.

    Mostly that is after the file was loaded and everything was checked that can be without it. A file that
    uses Spark while it is imported needs it earlier.
    """

    def __init__(
        self,
        file: str,
        checkpoints: str | None,
        master: str | None = "local[1]",
        settings: list[str] | None = None,
        connector: Connector = Connector.ottla,
    ) -> None:
        need_spark()
        from ottla.pipeline.checkpoints import Checkpoints
        from ottla.pipeline.running.loading import Pipeline
        from ottla.pipeline.running.runner import default_checkpoints

        self._file = file
        self._name = Pipeline.name_of(file)
        self._master = master
        self._connector = str(connector)
        self._settings = _settings(settings or [])
        self._session: SparkSession | None = None
        try:
            self.checkpoints = Checkpoints(checkpoints or str(default_checkpoints(self._name)))
        except (ValueError, OSError) as error:
            raise usage(f"--checkpoints {checkpoints}: {error}") from None

    def load(self, stages: list[str] | None = None) -> Pipeline:
        """The pipeline, or the chosen stages of it."""
        from ottla.pipeline.running.loading import CannotLoad, NeedsSpark, Pipeline

        try:
            try:
                loaded = Pipeline.load(self._file)
            except NeedsSpark as reason:
                if sys.stderr.isatty():
                    say(f"{reason.what}, so Spark comes first")
                self.spark()
                loaded = Pipeline.load(self._file)
            return loaded.only(stages or [])
        except CannotLoad as error:
            raise usage(error.what, error.advice) from None

    @property
    def started(self) -> bool:
        """Whether Spark runs already, because the file needed it."""
        return self._session is not None

    def spark(self, *, little_to_do: bool = False) -> SparkSession:
        """The session. `little_to_do` for one whose work is over before Java's best code would pay."""
        from ottla.pipeline.running.runner import of_spark
        from ottla.pipeline.spark.java import JavaMissing
        from ottla.pipeline.spark.session import COMPILE, LOG_FILE, SparkFailed, spark_session

        if self._session is not None:
            return self._session
        if little_to_do:
            self._settings.setdefault(COMPILE, "quick")
        if "://" not in self.checkpoints.root:
            folder = Path(self.checkpoints.root)
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise Failure(f"cannot keep progress in {folder}: {error.strerror}") from None
            self._settings.setdefault(LOG_FILE, str(folder / "spark.log"))
        began = time.monotonic()
        if sys.stderr.isatty():
            where = self._master or self._settings.get("spark.master") or "this machine"
            say(f"starting Spark on {where} …")
        try:
            settings = of_spark(self._settings)
            self._session = spark_session(f"ottla {self._name}", self._master, settings, self._connector)
        except (SparkFailed, JavaMissing, ValueError) as error:
            raise Failure(str(error)) from None
        if sys.stderr.isatty():
            say(f"Spark is ready, in {seconds_text(time.monotonic() - began)}")
        return self._session

    def context(self, pipeline: Pipeline, bootstrap: str) -> RunContext:
        from ottla.pipeline.building import RunContext

        return RunContext(pipeline.name, bootstrap, self.checkpoints, self._connector, self._settings)


def stop_spark(spark: SparkSession) -> None:
    """End it well, unless the JVM has died."""
    from py4j.protocol import Py4JError

    try:
        spark.stop()
    except (Py4JError, OSError):
        return


def log_to(say: Callable[[str], None]) -> None:
    """Warnings of the pipeline go where the run is shown, and those of the bridge to Java nowhere.

    The bridge logs every failure with its trace, and so does the failing code; the stages report it in one
    line.
    """
    import logging

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(f"{record.levelname.lower()}: {record.getMessage()}")

    ours = logging.getLogger("ottla")
    ours.addHandler(Shown(logging.WARNING))
    ours.propagate = False
    logging.getLogger().addHandler(logging.NullHandler())


def as_pipeline_failure(error: Exception, pipeline: Pipeline) -> Failure | None:
    """What a person should read for an error of a run; None for a bug of ours."""
    from ottla.pipeline.checkpoints import CheckpointError
    from ottla.pipeline.declarations import StageError
    from ottla.pipeline.running.causes import cause_of
    from ottla.pipeline.running.runner import Refused

    if isinstance(error, Refused):
        lines = [
            f"stage {each.stage} has changed in a way its checkpoint cannot follow:\n"
            + "\n".join(f"         {change}" for change in each.changes)
            for each in error.changes
        ]
        return Failure(
            "\n       ".join(lines),
            "Undo the change; or give the stage another name (name=...), so that it begins anew and the old\n"
            "       checkpoint stays; or forget its progress and state:\n"
            f"       ottla pipeline reset {pipeline.origin} {error.changes[0].stage} --to earliest",
        )
    if isinstance(error, CheckpointError | StageError):
        return Failure(str(error))
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        return Failure(str(cause_of(error)))
    return None


def _settings(pairs: list[str]) -> dict[str, str]:
    found = parse_pairs(pairs, "--set")
    for key in found:
        if not key.startswith(("spark.", "kafka.", "ottla.")):
            raise usage(
                f"--set {key}: settings are Spark's (spark.*), of all topics (kafka.*) or ours (ottla.*)"
            )
    return found


def check_broker(pipeline: Pipeline, bootstrap: str, *, once: bool) -> None:
    """A broker must be there at the start; so must the topics of a run that does not wait for them."""
    from ottla.pipeline.running.input_topics import missing_inputs, topic_names

    there = topic_names(bootstrap)
    for stage in pipeline.stages if once else ():
        missing = missing_inputs(stage, there)
        if missing and not pipeline.feeders(stage):
            raise Failure(
                f"stage {stage.name} reads {', '.join(missing)}, which is not there",
                "Without --once the pipeline waits for it. `ottla topic list` shows the topics there are.",
            )


def check_free(pipeline: Pipeline, folder: Checkpoints) -> None:
    """That no other run has the stages; better reported now than after Spark's start."""
    from ottla.pipeline.checkpoints import CheckpointError

    for stage in pipeline.stages:
        try:
            with folder.stage(stage.name).lock():
                pass
        except CheckpointError as error:
            raise Failure(str(error)) from None
        except OSError as error:
            raise Failure(f"cannot keep progress in {folder.root}: {error.strerror or error}") from None


def topics_or_problem(bootstrap: str, timeout: float) -> tuple[set[str] | None, str]:
    from ottla.pipeline.running.input_topics import topic_names
    from ottla.protocol_client.connection import BrokerUnreachable

    try:
        return topic_names(bootstrap, timeout=min(timeout, 5.0)), ""
    except BrokerUnreachable as error:
        return None, f"cannot reach the broker at {error.address}: {error.reason}"
    except ValueError as error:
        raise usage(f"--bootstrap: {error}") from None
