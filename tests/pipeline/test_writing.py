"""Writing Arrow rows to topics, without Spark: the bytes, the partitions, the order, the troubles."""

from __future__ import annotations

import os
import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ottla.testing
from ottla.pipeline.topics import links, row_batches
from ottla.pipeline.topics.arrow_encoding import BadRow, encode_headers, encode_rows, seal
from ottla.pipeline.topics.links import borrowed
from ottla.pipeline.topics.options import SinkOptions
from ottla.pipeline.topics.partitioning import Sticky, murmur2, partitions_by_key
from ottla.pipeline.topics.writing import NoSuchTopic, Writer, WriteRefused, WriteSummary, write_rows
from ottla.protocol.batches import crc_matches, read_header
from ottla.protocol.compression import Codec
from ottla.protocol.records import Record, decode_batch, validate_records
from ottla.protocol_client import partitioner
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.offsets import spans
from ottla.protocol_client.wire import BrokerUnreachable, Wire
from ottla.testing.in_process import InProcessBroker

calm = settings(deadline=None)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

sizes = st.integers(0, 20) | st.sampled_from([63, 64, 127, 128, 8_191, 8_192, 70_000])
contents = st.none() | sizes.map(lambda n: b"x" * n) | st.binary(max_size=300)
header = st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=10), contents)
headers_of_row = st.none() | st.lists(header, max_size=4)


def header_column(rows: Sequence[Sequence[tuple[str, bytes | None]] | None]) -> Any:
    plain = [None if r is None else [{"key": k, "value": v} for k, v in r] for r in rows]
    return pa.array(plain, HEADERS)


def batch_of(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def read_topic(broker: InProcessBroker, topic: str, partitions: int) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = defaultdict(list)
    with Wire(broker.bootstrap_servers) as wire:
        span = spans(wire, topic, range(partitions))
        consumer = Consumer(
            wire, topic, {p: s.start for p, s in span.items()}, {p: s.end for p, s in span.items()}
        )
        for partition, record in consumer:
            found[partition].append(record)
    return found


def options(broker: InProcessBroker, topic: str | None, **more: Any) -> SinkOptions:
    return SinkOptions(bootstrap=broker.bootstrap_servers, topic=topic, **more)


def write(broker: InProcessBroker, topic: str | None, *batches: Any, **more: Any) -> WriteSummary:
    return write_rows(iter(batches), options(broker, topic, **more))


# -- bytes


@calm
@given(
    st.lists(st.tuples(contents, contents, headers_of_row), min_size=1, max_size=40),
    st.data(),
    st.sampled_from(list(Codec)),
)
def test_encoded_rows_read_back_as_the_plain_decoder_reads_them(
    rows: list[Any], data: st.DataObject, codec: Codec
) -> None:
    cuts = data.draw(st.sets(st.integers(1, len(rows)), max_size=3))
    starts = [0, *sorted(c for c in cuts if c < len(rows))]
    keys, values = (pa.array([r[i] for r in rows], pa.binary()) for i in (0, 1))
    encoded = encode_rows(
        keys, values, encode_headers(header_column([r[2] for r in rows])), starts, codec=codec, timestamp=9
    )
    for records, start, end in zip(encoded, starts, [*starts[1:], len(rows)], strict=True):
        batch = seal(records, 5, 2, 77)
        found = read_header(batch)
        assert crc_matches(batch, 0, found)
        assert (found.size, found.record_count) == (len(batch), end - start)
        assert (found.producer_id, found.producer_epoch, found.base_sequence) == (5, 2, 77)
        assert (found.base_timestamp, found.max_timestamp, found.is_transactional) == (9, 9, False)
        validate_records(batch, max_size=1 << 30)
        expected = [Record(n, 9, k, v, h or []) for n, (k, v, h) in enumerate(rows[start:end])]
        assert decode_batch(batch, max_size=1 << 30) == expected


@calm
@given(st.lists(st.none() | st.integers(0, 2**41), min_size=1, max_size=30), st.data())
def test_records_carry_times_of_their_own(times: list[int | None], data: st.DataObject) -> None:
    cuts = data.draw(st.sets(st.integers(1, len(times)), max_size=3))
    starts = [0, *sorted(c for c in cuts if c < len(times))]
    values = pa.array([b"v"] * len(times), pa.binary())
    encoded = encode_rows(None, values, None, starts, timestamp=9, times=pa.array(times, pa.int64()))
    for records, start, end in zip(encoded, starts, [*starts[1:], len(times)], strict=True):
        batch = seal(records, 5, 2, 77)
        expected = [9 if each is None else each for each in times[start:end]]
        found = read_header(batch)
        assert (found.base_timestamp, found.max_timestamp) == (min(expected), max(expected))
        validate_records(batch, max_size=1 << 30)
        assert [each.timestamp for each in decode_batch(batch, max_size=1 << 30)] == expected


def test_the_timestamp_column_is_the_time_of_records_when_that_is_asked_for(broker: InProcessBroker) -> None:
    broker.create_topic("write-times", 2)
    micros = [1_700_000_000_123_999, None, 1_700_000_100_000_000, 1_600_000_000_000_000]
    rows = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"a", b"b", b"c", b"d"]),
            "partition": pa.array([1, 0, 1, 0], pa.int32()),
            "timestamp": pa.array(micros, pa.timestamp("us", "UTC")),
        }
    )
    write(broker, "write-times", rows, include_timestamp=True)
    write(broker, "write-times", rows)
    found = read_topic(broker, "write-times", 2)
    assert [each.timestamp for each in found[1][:2]] == [1_700_000_000_123, 1_700_000_100_000]
    assert found[0][1].timestamp == 1_600_000_000_000
    now = [found[0][0], *found[0][2:], *found[1][2:]]
    assert all(each.timestamp > 1_750_000_000_000 for each in now)
    early = rows.set_column(2, "timestamp", pa.array([-1] * 4, pa.timestamp("us", "UTC")))
    with pytest.raises(BadRow, match="before 1970"):
        write(broker, "write-times", early, include_timestamp=True)


