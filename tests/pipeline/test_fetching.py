"""Reading ranges of a partition: on a real broker for what it can show, on a scripted one for the rest."""

from __future__ import annotations

import logging
import random
import struct
import threading
from typing import Any

import pytest

import ottla.testing
from ottla.pipeline.topics.arrow_records import kafka_schema
from ottla.pipeline.topics.fetching import DataLost, ReadOptions, UnreadablePartition, read_range
from ottla.protocol.batches import HEADER_SIZE
from ottla.protocol.compression import Codec
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.records import Record, encode_batch
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import BrokerUnreachable, Wire, check
from ottla.testing.in_process import InProcessBroker
from pipeline.scripted_broker import HANG_UP, ScriptedBroker

QUICK = ReadOptions(timeout=0.5, fetch_max_wait_ms=20)
PATIENT = ReadOptions(timeout=30, fetch_max_wait_ms=50)


def offsets_of(broker: Any, start: int, end: int, options: ReadOptions = QUICK) -> list[int]:
    bootstrap = broker.bootstrap if isinstance(broker, ScriptedBroker) else broker.bootstrap_servers
    found: list[int] = []
    for batch in read_range(bootstrap, "t", 0, start, end, options=options):
        assert batch.num_rows
        assert batch.schema.equals(kafka_schema(options.include_headers))
        batch.validate(full=True)
        found += batch["offset"].to_pylist()
    return found


def batch(offset: int, count: int = 5, **settings: Any) -> bytes:
    rows = [Record(offset + n, 1_000 + n, None, b"v%d" % (offset + n), []) for n in range(count)]
    return bytes(encode_batch(rows, base_offset=offset, **settings))


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    """The control batch that ends a transaction: 0 aborts, 1 commits."""
    row = Record(offset, 1_000, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), [])
    return bytes(
        encode_batch([row], base_offset=offset, producer_id=producer_id, transactional=True, control=True)
    )


def delete_records(wire: Wire, before: int) -> None:
    partition = DeleteRecordsPartition(partition_index=0, offset=before)
    topic = DeleteRecordsTopic(name="t", partitions=[partition])
    answer = wire.call(DeleteRecordsRequest(topics=[topic], timeout_ms=10_000))
    check(answer.topics[0].partitions[0].error_code)


# -- on a real broker


@pytest.mark.parametrize("codec", list(Codec))
def test_a_range_may_start_and_end_inside_a_batch_of_any_codec(broker: InProcessBroker, codec: Codec) -> None:
    name = f"fetch-{codec.label}"
    broker.create_topic(name)
    with Wire(broker.bootstrap_servers) as wire, Producer(wire, name, codec=codec, batch_bytes=4_000) as out:
        for n in range(1_000):
            headers = [("n", b"%d" % n), ("none", None)] if n % 3 == 0 else []
            key = b"k%d" % n if n % 2 else None
            out.add(key, None if n % 7 == 0 else b"value %d" % n * (n % 9), headers, timestamp=5_000 + n)
    for start, end in [(0, 1_000), (17, 18), (101, 850), (999, 1_000), (5, 5)]:
        rows = []
        for got in read_range(
            broker.bootstrap_servers, name, 0, start, end, options=ReadOptions(include_headers=True)
        ):
            rows += got.to_pylist()
        assert [r["offset"] for r in rows] == list(range(start, end))
        for row in rows:
            n = row["offset"]
            assert row["key"] == (b"k%d" % n if n % 2 else None)
            assert row["value"] == (None if n % 7 == 0 else b"value %d" % n * (n % 9))
            assert (row["topic"], row["partition"], row["timestampType"]) == (name, 0, 0)
            assert row["timestamp"].timestamp() * 1000 == pytest.approx(5_000 + n)
            expected = [{"key": "n", "value": b"%d" % n}, {"key": "none", "value": None}]
            assert row["headers"] == (expected if n % 3 == 0 else None)


def test_records_come_once_and_in_order_over_many_small_fetches(broker: InProcessBroker) -> None:
    broker.create_topic("fetch-many")
    dice = random.Random(4)
    with Wire(broker.bootstrap_servers) as wire, Producer(wire, "fetch-many", batch_bytes=2_000) as out:
        values = [dice.randbytes(dice.randrange(300)) for _ in range(5_000)]
        for value in values:
            out.add(None, value)
    options = ReadOptions(max_partition_fetch_bytes=3_000)
    found = [
        v
        for got in read_range(broker.bootstrap_servers, "fetch-many", 0, 0, 5_000, options=options)
        for v in got["value"].to_pylist()
    ]
    assert found == values


def test_log_append_time_is_reported_as_the_timestamp_type(broker: InProcessBroker) -> None:
    broker.create_topic("fetch-appended", config={"message.timestamp.type": "LogAppendTime"})
    with Wire(broker.bootstrap_servers) as wire, Producer(wire, "fetch-appended") as out:
        out.add(None, b"v", timestamp=1_000)
    (got,) = read_range(broker.bootstrap_servers, "fetch-appended", 0, 0, 1, options=QUICK)
    assert got["timestampType"].to_pylist() == [1]
    assert got["timestamp"].to_pylist()[0].year > 2020


