"""The registry in ZooKeeper under faults: the contract of all registries is in `tests/contract`."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from ottla.clock import ManualClock, SystemClock
from ottla.cluster.registry import (
    MAX_COMMIT_BYTES,
    MAX_NODE_BYTES,
    Ambiguous,
    Create,
    RegistryError,
    SessionLost,
    Set,
    Unavailable,
)
from ottla.cluster.zookeeper_registry import ZooKeeperRegistry
from ottla.testing.network import Network
from zookeeper_server import SESSION_SECONDS, ZooKeeperServer, free_port, shared_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """One of its own, for tests that stop it."""
    server = ZooKeeperServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def chroot() -> str:
    """Several levels, of which none is there before the first session."""
    return f"/{uuid.uuid4().hex}/clusters/one"


@asynccontextmanager
async def session(address: str, timeout: float = SESSION_SECONDS) -> AsyncIterator[ZooKeeperRegistry]:
    registry = ZooKeeperRegistry(address, clock=SystemClock(), session_timeout=timeout)
    await registry.open()
    try:
        yield registry
    finally:
        await registry.close()


async def until_it_answers(registry: ZooKeeperRegistry) -> None:
    while True:
        try:
            await registry.exists("/")
        except Unavailable:
            await asyncio.sleep(0.02)
        else:
            return


def test_an_unreachable_server_is_an_error_that_names_the_address() -> None:
    address = f"127.0.0.1:{free_port()}"

    async def main() -> None:
        registry = ZooKeeperRegistry(address, clock=SystemClock(), connect_timeout=0.2)
        with pytest.raises(Unavailable, match=address):
            await registry.open()

    asyncio.run(main())


def test_a_session_is_usable_as_soon_as_it_is_open(chroot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change_state = KazooClient._make_state_change

    def change_state_late(self: KazooClient, state: str) -> None:
        time.sleep(0.2)  # kazoo says that it is connected, and its listeners do not know yet
        change_state(self, state)

    monkeypatch.setattr(KazooClient, "_make_state_change", change_state_late)

    async def main() -> None:
        async with session(shared_server().address + chroot) as registry:
            assert await registry.exists("/")

    asyncio.run(main())


def test_a_cut_off_session_ends_locally_before_its_nodes_are_removed(chroot: str) -> None:
    network = Network(shared_server().port)

    async def main() -> None:
        async with (
            session(f"{network.address}{chroot}", timeout=4.0) as cut_off,
            session(f"{shared_server().address}{chroot}") as witness,
        ):
            await cut_off.commit([Create("/mine", ephemeral=True)])
            watch = await witness.watch("/mine")
            ends: list[str] = []
            watch.add_done_callback(lambda _: ends.append("there"))
            network.cut()
            await cut_off.lost.wait()
            ends.append("here")
            with pytest.raises(SessionLost):
                await cut_off.commit([Set("/mine", b"zombie")])
            await watch
            assert not await witness.exists("/mine")
            assert ends == ["here", "there"]
            network.mend()
            await cut_off.renew()
            await cut_off.commit([Create("/mine", b"again", ephemeral=True)])
            assert (await witness.get("/mine")).owner == cut_off.session_id

    try:
        asyncio.run(main())
    finally:
        network.close()


def test_a_session_that_is_lost_while_it_begins_is_begun_again(
    chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [None, None]
    id_of = KazooClient.client_id.fget
    monkeypatch.setattr(KazooClient, "client_id", property(lambda self: ids.pop() if ids else id_of(self)))
    calls = [ConnectionLoss("the first call")]
    ensure = KazooClient.ensure_path_async

    def ensure_path(self: KazooClient, *args: Any, **settings: Any) -> Any:
        if calls:
            failed = self.handler.async_result()
            failed.set_exception(calls.pop())
            return failed
        return ensure(self, *args, **settings)

    monkeypatch.setattr(KazooClient, "ensure_path_async", ensure_path)

    async def main() -> None:
        async with session(shared_server().address + chroot) as registry:
            assert await registry.exists("/")
            assert registry.session_id
        assert not ids and not calls

    asyncio.run(main())


def test_a_session_is_closed_after_its_renewal_was_cancelled(
    chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a broker stops while it is about to register again."""
    stop, is_stopping, may_stop = KazooClient.stop, threading.Event(), threading.Event()

    def stop_late(self: KazooClient) -> None:
        is_stopping.set()
        may_stop.wait(30)
        stop(self)

    monkeypatch.setattr(KazooClient, "stop", stop_late)

    async def main() -> None:
        clock = ManualClock()
        registry = ZooKeeperRegistry(shared_server().address + chroot, clock=clock)
        await registry.open()
        clock.advance(3600_000)
        renewal = asyncio.create_task(registry.renew())
        await asyncio.to_thread(is_stopping.wait, 30)
        for _ in range(20):
            await asyncio.sleep(0)  # it comes to wait for the end of the old session
        renewal.cancel()
        await asyncio.wait([renewal])
        may_stop.set()
        await registry.close()

    asyncio.run(main())


