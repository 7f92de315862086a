"""The consumer on an event loop: the same promises, other tasks go on, and cancelling loses nothing."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from confluent_kafka import Message

import ottla
from client.consuming import PATIENCE, fill, group, numbers, until
from ottla.client import AsyncConsumer, ClosedError, TopicPartition


def run(program: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(program, PATIENCE))


@pytest.fixture
def single(servers: str, make_topic: Callable[[int], str]) -> str:
    topic = make_topic(1)
    fill(servers, topic, numbers(0, 10))
    return topic


def test_records_come_one_by_one_and_in_batches(servers: str, single: str) -> None:
    async def program() -> None:
        place = TopicPartition(single, 0)
        async with AsyncConsumer(single, bootstrap_servers=servers, group_id=group()) as consumer:
            found = []
            async for record in consumer:
                found.append(record.value)
                if len(found) == 4:
                    break
            assert found == numbers(0, 4)
            async for batch in consumer.batches(4):
                found += [each.value for each in batch]
                if len(found) == 10:
                    break
            assert found == numbers(0, 10)
            assert await consumer.poll(0.01) is None
            assert await consumer.position(place) == 10
            assert await consumer.lag() == {place: 0}
            await consumer.commit()
            assert await consumer.committed() == {place: 10}
            await consumer.seek(place, 8)
            assert [each.offset for each in await consumer.fetch()] == [8, 9]
            await consumer.seek_to_beginning()
            first = await consumer.poll()
            assert first is not None
            assert first.offset == 0
            await consumer.seek_to_end()
            await consumer.pause()
            await consumer.resume(place)
            assert await consumer.fetch(timeout=0.01) == []
            await consumer.seek_to_time(0)
            assert len(await consumer.fetch(5)) == 5
            assert await consumer.assignment() == {place}

    run(program())


@pytest.mark.parametrize("way", ["fetch", "loop"])
def test_tasks_that_share_a_consumer_share_its_records(servers: str, single: str, way: str) -> None:
    found: list[int] = []

    async def read(consumer: AsyncConsumer) -> None:
        if way == "fetch":
            while len(found) < 10:
                found.extend(each.offset for each in await consumer.fetch(2, timeout=0.2))
                await asyncio.sleep(0)
            return
        async for record in consumer:
            found.append(record.offset)
            await asyncio.sleep(0)
            if len(found) >= 10:
                consumer.stop()

    async def program() -> None:
        async with AsyncConsumer(single, bootstrap_servers=servers, group_id=group()) as consumer:
            await asyncio.gather(*(read(consumer) for _ in range(3)))

    run(program())
    assert sorted(found) == list(range(10))


def test_a_call_that_outlives_its_loop_does_not_hold_up_the_next_loop(servers: str, single: str) -> None:
    consumer = AsyncConsumer(single, bootstrap_servers=servers, group_id=group())

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer._call(time.sleep, 0.3), 0.05)

    async def go_on() -> None:
        async with consumer:
            assert [each.offset for each in await consumer.fetch(10)][:1] == [0]
            assert not consumer._calls

    run(leave())
    run(go_on())


def test_commits_and_polls_inside_the_loop_repeat_no_record(servers: str, single: str) -> None:
    async def program() -> None:
        place = TopicPartition(single, 0)
        found = []
        async with AsyncConsumer(
            single, bootstrap_servers=servers, group_id=group(), commit="manual"
        ) as consumer:
            async for record in consumer:
                found.append(record.offset)
                if record.offset == 2:
                    found += [each.offset for each in await consumer.fetch(2)]
                await consumer.commit()
                assert await consumer.committed() == {place: found[-1] + 1}
                if len(found) == 7:
                    break
        assert found == [0, 1, 2, 3, 4, 5, 6]

    run(program())


def test_a_seek_of_another_task_does_not_end_batches(
    servers: str, single: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program() -> None:
        place = TopicPartition(single, 0)
        async with AsyncConsumer(single, bootstrap_servers=servers, group_id=group()) as consumer:
            advance = consumer._advance
            seeks = [8]

            async def advance_and_seek(limit: int, timeout: float | None) -> bool:
                found = await advance(limit, timeout)
                if seeks:
                    await consumer.seek(place, seeks.pop())  # as another task might, just now
                return found

            monkeypatch.setattr(consumer, "_advance", advance_and_seek)
            async for batch in consumer.batches():
                assert [each.offset for each in batch] == [8, 9]
                break
            else:
                pytest.fail("the batches ended")

    run(program())


@pytest.mark.parametrize("form", ["records", "batches"])
def test_seeks_of_another_task_skip_no_record(
    servers: str, make_topic: Callable[[int], str], form: str
) -> None:
    """Each record follows the one before it, or is the first one after a seek."""
    count, topic, targets = 2_000, make_topic(1), [3, 700, 1_300]
    fill(servers, topic, numbers(0, count))

    async def program() -> None:
        place, sought = TopicPartition(topic, 0), 0
        async with AsyncConsumer(bootstrap_servers=servers) as consumer:
            await consumer.assign({place: 0})

            async def seek() -> None:
                nonlocal sought
                while sought < 40:
                    await consumer.seek(place, targets[sought % 3])
                    sought += 1

            async def offsets() -> AsyncIterator[int]:
                if form == "records":
                    async for record in consumer:
                        yield record.offset
                        if record.offset % 5 == 0:
                            await asyncio.sleep(0)
                async for batch in consumer.batches(7):
                    for each in batch:
                        yield each.offset
                    await asyncio.sleep(0)

            seeking, last = asyncio.create_task(seek()), -1
            async for offset in offsets():
                assert offset == last + 1 or offset in targets
                last = offset
                if seeking.done() and last == count - 1:
                    break
            await seeking

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        run(program())
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize(("delivery", "committed"), [("at-most-once", 4), ("at-least-once", -1)])
def test_at_most_once_reads_no_further_than_it_hands_out(
    servers: str, single: str, delivery: str, committed: int
) -> None:
    """It commits what it reads before it hands it out: a crash would lose what is read ahead."""
    name, place = group(), TopicPartition(single, 0)

    async def program() -> None:
        async with AsyncConsumer(
            single, bootstrap_servers=servers, group_id=name, delivery=delivery
        ) as consumer:
            assert len(await consumer.fetch(4)) == 4
            assert (await consumer.committed()).get(place, -1) == committed

    run(program())


def test_other_tasks_go_on_while_a_consumer_waits(servers: str, single: str) -> None:
    async def program() -> None:
        async with AsyncConsumer(bootstrap_servers=servers) as consumer:
            await consumer.assign({TopicPartition(single, 0): 10})
            waiting = asyncio.create_task(consumer.poll())
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not waiting.done()
            fill(servers, single, [b"new"])
            record = await waiting
            assert record is not None
            assert record.value == b"new"

    run(program())


def test_cancelling_loses_no_record_and_finishes_none(servers: str, single: str) -> None:
    name = group()

    async def program() -> None:
        found = []
        async with AsyncConsumer(bootstrap_servers=servers, group_id=name) as consumer:
            await consumer.subscribe(single)

            async def read() -> None:
                async for record in consumer:
                    found.append(record.offset)
                    if record.offset == 3:
                        await asyncio.Event().wait()

            reading = asyncio.create_task(read())
            while found[-1:] != [3]:
                await asyncio.sleep(0.01)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        async with AsyncConsumer(single, bootstrap_servers=servers, group_id=name) as consumer:
            again = await consumer.poll()
            assert again is not None
            assert again.offset == 3, "it was at work, so it comes again"
            for _ in range(3):  # waits that are cancelled in the middle, from when there is nothing to read
                with pytest.raises(asyncio.TimeoutError):
                    async with asyncio.timeout(0.02):
                        while True:
                            if (record := await consumer.poll()) is not None:
                                found.append(record.offset)
            fill(servers, single, [b"new"])
            last = await consumer.poll()
            assert last is not None
            assert last.offset == 10
            assert found == list(range(10))
            consumer.stop()
            assert [record async for record in consumer] == []

    run(program())


def test_a_closed_consumer_says_so(servers: str, single: str) -> None:
    async def program() -> None:
        consumer = AsyncConsumer(single, bootstrap_servers=servers, group_id=group())
        assert await consumer.poll() is not None
        await consumer.close()
        for use in (consumer.poll(), consumer.fetch(5), consumer.commit(), consumer.seek_to_beginning()):
            with pytest.raises(ClosedError):
                await use
        await consumer.close()

    run(program())


def test_its_positions_are_part_of_a_transaction(
    servers: str, single: str, make_topic: Callable[[int], str], read_all: Callable[[str], list[Message]]
) -> None:
    name, target, place = group(), make_topic(1), TopicPartition(single, 0)

    async def program() -> None:
        async with (
            ottla.Producer(servers, transactional_id=name) as producer,
            AsyncConsumer(
                single, bootstrap_servers=servers, group_id=name, delivery="exactly-once"
            ) as consumer,
        ):
            with pytest.raises(ZeroDivisionError):
                async for record in consumer:
                    async with producer.transaction(consumer):
                        await producer.asubmit(target, record.value)
                        raise ZeroDivisionError
            async for batch in consumer.batches(4):
                async with producer.transaction(consumer):
                    for record in batch:
                        await producer.asubmit(target, record.value)
                assert await consumer.committed() == {place: batch[-1].offset + 1}
                if batch[-1].offset == 9:
                    break

    run(program())
    assert [each.value() for each in read_all(target)] == numbers(0, 10)


def test_a_task_that_is_cancelled_while_it_closes_still_leaves_the_group(servers: str, single: str) -> None:
    name = group()
    consumer = AsyncConsumer(single, bootstrap_servers=servers, group_id=name)

    async def read() -> None:
        async with consumer:
            async for _ in consumer:
                pass

    async def program() -> None:
        task = asyncio.ensure_future(read())
        while await consumer.position(TopicPartition(single, 0)) != 10:
            await asyncio.sleep(0.01)
        for _ in range(2):  # the second time it waits for the thread, which waits for records
            task.cancel()
            await asyncio.sleep(0.001)
        with pytest.raises(asyncio.CancelledError):
            await task

    run(program())
    with ottla.Admin(servers) as admin:
        until(lambda: not admin.describe_groups(name)[name].members, "departure")
    assert consumer.consumer._closed
