"""What is particular to the registry in a SQLite file: processes, leases, durability, idleness."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ottla.clock import ManualClock, SystemClock
from ottla.cluster.registry import Create, Delete, SessionLost, Unavailable
from ottla.cluster.sqlite_registry import SqliteRegistry, SqliteStore
from ottla.cluster.sqlite_tree import Signature

CHILD = """
import asyncio, sys
from pathlib import Path
from ottla.clock import SystemClock
from ottla.cluster.registry import Create
from ottla.cluster.sqlite_registry import SqliteRegistry, SqliteStore

async def main():
    registry = SqliteRegistry(SqliteStore(Path(sys.argv[1])), clock=SystemClock(), session_timeout=60)
    await registry.open()
    await registry.commit([Create("/child", b"x", ephemeral=True), Create("/kept", b"y")])
    print(registry.session_id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def registry_at(path: Path, **settings: float) -> SqliteRegistry:
    return SqliteRegistry(SqliteStore(path), clock=SystemClock(), **settings)


class ProcessWithSession:
    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE)

    def __enter__(self) -> ProcessWithSession:
        assert self.process.stdout is not None
        self.session_id = int(self.process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


async def test_a_killed_process_loses_its_session_at_once_but_no_commits(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    with ProcessWithSession(path) as child:
        registry = registry_at(path)
        await registry.open()
        assert (await registry.get("/child")).owner == child.session_id
        watch = await registry.watch("/child")
        child.process.send_signal(signal.SIGKILL)
        child.process.wait()
        # The lease would last a minute; the kernel tells earlier.
        await asyncio.wait_for(watch, 5)
        assert not await registry.exists("/child")
        assert (await registry.get("/kept")).data == b"y"
        await registry.close()


async def test_a_restart_after_a_kill_does_not_wait_for_the_old_session(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    with ProcessWithSession(path) as child:
        child.process.kill()
        child.process.wait()
        registry = registry_at(path)
        await registry.open()
        assert not await registry.exists("/child")
        await registry.close()


async def test_a_session_without_heartbeats_is_ended_by_the_clock_of_another_session(tmp_path: Path) -> None:
    """The lock of a hung process is still held, so only the lease can tell."""
    path = tmp_path / "registry.sqlite"
    with ProcessWithSession(path) as child:
        child.process.send_signal(signal.SIGSTOP)
        clock = ManualClock()
        registry = SqliteRegistry(SqliteStore(path), clock=clock, session_timeout=10)
        await registry.open()
        await registry.beat()
        clock.advance(10_000)
        await registry.beat()
        assert await registry.exists("/child")
        clock.advance(1)
        await registry.beat()
        assert not await registry.exists("/child")
        await registry.close()


async def test_a_session_with_heartbeats_does_not_expire(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    clock = ManualClock()
    one = SqliteRegistry(SqliteStore(path), clock=clock, session_timeout=10)
    two = SqliteRegistry(SqliteStore(path), clock=clock, session_timeout=10)
    await one.open()
    await two.open()
    await one.commit([Create("/one", ephemeral=True)])
    for _ in range(5):
        clock.advance(6_000)
        await one.beat()
        await two.beat()
    assert await two.exists("/one")
    await one.close()
    await two.close()


async def test_a_hung_session_that_expired_notices_and_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    clock = ManualClock()
    hung = SqliteRegistry(SqliteStore(path), clock=ManualClock(), session_timeout=10)
    other = SqliteRegistry(SqliteStore(path), clock=clock, session_timeout=10)
    await hung.open()
    await other.open()
    await hung._stop_ticking()
    await other.beat()
    clock.advance(11_000)
    await other.beat()
    with pytest.raises(SessionLost):
        await hung.beat()
    with pytest.raises(SessionLost):
        await hung.commit([Create("/late")])
    assert not await other.exists("/late")
    await other.close()
    await hung.close()


async def test_a_session_that_cannot_beat_may_be_over_before_another_one_ends_it(tmp_path: Path) -> None:
    path, clock = tmp_path / "registry.sqlite", ManualClock()
    cut, other = (SqliteRegistry(SqliteStore(path), clock=clock, session_timeout=10) for _ in range(2))
    for session in (cut, other):
        await session.open()
        await session._stop_ticking()
    await cut.beat()
    await other.beat()
    await cut.commit([Create("/cut", ephemeral=True)])
    clock.advance(8_900)
    await other.beat()
    assert not cut.may_be_over()
    clock.advance(100)
    await other.beat()
    assert cut.may_be_over() and not other.may_be_over()
    assert await other.exists("/cut")
    await cut.beat()
    assert not cut.may_be_over()
    await cut.close()
    await other.close()


async def test_a_lone_session_is_not_over_however_long_its_file_does_not_answer(tmp_path: Path) -> None:
    clock = ManualClock()
    registry = SqliteRegistry(SqliteStore(tmp_path / "registry.sqlite"), clock=clock, session_timeout=10)
    await registry.open()
    await registry._stop_ticking()
    await registry.beat()
    clock.advance(1_000_000)
    assert not registry.may_be_over()
    await registry.close()


async def test_sessions_that_share_a_full_disk_are_not_over(tmp_path: Path) -> None:
    path, clock = tmp_path / "registry.sqlite", ManualClock()
    one, other = (SqliteRegistry(SqliteStore(path), clock=clock, session_timeout=10) for _ in range(2))
    for session in (one, other):
        await session.open()
        await session._stop_ticking()
    await one.beat()

    def beat(session: int) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    one._store.tree.beat = beat  # type: ignore[method-assign]
    clock.advance(9_500)
    assert one.may_be_over()
    await one.beat()
    assert not one.may_be_over()
    await one.close()
    await other.close()


async def test_an_idle_lone_session_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    clock = ManualClock()
    registry = SqliteRegistry(SqliteStore(path), clock=clock)
    await registry.open()
    await registry.beat()
    before = (tmp_path / "registry.sqlite-wal").stat()
    for _ in range(100):
        clock.advance(1_000)
        await registry.beat()
    after = (tmp_path / "registry.sqlite-wal").stat()
    assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
    await registry.close()


async def test_closing_leaves_the_file_and_its_reserve(tmp_path: Path) -> None:
    registry = registry_at(tmp_path / "registry.sqlite")
    await registry.open()
    await registry.commit([Create("/a")])
    await registry.close()
    await registry.close()
    assert {path.name for path in tmp_path.iterdir()} == {"registry.sqlite", "registry.sqlite.reserve"}


async def test_a_file_that_cannot_be_opened_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        await registry_at(tmp_path / "no such folder" / "registry.sqlite").open()
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"this is no database" * 100)
    with pytest.raises(Unavailable):
        await registry_at(garbage).open()


async def test_calls_on_a_closed_registry_fail_with_a_clear_error(tmp_path: Path) -> None:
    registry = registry_at(tmp_path / "registry.sqlite")
    await registry.open()
    await registry.close()
    with pytest.raises(Unavailable):
        await registry.get("/a")


async def test_two_processes_may_create_the_file_at_the_same_moment(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    sessions = [registry_at(path) for _ in range(8)]
    await asyncio.gather(*(session.open() for session in sessions))
    assert len({session.session_id for session in sessions}) == 8
    for session in sessions:
        await session.close()


async def test_a_committed_change_succeeds_even_when_watches_cannot_be_checked(tmp_path: Path) -> None:
    registry = registry_at(tmp_path / "registry.sqlite")
    await registry.open()
    watch = await registry.watch("/a")
    tree = registry._store.tree
    signature = tree.signature

    def fail(path: str) -> Signature:
        raise sqlite3.OperationalError("disk I/O error")

    tree.signature = fail  # type: ignore[method-assign]
    await registry.commit([Create("/a")])
    await asyncio.wait_for(watch, 5)  # a watch may fire for nothing; its owner reads again
    tree.signature = signature  # type: ignore[method-assign]
    await registry.close()


async def test_a_watch_may_come_while_others_are_checked(tmp_path: Path) -> None:
    registry = registry_at(tmp_path / "registry.sqlite")
    await registry.open()
    later = []

    async def watch(path: str) -> None:
        await asyncio.to_thread(len, path)  # at any moment
        later.append(await registry.watch(path))

    for number in range(10):
        first = await registry.watch(f"/{number}")
        await asyncio.gather(
            registry.commit([Create(f"/{number}")]), *(watch(f"/later-{number}-{each}") for each in range(10))
        )
        await asyncio.wait_for(first, 5)
    assert len(later) == 100
    await registry.close()


async def test_heartbeats_continue_after_any_error(tmp_path: Path) -> None:
    registry = registry_at(tmp_path / "registry.sqlite")
    await registry.open()
    looked = asyncio.Event()
    errors: list[Exception] = [PermissionError("the folder"), ValueError("a defect")]

    async def look() -> None:
        if errors:
            raise errors.pop()
        looked.set()

    registry._store.look_for_others_changes = look  # type: ignore[method-assign]
    await asyncio.wait_for(looked.wait(), 10)
    await registry.close()


async def test_several_sessions_can_open_a_new_file_at_the_same_moment(tmp_path: Path) -> None:
    for attempt in range(10):
        path = tmp_path / f"{attempt}.sqlite"
        sessions = [SqliteRegistry(SqliteStore(path, durable=False), SystemClock()) for _ in range(4)]
        await asyncio.gather(*(session.open() for session in sessions))
        await asyncio.gather(*(session.close() for session in sessions))


async def test_a_watch_fires_for_a_node_that_came_and_went_between_two_looks(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    one, two = (SqliteRegistry(SqliteStore(path, durable=False), SystemClock()) for _ in range(2))
    await one.open()
    await two.open()
    watch = await one.watch("/controller")
    await two.commit([Create("/controller")])
    await two.commit([Delete("/controller")])
    await asyncio.wait_for(watch, 30)
    await one.close()
    await two.close()


async def test_a_session_that_is_about_to_end_does_not_wait_for_the_lock(tmp_path: Path) -> None:
    """Also where it waits for it already."""
    path = tmp_path / "registry.sqlite"
    registry = registry_at(path)
    await registry.open()
    lock = sqlite3.connect(path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    waiting = asyncio.ensure_future(registry.commit([Create("/a")]))
    await asyncio.wait([waiting], timeout=0.5)
    assert not waiting.done()
    registry.leave_soon()
    with pytest.raises(Unavailable, match="locked"):
        await waiting
    for _ in range(5):
        with pytest.raises(Unavailable, match="locked"):
            await registry.commit([Create("/a")])
    assert time.monotonic() - began < 9, "the first alone would have waited for ten seconds"
    lock.close()
    await registry.commit([Create("/a")])
    await registry.close()
