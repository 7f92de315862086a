"""The runtime with a coordinator that is not about groups: a table of names and numbers.

What a shard promises to any coordinator: what replay is told, what happens when a log cannot be loaded, and
when answers leave.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

import pytest

from ottla.coordinator.runtime import loading
from ottla.coordinator.runtime.effects import Effects, Reply
from ottla.coordinator.runtime.runtime import (
    LOAD_AGAIN_SECONDS,
    LOAD_DAMAGED_AGAIN_SECONDS,
    CoordinatorRuntime,
)
from ottla.coordinator.runtime.shard import Shard
from ottla.coordinator.runtime.state import RecordCodec
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.records import Record, encode_batch
from ottla.replication.partition import Partition
from ottla.replication.purgatory import Purgatory
from unit.coordinator.forged_batches import marker
from unit.coordinator.simulated import Answer, ManualScheduler, MemoryPartition

Row = tuple[str, int]
CODEC: RecordCodec[Row] = RecordCodec(
    lambda row: (row[0].encode(), str(row[1]).encode()),
    lambda key, value: ((key or b"").decode(), int(value or b"0")),
)


@dataclass(frozen=True)
class Reminder:
    name: str
    delay_ms: int = 1000

    @property
    def key(self) -> str:
        return self.name


class Table:
    """A state: the last number of each name."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.replayed: list[tuple[int, int, int, Row]] = []
        self.ended: list[tuple[int, int, bool]] = []
        self.refuses_to_replay: Callable[[Row], None] = lambda row: None
        self.refuses_to_resume: Exception | None = None
        self.expired: list[str] = []
        self.is_closed = False

    def new_effects(self, now_ms: int) -> Effects[Row]:
        return Effects(now_ms)

    def replay(self, offset: int, producer_id: int, producer_epoch: int, record: Row) -> None:
        self.refuses_to_replay(record)
        self.replayed.append((offset, producer_id, producer_epoch, record))
        self.rows[record[0]] = record[1]

    def replay_end_transaction_marker(
        self, producer_id: int, producer_epoch: int, *, committed: bool
    ) -> None:
        self.ended.append((producer_id, producer_epoch, committed))

    def adopt(self, effects: Effects[Row]) -> None: ...

    def settled(self, effects: Effects[Row]) -> None: ...

    def on_timer(self, timer: Reminder, effects: Effects[Row]) -> None:
        if not self.expired:
            self.expired.append("failed")
            raise ZeroDivisionError
        self.expired.append(timer.name)

    def resume(self, effects: Effects[Row]) -> None:
        if self.refuses_to_resume is not None:
            raise self.refuses_to_resume

    def close(self) -> None:
        self.is_closed = True


def put(name: str, number: int) -> Callable[[Table, Reply, Effects[Row]], None]:
    def command(table: Table, reply: Reply, effects: Effects[Row]) -> None:
        effects.records.append((name, number))
        effects.answer(reply, number)

    return command


def read(table: Table, reply: Reply, effects: Effects[Row]) -> None:
    effects.answer(reply, dict(table.rows))


class World:
    """A runtime over one partition in memory. Threads run at once, unless a test says otherwise."""

    def __init__(self, batches: list[bytes] | None = None) -> None:
        self.scheduler = ManualScheduler()
        self.partition = MemoryPartition(batches)
        self.purgatory = Purgatory(self.scheduler)
        self.prepare: Callable[[Table], None] = lambda table: None
        self.in_thread: Callable[[Callable[[], int]], Awaitable[int]] = self._at_once
        self.on_loaded: Callable[[Shard[Table]], Awaitable[None]] = self._nothing
        self.runtime: CoordinatorRuntime[Table] = CoordinatorRuntime(
            "table",
            CODEC,
            self._table,
            clock=self.scheduler.clock,
            scheduler=self.scheduler,
            purgatory=self.purgatory,
            in_thread=lambda work: self.in_thread(work),
            commit_timeout_ms=lambda: 5000,
            on_loaded=lambda shard: self.on_loaded(shard),
        )

    async def _at_once(self, work: Callable[[], int]) -> int:
        return work()

    async def _nothing(self, shard: Shard[Table]) -> None: ...

    def _table(self) -> Table:
        table = Table()
        self.prepare(table)
        return table

    async def load(self) -> None:
        self.runtime.follow(1, [cast(Partition, self.partition)])
        await self.runtime.loading_done()

    async def pass_seconds(self, seconds: float) -> None:
        self.scheduler.run(round(seconds * 1000))
        await self.runtime.loading_done()

    def error(self) -> ErrorCode | None:
        """What a client gets instead of an answer."""
        try:
            self.runtime.shard(0)
        except ApiError as error:
            return error.code
        return None

    @property
    def shard(self) -> Shard[Table]:
        return self.runtime.shard(0)

    def ask(self, command: Callable[[Table, Reply, Effects[Row]], None]) -> Answer:
        answer = Answer()
        self.shard.run(command).then(answer, answer)
        return answer


