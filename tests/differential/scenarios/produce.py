"""Produce: what is taken, what is refused and with which words, and what then stands in the log."""

from __future__ import annotations

import struct
from typing import Any

from differential import forge
from differential.peer import LATEST, SILENCE, Closed, Peer
from differential.scenario import Answers, scenario
from ottla.protocol.batches import headers
from ottla.protocol.compression import Codec, compress
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, encode_batch

MADE_UP_ID = bytes(15) + b"\x07"


def _log(peer: Peer, topic: str, partition: int = 0) -> Any:
    """All that a consumer would get from a partition."""
    return peer.fetch(topic, {partition: 0}, 12, max_wait_ms=0).responses[0].partitions[0]


@scenario(ProduceRequest)
def acks_of_every_kind(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    for acks in (1, -1, 2, -2, 32767):
        yield f"acks {acks}", peer.produce(topic, peer.batch(2), version, acks=acks)
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def acks_of_zero_get_no_answer(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    with peer.connection() as connection:
        connection.send(peer.produce_request(topic, peer.batch(2), acks=0), version)
        following = connection.send(peer.produce_request(topic, peer.batch(1), acks=1), version)
        received = connection.receive(ProduceRequest.api_key, version)
        assert not isinstance(received, Closed)
        answered, answer = received
        yield "first", SILENCE if answered == following else answered
        yield "second", answer
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def acks_of_zero_close_the_connection_on_an_error(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    bad = forge.batch(forge.record(), now=peer.now, crc_off_by=1)
    with peer.connection() as connection:
        connection.send(peer.produce_request(topic, bad, acks=0), version)
        yield "bad batch", connection.receive(ProduceRequest.api_key, version)
    with peer.connection() as connection:
        connection.send(peer.produce_request(topic, {7: peer.batch()}, acks=0), version)
        yield "unknown partition", connection.receive(ProduceRequest.api_key, version)


@scenario(ProduceRequest)
def unknown_topics_and_partitions(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    yield "partition", peer.produce(topic, {0: peer.batch(), 2: peer.batch(), -1: peer.batch()}, version)
    yield "topic", peer.produce(peer.named("nobody"), peer.batch(), version)
    for name, made_up in ((topic, MADE_UP_ID), ("", MADE_UP_ID)):
        data = TopicProduceData(
            name=name, topic_id=made_up, partition_data=[PartitionProduceData(index=0, records=peer.batch())]
        )
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data])
        yield f"id with name {bool(name)}", peer.call(request, version)


@scenario(ProduceRequest)
def many_topics_in_one_request(peer: Peer, version: int) -> Answers:
    one, two = peer.topic("one", partitions=3), peer.topic("two")
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            peer.produce_request(two, peer.batch(3)).topic_data[0],
            peer.produce_request(one, {2: peer.batch(), 0: peer.batch(2), 5: peer.batch()}).topic_data[0],
        ],
    )
    yield "answer", peer.call(request, version)
    yield "again", peer.call(request, version)


