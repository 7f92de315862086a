"""One thread per stage that keeps its query alive.

A stage waits for the topics it reads, is started, and runs; its batches are put on the board. When it fails,
the reason goes on the board and into the log file in its folder, and after a pause that grows it is started
again. The other stages have threads of their own and are not affected. An error that another attempt cannot
cure (`causes.lasts`) ends the stage instead: a bad record with bad="fail", a record that a broker refuses,
records that are gone. A stage also ends when it was asked to, between two batches; with `once` when it has
read all that was there at its start, or after a few failures in a row.

With `once` a stage that reads what another stage of the pipeline writes waits for that one to finish, so
that one run carries a record from end to end.

Spark's `stop()` tears a query out of the batch it is in; what the batch has written so far is written again
by the next run. So a query is stopped between two batches: `BatchGate` is the function that Spark calls for
every batch. Once a stop was asked for it lets the batch that is inside finish and turns the next one away,
before it has done anything. A batch that was turned away is run by the next start, from the offsets that
Spark wrote down for it. A second request (`StopRequest`) means at once.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ottla.backoff import BackOff
from ottla.pipeline.deliveries import Deliveries
from ottla.pipeline.running.causes import append_error, cause_of, lasts, root_cause, with_error_output
from ottla.pipeline.running.input_topics import missing_now
from ottla.pipeline.running.listening import BatchDone, Ended, Note, QueryNotes
from ottla.pipeline.running.progress import Board, Phase, read_batch
from ottla.pipeline.spark.error_output import last_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ottla.pipeline.building import BuiltStage, RunContext
    from ottla.pipeline.declarations import Stage

LOOK = 0.25
"""Seconds between two checks of a query that reports nothing."""
GRACE = 10.0
"""Seconds to wait for what Spark still has to tell about a query that is over."""
TOPICS_EVERY = 1.0
ATTEMPTS = 3
"""Starts in a row that may fail with `once`."""
MOST_BEHIND = 100
"""Batches that may be finished and not yet be taken notice of."""


class SparkGone(Exception):
    """The JVM of the session has ended, or its context was stopped: no stage can go on."""


class NotThere(Exception):
    """A stage that is to run once has nothing to read."""


class StopAsked(Exception):
    """A batch was turned away because the pipeline is stopping. Nothing of it was done."""


class StopRequest:
    """Whether someone wants the run to end: first after the batches that run, then at once."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._at_once = threading.Event()

    def ask(self) -> None:
        """Once: finish the batches. Again: at once."""
        if self._asked.is_set():
            self._at_once.set()
        self._asked.set()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    @property
    def at_once(self) -> bool:
        return self._at_once.is_set()

    def wait(self, seconds: float) -> bool:
        """Pause; True as soon as a stop is asked for."""
        return self._asked.wait(seconds)


class BatchGate:
    """Around the function that writes the batches of one query."""

    def __init__(
        self, write_batch: Callable[[Any, int], None], backlog: Callable[[], int] = lambda: 0
    ) -> None:
        """`backlog` gives the number of finished batches that the watcher has not seen yet."""
        self._write_batch = write_batch
        self._backlog = backlog
        self._lock = threading.Lock()
        self._shut = False
        self._inside: int | None = None
        self._written: int | None = None
        self.turned_away = False
        self.error: BaseException | None = None
        """What the last batch failed with, as it was raised here."""

    def __call__(self, frame: Any, batch_id: int) -> None:
        # A display that cannot be written to (a pipe without a reader) must not fill the memory with notes.
        while self._backlog() > MOST_BEHIND and not self._shut:
            time.sleep(0.02)
        with self._lock:
            if self._shut:
                self.turned_away = True
                raise StopAsked(f"batch {batch_id} waits for the next start")
            self._inside = batch_id
        try:
            self._write_batch(frame, batch_id)
        except BaseException as error:
            self.error = error
            raise
        else:
            self._written = batch_id
        finally:
            self._inside = None

    def shut(self) -> int | None:
        """Let no further batch in. The number of the last one that got in, which Spark has yet to commit."""
        with self._lock:
            self._shut = True
            return self._inside if self._inside is not None else self._written


