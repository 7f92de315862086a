"""The driver's side of a stream against a real broker, called as Spark calls it, without Spark."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ottla.pipeline.topics import group_progress, stream_driver
from ottla.pipeline.topics.brokers import BrokersAway
from ottla.pipeline.topics.offsets import DataLost
from ottla.pipeline.topics.options import OptionError, SourceOptions
from ottla.pipeline.topics.planning import Range
from ottla.pipeline.topics.source import batch_ranges
from ottla.pipeline.topics.stream_driver import StreamDriver
from ottla.protocol_client.admin import create_topic, grow_topic
from ottla.protocol_client.group_consumer import GroupConsumer
from ottla.protocol_client.group_offsets import commit_offsets, delete_offsets
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker
from pipeline.stream_sources import Driver, source
from source_topics import committed, delete_before, wait_until, write

# Where a query begins


def test_a_stream_begins_at_the_end_and_stores_that_position(
    broker: InProcessBroker, topic: str, driver: Driver
) -> None:
    write(broker.bootstrap_servers, topic, ["a", "b"])
    stream = driver()
    begin = stream.initial()
    assert begin == {topic: {"0": 2, "1": 0}}
    write(broker.bootstrap_servers, topic, ["c"])
    assert stream.initial() == begin, "Spark asks twice"
    assert stream.latest(begin) == {topic: {"0": 3, "1": 0}}


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_without_a_file_the_first_batch_is_empty_so_that_the_checkpoint_has_the_beginning(
    broker: InProcessBroker, topic: str, driver: Driver, starting: str
) -> None:
    write(broker.bootstrap_servers, topic, ["a", "b"])
    stream = driver(offsetsFile="", startingOffsets=starting)
    begin = stream.initial()
    write(broker.bootstrap_servers, topic, ["c"])
    assert stream.latest(begin) == begin
    assert stream.ranges(begin, begin) == []
    assert stream.latest(begin) == {topic: {"0": 3, "1": 0}}


@pytest.mark.parametrize("starting", ["latest", "earliest"])
@pytest.mark.parametrize("file", ["file.json", ""])
def test_a_first_batch_that_runs_again_after_the_topic_has_grown_begins_where_it_began(
    broker: InProcessBroker, topic: str, driver: Driver, tmp_path: Path, file: str, starting: str
) -> None:
    write(broker.bootstrap_servers, topic, ["a"])
    options = {
        "subscribePattern": f"^{topic}",
        "startingOffsets": starting,
        "offsetsFile": file and f"{tmp_path}/{file}",
    }
    stream = driver(**options)
    begin = stream.initial()
    logged = stream.latest(begin)
    with Wire(broker.bootstrap_servers) as wire:
        grow_topic(wire, topic, 3)
        create_topic(wire, f"{topic}-new", partitions=1)
    for name, partition in ((topic, 0), (topic, 2), (f"{topic}-new", 0)):
        write(broker.bootstrap_servers, name, ["b"], partition=partition)
    again = driver(**options)
    expected = [Range(topic, 0, 0, 1)] if starting == "earliest" and file else []
    assert again.ranges(again.initial(), logged) == expected
    end = {topic: {"0": 2, "1": 0, "2": 1}, f"{topic}-new": {"0": 1}}
    assert again.latest(logged) == end
    read = [Range(topic, 0, 1, 2), Range(topic, 2, 0, 1), Range(f"{topic}-new", 0, 0, 1)]
    if starting == "earliest" and not file:
        read[0] = Range(topic, 0, 0, 2)
    assert again.ranges(logged, end) == read


@pytest.mark.parametrize("file", ["file.json", ""])
def test_records_deleted_before_the_first_batch_ran_again_are_data_loss(
    broker: InProcessBroker, topic: str, driver: Driver, tmp_path: Path, file: str
) -> None:
    write(broker.bootstrap_servers, topic, "abcdef")
    options = {"startingOffsets": "earliest", "offsetsFile": file and f"{tmp_path}/{file}"}
    stream = driver(**options)
    logged = stream.latest(stream.initial())
    delete_before(broker.bootstrap_servers, topic, 4)
    again = driver(**options)
    with pytest.raises(DataLost, match=r"partition 0 .*: offsets 0 to 3 were deleted before they were read"):
        again.ranges(again.initial(), logged)
        again.ranges(logged, again.latest(logged))  # without a file the first batch is an empty one


def test_a_first_batch_with_records_of_a_checkpoint_without_a_file_is_read_again(
    broker: InProcessBroker, topic: str, driver: Driver
) -> None:
    """As earlier versions and Spark's connector leave it."""
    write(broker.bootstrap_servers, topic, "abc")
    again = driver(startingOffsets="earliest", offsetsFile="")
    assert again.ranges(again.initial(), {topic: {"0": 2, "1": 0}}) == [Range(topic, 0, 0, 2)]