@scenario(ProduceRequest)
def the_same_topic_and_partition_twice_in_one_request(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    data = peer.produce_request(topic, peer.batch(2)).topic_data[0]
    yield "topic twice", peer.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data, data]), version)
    twice = peer.produce_request(topic, peer.batch(2)).topic_data[0]
    twice.partition_data = [*twice.partition_data, *twice.partition_data]
    yield "partition twice", peer.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[twice]), version)
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def nothing_to_produce(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    yield "no topics", peer.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[]), version)
    yield "no partitions", peer.produce(topic, {}, version)
    yield "empty records", peer.produce(topic, b"", version)
    yield "null records", peer.call_or_silence(peer.produce_request(topic, {0: None}), version)
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def batches_that_are_cut_short(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    good = bytes(peer.batch(2))
    for keep in (1, 11, 12, 16, 17, 20, 60, 61, len(good) - 1):
        yield f"{keep} bytes", peer.produce(topic, good[:keep], version)
    yield "one whole and a cut one", peer.produce(topic, good + good[:-1], version)
    yield "one whole and 5 bytes", peer.produce(topic, good + good[:5], version)
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def batches_with_a_wrong_length(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    good = bytes(peer.batch(2))
    length = len(good) - 12
    for claimed in (-1, 0, 1, 13, 14, 48, 49, length - 1, length + 1, 0x7FFFFFFF, -0x80000000):
        yield (
            f"length {claimed - length:+d}",
            peer.produce(topic, good[:8] + struct.pack(">i", claimed) + good[12:], version),
        )
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def batches_of_other_magic(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    for magic in (0, 1):
        yield f"a message of magic {magic}", peer.produce(topic, forge.legacy_message(magic), version)
    for magic in (0, 1, 3, -1, 127):
        yield (
            f"a batch that says {magic}",
            peer.produce(topic, forge.batch(forge.record(), now=peer.now, magic=magic), version),
        )
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def a_wrong_crc(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", partitions=2)
    bad = forge.batch(forge.record(), now=peer.now, crc_off_by=1)
    yield "alone", peer.produce(topic, bad, version)
    yield "beside a good one", peer.produce(topic, {0: bad, 1: peer.batch()}, version)
    damaged = peer.batch(3)
    damaged[-1] ^= 0xFF
    yield "flipped record bytes", peer.produce(topic, damaged, version)
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def two_batches_in_one_request(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    yield "two", peer.produce(topic, peer.batch(2) + peer.batch(3), version)
    producer = peer.producer_id()
    pair = peer.batch(1, producer_id=producer, producer_epoch=0, base_sequence=0) + peer.batch(
        1, producer_id=producer, producer_epoch=0, base_sequence=1
    )
    yield "two idempotent", peer.produce(topic, pair, version)
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def counts_that_do_not_fit(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    three = b"".join(forge.record(i, i) for i in range(3))
    for count in (-1, 0, 1, 2, 4, 0x7FFFFFFF):
        lying = forge.batch(three, count=3, now=peer.now, record_count=count)
        yield f"record count {count}", peer.produce(topic, lying, version)
    for delta in (-1, 0, 1, 3, 100, 0x7FFFFFFF):
        lying = forge.batch(three, count=3, now=peer.now, last_offset_delta=delta)
        yield f"last offset delta {delta}", peer.produce(topic, lying, version)
    both = forge.batch(three, count=3, now=peer.now, last_offset_delta=4, record_count=5)
    yield "both say 5", peer.produce(topic, both, version)
    both = forge.batch(three, count=3, now=peer.now, last_offset_delta=1, record_count=2)
    yield "both say 2", peer.produce(topic, both, version)
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def records_that_do_not_fit(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    bodies = {
        "deltas 0, 2": forge.record(0) + forge.record(2),
        "deltas 1, 2": forge.record(1) + forge.record(2),
        "deltas 1, 0": forge.record(1) + forge.record(0),
        "deltas 0, 0": forge.record(0) + forge.record(0),
        "record attributes": forge.record(0, attributes=1) + forge.record(1, attributes=0xFF),
        "a record longer than it is": forge.record(0) + forge.record(1, claimed_length=100),
        "a record shorter than it is": forge.record(0, claimed_length=3) + forge.record(1),
        "a record of negative length": forge.record(0) + forge.record(1, claimed_length=-1),
        "more headers than there are": forge.record(0) + forge.record(1, header_count=3),
        "a negative header count": forge.record(0) + forge.record(1, header_count=-1),
        "bytes behind the last record": forge.record(0) + forge.record(1) + b"rest",
        "no bytes": b"",
        "not records at all": b"\xff" * 40,
    }
    for name, body in bodies.items():
        yield name, peer.produce(topic, forge.batch(body, count=2, now=peer.now), version)
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def records_that_do_not_fit_where_the_broker_must_open_them(peer: Peer, version: int) -> Answers:
    """A topic that stores gzip makes the broker open and write anew what it gets."""
    topic = peer.topic("t", configs={"compression.type": "gzip"})
    bodies = {
        "deltas 0, 2": forge.record(0) + forge.record(2),
        "deltas 1, 0": forge.record(1) + forge.record(0),
        "record attributes": forge.record(0, attributes=1) + forge.record(1),
        "a record longer than it is": forge.record(0) + forge.record(1, claimed_length=100),
        "a record shorter than it is": forge.record(0, claimed_length=3) + forge.record(1),
        "a record of negative length": forge.record(0) + forge.record(1, claimed_length=-1),
        "more headers than there are": forge.record(0) + forge.record(1, header_count=3),
        "bytes behind the last record": forge.record(0) + forge.record(1) + b"rest",
        "no bytes": b"",
        "not records at all": b"\xff" * 40,
    }
    for name, body in bodies.items():
        yield name, peer.produce(topic, forge.batch(body, count=2, now=peer.now), version)
    yield "the end", peer.list_offsets(topic, {0: LATEST}, 7)


@scenario(ProduceRequest)
def header_fields_out_of_the_ordinary(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    body = forge.record()
    fields: dict[str, dict[str, int]] = {
        "base offset 5": {"base_offset": 5},
        "base offset -1": {"base_offset": -1},
        "leader epoch 9": {"leader_epoch": 9},
        "unknown attribute bits": {"attributes": 0x7F80},
        "compression 5": {"attributes": 5},
        "compression 7": {"attributes": 7},
        "log append time from a client": {"attributes": 0x08},
        "transactional": {"attributes": 0x10},
        "control": {"attributes": 0x20},
        "control and transactional": {"attributes": 0x30},
        "delete horizon": {"attributes": 0x40},
        "max timestamp lower": {"max_timestamp": peer.now - 10},
        "max timestamp higher": {"max_timestamp": peer.now + 10},
        "max timestamp -1": {"max_timestamp": -1},
        "base timestamp -1": {"base_timestamp": -1, "max_timestamp": -1},
        "base timestamp -2": {"base_timestamp": -2, "max_timestamp": -2},
        "epoch without producer": {"producer_epoch": 3},
        "sequence without producer": {"base_sequence": 3},
        "producer without epoch": {"producer_id": 777_000_001, "base_sequence": 0},
        "producer without sequence": {"producer_id": 777_000_002, "producer_epoch": 0},
        "producer -2": {"producer_id": -2, "producer_epoch": 0, "base_sequence": 0},
        "producer with epoch -2": {"producer_id": 777_000_003, "producer_epoch": -2, "base_sequence": 0},
        "producer with sequence -2": {"producer_id": 777_000_004, "producer_epoch": 0, "base_sequence": -2},
    }
    for name, values in fields.items():
        yield name, peer.produce(topic, forge.batch(body, now=peer.now, **values), version)
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def compressed_batches(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    for codec in Codec:
        yield codec.name, peer.produce(topic, peer.batch(20, size=100, codec=codec), version)
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def compressed_batches_that_are_damaged(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    body = forge.record(0) + forge.record(1)
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        packed = compress(codec, body)
        for name, content in {
            "garbage": b"\xa5" * 40,
            "cut": packed[: len(packed) // 2],
            "empty": b"",
            "not compressed": body,
        }.items():
            bad = forge.batch(content, count=2, now=peer.now, attributes=int(codec))
            yield f"{codec.name} {name}", peer.produce(topic, bad, version)
        wrong = forge.batch(packed, count=3, now=peer.now, attributes=int(codec))
        yield f"{codec.name} wrong count", peer.produce(topic, wrong, version)
        gaps = compress(codec, forge.record(0) + forge.record(2))
        yield (
            f"{codec.name} gap",
            peer.produce(topic, forge.batch(gaps, count=2, now=peer.now, attributes=int(codec)), version),
        )
    yield "the end", peer.list_offsets(topic, {0: LATEST}, 7)


@scenario(ProduceRequest)
def topics_with_a_compression_of_their_own(peer: Peer, version: int) -> Answers:
    for kind in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"):
        topic = peer.topic(kind, configs={"compression.type": kind})
        for codec in Codec:
            yield f"{codec.name} to {kind}", peer.produce(topic, peer.batch(3, size=50, codec=codec), version)
        log = _log(peer, topic)
        # Two compressors of one format need not make the same bytes, so the headers are what is compared.
        yield (
            f"{kind} offsets",
            [
                {
                    "base": h.base_offset,
                    "attributes": h.attributes,
                    "delta": h.last_offset_delta,
                    "count": h.record_count,
                }
                for h in _headers(log.records)
            ],
        )


def _headers(records: Any) -> list[Any]:
    return [header for _, header in headers(memoryview(records))]


@scenario(ProduceRequest)
def records_that_are_too_large(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", configs={"max.message.bytes": "1000"})
    yield "too large", peer.produce(topic, peer.batch(1, size=1000), version)
    exact = peer.batch(1, size=1000 - len(peer.batch(1, size=0)) - 2)
    yield "size", len(exact)
    yield "just below", peer.produce(topic, exact, version)
    yield (
        "compressed below, open above",
        peer.produce(topic, peer.batch(1, size=5000, codec=Codec.GZIP), version),
    )
    yield "two, the second too large", peer.produce(topic, peer.batch(1) + peer.batch(1, size=1000), version)
    segment = peer.topic("segment", configs={"segment.bytes": "1048576", "max.message.bytes": "5000000"})
    yield "larger than a segment", peer.produce(segment, peer.batch(1, size=1_100_000), version)
    broker = peer.topic("broker")
    yield "larger than the broker allows", peer.produce(broker, peer.batch(1, size=1_100_000), version)
    yield (
        "one of three partitions",
        peer.produce(
            peer.topic("three", partitions=3),
            {0: peer.batch(), 1: peer.batch(1, size=1_100_000), 2: peer.batch()},
            version,
        ),
    )


@scenario(ProduceRequest)
def timestamps_out_of_the_ordinary(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    hour = 3_600_000
    times = {
        "zero": 0,
        "one": 1,
        "minus one": -1,
        "a year ago": peer.now - 8760 * hour,
        "in half an hour": peer.now + hour + hour // 2,
        "in a day": peer.now + 25 * hour,
        "in a year": peer.now + 8760 * hour,
        "the largest": 0x7FFFFFFFFFFFFFFF,
    }
    for name, timestamp in times.items():
        records = [Record(0, timestamp, None, b"v", [])]
        yield name, peer.produce(topic, encode_batch(records), version)
    mixed = [Record(0, peer.now, None, b"v", []), Record(1, peer.now + 25 * hour, None, b"v", [])]
    yield "the second of two in a day", peer.produce(topic, encode_batch(mixed), version)
    several = [Record(i, peer.now + 25 * hour, None, b"v", []) for i in range(15)]
    yield "all of fifteen in a day", peer.produce(topic, encode_batch(several), version)
    strict = peer.topic("strict", configs={"message.timestamp.before.max.ms": "1000"})
    yield "before the allowed", peer.produce(strict, encode_batch(mixed[:1]), version)
    yield "before the allowed, gzip", peer.produce(strict, encode_batch(mixed[:1], codec=Codec.GZIP), version)
    yield "in a day, gzip", peer.produce(topic, encode_batch(mixed, codec=Codec.GZIP), version)
    yield "the end", peer.list_offsets(topic, {0: LATEST}, 7)


@scenario()
def times_that_the_header_does_not_tell(peer: Peer, version: int) -> Answers:
    """Base and maximum timestamp of the header against what the records say."""
    day = 86_400_000
    later, earlier = forge.record(0) + forge.record(1, 5000), forge.record(0) + forge.record(1, -5000)
    lies: dict[str, tuple[bytes, dict[str, int]]] = {
        "none": (later, {"max_timestamp": -1}),
        "below none": (later, {"max_timestamp": -2}),
        "zero": (later, {"max_timestamp": 0}),
        "before the base": (later, {"max_timestamp": peer.now - 1}),
        "lower": (later, {"max_timestamp": peer.now}),
        "higher": (later, {"max_timestamp": peer.now + 6000}),
        "far ahead and not true": (later, {"max_timestamp": peer.now + 30 * day}),
        "far ahead and true, without a maximum": (
            forge.record(0) + forge.record(1, 30 * day),
            {"max_timestamp": -1},
        ),
        "base at the end of time": (later, {"base_timestamp": 2**63 - 1}),
        "base before the beginning of time": (later, {"base_timestamp": -(2**63)}),
        "base -1 and records with times": (
            forge.record(0, peer.now) + forge.record(1, 5),
            {"base_timestamp": -1},
        ),
        "neither": (forge.record(0) + forge.record(1), {"base_timestamp": -1, "max_timestamp": -1}),
    }
    for codec in (Codec.NONE, Codec.ZSTD):
        for name, (body, fields) in lies.items():
            topic = peer.topic(f"{codec.name}-{name.replace(' ', '-').replace(',', '')}")
            data = forge.batch(compress(codec, body), count=2, now=peer.now, attributes=int(codec), **fields)
            yield f"{name}, {codec.name}", peer.produce(topic, data, 9)
            yield (
                f"{name}, {codec.name}, in the log",
                [h.max_timestamp for h in _headers(_log(peer, topic).records)],
            )
    strict = peer.topic("strict", configs={"message.timestamp.before.max.ms": str(3_600_000 + 600_000)})
    yield "within", peer.produce(strict, forge.batch(earlier, count=2, now=peer.now), 9)
    late = forge.batch(forge.record(0) + forge.record(1, -3_600_000), count=2, now=peer.now)
    yield "the second is too old", peer.produce(strict, late, 9)


@scenario()
def offset_deltas_in_a_compacted_topic(peer: Peer, version: int) -> Answers:
    for codec in (Codec.NONE, Codec.ZSTD):
        for name, body, count in (
            ("negative", forge.record(-1), 1),
            ("a million", forge.record(1_000_000), 1),
            ("with a gap", forge.record(0) + forge.record(2), 2),
        ):
            topic = peer.topic(
                f"{codec.name}-{name.replace(' ', '-')}", configs={"cleanup.policy": "compact"}
            )
            data = forge.batch(compress(codec, body), count=count, now=peer.now, attributes=int(codec))
            yield f"{name}, {codec.name}", peer.produce(topic, data, 9)


@scenario(ProduceRequest)
def topics_stamped_by_the_broker(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", configs={"message.timestamp.type": "LogAppendTime"})
    for codec in Codec:
        yield codec.name, peer.produce(topic, peer.batch(3, codec=codec), version)
    far = [Record(0, peer.now + 25 * 3_600_000, None, b"v", [])]
    yield "a time in a day", peer.produce(topic, encode_batch(far), version)
    yield "stamped by the client", peer.produce(topic, forge.altered(peer.batch(2), attributes=0x08), version)
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def compacted_topics_want_keys(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t", configs={"cleanup.policy": "compact"})
    records = [
        Record(0, peer.now, b"k", b"v", []),
        Record(1, peer.now, None, b"v", []),
        Record(2, peer.now, b"", None, []),
        Record(3, peer.now, None, None, []),
    ]
    yield "none", peer.produce(topic, encode_batch(records), version)
    yield "gzip", peer.produce(topic, encode_batch(records, codec=Codec.GZIP), version)
    yield "with keys", peer.produce(topic, encode_batch(records[:1]), version)
    both = peer.topic("both", configs={"cleanup.policy": "compact,delete"})
    yield "compact,delete", peer.produce(both, encode_batch(records), version)
    many = [Record(i, peer.now, None, b"v", []) for i in range(15)]
    yield "fifteen without keys", peer.produce(topic, encode_batch(many), version)
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def records_of_every_shape(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    records = [
        Record(0, peer.now, None, None, []),
        Record(1, peer.now + 5, b"", b"", []),
        Record(2, peer.now - 5, b"key", b"x" * 10_000, [("h", b"v"), ("h", None), ("", b"")]),
        Record(3, peer.now, "schlüssel".encode(), b"\x00\xff", [("größe", "✓".encode())]),
    ]
    for codec in Codec:
        yield codec.name, peer.produce(topic, encode_batch(records, codec=codec), version)
    yield "the log", _log(peer, topic)


@scenario(ProduceRequest)
def a_transactional_id_without_a_transaction(peer: Peer, version: int) -> Answers:
    topic = peer.topic("t")
    yield "plain batch", peer.produce(topic, peer.batch(), version, transactional_id="tx")
    producer = peer.producer_id()
    batch = peer.batch(1, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
    yield "transactional batch, no id", peer.produce(topic, batch, version)


@scenario(ProduceRequest)
def a_topic_that_does_not_exist_is_not_created(peer: Peer, version: int) -> Answers:
    name = peer.named("nobody")
    yield "produce", peer.produce(name, peer.batch(), version)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    yield "metadata", peer.call(request, 12).topics
