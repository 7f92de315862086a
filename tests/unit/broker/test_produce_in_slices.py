"""A Produce that has kept the loop for long is finished in slices, with the same outcome."""

from __future__ import annotations

import threading
from importlib import import_module

import pytest

import ottla.testing
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, decode_batch, encode_batch
from raw_client import RawClient

_PARTITIONS = 300
_FOREVER = 60.0


@pytest.mark.parametrize("size", [1, 500])
def test_the_rest_of_a_slow_request_is_appended_later(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small frames share their memory with what others send meanwhile, large ones have their own."""
    # Every request is too slow, and every slice is as short as it can be.
    monkeypatch.setattr(import_module("ottla.broker.handlers.produce"), "_AT_ONCE", -_FOREVER)
    monkeypatch.setattr(import_module("ottla.broker.request_scheduler"), "AT_ONCE", 1e-9)
    monkeypatch.setattr(import_module("ottla.broker.request_scheduler"), "LONGEST_SLICE", 1e-9)
    values = [b"%d:" % n + bytes(size) for n in range(_PARTITIONS)]
    batches = [encode_batch([Record(0, 1_700_000_000_000, None, value, [])]) for value in values]
    entries = [PartitionProduceData(index=n, records=batch) for n, batch in enumerate(batches)]
    request = ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name="t", partition_data=entries)]
    )
    over = threading.Event()

    def flood() -> None:
        with RawClient(address) as other:
            while not over.is_set():
                other.call(ApiVersionsRequest(client_software_name="x" * 30_000), 3)

    with ottla.testing.broker(topics={"t": _PARTITIONS}) as broker:
        address = broker.bootstrap_servers
        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            with RawClient(address) as client:
                answer = client.call(request, 9)
        finally:
            over.set()
            flooding.join()
        told = answer.responses[0].partition_responses
        assert [(each.index, each.error_code, each.base_offset) for each in told] == [
            (n, 0, 0) for n in range(_PARTITIONS)
        ]
        with RawClient(address) as client:
            for n, value in enumerate(values):
                (record,) = decode_batch(client.fetch("t", 0, partition=n).records, max_size=1 << 20)
                assert record.value == value