def test_a_sealed_batch_can_belong_to_a_transaction() -> None:
    (records,) = encode_rows(None, pa.array([b"v"]), None, [0])
    header = read_header(seal(records, 5, 0, 0, transactional=True))
    assert header.is_transactional


def test_slices_of_columns_are_encoded_as_they_look() -> None:
    values = pa.array([b"no", b"a", None, b"c", b"no"]).slice(1, 3)
    headers = header_column([[("n", b"o")], None, [("x", b"1"), ("y", None)], [], [("n", b"o")]]).slice(1, 3)
    (records,) = encode_rows(values, values, encode_headers(headers), [0])
    found = decode_batch(seal(records, -1, -1, -1), max_size=1 << 20)
    assert [(r.key, r.value) for r in found] == [(b"a", b"a"), (None, None), (b"c", b"c")]
    assert [r.headers for r in found] == [[], [("x", b"1"), ("y", None)], []]


def test_a_header_without_a_key_is_refused() -> None:
    headers = pa.array([[{"key": None, "value": b"v"}]], HEADERS)
    with pytest.raises(BadRow, match="key of a header cannot be null"):
        encode_headers(headers)


# -- partitions


@calm
@given(st.lists(st.none() | st.binary(max_size=40) | st.just(b"k" * 300), min_size=1), st.integers(0, 3))
def test_keys_are_hashed_as_every_kafka_client_hashes_them(keys: list[bytes | None], skip: int) -> None:
    column = pa.array([b"skipped"] * skip + keys, pa.binary()).slice(skip)
    expected = [None if k is None else partitioner.murmur2(k) for k in keys]
    assert murmur2(column).to_pylist() == expected
    places = [None if k is None else partitioner.partition_of(k, 7) for k in keys]
    assert partitions_by_key(column, 7).to_pylist() == places