@dataclass
class RunEnvironment:
    """What all stages of a run share."""

    spark: SparkSession
    context: RunContext
    board: Board
    stop: StopRequest
    once: bool
    attempts: int = ATTEMPTS
    back_off: Callable[[], BackOff] = BackOff
    look_at_lag: Callable[[str], None] = lambda stage: None
    """Asks the broker how far a stage is behind, for the last figures of a stage that ends."""
    starting: threading.Lock = field(default_factory=threading.Lock)
    """Held while a query starts its sources. Spark gives each of their Python processes ten seconds,
    which all stages at once can miss on a busy machine, again and again."""
    _listeners: list[tuple[SparkSession, QueryNotes]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def listener(self, session: SparkSession) -> QueryNotes:
        """The listener of the session; sessions of stages with settings of their own have one each."""
        with self._lock:
            for known, listener in self._listeners:
                if known is session:
                    return listener
            listener = QueryNotes()
            session.streams.addListener(listener)
            self._listeners.append((session, listener))
            return listener

    def forget(self, session: SparkSession) -> None:
        """The session was made for one start of a stage, which is over."""
        with self._lock:
            gone = [pair for pair in self._listeners if pair[0] is session]
            self._listeners = [pair for pair in self._listeners if pair[0] is not session]
        _remove(gone)

    def remove_listeners(self) -> None:
        _remove(self._listeners)


def _remove(listeners: Sequence[tuple[SparkSession, QueryNotes]]) -> None:
    from py4j.protocol import Py4JError

    for session, listener in listeners:
        try:
            session.streams.removeListener(listener)
        except (Py4JError, OSError, AttributeError):  # the session is gone, and the listener with it
            return


class StageWatch(threading.Thread):
    """Watches over one stage. `first` is the stage as it was built when its shape was checked.

    `settings` are Spark's, for this stage alone.
    """

    def __init__(
        self,
        stage: Stage,
        first: BuiltStage | None,
        environment: RunEnvironment,
        feeders: Sequence[StageWatch],
        settings: Mapping[str, str],
    ) -> None:
        super().__init__(name=f"stage {stage.name}", daemon=True)
        self.stage = stage
        self._built = first
        self._settings = settings
        self._environment = environment
        self._board = environment.board
        self._stop_request = environment.stop
        self._feeders = feeders
        self._back_off = environment.back_off()
        self._folder = environment.context.checkpoints.stage(stage.name)
        self._deliveries = first.deliveries if first is not None else Deliveries(self._folder)
        self.over = threading.Event()
        self.spark_gone = False

    def run(self) -> None:
        try:
            self._live()
        except SparkGone as error:
            self.spark_gone = True
            self._board.failed(self.stage.name, str(error), Phase.failed, "", restart=False)
        except Exception as error:  # noqa: BLE001 - a thread that ends in silence would leave the run waiting
            append_error(str(self._folder), "".join(traceback.format_exception(error)))
            self._board.failed(self.stage.name, str(cause_of(error)), Phase.failed, "", restart=False)
        finally:
            self.over.set()

    # A life

    def _live(self) -> None:
        name = self.stage.name
        while self._ready():
            error: BaseException | str | None
            try:
                error = self._run_query()
            except SparkGone:
                raise
            except Exception as failure:  # noqa: BLE001 - whatever a stage fails with, the others go on
                error = failure
            if error is None:
                break
            if not session_alive(self._environment.spark):
                raise SparkGone("Spark's Java process has ended")
            self._failed(error)
            if self._board[name].phase.over:
                return
        if not self._stop_request.at_once:
            self._environment.look_at_lag(name)
        self._board.enter(name, Phase.stopped if self._stop_request.asked else Phase.finished)

    def _failed(self, error: BaseException | str) -> None:
        """Tell why, write it down, and wait before the next start; or give up."""
        name = self.stage.name
        text = error if isinstance(error, str) else "".join(traceback.format_exception(error))
        cause = str(root_cause(text))
        append_error(str(self._folder), with_error_output(text, last_lines()))
        self._built = None
        pause = self._back_off.failed(time.monotonic())
        tried_enough = self._environment.once and self._back_off.failures >= self._environment.attempts
        if tried_enough or _hopeless(error, text):
            self._board.failed(name, cause, Phase.failed, "", restart=False)
            return
        if self._stop_request.asked:
            self._board.failed(name, cause, Phase.stopped, "", restart=False)
            return
        self._board.failed(name, cause, Phase.restarting, f"again in {pause:g} s", restart=True)
        self._stop_request.wait(pause)

    def _ready(self) -> bool:
        """Wait until the stage can start; False when it shall not."""
        name = self.stage.name
        for feeder in self._feeders if self._environment.once else ():
            if not feeder.over.is_set():
                self._board.enter(name, Phase.waiting, f"for stage {feeder.stage.name}")
            while not feeder.over.wait(LOOK):
                if self._stop_request.asked:
                    return False
        while not self._stop_request.asked:
            missing = missing_now(self.stage, self._environment.context.bootstrap)
            if not missing:
                return True
            if self._environment.once:
                if self._feeders:
                    return False  # the stages before it had nothing to write, so there is nothing to read
                raise NotThere(f"there is no {_topics(missing)} to read")
            self._board.enter(name, Phase.waiting, f"for {_topics(missing)}")
            self._stop_request.wait(TOPICS_EVERY)
        return False

    # A query

    def _run_query(self) -> BaseException | str | None:
        """Start the query and follow it to its end: why it failed, None when it did not."""
        from ottla.pipeline.building import build

        name = self.stage.name
        context = self._environment.context
        self._board.enter(name, Phase.starting)
        session = self._session()
        built = self._built or build(session, self.stage, context, self._deliveries)
        self._built = None
        listener = self._environment.listener(session)
        query_name = f"{context.pipeline}.{name}"
        notes = listener.expect(query_name)
        gate = BatchGate(built.write_batch, notes.qsize)
        _use_pool(session, name)
        self._folder.mend()
        with self._environment.starting:
            query = self._start(built, gate, query_name)
            self._await_sources(query)
        self._back_off.started(time.monotonic())
        self._board.enter(name, Phase.running)
        try:
            return self._follow(query, gate, notes)
        finally:
            if query.isActive:
                query.stop()
            if session is not self._environment.spark:
                self._environment.forget(session)

    def _session(self) -> SparkSession:
        """The session; a copy of it for a stage that has settings of its own."""
        spark = self._environment.spark
        if not self._settings:
            return spark
        session = copy_session(spark)
        for key, value in self._settings.items():
            session.conf.set(key, value)
        return session

    def _start(self, built: BuiltStage, gate: BatchGate, query_name: str) -> StreamingQuery:
        return (
            built.writer(once=self._environment.once, write_batch=gate)
            .queryName(query_name)
            .option("checkpointLocation", self._folder.spark_checkpoint)
            .start()
        )

    def _await_sources(self, query: StreamingQuery) -> None:
        until = time.monotonic() + GRACE
        while query.isActive and query.status["message"].startswith("Initializing"):
            if time.monotonic() > until or self._stop_request.wait(0.02):
                return

    def _follow(
        self, query: StreamingQuery, gate: BatchGate, notes: SimpleQueue[Note]
    ) -> BaseException | str | None:
        name = self.stage.name
        last_done = -1
        wanted: int | None = None  # the batch to be committed before the query may be stopped
        stopping = False
        silent_since: float | None = None
        while True:
            note = _next(notes)
            if isinstance(note, BatchDone):
                batch = read_batch(note.progress)
                last_done = max(last_done, batch.number)
                self._board.batch_done(name, batch)
            elif isinstance(note, Ended):
                return None if gate.turned_away else self._outcome(query, gate, note.error)
            elif not query.isActive:
                # The listener tells the end too; it may be late, or be gone with the session.
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > GRACE:
                    return None if gate.turned_away else self._outcome(query, gate, "")
            if self._stop_request.asked and not stopping:
                stopping = True
                wanted = gate.shut()
                waits = wanted is not None and wanted > last_done
                self._board.enter(name, Phase.stopping, f"finishing batch {wanted}" if waits else "")
            done = wanted is None or wanted <= last_done
            if stopping and query.isActive and (done or self._stop_request.at_once):
                query.stop()

    def _outcome(self, query: StreamingQuery, gate: BatchGate, told: str) -> BaseException | str | None:
        """Why the query ended; None when it ended well."""
        error = query.exception()
        if error is None and not told:
            return None
        if error is None:
            return told
        # The same failure as it was raised in this process, when it was, has the better trace of the two.
        return gate.error if gate.error is not None else str(error)


def session_alive(spark: SparkSession) -> bool:
    """Whether the session can still be asked for anything."""
    from py4j.protocol import Py4JError

    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError, AttributeError):  # the JVM does not answer, or the context was closed here
        return False


def copy_session(spark: SparkSession) -> SparkSession:
    """A session with the same settings, views and functions, whose settings can be changed apart."""
    from pyspark.sql import SparkSession as Session

    return Session(spark.sparkContext, spark._jsparkSession.cloneSession())


def _use_pool(spark: SparkSession, pool: str) -> None:
    """Queries started by this thread share the cores fairly with others, one pool per stage."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)


def _next(notes: SimpleQueue[Note]) -> Note | None:
    try:
        return notes.get(timeout=LOOK)
    except Empty:
        return None


def _hopeless(error: BaseException | str, text: str) -> bool:
    """Whether the next start would fail the same way."""
    from pyspark.errors import AnalysisException, ParseException

    return isinstance(error, NotThere | AnalysisException | ParseException) or lasts(text)


def _topics(names: Sequence[str]) -> str:
    plain = [each for each in names if not each.startswith(("the broker", "topics "))]
    other = [each for each in names if each not in plain]
    said = [f"topic{'s' if len(plain) > 1 else ''} {', '.join(plain)}"] if plain else []
    return " and ".join([*said, *other])