def test_positions_may_be_given_for_each_partition(
    broker: InProcessBroker, topic: str, driver: Driver
) -> None:
    write(broker.bootstrap_servers, topic, "abc")
    assert driver(startingOffsets="earliest").initial() == {topic: {"0": 0, "1": 0}}
    mixed = driver(startingOffsets=f'{{"{topic}":{{"0":-1,"1":-2}}}}')
    assert mixed.initial() == {topic: {"0": 3, "1": 0}}
    assert driver(startingOffsets=f'{{"{topic}":{{"0":1,"1":0}}}}').initial() == {topic: {"0": 1, "1": 0}}


def test_positions_must_name_exactly_the_partitions_that_are_read(topic: str, driver: Driver) -> None:
    with pytest.raises(OptionError, match=r"does not name partition 1 .*-1 stands for latest"):
        driver(startingOffsets=f'{{"{topic}":{{"0":1}}}}').initial()
    with pytest.raises(OptionError, match=r"names partition 2 .* which is not read"):
        driver(startingOffsets=f'{{"{topic}":{{"0":1,"1":1,"2":1}}}}').initial()


def test_a_time_is_the_first_record_at_or_after_it(
    broker: InProcessBroker, topic: str, driver: Driver
) -> None:
    for moment in (1_000, 2_000, 3_000):
        write(broker.bootstrap_servers, topic, [str(moment)], timestamp=moment)
    write(broker.bootstrap_servers, topic, ["x"], partition=1, timestamp=9_000)
    assert driver(startingTimestamp="1500").initial() == {topic: {"0": 1, "1": 0}}
    by_partition = f'{{"{topic}":{{"0":3000,"1":1}}}}'
    assert driver(startingOffsetsByTimestamp=by_partition).initial() == {topic: {"0": 2, "1": 0}}
    with pytest.raises(
        OptionError, match=r"partition 0 .* no record at or after 5000\. Set startingOffsetsBy"
    ):
        driver(startingTimestamp="5000").initial()
    at_end = driver(startingTimestamp="5000", startingOffsetsByTimestampStrategy="latest")
    assert at_end.initial() == {topic: {"0": 3, "1": 0}}


def test_a_stream_resumes_where_a_group_left_off(broker: InProcessBroker, topic: str, driver: Driver) -> None:
    write(broker.bootstrap_servers, topic, "abc")
    write(broker.bootstrap_servers, topic, "de", partition=1)
    with Wire(broker.bootstrap_servers) as wire:
        commit_offsets(wire, topic, {(topic, 0): 2})
    assert driver(startingOffsets="group", kafka_group_id=topic).initial() == {topic: {"0": 2, "1": 0}}
    assert driver(startingOffsets="group,latest", kafka_group_id=topic).initial() == {topic: {"0": 2, "1": 2}}


def test_a_group_that_is_behind_what_was_deleted_is_data_loss(
    broker: InProcessBroker, topic: str, driver: Driver
) -> None:
    write(broker.bootstrap_servers, topic, "abc")
    delete_before(broker.bootstrap_servers, topic, 2)
    with Wire(broker.bootstrap_servers) as wire:
        commit_offsets(wire, topic, {(topic, 0): 1})
    with pytest.raises(DataLost, match=r"has committed offset 1 for partition 0 .* which holds 2 to 3"):
        driver(startingOffsets="group", kafka_group_id=topic).initial()
    lenient = driver(startingOffsets="group", kafka_group_id=topic, failOnDataLoss="false")
    assert lenient.initial() == {topic: {"0": 2, "1": 0}}