def batch(offset: int, *rows: Row, **settings: Any) -> bytes:
    records = [Record(offset + n, 0, *CODEC.encode(row), []) for n, row in enumerate(rows)]
    return bytes(encode_batch(records, base_offset=offset, **settings))


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


# -- replay -----------------------------------------------------------------------------------------------


def test_replay_gets_offset_producer_id_and_epoch_of_each_record() -> None:
    async def scenario() -> None:
        world = World(
            [
                batch(0, ("a", 1), ("b", 2)),
                batch(2, ("a", 3), producer_id=70, producer_epoch=4, base_sequence=0, transactional=True),
                marker(3, 70, 4, committed=True),
                marker(4, 71, 9, committed=False),
            ]
        )
        await world.load()
        table = world.shard.state
        assert table.replayed == [(0, -1, -1, ("a", 1)), (1, -1, -1, ("b", 2)), (2, 70, 4, ("a", 3))]
        assert table.ended == [(70, 4, True), (71, 9, False)]
        world.ask(put("c", 5))
        assert table.replayed[-1] == (5, -1, -1, ("c", 5))

    run(scenario())


# -- loading fails ----------------------------------------------------------------------------------------


async def _fails_and_recovers(
    world: World, caplog: pytest.LogCaptureFixture, mend: Callable[[], None], seconds: float, reason: str
) -> None:
    """The shard has failed with a line in the log; it is loaded when the reason is gone, and not before."""
    caplog.set_level(logging.ERROR, "ottla.coordinator")
    await world.load()
    assert world.error() is ErrorCode.NOT_COORDINATOR
    assert not world.runtime.is_loading
    assert reason in caplog.text
    await world.pass_seconds(seconds)
    assert world.error() is ErrorCode.NOT_COORDINATOR, "the reason is still there"
    mend()
    await world.pass_seconds(seconds - 1)
    assert world.error() is ErrorCode.NOT_COORDINATOR, "it waits before it tries again"
    await world.pass_seconds(1)
    assert world.ask(read).value == {"a": 1}


def test_an_unexpected_exception_in_replay_is_a_failure_that_names_the_offset_and_is_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World([batch(0, ("a", 1))])

    def divide(row: Row) -> None:
        raise ZeroDivisionError("by accident")

    def break_table(table: Table) -> None:
        table.refuses_to_replay = divide

    world.prepare = break_table

    def mend() -> None:
        world.prepare = lambda table: None

    reason = "the batch at offset 0 in __consumer_offsets-0 cannot be loaded"
    run(_fails_and_recovers(world, caplog, mend, LOAD_DAMAGED_AGAIN_SECONDS, reason))
    assert "by accident" in caplog.text


@pytest.mark.parametrize(
    ("error", "seconds", "reason"),
    [
        (OSError(5, "Input/output error"), LOAD_AGAIN_SECONDS, "Input/output error"),
        (ApiError(ErrorCode.KAFKA_STORAGE_ERROR), LOAD_AGAIN_SECONDS, ErrorCode.KAFKA_STORAGE_ERROR.text),
        (asyncio.CancelledError(), LOAD_AGAIN_SECONDS, "CancelledError"),
        (RuntimeError("no more threads"), LOAD_DAMAGED_AGAIN_SECONDS, "no more threads"),
    ],
    ids=["disk error", "log offline", "cancelled thread", "no threads"],
)
def test_a_load_whose_thread_fails_is_retried(
    caplog: pytest.LogCaptureFixture, error: BaseException, seconds: float, reason: str
) -> None:
    world = World([batch(0, ("a", 1))])

    async def fail(work: Callable[[], int]) -> int:
        raise error

    world.in_thread = fail

    def mend() -> None:
        world.in_thread = world._at_once

    run(_fails_and_recovers(world, caplog, mend, seconds, reason))


def test_a_failure_after_the_replay_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    world = World([batch(0, ("a", 1))])

    def break_table(table: Table) -> None:
        table.refuses_to_resume = ZeroDivisionError("in resume")

    world.prepare = break_table

    def mend() -> None:
        world.prepare = lambda table: None

    run(_fails_and_recovers(world, caplog, mend, LOAD_DAMAGED_AGAIN_SECONDS, "in resume"))


