"""Answers that are slices of files, some of which are not in memory, too short or cannot be read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ottla.completion import Completion
from ottla.storage.files import RealDisk
from ottla.storage.log import FileSlice
from ottla.testing.faulty_disk import FaultyDisk
from unit.broker.connections import Client, frame, run, until


def test_bytes_and_file_slices_make_one_answer(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(range(256)) * 8192)

    async def scenario() -> None:
        file = RealDisk().open(path)
        client = Client(
            lambda body: [b"head", FileSlice(file, 256, 1_000_000), b"mid", FileSlice(file, 3, 4), b"end"]
        )
        await client.send(frame(b"a"))
        whole = path.read_bytes()
        expected = b"head" + whole[256:1_000_256] + b"mid" + whole[3:7] + b"end"
        assert await client.receive(len(expected)) == expected
        assert not client.connection.busy
        client.connection.close()

    run(scenario)


@pytest.mark.parametrize("claimed", [100, 100_000])
def test_a_slice_beyond_the_end_of_its_file_closes_the_connection(tmp_path: Path, claimed: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"short")

    async def scenario() -> None:
        client = Client(lambda body: [b"head", FileSlice(RealDisk().open(path), 0, claimed)])
        await client.send(frame(b"a"))
        assert len(await client.receive(100)) < 100
        assert client.host.gone

    run(scenario)


def test_a_response_whose_file_cannot_be_read_closes_only_its_own_connection(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        disk = FaultyDisk(RealDisk())
        file = disk.open(tmp_path / "log", create=True)
        file.write_at(0, b"x" * 100)
        waiting: Completion[Any] = Completion()
        client = Client(lambda body: waiting)
        await client.send(frame(b"a"))
        await until(lambda: bool(client.host.seen))
        disk.fail("read")
        waiting.resolve([b"head", FileSlice(file, 0, 100)])
        assert client.host.gone

    run(scenario)


@pytest.mark.parametrize("size", [1_000, 1_000_000])
def test_an_answer_that_is_not_in_memory_is_read_by_a_thread(tmp_path: Path, size: int) -> None:
    async def scenario() -> None:
        disk = FaultyDisk(RealDisk())
        file = disk.open(tmp_path / "log", create=True)
        content = bytes(range(250)) * (size // 250)
        file.write_at(0, content)
        disk.slow_down(read=0.3, name="log")
        client = Client(lambda body: [b"head", FileSlice(file, 0, size), b"end"])
        await client.send(frame(b"a"))
        longest, before = 0.0, client.host.now()
        received = asyncio.create_task(client.receive(size + 7))
        while not received.done():
            await asyncio.sleep(0)
            now = client.host.now()
            longest, before = max(longest, now - before), now
        assert await received == b"head" + content + b"end"
        assert longest < 0.25, "the loop waited for the disk"
        assert client.host.page_reader.reads >= 1
        client.connection.close()
        client.host.page_reader.close()

    run(scenario)


def test_a_disconnect_while_the_response_is_read_from_disk_is_harmless(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyDisk(RealDisk())
        file = disk.open(tmp_path / "log", create=True)
        file.write_at(0, b"x" * 100_000)
        disk.slow_down(read=0.1, name="log")
        client = Client(lambda body: [b"head", FileSlice(file, 0, 100_000)])
        await client.send(frame(b"a"))
        await until(lambda: client.host.page_reader.reads == 1)
        client.connection.close()
        await until(lambda: not client.connection._sender.waits_for_disk)
        assert client.host.gone == [client.connection]
        client.host.page_reader.close()

    run(scenario)
