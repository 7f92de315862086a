"""The records of `__consumer_offsets`, byte for byte as Apache Kafka 4.3.1 wrote them."""

from __future__ import annotations

import pytest

from ottla.coordinator.records import (
    KINDS,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_entry,
    encode_entry,
)
from ottla.protocol.codec import Malformed

TOPIC_ID = bytes.fromhex("8dfe362ec91841c5befd3328efe9e029")

WRITTEN_BY_KAFKA = {
    "a commit": (
        b"\x00\x01\x00\x02cg\x00\x01t\x00\x00\x00\x00",
        b"\x00\x04\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x02m\x00\x00\x01\xa1\xde\xd43\x0b\x01\x00\x10"
        + TOPIC_ID,
        OffsetCommitKey(group="cg", topic="t", partition=0),
        OffsetCommitValue(
            offset=5, leader_epoch=0, metadata="m", commit_timestamp=0x1A1DED4330B, topic_id=TOPIC_ID
        ),
    ),
    "a commit that expires": (
        b"\x00\x01\x00\x03ret\x00\x01t\x00\x00\x00\x00",
        b"\x00\x01\x00\x00\x00\x00\x00\x00\x00\x05\x00\x01m\x00\x00\x01\xa1\xde\xd41\xc1\x00\x00\x01\xa1\xde\xd5\xb8a",
        OffsetCommitKey(group="ret", topic="t", partition=0),
        OffsetCommitValue(
            offset=5, metadata="m", commit_timestamp=0x1A1DED431C1, expire_timestamp=0x1A1DED5B861
        ),
    ),
    "an offset that was deleted": (
        b"\x00\x01\x00\x02cg\x00\x01t\x00\x00\x00\x00",
        None,
        OffsetCommitKey(group="cg", topic="t", partition=0),
        None,
    ),
    "a stable group": (
        b"\x00\x02\x00\x02cg",
        b"\x00\x03\x00\x08consumer\x00\x00\x00\x01\x00\x05range\x00\x03m-1\x00\x00\x01\xa1\xde\xd42\xd2\x00\x00\x00\x01"
        b"\x00\x03m-1\xff\xff\x00\x0cdifferential\x00\n/127.0.0.1\x00\x00'\x10\x00\x00'\x10"
        b"\x00\x00\x00\x02su\x00\x00\x00\x02as",
        GroupMetadataKey(group="cg"),
        GroupMetadataValue(
            protocol_type="consumer",
            generation=1,
            protocol="range",
            leader="m-1",
            current_state_timestamp=0x1A1DED432D2,
            members=[
                MemberMetadata(
                    member_id="m-1",
                    client_id="differential",
                    client_host="/127.0.0.1",
                    rebalance_timeout=10_000,
                    session_timeout=10_000,
                    subscription=b"su",
                    assignment=b"as",
                )
            ],
        ),
    ),
    "an empty group": (
        b"\x00\x02\x00\x02cg",
        b"\x00\x03\x00\x08consumer\x00\x00\x00\x03\xff\xff\xff\xff\x00\x00\x01\xa1\xde\xd43l\x00\x00\x00\x00",
        GroupMetadataKey(group="cg"),
        GroupMetadataValue(
            protocol_type="consumer",
            generation=3,
            protocol=None,
            leader=None,
            current_state_timestamp=0x1A1DED4336C,
        ),
    ),
}


@pytest.mark.parametrize("case", WRITTEN_BY_KAFKA.values(), ids=WRITTEN_BY_KAFKA)
def test_records_are_encoded_and_decoded_like_kafka_does(
    case: tuple[bytes, bytes | None, object, object],
) -> None:
    key_bytes, value_bytes, key, value = case
    assert decode_entry(key_bytes, value_bytes) == (key, value)
    assert encode_entry((key, value)) == (key_bytes, value_bytes)


@pytest.mark.parametrize("number", KINDS)
def test_every_record_type_round_trips(number: int) -> None:
    kind = KINDS[number]
    entry = (kind.key(), kind.value())
    assert decode_entry(*encode_entry(entry)) == entry
    assert decode_entry(*encode_entry((kind.key(), None))) == (kind.key(), None)


def test_record_types_of_later_kafka_versions_are_skipped() -> None:
    assert decode_entry(b"\x03\xe7whatever", b"\0\0") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b""), (b"", b""), (b"\0\1", b""), (b"\0\2\0\1g", b"\0"), (b"\0\2\0\1g", b"\0\x09")],
)
def test_invalid_records_are_malformed(key: bytes | None, value: bytes) -> None:
    with pytest.raises(Malformed):
        decode_entry(key, value)