def test_a_reader_waits_for_a_broker_that_restarts() -> None:
    with ottla.testing.broker(topics={"t": 1}) as own:
        with Wire(own.bootstrap_servers) as wire, Producer(wire, "t", batch_bytes=500) as out:
            for n in range(300):
                out.add(None, b"v%d" % n)
        options = ReadOptions(timeout=30, max_partition_fetch_bytes=600)
        batches = read_range(own.bootstrap_servers, "t", 0, 0, 300, options=options)
        found = next(batches)["offset"].to_pylist()
        own.stop()
        restart = threading.Timer(0.2, own.start)
        restart.start()
        for got in batches:
            found += got["offset"].to_pylist()
        restart.join()
        assert found == list(range(300))
        # The connections that were kept are dead now; the next task must not notice.
        own.restart()
        assert offsets_of(own, 0, 10, PATIENT) == list(range(10))


def test_a_permanently_unreachable_broker_is_reported_with_the_partition(tmp_path: Any) -> None:
    with ottla.testing.broker(topics={"t": 1}) as own:
        address = own.bootstrap_servers
    with pytest.raises(BrokerUnreachable, match=f"{address}.*partition 0 of topic 't' at offset 3"):
        list(read_range(address, "t", 0, 3, 9, options=QUICK))


def test_deleted_offsets_fail_the_task_or_are_skipped_with_a_warning(caplog: Any) -> None:
    with ottla.testing.broker(topics={"t": 1}) as own:
        with Wire(own.bootstrap_servers) as wire:
            with Producer(wire, "t") as out:
                for n in range(20):
                    out.add(None, b"v%d" % n)
            delete_records(wire, 12)
        with pytest.raises(DataLost, match=r"offsets 5 to 11 were deleted.*starts at 12.*failOnDataLoss"):
            offsets_of(own, 5, 20)
        forgiving = ReadOptions(timeout=0.5, fetch_max_wait_ms=20, fail_on_data_loss=False)
        with caplog.at_level(logging.WARNING, "ottla.pipeline"):
            assert offsets_of(own, 5, 20, forgiving) == list(range(12, 20))
            assert offsets_of(own, 5, 9, forgiving) == []
        assert "offsets 5 to 11 were deleted" in caplog.text
        assert "offsets 5 to 8 were deleted" in caplog.text


def test_a_log_that_ends_before_the_range_is_data_loss_after_patience(caplog: Any) -> None:
    with ottla.testing.broker(topics={"t": 1}) as own:
        with Wire(own.bootstrap_servers) as wire, Producer(wire, "t") as out:
            out.add(None, b"only")
        with pytest.raises(DataLost, match=r"ends at offset 1.*offsets 1 to 9 cannot be read"):
            offsets_of(own, 0, 10)
        with pytest.raises(DataLost, match="ends at offset 1, before offset 5"):
            offsets_of(own, 5, 10)
        forgiving = ReadOptions(timeout=0.3, fetch_max_wait_ms=20, fail_on_data_loss=False)
        assert offsets_of(own, 0, 10, forgiving) == [0]
        assert offsets_of(own, 5, 10, forgiving) == []
        with pytest.raises(DataLost, match="does not exist any more"):
            list(read_range(own.bootstrap_servers, "gone", 0, 0, 9, options=QUICK))
        assert list(read_range(own.bootstrap_servers, "gone", 0, 0, 9, options=forgiving)) == []


def test_records_that_arrive_while_the_reader_waits_are_read(broker: InProcessBroker) -> None:
    broker.create_topic("fetch-late")
    found: list[Any] = []

    def read() -> None:
        for got in read_range(broker.bootstrap_servers, "fetch-late", 0, 0, 2, options=PATIENT):
            found.extend(got["value"].to_pylist())

    reader = threading.Thread(target=read)
    reader.start()
    with Wire(broker.bootstrap_servers) as wire, Producer(wire, "fetch-late") as out:
        for value in (b"a", b"b"):
            out.add(None, value)
            out.flush()
    reader.join(30)
    assert found == [b"a", b"b"]


# -- on a scripted one


def test_aborted_transactions_are_left_out_unless_uncommitted_is_asked_for() -> None:
    log = [
        batch(0),
        batch(5, producer_id=7, transactional=True),  # aborted
        batch(10, producer_id=8, transactional=True),  # committed
        marker(15, 7, 0),
        batch(16, producer_id=7, transactional=True),  # the next transaction of the same producer, committed
        marker(21, 8, 1),
        marker(22, 7, 1),
        batch(23),
    ]
    with ScriptedBroker(log, aborted=[(7, 5, 15)]) as scripted:
        committed = [*range(0, 5), *range(10, 15), *range(16, 21), *range(23, 28)]
        assert offsets_of(scripted, 0, 28) == committed
        everything = ReadOptions(timeout=0.5, read_committed=False)
        assert offsets_of(scripted, 0, 28, everything) == sorted([*committed, *range(5, 10)])
        assert offsets_of(scripted, 6, 12) == [10, 11]
        assert offsets_of(scripted, 15, 16) == []