def test_a_topic_that_does_not_exist_is_refused_by_name(broker: InProcessBroker, driver: Driver) -> None:
    with pytest.raises(OptionError, match="topic 'no-such-topic' does not exist at 127"):
        StreamDriver(source(broker, "no-such-topic")).initial()


def test_a_partition_that_does_not_exist_is_refused_by_name(topic: str, driver: Driver) -> None:
    with pytest.raises(OptionError, match=r"partition 7 of topic .* does not exist"):
        driver(assign=f'{{"{topic}":[0,7]}}').initial()


def test_unreachable_brokers_are_named(broker: InProcessBroker) -> None:
    options = SourceOptions.parse(
        {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "x", "kafka.default.api.timeout.ms": "100"}
    )
    with pytest.raises(BrokersAway, match=r"127\.0\.0\.1:1 were not reached for 0.1 s: .*connection refused"):
        StreamDriver(options).initial()


# Admission


def test_limits_by_offsets_and_bytes(broker: InProcessBroker, topic: str, driver: Driver) -> None:
    write(broker.bootstrap_servers, topic, ["x" * 1000] * 300, batch_bytes=10_000)
    write(broker.bootstrap_servers, topic, ["x" * 1000] * 100, partition=1, batch_bytes=10_000)
    by_offsets = driver(startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert by_offsets.latest(by_offsets.initial()) == {topic: {"0": 30, "1": 10}}
    assert by_offsets.ends() == {topic: {"0": 300, "1": 100}}
    by_bytes = driver(startingOffsets="earliest", maxBytesPerTrigger="100000")
    end = by_bytes.latest(by_bytes.initial())[topic]
    assert 90 <= sum(end.values()) <= 100
    assert end["0"] == pytest.approx(3 * end["1"], abs=3)
    assert by_bytes.latest(by_bytes.initial(), everything=True) == {topic: {"0": 300, "1": 100}}


def test_a_batch_waits_for_enough_records_but_not_for_ever(
    broker: InProcessBroker, topic: str, driver: Driver
) -> None:
    stream = driver(
        startingOffsets="earliest",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="3s",
        kafka_fetch_max_wait_ms="100",
    )
    write(broker.bootstrap_servers, topic, ["first"])
    end = stream.latest(stream.initial())
    assert end == {topic: {"0": 1, "1": 0}}, "the first batch does not wait"
    write(broker.bootstrap_servers, topic, ["few"])
    assert stream.latest(end) == end
    write(broker.bootstrap_servers, topic, ["enough"] * 10)
    began = time.monotonic()
    end = stream.latest(end)
    assert end == {topic: {"0": 12, "1": 0}}
    write(broker.bootstrap_servers, topic, ["few"])
    wait_until(lambda: stream.latest(end) != end, "the delay is over")
    assert time.monotonic() - began >= 3


def test_records_after_the_start_of_an_available_now_run_are_left_for_the_next(
    broker: InProcessBroker, topic: str, driver: Driver
) -> None:
    write(broker.bootstrap_servers, topic, "abc")
    stream = driver(startingOffsets="earliest", maxOffsetsPerTrigger="2", minOffsetsPerTrigger="2")
    stream.stop_at_what_is_there()
    write(broker.bootstrap_servers, topic, "late")
    first = stream.latest(stream.initial())
    assert first == {topic: {"0": 2, "1": 0}}
    second = stream.latest(first)
    assert second == {topic: {"0": 3, "1": 0}}
    assert stream.latest(second) == second
    assert committed(broker.bootstrap_servers, stream.progress.group) == {(topic, 0): 3, (topic, 1): 0}


# Waiting


def test_a_record_ends_the_wait_at_once(broker: InProcessBroker, topic: str, driver: Driver) -> None:
    stream = driver(startingOffsets="earliest", kafka_fetch_max_wait_ms="20000")
    start = stream.initial()
    seen: list[float] = []

    def ask() -> None:
        assert stream.latest(start) == {topic: {"0": 0, "1": 1}}
        seen.append(time.monotonic())

    waiting = threading.Thread(target=ask)
    waiting.start()
    group = stream.progress.group
    wait_until(lambda: committed(broker.bootstrap_servers, group), "the stream waits")
    write(broker.bootstrap_servers, topic, ["x"], partition=1)
    written = time.monotonic()
    waiting.join(10)
    assert seen and seen[0] - written < 5, "of the 20 seconds it would have waited"


def test_an_idle_stream_waits_instead_of_polling(broker: InProcessBroker, topic: str, driver: Driver) -> None:
    stream = driver(startingOffsets="earliest")
    start = stream.initial()
    stream.latest(start)
    wall, cpu = time.monotonic(), time.thread_time()
    assert stream.latest(start) == start
    assert time.monotonic() - wall > 0.9 * stream_driver.WAIT
    assert time.thread_time() - cpu < 0.05 * stream_driver.WAIT


def test_a_stream_does_not_hold_up_the_other_sources_of_its_query(
    broker: InProcessBroker, topic: str, driver: Driver
) -> None:
    stream = driver(startingOffsets="earliest", kafka_fetch_max_wait_ms="1000")
    start = stream.initial()
    for _ in range(2):
        assert stream.latest(start) == start
        stream.done(start)
    began = time.monotonic()
    assert stream.latest(start) == start
    assert time.monotonic() - began < 0.9, "it would have waited for a second"


def test_a_broker_that_restarts_is_waited_for(tmp_path: Path) -> None:
    import ottla.testing

    with ottla.testing.broker(topics={"t": 1}) as own:
        options = {"startingOffsets": "earliest", "kafka_fetch_max_wait_ms": "20000"}
        stream = StreamDriver(source(own, "t", offsetsFile=f"{tmp_path}/file.json", **options))
        try:
            start = stream.initial()
            answers: list[object] = []
            asking = threading.Thread(target=lambda: answers.append(stream.latest(start)))
            asking.start()
            wait_until(lambda: committed(own.bootstrap_servers, stream.progress.group), "the stream waits")
            own.restart()
            write(own.bootstrap_servers, "t", "ab")
            asking.join(20)
            assert answers == [{"t": {"0": 1}}] or answers == [{"t": {"0": 2}}]
        finally:
            stream.close()


# The group


def test_offsets_passed_to_latest_are_committed_so_an_idle_stream_has_no_lag(
    broker: InProcessBroker, topic: str, driver: Driver
) -> None:
    write(broker.bootstrap_servers, topic, "abc")
    stream = driver(startingOffsets="earliest", kafka_group_id=topic, kafka_fetch_max_wait_ms="10")
    end = stream.latest(stream.initial())
    assert stream.latest(end) == end
    assert committed(broker.bootstrap_servers, topic) == {(topic, 0): 3, (topic, 1): 0}


def test_an_idle_stream_commits_again_before_the_broker_forgets(
    broker: InProcessBroker, topic: str, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = driver(startingOffsets="earliest", kafka_group_id=topic, kafka_fetch_max_wait_ms="10")
    start = stream.initial()
    assert stream.latest(start) == start
    kept = {(topic, 0): 0, (topic, 1): 0}
    assert committed(broker.bootstrap_servers, topic) == kept
    with Wire(broker.bootstrap_servers) as wire:
        delete_offsets(wire, topic, kept)
    assert stream.latest(start) == start
    assert committed(broker.bootstrap_servers, topic) == {}
    monkeypatch.setattr(group_progress, "REPEAT_AFTER", 0.0)
    assert stream.latest(start) == start
    assert committed(broker.bootstrap_servers, topic) == kept


def test_offsets_are_not_committed_when_that_is_switched_off(
    broker: InProcessBroker, topic: str, driver: Driver
) -> None:
    stream = driver(
        startingOffsets="earliest", kafka_group_id=topic, commitOffsets="false", kafka_fetch_max_wait_ms="10"
    )
    assert stream.latest(stream.initial()) == stream.initial()
    assert committed(broker.bootstrap_servers, topic) == {}


def test_a_group_with_active_members_causes_a_warning_only(
    broker: InProcessBroker, topic: str, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    write(broker.bootstrap_servers, topic, "abc")
    with Wire(broker.bootstrap_servers) as wire:
        member = GroupConsumer(wire, topic, topic, lambda partitions: dict.fromkeys(partitions, 0))
        records = member.chunks()
        next(records)
        stream = driver(startingOffsets="earliest", kafka_group_id=topic, kafka_fetch_max_wait_ms="10")
        end = stream.latest(stream.initial())
        assert end == {topic: {"0": 3, "1": 0}}
        assert stream.latest(end) == end
        member.close()
    assert caplog.text.count("has members of its own") == 1
    assert "kafka.group.id" in caplog.text


def test_a_derived_group_is_shown(
    broker: InProcessBroker, topic: str, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "ottla.pipeline"):
        driver()
    assert f"shown by consumer group 'ottla-spark.{topic}'" in caplog.text


def test_streams_on_the_same_topics_that_are_given_no_group_have_one_each(driver: Driver, topic: str) -> None:
    first, second = driver(), driver()
    assert first.progress.group == f"ottla-spark.{topic}"
    assert second.progress.group == f"ottla-spark.{topic}-2"
    assert driver(kafka_group_id="mine").progress.group == "mine"
    assert driver(commitOffsets="false").progress.group == f"ottla-spark.{topic}"
    first.close()
    assert driver().progress.group == f"ottla-spark.{topic}", "the name is free again"


# Batches


def test_options_choose_the_ranges_of_a_batch(broker: InProcessBroker, topic: str) -> None:
    for moment in (1_000, 2_000, 3_000):
        write(broker.bootstrap_servers, topic, [str(moment)], timestamp=moment)

    def ranges(**options: str) -> list[Range]:
        return batch_ranges(source(broker, topic, **options).for_batch())

    assert ranges() == [Range(topic, 0, 0, 3)]
    offsets = f'{{"{topic}":{{"0":1,"1":-2}}}}', f'{{"{topic}":{{"0":2,"1":-1}}}}'
    assert ranges(startingOffsets=offsets[0], endingOffsets=offsets[1]) == [Range(topic, 0, 1, 2)]
    assert ranges(endingTimestamp="1500") == [Range(topic, 0, 0, 1)]
    assert ranges(endingTimestamp="9000") == [Range(topic, 0, 0, 3)], "no match is the end"
    by_time = f'{{"{topic}":{{"0":1500,"1":1500}}}}'
    assert ranges(endingOffsetsByTimestamp=by_time) == [Range(topic, 0, 0, 1)]
    late = {"startingTimestamp": "2500", "startingOffsetsByTimestampStrategy": "latest"}
    assert ranges(**late) == [Range(topic, 0, 2, 3)]
    with pytest.raises(OptionError, match="start at offset 2 and end at 1, before it"):
        ranges(**late, endingTimestamp="1500")
    past = f'{{"{topic}":{{"0":9,"1":0}}}}'
    with pytest.raises(OptionError, match="start at offset 9 and end at 3"):
        ranges(startingOffsets=past)
    with pytest.raises(DataLost, match="ends at offset 3, so offsets 3 to 8 cannot be read"):
        ranges(endingOffsets=past)
    assert ranges(endingOffsets=past, failOnDataLoss="false") == [Range(topic, 0, 0, 3)]
    assert ranges(assign=f'{{"{topic}":[1]}}') == []
    with Wire(broker.bootstrap_servers) as wire:
        commit_offsets(wire, topic, {(topic, 0): 2})
    assert ranges(startingOffsets="group", kafka_group_id=topic) == [Range(topic, 0, 2, 3)]
