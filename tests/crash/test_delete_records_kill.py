"""A broker is killed right after it answered DeleteRecords: what was deleted stays deleted."""

from __future__ import annotations

from pathlib import Path

from broker_process import BrokerProcess
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from raw_client import RawClient

_PARTITIONS = 3
_VERSION = 2


def _delete(client: RawClient, offset: int) -> list[tuple[int, int]]:
    """Delete all before `offset` in every partition; the error and the low watermark of each."""
    partitions = [DeleteRecordsPartition(partition_index=n, offset=offset) for n in range(_PARTITIONS)]
    topics = [DeleteRecordsTopic(name="t", partitions=partitions)]
    answer = client.call(DeleteRecordsRequest(topics=topics, timeout_ms=5_000), _VERSION)
    return [(each.error_code, each.low_watermark) for each in answer.topics[0].partitions]


def test_deleted_records_are_gone_after_the_broker_was_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        topic = CreatableTopic(name="t", num_partitions=_PARTITIONS, replication_factor=1)
        with RawClient(broker.bootstrap_servers) as client:
            assert client.call(CreateTopicsRequest(topics=[topic]), 5).topics[0].error_code == 0
        for before, wanted, start in ((0, 5, 5), (10, 15, 15), (20, -1, 30)):
            with RawClient(broker.bootstrap_servers) as client:
                for offset in range(before, before + 10):
                    for n in range(_PARTITIONS):
                        assert client.produce("t", b"v", partition=n).base_offset == offset
                assert _delete(client, wanted) == [(0, start)] * _PARTITIONS
            broker.kill()
            broker.start()
            with RawClient(broker.bootstrap_servers) as client:
                found = [client.fetch("t", start, partition=n, max_wait_ms=0) for n in range(_PARTITIONS)]
            assert [(f.error_code, f.log_start_offset, f.high_watermark) for f in found] == [
                (0, start, before + 10)
            ] * _PARTITIONS
