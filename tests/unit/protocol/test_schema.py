"""What a message is to its user: keywords with Kafka's defaults, equality, a readable repr."""

from __future__ import annotations

import pytest

from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, LeaderIdAndEpoch, PartitionData
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest
from ottla.protocol.schema import ZERO_UUID, Versions


def test_every_field_has_kafkas_default() -> None:
    partition = FetchPartition()
    assert partition.current_leader_epoch == -1
    assert partition.fetch_offset == 0
    assert partition.high_watermark == 2**63 - 1
    assert partition.replica_directory_id == ZERO_UUID
    assert ProduceRequest().transactional_id is None
    assert MetadataRequest().allow_auto_topic_creation is True
    assert CreateTopicsRequest().timeout_ms == 60_000
    assert DescribeTopicPartitionsRequest().cursor is None
    assert PartitionData().current_leader == LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)


def test_fields_are_given_by_keyword_only() -> None:
    assert FetchPartition(partition=3, fetch_offset=7).fetch_offset == 7
    with pytest.raises(TypeError):
        FetchPartition(3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="offset"):
        FetchPartition(offset=7)  # type: ignore[call-arg]


def test_a_message_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        FetchPartition().offset = 7  # type: ignore[attr-defined]


def test_each_message_has_lists_of_its_own() -> None:
    first, second = CreatableTopic(), CreatableTopic()
    first.assignments.append(None)  # type: ignore[arg-type]
    assert second.assignments == []


def test_the_shared_default_of_a_struct_cannot_be_changed() -> None:
    data = PartitionData()
    with pytest.raises(AttributeError, match="assign a new LeaderIdAndEpoch"):
        data.current_leader.leader_id = 5
    data.current_leader = LeaderIdAndEpoch(leader_id=5)
    assert PartitionData().current_leader.leader_id == -1


def test_messages_are_equal_by_their_fields() -> None:
    assert FetchPartition(partition=1) == FetchPartition(partition=1)
    assert FetchPartition(partition=1) != FetchPartition(partition=2)
    assert FetchRequest() != MetadataRequest()
    assert FetchRequest() != 1
    assert LeaderIdAndEpoch() == PartitionData().current_leader
    assert PartitionProduceData(records=b"ab") == PartitionProduceData(records=memoryview(b"ab"))


def test_the_repr_reads_like_the_constructor_and_hides_long_bytes() -> None:
    assert repr(Cursor(topic_name="a", partition_index=1)) == "Cursor(topic_name='a', partition_index=1)"
    assert repr(PartitionData().current_leader) == "LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)"
    assert "records=<1000 bytes>" in repr(PartitionProduceData(records=bytes(1000)))


def test_ranges_of_versions_are_written_as_kafka_writes_them() -> None:
    assert Versions.parse("3-8") == (3, 8)
    assert Versions.parse("7") == (7, 7)
    assert 10_000 in Versions.parse("4+")
    assert 3 not in Versions.parse("4+")
    assert 0 not in Versions.parse(None)