@calm
@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 100))
def test_rows_without_a_key_stay_with_a_partition_for_a_stretch_and_none_is_left_out(
    row_sizes: list[int], stretch: int
) -> None:
    sticky = Sticky([0, 1, 2], stretch)
    totals = [sum(row_sizes[: n + 1]) for n in range(len(row_sizes))]
    runs = sticky.choose(totals)
    assert sum(count for _, count in runs) == len(row_sizes)
    at = 0
    for (place, count), (following, _) in pairwise(runs):
        assert following == (place + 1) % 3
        assert sum(row_sizes[at : at + count]) >= stretch > sum(row_sizes[at : at + count - 1])
        at += count


@pytest.mark.parametrize("codec", [c.label for c in Codec])
def test_rows_arrive_in_their_partitions_in_order(broker: InProcessBroker, codec: str) -> None:
    topic = f"write-{codec}"
    broker.create_topic(topic, 3)
    keys = [None if n % 5 == 0 else b"key-%d" % (n % 17) for n in range(4_000)]
    wishes = [2 if n % 11 == 0 else None for n in range(4_000)]
    rows = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array([b"%d" % n for n in range(4_000)], pa.binary()),
        "partition": pa.array(wishes, pa.int32()),
        "headers": header_column([[("n", b"%d" % n)] if n % 2 else None for n in range(4_000)]),
    }
    summary = write(broker, topic, batch_of(**rows), compression=codec, batch_bytes=3_000)
    assert summary.records == 4_000
    found = read_topic(broker, topic, 3)
    assert {p: (0, len(r) - 1) for p, r in found.items()} == {p: o for (_, p), o in summary.offsets.items()}
    seen = []
    for partition, records in found.items():
        numbers = [int(r.value or b"") for r in records]
        seen += numbers
        assert numbers == sorted(numbers)
        for record, n in zip(records, numbers, strict=True):
            assert record.key == keys[n]
            assert record.headers == ([("n", b"%d" % n)] if n % 2 else [])
            if wishes[n] is not None:
                assert partition == 2
            elif keys[n] is not None:
                assert partition == partitioner.partition_of(keys[n] or b"", 3)
    assert sorted(seen) == list(range(4_000))
    free = {p for p, records in found.items() for r in records if r.key is None}
    assert free == {0, 1, 2}


def test_the_topic_column_chooses_the_topic_and_the_option_wins(broker: InProcessBroker) -> None:
    for name, count in (("write-a", 1), ("write-b", 4)):
        broker.create_topic(name, count)
    rows = batch_of(
        topic=["write-a" if n % 3 else "write-b" for n in range(300)],
        key=[f"k{n % 9}" for n in range(300)],
        value=[str(n) for n in range(300)],
        other=list(range(300)),
    )
    assert write(broker, None, rows).records == 300
    a, b = read_topic(broker, "write-a", 1), read_topic(broker, "write-b", 4)
    assert [int(r.value or b"") for r in a[0]] == [n for n in range(300) if n % 3]
    assert sum(map(len, b.values())) == 100
    for partition, records in b.items():
        assert all(partitioner.partition_of(r.key or b"", 4) == partition for r in records)
    write(broker, "write-a", rows)
    assert len(read_topic(broker, "write-a", 1)[0]) == 500


def test_spark_refuses_what_has_no_topic_no_value_or_no_such_partition(broker: InProcessBroker) -> None:
    broker.create_topic("write-two", 2)
    with pytest.raises(BadRow, match="contains a null topic"):
        write(broker, None, batch_of(topic=["write-two", None], value=["a", "b"]))
    with pytest.raises(BadRow, match="topic option required"):
        write(broker, None, batch_of(value=["a"]))
    with pytest.raises(BadRow, match="Required attribute 'value' not found"):
        write(broker, "write-two", batch_of(key=["a"]))
    for wrong in (2, -1):
        rows = batch_of(value=["a"], partition=pa.array([wrong], pa.int32()))
        with pytest.raises(BadRow, match=f"topic 'write-two' has no partition {wrong}, only 0 to 1"):
            write(broker, "write-two", rows)


