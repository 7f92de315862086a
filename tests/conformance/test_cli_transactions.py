"""`ottla transaction` shows transactions, and ends those that hold up readers."""

from __future__ import annotations

import time

import pytest

import ottla.testing
from conformance.clients.transactions import ConfluentTransactions, Fenced
from conformance.command import Command
from conformance.test_transactions import read
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, encode_batch
from ottla.protocol_client.wire import Wire

DEADLINE = 60.0


@pytest.fixture
def command(bootstrap: str) -> Command:
    return Command(bootstrap)


@pytest.fixture
def transactional_id(name: str) -> str:
    return name.replace("t-", "tx-")


@pytest.fixture
def producer(bootstrap: str, transactional_id: str, topic: str) -> ConfluentTransactions:
    """One with an open transaction."""
    producer = ConfluentTransactions(bootstrap, transactional_id)
    producer.begin()
    producer.send(topic, b"a")
    return producer


def test_list_shows_ids_with_their_state(
    command: Command, producer: ConfluentTransactions, transactional_id: str
) -> None:
    def listed(*options: str) -> list[str]:
        document = command.ok("transaction", "list", "--json", *options).document
        return [each["state"] for each in document if each["transactional_id"] == transactional_id]

    assert listed() == listed("--state", "Ongoing") == ["Ongoing"]
    assert listed("--state", "Empty") == listed("--longer-than", "1h") == []
    producer.commit()
    assert listed("--longer-than", "0s") == []
    lines = command.ok("transaction", "list").lines
    assert lines[0].split() == ["TRANSACTIONAL", "ID", "STATE", "PRODUCER", "COORDINATOR"]
    assert any(line.startswith(transactional_id) for line in lines)


def test_describe_shows_the_partitions_of_a_transaction(
    command: Command, producer: ConfluentTransactions, transactional_id: str, topic: str
) -> None:
    found = command.ok("transaction", "describe", transactional_id, "--json").document
    assert found["state"] == "Ongoing" and found["began_ms"] > 0
    assert found["partitions"] == [{"topic": topic, "partition": 0}]
    lines = command.ok("transaction", "describe", transactional_id).lines
    assert lines[1].split() == ["State", "Ongoing"]
    assert lines[-1].split() == [topic, "0"]


def test_consume_says_what_a_transaction_holds_back(
    command: Command, producer: ConfluentTransactions, topic: str
) -> None:
    held_back = command.ok("consume", topic)
    assert (held_back.out, "has more from offset 0 on" in held_back.err) == ("", True)
    assert command.ok("consume", topic, "--isolation", "uncommitted").lines == ["a"]
    producer.commit()
    assert (command.ok("consume", topic).lines, command.ok("consume", topic).err) == (["a"], "")


def test_an_id_that_is_not_there_is_refused(command: Command, transactional_id: str) -> None:
    for arguments in (["describe", transactional_id], ["abort", transactional_id, "--yes"]):
        result = command("transaction", *arguments)
        assert result.code == 1
        assert f"there is no transactional id '{transactional_id}'" in result.err


def test_abort_ends_a_transaction_and_fences_its_producer(
    bootstrap: str, command: Command, producer: ConfluentTransactions, transactional_id: str, topic: str
) -> None:
    refused = command("transaction", "abort", transactional_id)
    assert (refused.code, "aborting needs --yes" in refused.err) == (2, True)
    assert command.ok("transaction", "abort", transactional_id, "--yes").out == "aborted\n"
    with pytest.raises(Fenced):
        producer.send(topic, b"b")
        producer.commit()
    other = ConfluentTransactions(bootstrap, f"{transactional_id}-2")
    other.begin()
    other.send(topic, b"c")
    other.commit()
    deadline = time.monotonic() + DEADLINE
    while read(bootstrap, topic) != [b"c"]:
        assert time.monotonic() < deadline


def test_a_transaction_that_its_coordinator_knows_does_not_hang(
    command: Command, producer: ConfluentTransactions, topic: str
) -> None:
    assert command.ok("transaction", "hanging", "--topic", topic, "--silent", "0s", "--json").document == []


def test_a_hanging_transaction_is_found_and_ended() -> None:
    """Leaders begin none, unless they are told to ask no coordinator; data of other brokers may hold some."""
    settings = {"transaction.partition.verification.enable": False}
    with ottla.testing.broker(topics=["t"], settings=settings) as broker:
        batch = encode_batch(
            [Record(0, 1_000, None, b"v", [])],
            producer_id=4711,
            producer_epoch=2,
            base_sequence=0,
            transactional=True,
        )
        data = PartitionProduceData(index=0, records=memoryview(batch))
        topics = [TopicProduceData(name="t", partition_data=[data])]
        request = ProduceRequest(transactional_id="lost", acks=-1, timeout_ms=10_000, topic_data=topics)
        with Wire(broker.bootstrap_servers) as wire:
            assert not wire.call(request, 9).responses[0].partition_responses[0].error_code
        command = Command(broker.bootstrap_servers)
        (found,) = command.ok("transaction", "hanging", "--json").document
        assert (found["topic"], found["partition"], found["start_offset"]) == ("t", 0, 0)
        assert (found["producer_id"], found["producer_epoch"]) == (4711, 2)
        wrong = command("transaction", "abort", "--partition", "t:0", "--start", "5", "--yes")
        assert (wrong.code, "start at: 0" in wrong.err) == (1, True)
        command.ok("transaction", "abort", "--partition", "t:0", "--start", "0", "--yes")
        assert command.ok("transaction", "hanging", "--json").document == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["abort"],
        ["abort", "x", "--partition", "t:0", "--start", "0"],
        ["abort", "--partition", "t:0"],
        ["abort", "--partition", "t", "--start", "0"],
        ["hanging", "--silent", "soon"],
        ["list", "--state", "no-such-state"],
    ],
)
def test_what_makes_no_sense_is_refused(command: Command, arguments: list[str]) -> None:
    result = command("transaction", *arguments)
    assert result.code == 2, result
    assert result.err.startswith("error: ")


def test_a_state_that_there_is_not_is_refused_with_those_there_are(command: Command) -> None:
    assert "PrepareCommit" in command("transaction", "list", "--state", "no-such-state").err
