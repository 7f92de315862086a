"""A batch that is opened in a thread is appended to the topic it was sent to, or to none."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import ottla.testing
from ottla.broker.inspections import Inspections
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, encode_batch
from raw_client import RawClient

_PATIENCE = 30.0
_RECORDS = 20_000
"""So many are opened beside the event loop."""


class _HeldInspections:
    """Opens batches, and holds back the results until `release` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.release = threading.Event()
        prepare = Inspections.prepare

        async def held(inspections: Inspections, *arguments: Any) -> Any:
            self.begun.set()
            prepared = await prepare(inspections, *arguments)
            await asyncio.get_running_loop().run_in_executor(None, self.release.wait, _PATIENCE)
            return prepared

        monkeypatch.setattr(Inspections, "prepare", held)


def _create(client: RawClient) -> bytes:
    """Create the topic; its id."""
    compacted = CreatableTopicConfig(name="cleanup.policy", value="compact")
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=[compacted])
    assert client.call(CreateTopicsRequest(topics=[topic]), 5).topics[0].error_code == 0
    answer = client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)
    topic_id: bytes = answer.topics[0].topic_id
    return topic_id


def _delete(client: RawClient) -> None:
    answer = client.call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000), 5)
    assert answer.responses[0].error_code == 0


@pytest.mark.parametrize(
    ("version", "refused_with"),
    [(13, ErrorCode.UNKNOWN_TOPIC_ID), (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
    ids=["by-id", "by-name"],
)
@pytest.mark.parametrize("made_again", [True, False])
def test_a_batch_is_refused_when_its_topic_was_deleted_while_it_was_opened(
    version: int, refused_with: ErrorCode, made_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspections = _HeldInspections(monkeypatch)
    records = encode_batch([Record(n, 1_700_000_000_000, b"k", b"v", []) for n in range(_RECORDS)])
    with (
        ottla.testing.broker() as broker,
        RawClient(broker.bootstrap_servers) as client,
        RawClient(broker.bootstrap_servers) as producer,
    ):
        old_id = _create(client)
        data = [PartitionProduceData(index=0, records=records)]
        topic = (
            TopicProduceData(topic_id=old_id, partition_data=data)
            if version == 13
            else TopicProduceData(name="t", partition_data=data)
        )
        producer.send(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), version)
        assert inspections.begun.wait(_PATIENCE)
        _delete(client)
        if made_again:
            assert _create(client) != old_id
        inspections.release.set()
        answer = producer.receive().responses[0].partition_responses[0]
        assert answer.error_code == refused_with
        if made_again:
            assert client.fetch("t", 0).high_watermark == 0


def test_a_batch_is_appended_after_it_was_opened_when_its_topic_is_still_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inspections = _HeldInspections(monkeypatch)
    records = encode_batch([Record(n, 1_700_000_000_000, b"k", b"v", []) for n in range(_RECORDS)])
    with ottla.testing.broker() as broker, RawClient(broker.bootstrap_servers) as client:
        topic_id = _create(client)
        data = [PartitionProduceData(index=0, records=records)]
        topics = [TopicProduceData(topic_id=topic_id, partition_data=data)]
        client.send(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), 13)
        assert inspections.begun.wait(_PATIENCE)
        inspections.release.set()
        assert client.receive().responses[0].partition_responses[0].error_code == 0
        assert client.fetch("t", 0).high_watermark == _RECORDS


def test_after_a_disconnect_only_batches_with_acks_0_are_inspected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch whose response was not received will be sent again; with acks=0 it will not."""
    inspections = _HeldInspections(monkeypatch)
    with ottla.testing.broker() as broker, RawClient(broker.bootstrap_servers) as client:
        _create(client)
        with RawClient(broker.bootstrap_servers) as producer:
            frames = []
            for acks, count in ((0, 500), (-1, 600), (0, 700)):
                records = encode_batch([Record(n, 1_700_000_000_000, b"k", b"v", []) for n in range(count)])
                data = [PartitionProduceData(index=0, records=records)]
                topics = [TopicProduceData(name="t", partition_data=data)]
                frames.append(
                    producer.frame(ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics), 9)
                )
            producer.socket.sendall(b"".join(frames))
            assert inspections.begun.wait(_PATIENCE)
        assert broker.broker is not None
        server = broker.broker._server
        deadline = time.monotonic() + _PATIENCE
        while not any(connection._client_gone for connection in list(server.connections)):
            assert time.monotonic() < deadline, "the broker did not see that the client has gone"
            time.sleep(0.001)
        inspections.release.set()
        while (end := client.fetch("t", 0, max_bytes=1, max_wait_ms=10).high_watermark) < 1_200:
            assert time.monotonic() < deadline, f"only {end} records were appended"
        assert end == 1_200
