"""Kafka's own tool for transactions shows those of a broker, finds one that hangs, and aborts it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.peers.maven import PeerMissing, require

import ottla.testing
from conformance.clients.transactions import ConfluentTransactions
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, encode_batch
from ottla.protocol_client.transactions import open_transactions
from ottla.protocol_client.wire import Wire

KAFKA = Path(__file__).parents[2] / "bench" / "peers" / "kafka.py"
COMMAND = "org.apache.kafka.tools.TransactionsCommand"
PRODUCER = 4711

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("clients")]


@pytest.fixture(scope="module")
def bootstrap_servers() -> Iterator[str]:
    """A broker whose leaders ask no coordinator, so that a transaction can hang."""
    try:
        require("java")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    settings = {"transaction.partition.verification.enable": False}
    with ottla.testing.broker(topics={"t": 2}, settings=settings) as broker:
        yield broker.bootstrap_servers


def tool(bootstrap: str, *arguments: str) -> list[list[str]]:
    """The words of each line that the tool prints; it has to succeed."""
    full = [sys.executable, str(KAFKA), "tool", COMMAND, "--bootstrap-server", bootstrap, *arguments]
    done = subprocess.run(full, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return [line.split() for line in done.stdout.splitlines()]


def test_a_running_transaction_is_listed_and_described(bootstrap_servers: str) -> None:
    producer = ConfluentTransactions(bootstrap_servers, "billing-0")
    producer.begin()
    producer.send("t", b"a", 1)
    listed = {words[0]: words for words in tool(bootstrap_servers, "list")}
    assert listed["billing-0"][3] == "Ongoing"
    described = tool(bootstrap_servers, "describe", "--transactional-id", "billing-0")
    assert described[-1][1] == "billing-0" and described[-1][-1] == "t-1"
    producer.commit()


def test_a_hanging_transaction_is_found_and_aborted(bootstrap_servers: str) -> None:
    batch = encode_batch(
        [Record(0, 1_000, None, b"v", [])],
        producer_id=PRODUCER,
        producer_epoch=2,
        base_sequence=0,
        transactional=True,
    )
    data = PartitionProduceData(index=0, records=memoryview(batch))
    topics = [TopicProduceData(name="t", partition_data=[data])]
    request = ProduceRequest(transactional_id="lost", acks=-1, timeout_ms=10_000, topic_data=topics)
    with Wire(bootstrap_servers) as wire:
        assert not wire.call(request, 9).responses[0].partition_responses[0].error_code
        found = tool(bootstrap_servers, "find-hanging", "--topic", "t")
        assert found[-1][:3] == ["t", "0", str(PRODUCER)]
        tool(bootstrap_servers, "abort", "--topic", "t", "--partition", "0", "--start-offset", "0")
        assert open_transactions(wire, ["t"]) == []