def test_large_arrow_batches_are_taken_in_pieces(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_batches, "PIECE_BYTES", 10_000)
    broker.create_topic("write-pieces", 1)
    rows = batch_of(value=[b"%04d" % n * 25 for n in range(1_000)])
    write(broker, "write-pieces", rows, rows.slice(0, 0))
    found = read_topic(broker, "write-pieces", 1)[0]
    assert [r.value for r in found] == rows["value"].to_pylist()


# -- brokers


def test_a_missing_topic_is_created_or_refused_as_the_broker_is_set_up() -> None:
    with ottla.testing.broker() as own:
        assert write(own, "made", batch_of(value=["a"])).records == 1
        with pytest.raises(WriteRefused, match="topic 'no good/name'"):
            write(own, "no good/name", batch_of(value=["a"]))
    with ottla.testing.broker(auto_create_topics_enable=False) as own:
        with pytest.raises(NoSuchTopic, match=r"topic 'missing' does not exist.*auto.create.topics.enable"):
            write(own, "missing", batch_of(value=["a"]))


def test_batches_too_large_for_the_topic_are_halved_until_they_fit(broker: InProcessBroker) -> None:
    broker.create_topic("write-small", 2, {"max.message.bytes": 2_000})
    values = [b"%04d" % n * 50 for n in range(500)]
    rows = batch_of(key=[b"%d" % n for n in range(500)], value=values)
    assert write(broker, "write-small", rows).records == 500
    found = read_topic(broker, "write-small", 2)
    assert sorted(r.value or b"" for records in found.values() for r in records) == values
    for records in found.values():
        assert [r.value for r in records] == sorted(r.value or b"" for r in records)


def test_a_record_too_large_is_refused_with_topic_and_size(broker: InProcessBroker) -> None:
    broker.create_topic("write-tiny", 1, {"max.message.bytes": 1_000})
    rows = batch_of(value=[b"a", b"x" * 5_000, b"b"])
    with pytest.raises(WriteRefused, match=r"topic 'write-tiny': a record of 50\d\d bytes is too large"):
        write(broker, "write-tiny", rows)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_record_too_large_is_cut_when_asked_and_says_so(broker: InProcessBroker, codec: str) -> None:
    name = f"write-cut-{codec}"
    broker.create_topic(name, 1, {"max.message.bytes": 3_000})
    noise = random.Random(1)
    long, content, key = (noise.randbytes(size) for size in (2_950, 5_000, 4_000))
    ours = ("ottla.reason", b"not JSON")
    rows = batch_of(
        key=[None, b"k", key, b"last"],
        value=[long, b"short", b"v", b"fits"],
        headers=header_column([[("trace", b"7"), ours], [("big", content), ours], [ours], None]),
    )
    assert write(broker, name, rows, cut_oversized=True, compression=codec).records == 4
    first, second, third, last = read_topic(broker, name, 1)[0]
    assert (first.key, second.key, third.key) == (None, b"k", None)
    assert first.value == long[: len(first.value or b"")]
    assert len(first.value or b"") > 1_500, "no more is cut than has to be"
    told = b"value cut to %d of 2950 bytes" % len(first.value or b"")
    assert list(first.headers) == [("trace", b"7"), ours, ("ottla.cut", told)]
    assert (second.value, list(second.headers)) == (b"short", [ours, ("ottla.cut", b"headers left out")])
    assert third.value == b"v"
    assert list(third.headers) == [ours, ("ottla.cut", b"key of 4000 bytes left out")]
    assert (last.key, last.value, list(last.headers)) == (b"last", b"fits", [])


