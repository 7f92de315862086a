"""The small files of a data folder."""

import pytest

from ottla.storage import checkpoints
from ottla.storage.leader_epochs import CorruptCheckpoint


def test_offset_checkpoints_are_kafkas() -> None:
    offsets = {("a-b", 0): 5, ("c", 12): 2**40}
    data = checkpoints.encode_offsets(offsets)
    assert data == b"0\n2\na-b 0 5\nc 12 1099511627776\n"
    assert checkpoints.decode_offsets(data) == offsets


def test_an_empty_file_is_a_checkpoint_without_offsets_as_kafka_makes_it() -> None:
    assert checkpoints.decode_offsets(b"") == {}


@pytest.mark.parametrize("data", [b"0\n1\n", b"2\n0\n", b"0\n1\nt 0\n", b"0\n1\nt x 5\n", b"0\n2\nt 0 5\n"])
def test_a_damaged_offset_checkpoint_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        checkpoints.decode_offsets(data)


def test_topic_ids_are_written_as_kafka_writes_them() -> None:
    topic_id = bytes([0xFB, 0xEF, 0xFE, *range(13)])
    text = checkpoints.encode_topic_id(topic_id)
    assert text == "--_-AAECAwQFBgcICQoLDA"
    assert checkpoints.decode_topic_id(text) == topic_id


def test_partition_metadata_holds_the_topic_id() -> None:
    data = checkpoints.encode_partition_metadata(bytes(range(16)))
    assert data == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert checkpoints.decode_partition_metadata(data) == bytes(range(16))


@pytest.mark.parametrize(
    "data", [b"", b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw", b"version: 0\ntopic_id: AAE", b"x"]
)
def test_damaged_partition_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        checkpoints.decode_partition_metadata(data)