def test_a_commit_whose_answer_is_lost_is_ambiguous_until_it_is_read(chroot: str) -> None:
    network = Network(shared_server().port)

    async def main() -> None:
        async with session(f"{network.address}{chroot}", timeout=SESSION_SECONDS) as registry:
            await registry.commit([Create("/a", b"0")])
            network.lose_answers()
            commit = asyncio.create_task(registry.commit([Set("/a", b"1", version=0)]))
            async with session(f"{shared_server().address}{chroot}") as witness:
                while (await witness.get("/a")).version == 0:
                    await asyncio.sleep(0.01)
            network.reset()
            with pytest.raises(Ambiguous):
                await commit
            network.mend()
            await until_it_answers(registry)
            assert (await registry.get("/a")).data == b"1"

    try:
        asyncio.run(main())
    finally:
        network.close()


def test_a_session_survives_a_quick_restart_of_its_server(server: ZooKeeperServer) -> None:
    async def main() -> None:
        async with session(server.address) as registry:
            before = registry.session_id
            await registry.commit([Create("/mine", ephemeral=True), Create("/a", b"kept")])
            watch = await registry.watch("/a")
            server.stop()
            await watch  # a lost connection makes everything dirty
            with pytest.raises(Unavailable):
                await registry.get("/a")
            await asyncio.to_thread(server.start)
            try:
                await until_it_answers(registry)
            except SessionLost:
                await registry.renew()  # a busy machine took longer than the session
                assert registry.session_id != before
            else:
                assert registry.session_id == before
                assert (await registry.get("/mine")).owner == before
            assert (await registry.get("/a")).data == b"kept"

    asyncio.run(main())


def test_a_hanging_server_times_out_calls_and_session(server: ZooKeeperServer) -> None:
    async def main() -> None:
        async with session(server.address, timeout=2.0) as registry:
            await registry.commit([Create("/a")])
            server.pause()
            calls = [registry.get("/a"), registry.commit([Set("/a", b"1")]), registry.watch("/a")]
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(error, RegistryError) for error in errors), errors
            assert isinstance(errors[1], Ambiguous)
            await registry.lost.wait()
            server.resume()
            await registry.renew()
            assert await registry.exists("/a")

    asyncio.run(main())


def test_the_largest_commit_fits(chroot: str) -> None:
    """What the port allows is less than what a server takes in a packet."""

    async def main() -> None:
        async with session(f"{shared_server().address}{chroot}", timeout=SESSION_SECONDS) as registry:
            rest = MAX_COMMIT_BYTES - MAX_NODE_BYTES - 200
            await registry.commit([Create("/a", bytes(MAX_NODE_BYTES)), Create("/b", bytes(rest))])
            assert len((await registry.get("/b")).data) == rest
            with pytest.raises(ValueError, match="at most"):
                await registry.commit([Set("/a", bytes(MAX_NODE_BYTES)), Set("/b", bytes(rest + 200))])

    asyncio.run(main())


def test_a_shorter_session_timeout_granted_by_the_servers_is_used(chroot: str) -> None:
    """The servers grant 20 ticks at most; a longer one would end the session here too late."""

    async def main() -> None:
        async with session(f"{shared_server().address}{chroot}", timeout=60.0) as registry:
            assert registry._current()._timeout == pytest.approx(10.0)

    asyncio.run(main())