def test_a_record_that_cannot_be_cut_small_enough_is_refused(broker: InProcessBroker) -> None:
    broker.create_topic("write-cut-all", 1, {"max.message.bytes": 200})
    rows = batch_of(value=[b"v" * 500], headers=header_column([[("ottla.reason", b"r" * 300)]]))
    with pytest.raises(WriteRefused, match="is too large"):
        write(broker, "write-cut-all", rows, cut_oversized=True)


def test_threads_of_a_driver_can_take_the_last_free_link_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Raced(list[links.Link]):
        """A list whose last element another thread takes right after one has looked."""

        def __bool__(self) -> bool:
            return True

    where = ("127.0.0.1:1", "test", 5.0, 5.0)
    monkeypatch.setitem(links._idle, (os.getpid(), *where), Raced())
    with borrowed(*where) as link:
        assert link.wire.bootstrap == [("127.0.0.1", 1)]


def test_a_writer_waits_for_a_broker_that_restarts_and_writes_nothing_twice() -> None:
    with ottla.testing.broker(topics={"t": 2}) as own:
        where = options(own, "t", batch_bytes=5_000)
        with borrowed(where.bootstrap, "test", 5.0, 5.0) as link:
            writer = Writer(link, where)
            for number in range(6):
                writer.write(batch_of(value=[b"%d" % (number * 500 + n) for n in range(500)]))
                if number == 2:
                    own.kill()
                    restart = threading.Timer(0.2, own.start)
                    restart.start()
            summary = writer.finish()
            restart.join()
        assert summary.records == 3_000
        found = read_topic(own, "t", 2)
        numbers = [[int(r.value or b"") for r in records] for records in found.values()]
        assert all(n == sorted(n) for n in numbers)
        assert sorted(n for part in numbers for n in part) == list(range(3_000))


def test_the_next_task_goes_on_with_the_same_producer(broker: InProcessBroker) -> None:
    broker.create_topic("write-again", 1)
    for number in range(3):
        write(broker, "write-again", batch_of(value=[str(number)]))
    with Wire(broker.bootstrap_servers) as wire:
        consumer = Consumer(wire, "write-again", {0: 0}, {0: 3})
        assert [r.value for _, r in consumer] == [b"0", b"1", b"2"]


def test_a_producer_unknown_to_the_broker_gets_a_new_producer_id() -> None:
    with ottla.testing.broker(topics={"t": 1}) as own:
        where = options(own, "t")
        with borrowed(where.bootstrap, "test", 5.0, 5.0) as link:
            writer = Writer(link, where)
            writer.write(batch_of(value=["a", "b"]))
            writer.finish()
            assert link.producership is not None
            first = link.producership.producer_id
            link.producership.sequences["t", 0] = 40  # as if the broker had lost what came between
            writer.write(batch_of(value=["c"]))
            assert writer.finish().records == 3
            assert link.producership.producer_id != first
        assert [r.value for r in read_topic(own, "t", 1)[0]] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("acks", [0, 1])
def test_acks_can_be_lowered(broker: InProcessBroker, acks: int) -> None:
    topic = f"write-acks-{acks}"
    broker.create_topic(topic, 1)
    summary = write(broker, topic, batch_of(value=["a", "b"]), acks=acks)
    assert summary.records == 2
    with Wire(broker.bootstrap_servers) as wire:
        consumer = Consumer(wire, topic, {0: 0}, {0: 2})
        assert [r.value for _, r in consumer] == [b"a", b"b"]


def test_a_permanently_unreachable_broker_is_reported_with_the_topic() -> None:
    with ottla.testing.broker(topics={"t": 1}) as own:
        where = options(own, "t", delivery_timeout=0.5)
        with pytest.raises(
            BrokerUnreachable, match=f"{own.bootstrap_servers}.*writing to partition 0 of topic 't'"
        ):
            with borrowed(where.bootstrap, "test", 1.0, 1.0) as link:
                writer = Writer(link, where)
                writer.write(batch_of(value=["a"]))
                writer.finish()
                own.stop()
                writer.write(batch_of(value=["b"]))
                writer.finish()
