"""A connection answers in order, reads no further than it can answer, and does not hold up others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.broker.answer_sender import Parts
from ottla.broker.buffers import Lease
from ottla.broker.connection import Connection, Refused
from ottla.completion import Completion
from unit.broker.connections import Client, Host, echo, frame, run, until


def test_frames_are_answered_in_order_however_they_are_cut() -> None:
    bodies = [b"one", b"two" * 700, b"three", b"f" * 100_000, b"five"]
    stream = b"".join(map(frame, bodies))

    async def scenario() -> None:
        for piece in (1, 3, 7, 1000, 5000, len(stream)):
            client = Client(echo)
            expected = b"".join(b"<" + body[:8] + b">" for body in bodies)
            received = asyncio.create_task(client.receive(len(expected)))
            step = max(piece, len(stream) // 3000)
            for start in range(0, len(stream), step):
                await client.send(stream[start : start + step])
            assert await received == expected
            assert client.host.seen == bodies
            assert client.host.memory.lent == 0
            client.connection.close()

    run(scenario)


def test_requests_behind_a_waiting_request_are_handled_after_its_response() -> None:
    async def scenario() -> None:
        waiting: Completion[Any] = Completion()
        client = Client(lambda body: waiting if body == b"wait" else echo(body))
        await client.send(frame(b"wait") + frame(b"next") + frame(b"last")[:5])
        await until(lambda: bool(client.host.seen))
        await client.send(frame(b"last")[5:])
        assert client.host.seen == [b"wait"]
        waiting.resolve([b"[now]"])
        assert await client.receive(17) == b"[now]<next><last>"
        client.connection.close()

    run(scenario)


def test_no_more_requests_are_read_until_a_slow_client_has_taken_its_response() -> None:
    async def scenario() -> None:
        large = b"x" * 3_000_000
        client = Client(lambda body: [large])
        await client.send(frame(b"a") + frame(b"b"))
        await until(lambda: bool(client.host.seen))
        for _ in range(20):
            await asyncio.sleep(0)
        assert client.host.seen == [b"a"]
        assert len(await client.receive(len(large))) == len(large)
        assert len(await client.receive(len(large))) == len(large)
        assert client.host.seen == [b"a", b"b"]
        client.connection.close()

    run(scenario)


@pytest.mark.parametrize("size", [0, -1, 1 << 23, 0x47455420])
def test_an_impossible_size_closes_the_connection(size: int) -> None:
    async def scenario() -> None:
        client = Client(echo)
        await client.send(frame(b"a") + size.to_bytes(4, "big", signed=True) + b"tail")
        assert await client.receive(100) == b"<a>"
        assert client.host.gone == [client.connection]

    run(scenario)


def test_a_refusal_closes_the_connection_and_gives_its_memory_back() -> None:
    def refuse(body: bytes) -> Parts:
        raise Refused("no")

    async def scenario() -> None:
        client = Client(refuse)
        await client.send(frame(b"x" * 50_000))
        assert await client.receive(1) == b""
        assert client.host.memory.lent == 0

    run(scenario)


def test_a_request_without_response_does_not_hold_up_the_next() -> None:
    async def scenario() -> None:
        client = Client(lambda body: None if body == b"quiet" else echo(body))
        await client.send(frame(b"quiet") * 3 + frame(b"loud"))
        assert await client.receive(6) == b"<loud>"
        client.connection.close()

    run(scenario)


def test_a_disconnect_cancels_the_pending_request() -> None:
    async def scenario() -> None:
        cancelled: list[bool] = []
        waiting: Completion[Any] = Completion(on_cancel=lambda: cancelled.append(True))
        client = Client(lambda body: waiting)
        await client.send(frame(b"a"))
        await until(lambda: bool(client.host.seen))
        client.connection.close()
        assert cancelled == [True]
        waiting.resolve([b"late"])

    run(scenario)


def test_a_large_frame_waits_for_memory_and_is_then_read_whole() -> None:
    async def scenario() -> None:
        client = Client(echo, memory=150_000)
        held = client.host.memory.borrow(100_000)
        assert held is not None
        body = b"abcdefgh" * 12_000
        sending = asyncio.create_task(client.send(frame(body)))
        await until(lambda: client.host.memory.contended)
        assert client.host.seen == []
        client.host.memory.give_back(held)
        await sending
        assert await client.receive(10) == b"<abcdefgh>"
        assert client.host.seen == [body]
        client.connection.close()

    run(scenario)


def test_a_flood_of_requests_is_spread_over_loop_iterations() -> None:
    async def scenario() -> None:
        client = Client(lambda body: None, scratch=65_536)
        await client.send(frame(b"x") * 1000)
        await until(lambda: bool(client.host.seen))
        assert len(client.host.seen) < 100
        await until(lambda: len(client.host.seen) == 1000)
        client.connection.close()

    run(scenario)


def test_a_disconnect_during_a_long_poll_is_noticed() -> None:
    async def scenario() -> None:
        cancelled: list[bool] = []
        client = Client(lambda body: Completion(on_cancel=lambda: cancelled.append(True)))
        await client.send(frame(b"a"))
        await until(lambda: bool(client.host.seen))
        client.sock.close()
        await until(lambda: cancelled == [True])
        assert client.host.gone

    run(scenario)


def test_produce_requests_behind_one_in_progress_are_handled_after_a_disconnect() -> None:
    """With acks=0 a client may send its records and close."""

    async def scenario() -> None:
        under_way: list[Completion[Any]] = []

        def take_later(body: bytes) -> Completion[Any]:
            under_way.append(Completion())
            return under_way[-1]

        client = Client(take_later)
        bodies = [b"\0\0first", b"\0\0second", b"\0\x0ca heartbeat", b"\0\0third"]
        await client.send(b"".join(map(frame, bodies)) + frame(b"\0\0cut off")[:-1])
        await until(lambda: len(under_way) == 1)
        client.sock.close()
        await until(lambda: client.connection._client_gone)
        assert not client.host.gone
        under_way[0].resolve([b"an answer that is not sent"])
        await until(lambda: len(under_way) == 2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not client.host.gone, "one more is waiting"
        under_way[1].resolve([b"an answer that is not sent"])
        await until(lambda: bool(client.host.gone))
        assert client.host.seen == [bodies[0], bodies[1], bodies[3]]

    run(scenario)


def test_produce_requests_behind_a_long_poll_are_handled_at_once_on_disconnect() -> None:
    async def scenario() -> None:
        cancelled: list[bool] = []
        poll: Completion[Any] = Completion(on_cancel=lambda: cancelled.append(True))
        client = Client(lambda body: poll if body.startswith(b"\0\1") else None)
        await client.send(frame(b"\0\1poll") + frame(b"\0\0records") * 50)
        await until(lambda: bool(client.host.seen))
        client.sock.close()
        await until(lambda: bool(client.host.gone))
        assert cancelled == [True]
        assert client.host.seen == [b"\0\1poll"] + [b"\0\0records"] * 50

    run(scenario)


@pytest.mark.parametrize("behind", [b"\0\1another poll", b"\0\0records cut off"])
def test_a_long_poll_is_cancelled_on_disconnect_unless_a_whole_produce_waits(behind: bytes) -> None:
    async def scenario() -> None:
        cancelled: list[bool] = []
        client = Client(lambda body: Completion(on_cancel=lambda: cancelled.append(True)))
        cut_off = behind.endswith(b"cut off")
        await client.send(frame(b"\0\1poll") + frame(behind)[: -1 if cut_off else None])
        await until(lambda: bool(client.host.seen))
        client.sock.close()
        await until(lambda: bool(client.host.gone))
        assert cancelled == [True]
        assert client.host.seen == [b"\0\1poll"]

    run(scenario)


def test_a_frame_counts_as_stalled_when_no_bytes_arrived_since_the_last_check() -> None:
    async def scenario() -> None:
        client = Client(echo)
        crawls = client.connection.crawls
        assert not crawls(0.0, 1.0, 60.0), "no frame, no crawling"
        await client.send(frame(b"x" * 200_000)[:50_000])
        await until(lambda: client.connection._filled == 49_996)
        assert not crawls(60.0, 1e12, 60.0), "it gets some time"
        crawls(0.0, 0.001, 1e12)
        await client.send(b"x" * 50_000)
        await until(lambda: client.connection._filled == 99_996)
        assert not crawls(0.0, 0.001, 1e12), "bytes came since the last look"
        assert crawls(0.0, 0.001, 1e12), "none came since"
        client.connection.close()

    run(scenario)


def test_a_frame_that_arrives_too_slowly_for_its_size_counts_as_stalled() -> None:
    async def scenario() -> None:
        client = Client(echo)
        await client.send(frame(b"x" * 200_000)[:50_000])
        await until(lambda: client.connection._filled == 49_996)
        assert client.connection.crawls(0.0, 0.001, longest=1e-9)
        client.connection.close()

    run(scenario)


def test_draining_answers_only_the_request_in_progress() -> None:
    async def scenario() -> None:
        waiting: Completion[Any] = Completion()
        client = Client(lambda body: waiting)
        await client.send(frame(b"a") + frame(b"b"))
        await until(lambda: bool(client.host.seen))
        client.connection.drain()
        assert not client.host.gone
        waiting.resolve([b"done"])
        assert await client.receive(100) == b"done"
        assert client.host.seen == [b"a"]

    run(scenario)


def test_a_defect_in_dispatch_closes_the_connection() -> None:
    async def scenario() -> None:
        def defect(body: bytes) -> None:
            raise RuntimeError("a defect")

        client = Client(defect)
        await client.send(frame(b"a"))
        await until(lambda: bool(client.host.gone))

    run(scenario)


def test_an_already_resolved_response_does_not_hold_up_the_next_request() -> None:
    async def scenario() -> None:
        def answered(body: bytes) -> Completion[Any]:
            completion: Completion[Any] = Completion()
            completion.resolve([b"<" + body + b">"])
            return completion

        client = Client(answered)
        await client.send(frame(b"a") + frame(b"b") + frame(b"c"))
        assert await client.receive(9) == b"<a><b><c>"
        client.connection.close()

    run(scenario)


@pytest.mark.parametrize("size", [100, 5_000])
def test_a_request_that_keeps_its_frame_finds_it_unchanged_until_it_releases_it(size: int) -> None:
    """Small frames lie in memory that all connections share, large ones in memory of their own."""

    async def scenario() -> None:
        kept: list[tuple[memoryview, Lease | None]] = []
        answers: list[Completion[Any]] = []

        class Keeping(Host):
            def dispatch(self, connection: Connection, frame: memoryview) -> Any:
                self.seen.append(bytes(frame[:1]))
                if bytes(frame[:1]) != b"k":
                    return [b"<" + bytes(frame[:1]) + b">"]
                kept.append((frame, connection.take_frame()))
                answers.append(Completion())
                return answers[-1]

        host = Keeping(echo)
        first, second = Client(echo, host=host), Client(echo, host=host)
        record = b"k" + bytes(range(1, 100)) * (size // 99)
        await first.send(frame(record) + frame(b"n"))
        await until(lambda: bool(answers))
        assert host.memory.lent > 0
        await second.send(frame(b"x" * 900))
        assert await second.receive(3) == b"<x>"
        view, lease = kept[0]
        assert bytes(view) == record
        assert lease is not None
        lease.release()
        assert host.memory.lent == 0
        answers[0].resolve([b"<k>"])
        assert await first.receive(6) == b"<k><n>"
        first.connection.close()
        second.connection.close()

    run(scenario)


def test_requests_behind_a_kept_frame_that_was_answered_at_once_are_handled() -> None:
    async def scenario() -> None:
        class Keeping(Host):
            def dispatch(self, connection: Connection, frame: memoryview) -> Any:
                lease = connection.take_frame()
                body = bytes(frame)
                if lease is not None:
                    lease.release()
                return [b"<" + body + b">"]

        host = Keeping(echo)
        client = Client(echo, host=host)
        await client.send(frame(b"a") + frame(b"b") + frame(b"c") + frame(b"d"))
        assert await client.receive(12) == b"<a><b><c><d>"
        assert host.memory.lent == 0
        client.connection.close()

    run(scenario)
