"""Runs the state machines of a coordinator over the partitions of its topic that this broker leads.

Each such partition is a shard with a state of its own. A command is a function of the state that says, in an
`Effects`, what it wants. The runtime writes the records to the partition; only when the log has taken them
does the state change, by the drafts and then by replay of these records, and only when they are below the
high watermark are the answers sent. A log that refuses leaves everything as it was, and whoever asked hears
why. A command without records is answered after all that was written before it, because it has seen that.

A shard begins with loading: the log is read and replayed in a thread, on a state that nobody sees yet, while
requests get COORDINATOR_LOAD_IN_PROGRESS. It ends when the leadership does: everybody who waits hears
NOT_COORDINATOR, and the state is dropped. A shard whose log cannot be read or replayed has failed: clients
hear NOT_COORDINATOR, as from Apache Kafka, the log says which offset is to blame, and loading is tried again
now and then. Other shards are not touched by that.

The runtime knows nothing about groups; the coordinator of transactions can run on it as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from ottla.clock import Clock
from ottla.completion import Completion
from ottla.coordinator.effects import Alarm, Effects, Reply, TimerKey
from ottla.coordinator.records import Entry, decode_entry, encode_entry
from ottla.printable import shown
from ottla.protocol.batches import MAGIC, crc_matches, headers
from ottla.protocol.codec import Malformed
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.records import CompressionError, InvalidRecords, Record, decode_batch, encode_batch
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from ottla.scheduler import Scheduler, Timer
from ottla.storage.log import FileSlice

logger = logging.getLogger("ottla.coordinator")

LOAD_BYTES = 1 << 20
"""Read from the log at a time while loading."""
MAX_BATCH_BYTES = 128 << 20
"""A batch that opens to more than this is not of our making."""
LOAD_AGAIN_SECONDS = 5.0
"""After which a shard is loaded again that the disk, or whatever else may pass, kept from being loaded."""
LOAD_DAMAGED_AGAIN_SECONDS = 60.0
"""The same for one that cannot be read, which ends only when somebody mends the files."""


class Unloadable(Exception):
    """The log of a shard holds what cannot be replayed; the message says where."""


class State(Protocol):
    """What a shard keeps."""

    def replay(self, entry: Entry) -> None: ...

    def adopt(self, effects: Effects) -> None: ...

    def settled(self, effects: Effects) -> None:
        """The state is as the effects have made it, records included."""

    def dropped(self) -> None:
        """The shard is over."""

    def alarm(self, alarm: Alarm, effects: Effects) -> None: ...

    def resume(self, effects: Effects) -> None: ...


S = TypeVar("S", bound=State)
InThread = Callable[[Callable[[], int]], Awaitable[int]]


class Shard(Generic[S]):
    """One partition of the coordinator's topic, led here in one epoch."""

    def __init__(self, partition: Partition, runtime: Runtime[S]) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state: S = runtime.make_state()
        self.loaded = False
        self.failed = False
        self._runtime = runtime
        self._written = 0
        self._over = False
        self._waiting: set[_Waiting] = set()
        self._waits: set[Completion[bool]] = set()
        self._alarms: dict[TimerKey, _Alarm] = {}

    def __repr__(self) -> str:
        return f"<shard {self.partition.topic}-{self.partition.index} epoch {self.leader_epoch}>"

    # -- commands -----------------------------------------------------------------------------------------

    def run(self, command: Callable[[S, Reply, Effects], None], reply: Reply) -> None:
        """Run a command for somebody who waits. `reply` is called once: with a response, or an ApiError."""
        waiting = _Waiting(reply, self._waiting)
        try:
            self._execute(lambda state, effects: command(state, waiting, effects))
        except ApiError as error:
            waiting(error)
        except BaseException:
            waiting.forget()  # a defect of ours: whoever called closes the connection
            raise

    def _execute(self, command: Callable[[S, Effects], None]) -> None:
        effects = Effects(self._runtime.clock.now_ms())
        command(self.state, effects)
        if effects.records:
            self._written = self._append(effects.records, effects.now_ms)
        self.state.adopt(effects)
        for entry in effects.records:
            self.state.replay(entry)
        self.state.settled(effects)
        for key, alarm in effects.alarms.items():
            self._set_alarm(key, alarm)
        self._when_committed(self._written, effects.answers)

    def _append(self, entries: Iterable[Entry], now_ms: int) -> int:
        """Write records as one batch; the offset behind them."""
        rows = [
            Record(index, now_ms, *encode_entry(entry), [])  # the offsets are deltas here
            for index, entry in enumerate(entries)
        ]
        batch = encode_batch(rows, codec=self._runtime.codec)
        partition = self.partition
        if len(batch) > partition.log.config.max_message_bytes:
            raise ApiError(ErrorCode.RECORD_LIST_TOO_LARGE)
        if not partition.state.is_leader or partition.leader_epoch != self.leader_epoch:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        try:
            partition.check_in_sync()
            return partition.append(memoryview(batch), from_client=False).last_offset + 1
        except ApiError as error:
            raise _of_coordinator(error) from error

    def _when_committed(self, end: int, answers: list[tuple[Reply, Any]]) -> None:
        if not answers:
            return
        if self._committed(end, answers):
            _send(answers)
            return

        def done(expired: bool) -> None:
            self._waits.discard(wait)
            if expired:
                late = _of_coordinator(ApiError(ErrorCode.REQUEST_TIMED_OUT))
                answers[:] = [(reply, late) for reply, _ in answers]
            _send(answers)

        def failed(error: Exception) -> None:
            logger.error("%r cannot tell whether records are committed", self, exc_info=error)
            done(expired=True)

        wait = self._runtime.purgatory.enter(
            [self.partition],
            lambda: self._committed(end, answers),
            self._runtime.commit_timeout_ms() / 1000,
        )
        self._waits.add(wait)
        wait.then(done, failed)

    def _committed(self, end: int, answers: list[tuple[Reply, Any]]) -> bool:
        """Whether the answers are final; those to what will never be committed become an error."""
        try:
            return self.partition.acknowledged(end, all_replicas=True)
        except ApiError as error:
            failure = _of_coordinator(error)
            answers[:] = [(reply, failure) for reply, _ in answers]
            return True

    # -- alarms -------------------------------------------------------------------------------------------

    def _set_alarm(self, key: TimerKey, alarm: Alarm | None) -> None:
        present = self._alarms.get(key)
        if alarm is None:
            if present is not None:
                present.timer.cancel()
                del self._alarms[key]
            return
        runtime = self._runtime
        due = runtime.clock.monotonic() + alarm.delay_ms / 1000
        if present is not None and present.due <= due:
            # A session that begins anew, thousands of times: the timer stays and looks again when it is up.
            present.alarm, present.due = alarm, due
            return
        if present is not None:
            present.timer.cancel()
        timer = runtime.scheduler.call_later(alarm.delay_ms / 1000, self._time_is_up, key)
        self._alarms[key] = _Alarm(alarm, due, timer)

    def _time_is_up(self, key: TimerKey) -> None:
        present = self._alarms[key]
        left = present.due - self._runtime.clock.monotonic()
        if left > 0.001:
            present.timer = self._runtime.scheduler.call_later(left, self._time_is_up, key)
            return
        del self._alarms[key]
        try:
            self._execute(lambda state, effects: state.alarm(present.alarm, effects))
        except ApiError as error:
            # The log refuses. Nothing has changed, so the same must be tried again.
            due = shown(str(key))
            logger.warning("%r cannot write what became due for %s: %s; trying again", self, due, error)
            retry = self._runtime.scheduler.call_later(1.0, self._time_is_up, key)
            self._alarms[key] = _Alarm(present.alarm, present.due, retry)

    # -- beginning and end --------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the log from its beginning. Until this is done the shard has no state to ask."""
        log = self.partition.log
        offset, end = log.log_start_offset, log.end_offset
        count = 0
        began = self._runtime.clock.monotonic()
        while offset < end and not self._over:
            piece = log.read(offset, LOAD_BYTES, end)
            if piece is None:
                break
            following = await self._runtime.in_thread(partial(self._replay_piece, piece, offset))
            if following <= offset:
                raise self._unloadable(offset, "no whole batch is there")
            offset = following
            count += 1
        if self._over:
            return
        self._written = end
        self.loaded = True
        self._execute(lambda state, effects: state.resume(effects))
        if count:
            seconds = self._runtime.clock.monotonic() - began
            logger.info("%r: loaded up to offset %d in %.3f s", self, end, seconds)

    def _replay_piece(self, piece: FileSlice, start: int) -> int:
        """Replay the batches of a piece of the log; the offset to go on from. Runs in a thread."""
        data = piece.read()
        following = 0
        for position, header in headers(data):
            offset = header.base_offset
            if offset < following or header.next_offset <= offset:
                raise self._unloadable(offset, f"it follows offset {following - 1}")
            if header.magic == MAGIC and not crc_matches(data, position, header):
                raise self._unloadable(offset, "its checksum is wrong")
            following = header.next_offset
            if following <= start or header.is_control:
                continue
            batch = memoryview(data)[position : position + header.size]
            try:
                records = decode_batch(batch, max_size=MAX_BATCH_BYTES)
            except (InvalidRecords, CompressionError) as problem:
                raise self._unloadable(offset, str(problem)) from problem
            for record in records:
                try:
                    entry = decode_entry(record.key, record.value)
                except Malformed as malformed:
                    logger.error(
                        "%r: the record at offset %d is passed over: %s", self, record.offset, malformed
                    )
                    continue
                if entry is not None:
                    self.state.replay(entry)
        return following

    def _unloadable(self, offset: int, reason: str) -> Unloadable:
        folder = self.partition.log.folder
        return Unloadable(
            f"the batch at offset {offset} in {folder} cannot be read: {reason}. "
            f"`ottla log inspect {folder}` shows what is there; restore the files from a replica or a backup"
        )

    def end(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """This broker is the coordinator no longer: tell everybody who waits."""
        self._over = True
        self.loaded = False
        for alarm in self._alarms.values():
            alarm.timer.cancel()
        self._alarms.clear()
        for wait in self._waits:
            wait.cancel()
        self._waits.clear()
        for waiting in list(self._waiting):
            waiting(ApiError(code))
        self.state.dropped()


class Runtime(Generic[S]):
    def __init__(
        self,
        topic: str,
        make_state: Callable[[], S],
        *,
        clock: Clock,
        scheduler: Scheduler,
        purgatory: Purgatory,
        in_thread: InThread,
        commit_timeout_ms: Callable[[], int],
        codec: int = 0,
        on_loaded: Callable[[Shard[S]], None] | None = None,
    ) -> None:
        self.topic = topic
        self.make_state = make_state
        self.clock = clock
        self.scheduler = scheduler
        self.purgatory = purgatory
        self.in_thread = in_thread
        self.commit_timeout_ms = commit_timeout_ms
        self.codec = codec
        self.on_loaded = on_loaded
        self.partitions = 0
        """How many the topic has; 0 while it does not exist."""
        self._shards: dict[int, Shard[S]] = {}
        self._loading: set[asyncio.Task[None]] = set()
        self._failures: dict[int, str] = {}  # why the shard of a partition could not be loaded the last time

    def shard(self, index: int) -> Shard[S]:
        """The shard of a partition, if this broker coordinates it and has loaded it."""
        shard = self._shards.get(index)
        if shard is None or shard.failed:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        if not shard.loaded:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def loaded_shards(self) -> list[Shard[S]]:
        return [shard for shard in self._shards.values() if shard.loaded]

    @property
    def is_loading(self) -> bool:
        return any(not shard.loaded and not shard.failed for shard in self._shards.values())

    def follow(self, partitions: int, led: Iterable[Partition]) -> None:
        """The topic has so many partitions, of which this broker leads these: begin and end shards."""
        self.partitions = partitions
        led_now = {partition.index: partition for partition in led}
        for index, shard in list(self._shards.items()):
            partition = led_now.get(index)
            if partition is not shard.partition or partition.leader_epoch != shard.leader_epoch:
                del self._shards[index]
                shard.end()
        for index, partition in led_now.items():
            if index not in self._shards:
                self._begin(index, partition)

    def _begin(self, index: int, partition: Partition) -> None:
        shard = self._shards[index] = Shard(partition, self)
        task = asyncio.ensure_future(self._load(index, shard))
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def _load(self, index: int, shard: Shard[S]) -> None:
        try:
            await shard.load()
            if shard.loaded and self.on_loaded is not None:
                self.on_loaded(shard)
            self._failures.pop(index, None)
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is told and tried again
            self._load_failed(index, shard, problem)

    def _load_failed(self, index: int, shard: Shard[S], problem: Exception) -> None:
        """Leave the shard as one that has failed, and load it again after a while."""
        reason = str(problem) or repr(problem)
        known = isinstance(problem, ApiError | Unloadable)
        level = logging.DEBUG if self._failures.get(index) == reason else logging.ERROR
        logger.log(
            level,
            "%r cannot be loaded, its groups have no coordinator until it can: %s",
            shard,
            reason,
            exc_info=None if known else problem,
        )
        self._failures[index] = reason
        shard.end()
        shard.failed = True
        wait = LOAD_AGAIN_SECONDS if isinstance(problem, ApiError) else LOAD_DAMAGED_AGAIN_SECONDS
        self.scheduler.call_later(wait, self._load_again, index, shard)

    def _load_again(self, index: int, shard: Shard[S]) -> None:
        if self._shards.get(index) is shard:
            self._begin(index, shard.partition)

    async def loading_done(self) -> None:
        while self._loading:
            await asyncio.gather(*self._loading, return_exceptions=True)

    async def stop(self) -> None:
        """The broker stops: its members find another coordinator, or this one when it is back."""
        self.follow(0, ())
        for task in self._loading:
            task.cancel()
        await asyncio.gather(*self._loading, return_exceptions=True)


class _Waiting:
    """A reply that is given once, whoever gives it."""

    __slots__ = ("_all", "_reply")

    def __init__(self, reply: Reply, waiting: set[_Waiting]) -> None:
        self._reply: Reply | None = reply
        self._all = waiting
        waiting.add(self)

    def __call__(self, answer: Any) -> None:
        reply, self._reply = self._reply, None
        self._all.discard(self)
        if reply is not None:
            reply(answer)

    def forget(self) -> None:
        self._reply = None
        self._all.discard(self)


class _Alarm:
    __slots__ = ("alarm", "due", "timer")

    def __init__(self, alarm: Alarm, due: float, timer: Timer) -> None:
        self.alarm = alarm
        self.due = due
        self.timer = timer


_NOT_AVAILABLE = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
)


def _of_coordinator(error: ApiError) -> ApiError:
    """An error of the partition as members understand it: wait and try again, or look for another broker."""
    if error.code in _NOT_AVAILABLE:
        return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    if error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ApiError(ErrorCode.NOT_COORDINATOR, error.message)
    return error


def _send(answers: Iterable[tuple[Reply, Any]]) -> None:
    for reply, answer in answers:
        reply(answer)