def test_an_abort_marker_in_the_same_answer_ends_only_its_own_transaction() -> None:
    log = [
        batch(0, producer_id=7, transactional=True),
        marker(5, 7, 0),
        batch(6, producer_id=7, transactional=True),
        marker(11, 7, 0),
        batch(12, producer_id=7, transactional=True),
        marker(17, 7, 1),
    ]
    for at_once in (1, 2, 100):
        aborted = [(7, 6, 11), (7, 0, 5)]
        with ScriptedBroker(log, aborted=aborted, batches_per_answer=at_once) as scripted:
            assert offsets_of(scripted, 0, 18) == list(range(12, 17))
            assert offsets_of(scripted, 8, 14) == [12, 13]


def test_gaps_of_compaction_are_skipped_and_the_range_still_ends() -> None:
    rows = [Record(o, 1_000, b"k", b"v", []) for o in (103, 107, 180)]
    log = [batch(0), bytes(encode_batch(rows, base_offset=100)), batch(500)]
    with ScriptedBroker(log, batches_per_answer=1) as scripted:
        assert offsets_of(scripted, 2, 502) == [2, 3, 4, 103, 107, 180, 500, 501]
        assert offsets_of(scripted, 104, 107) == []
        assert offsets_of(scripted, 200, 400) == []


def test_the_next_fetch_is_sent_before_the_last_answer_is_decoded() -> None:
    with ScriptedBroker([batch(0), batch(5), batch(10)], batches_per_answer=1) as scripted:
        batches = read_range(scripted.bootstrap, "t", 0, 0, 15, options=PATIENT)
        assert next(batches)["offset"].to_pylist() == list(range(5))
        assert len(list(batches)) == 2
        assert scripted.fetched == [0, 5, 10]  # nothing was asked twice, nothing behind the end


def test_moved_leaders_and_broken_connections_are_retried() -> None:
    script = [ErrorCode.NOT_LEADER_OR_FOLLOWER, HANG_UP, ErrorCode.LEADER_NOT_AVAILABLE, HANG_UP]
    with ScriptedBroker([batch(0), batch(5)], script=script, batches_per_answer=1) as scripted:
        assert offsets_of(scripted, 0, 10, PATIENT) == list(range(10))
        assert scripted.metadata_asked >= 4


def test_leader_addresses_are_cached_between_tasks() -> None:
    with ScriptedBroker([batch(0), batch(5)]) as scripted:
        for _ in range(3):
            assert offsets_of(scripted, 0, 10) == list(range(10))
        assert scripted.metadata_asked == 1


def test_a_reader_closed_early_does_not_affect_the_next() -> None:
    with ScriptedBroker([batch(0), batch(5), batch(10)], batches_per_answer=1) as scripted:
        early = read_range(scripted.bootstrap, "t", 0, 0, 15, options=PATIENT)
        next(early)
        early.close()  # type: ignore[attr-defined]
        assert offsets_of(scripted, 10, 15) == list(range(10, 15))


def test_a_wrong_checksum_is_refused_with_its_place() -> None:
    damaged = bytearray(batch(5))
    damaged[HEADER_SIZE + 8] ^= 1
    with ScriptedBroker([batch(0), bytes(damaged)]) as scripted:
        with pytest.raises(
            UnreadablePartition, match="partition 0 of topic 't', batch at offset 5: the checksum"
        ):
            offsets_of(scripted, 0, 10)


def test_records_that_do_not_add_up_are_refused_with_their_place() -> None:
    damaged = bytearray(batch(5))
    damaged[HEADER_SIZE + 4] = 78
    with ScriptedBroker([bytes(damaged)]) as scripted:
        careless = ReadOptions(timeout=0.5, check_crcs=False)
        with pytest.raises(UnreadablePartition, match="batches at offsets 5 to 9: a key or value is longer"):
            offsets_of(scripted, 5, 10, careless)


def test_compressed_bytes_that_cannot_be_opened_are_refused_with_their_codec() -> None:
    damaged = bytearray(batch(5, codec=Codec.ZSTD))
    damaged[HEADER_SIZE] ^= 0xFF
    with ScriptedBroker([bytes(damaged)]) as scripted:
        careless = ReadOptions(timeout=0.5, check_crcs=False)
        with pytest.raises(UnreadablePartition, match=r"batch at offset 5 \(zstd\)"):
            offsets_of(scripted, 5, 10, careless)


def test_the_record_format_of_before_2017_is_refused_by_name() -> None:
    message = struct.pack(">IbbqiI", 0, 1, 0, 1_000, -1, 3) + b"old"
    old = struct.pack(">qi", 0, len(message)) + message
    with (
        ScriptedBroker([old], log_end=1) as scripted,
        pytest.raises(UnreadablePartition, match="format there is 1"),
    ):
        offsets_of(scripted, 0, 1)
