"""DeleteRecords is answered when the log starts are on disk; waiting requests share the writes."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import ottla.testing
from ottla.broker.log_starts import LogStarts
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.storage.checkpoints import LOG_STARTS, decode_offsets
from ottla.storage.files import RealDisk
from ottla.testing.faulty_disk import FaultyDisk
from raw_client import RawClient

_PATIENCE = 30.0


class _Writes:
    """Blocks each write until it is let go on, or fails it."""

    def __init__(self) -> None:
        self.count = 0
        self.go_on = threading.Semaphore(0)
        self.failure: OSError | None = None

    def __call__(self) -> None:
        self.count += 1
        assert self.go_on.acquire(timeout=_PATIENCE)
        if self.failure is not None:
            raise self.failure

    async def begun(self, count: int) -> None:
        async with asyncio.timeout(_PATIENCE):
            while self.count < count:
                await asyncio.sleep(0.001)


def _log_starts(writes: _Writes) -> LogStarts:
    loop = asyncio.get_running_loop()
    return LogStarts(writes, lambda work: loop.run_in_executor(None, work))


def test_requests_that_arrive_during_a_write_share_the_next_one() -> None:
    async def scenario() -> None:
        writes = _Writes()
        log_starts = _log_starts(writes)
        first = asyncio.create_task(log_starts.written())
        await writes.begun(1)
        others = [asyncio.create_task(log_starts.written()) for _ in range(100)]
        writes.go_on.release()
        await first
        await writes.begun(2)
        assert not any(other.done() for other in others), "their deletion may have come after the first write"
        writes.go_on.release()
        await asyncio.gather(*others)
        assert writes.count == 2

    asyncio.run(scenario())


def test_a_failed_write_fails_all_requests_that_share_it_and_the_next_is_tried() -> None:
    async def scenario() -> None:
        writes = _Writes()
        log_starts = _log_starts(writes)
        writes.failure = OSError(errno.ENOSPC, "no space left on device")
        writes.go_on.release()
        outcomes = await asyncio.gather(*(log_starts.written() for _ in range(3)), return_exceptions=True)
        assert outcomes == [writes.failure] * 3
        writes.failure = None
        writes.go_on.release()
        await log_starts.written()

    asyncio.run(scenario())


def _delete_request(*offsets: int) -> DeleteRecordsRequest:
    partitions = [DeleteRecordsPartition(partition_index=n, offset=o) for n, o in enumerate(offsets)]
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="t", partitions=partitions)], timeout_ms=5_000
    )


def test_a_request_for_many_partitions_writes_once_and_one_that_deletes_nothing_does_not(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(RealDisk())
    written: list[Path] = []
    with (
        ottla.testing.broker(topics={"t": 50}, data=tmp_path, disk=disk) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        for n in range(50):
            client.produce("t", b"v", partition=n)
        disk.before_write = lambda path: written.append(path) if path.name == LOG_STARTS else None
        refused = client.call(_delete_request(*[2] * 50), 2).topics[0].partitions
        assert {each.error_code for each in refused} == {ErrorCode.OFFSET_OUT_OF_RANGE}
        assert not written
        deleted = client.call(_delete_request(*[1] * 50), 2).topics[0].partitions
        assert [(each.error_code, each.low_watermark) for each in deleted] == [(0, 1)] * 50
        assert len(written) == 1
        starts = decode_offsets((tmp_path / LOG_STARTS).read_bytes())
        assert [starts["t", n] for n in range(50)] == [1] * 50


def test_a_deletion_that_cannot_be_written_is_answered_with_a_storage_error(tmp_path: Path) -> None:
    disk = FaultyDisk(RealDisk())
    with (
        ottla.testing.broker(topics={"t": 2}, data=tmp_path, disk=disk) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        client.produce("t", b"v")
        disk.fail("write", errno.ENOSPC, name=LOG_STARTS)
        failed = client.call(_delete_request(1, 7), 2).topics[0].partitions
        assert [(each.error_code, each.low_watermark) for each in failed] == [
            (ErrorCode.KAFKA_STORAGE_ERROR, -1),
            (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        ]
        disk.heal()
        again = client.call(_delete_request(1, 0), 2).topics[0].partitions
        assert [(each.error_code, each.low_watermark) for each in again] == [(0, 1), (0, 0)]
        assert decode_offsets((tmp_path / LOG_STARTS).read_bytes())["t", 0] == 1