def test_a_failure_of_the_work_after_loading_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    world = World([batch(0, ("a", 1))])

    async def fail(shard: Shard[Table]) -> None:
        raise ZeroDivisionError("after loading")

    world.on_loaded = fail

    def mend() -> None:
        world.on_loaded = world._nothing

    run(_fails_and_recovers(world, caplog, mend, LOAD_DAMAGED_AGAIN_SECONDS, "after loading"))


def test_the_same_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        world = World([batch(0, ("a", 1))])
        caplog.set_level(logging.ERROR, "ottla.coordinator")
        world.in_thread = fail
        await world.load()
        for _ in range(3):
            await world.pass_seconds(LOAD_AGAIN_SECONDS)
        assert caplog.text.count("failed while it was loading") == 1

    async def fail(work: Callable[[], int]) -> int:
        raise OSError("broken")

    run(scenario())


def test_a_shard_that_ends_while_it_loads_is_not_retried() -> None:
    async def scenario() -> None:
        world = World([batch(0, ("a", 1))])
        started, go_on = asyncio.Event(), asyncio.Event()

        async def slow(work: Callable[[], int]) -> int:
            started.set()
            await go_on.wait()
            return work()

        world.in_thread = slow
        world.runtime.follow(1, [cast(Partition, world.partition)])
        await started.wait()
        assert world.error() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        world.runtime.follow(1, [])
        go_on.set()
        await world.runtime.loading_done()
        await world.pass_seconds(1000)
        assert world.error() is ErrorCode.NOT_COORDINATOR

    run(scenario())


def test_a_load_reads_the_log_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition in memory gives three batches at a time."""

    async def scenario() -> None:
        world = World([batch(n, (str(n), n)) for n in range(10)])
        await world.load()
        assert len(world.shard.state.rows) == 10

    monkeypatch.setattr(loading, "LOAD_BYTES", 1)
    run(scenario())


# -- a state that differs from the log --------------------------------------------------------------------


def test_a_shard_that_cannot_apply_its_own_records_is_reloaded(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        world = World()
        await world.load()
        world.partition.is_slow = True
        waiting = world.ask(put("a", 1))
        table = world.shard.state

        def fail(row: Row) -> None:
            raise ZeroDivisionError("in replay")

        table.refuses_to_replay = fail
        answer = world.ask(put("b", 2))
        assert (answer.error, waiting.error) == (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR)
        assert world.error() is ErrorCode.NOT_COORDINATOR
        assert table.is_closed
        assert "in replay" in caplog.text
        world.partition.is_slow, world.partition.high_watermark = False, world.partition.end_offset
        await world.pass_seconds(LOAD_AGAIN_SECONDS)
        assert world.ask(read).value == {"a": 1, "b": 2}, "the log has both"

    run(scenario())


def test_a_timer_whose_handler_fails_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        world = World()
        await world.load()
        world.ask(lambda table, reply, effects: effects.set_timer(Reminder("wake")))
        world.scheduler.run(1000)
        assert world.shard.state.expired == ["failed"]
        assert "the timer wake failed" in caplog.text
        world.scheduler.run(10_000)
        assert world.shard.state.expired == ["failed", "wake"]

    run(scenario())


# -- committed state --------------------------------------------------------------------------------------


def test_a_read_is_answered_when_the_state_it_saw_is_committed() -> None:
    async def scenario() -> None:
        world = World()
        await world.load()
        world.partition.is_slow = True
        written, seen = world.ask(put("a", 1)), world.ask(read)
        assert written.waits
        assert seen.waits
        world.partition.high_watermark = world.partition.end_offset
        world.purgatory.notify(world.partition)
        world.scheduler.run()
        assert (written.value, seen.value) == (1, {"a": 1})

    run(scenario())


def test_a_read_after_a_failover_waits_for_records_above_the_high_watermark() -> None:
    async def scenario() -> None:
        world = World([batch(0, ("a", 1)), batch(1, ("a", 2))])
        world.partition.high_watermark = 1
        await world.load()
        seen = world.ask(read)
        assert seen.waits
        world.scheduler.run(5000)
        assert seen.error == ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(scenario())


def test_an_answer_is_not_sent_in_another_leader_epoch() -> None:
    """Offsets below the high watermark of another epoch may be other records."""

    async def scenario() -> None:
        world = World()
        await world.load()
        world.partition.is_slow = True
        answer = world.ask(put("a", 1))
        world.partition.leader_epoch = 2
        world.partition.high_watermark = 100
        world.purgatory.notify(world.partition)
        world.scheduler.run()
        assert answer.error == ErrorCode.NOT_COORDINATOR

    run(scenario())
