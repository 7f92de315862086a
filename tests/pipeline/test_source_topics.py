"""The driver's side of a stream whose topics come, grow, are emptied, deleted and made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipeline.topics.offsets import DataLost
from ottla.pipeline.topics.planning import Range
from ottla.protocol_client.admin import create_topic, delete_topic, grow_topic
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker
from pipeline.stream_sources import Driver
from source_topics import delete_before, wait_until, write


def test_new_partitions_and_topics_are_read_from_their_start(
    broker: InProcessBroker, topic: str, driver: Driver
) -> None:
    stream = driver(subscribePattern=f"^{topic}", kafka_metadata_max_age_ms="0", kafka_fetch_max_wait_ms="50")
    end = stream.latest(stream.initial())
    with Wire(broker.bootstrap_servers) as wire:
        grow_topic(wire, topic, 3)
        create_topic(wire, f"{topic}-b", partitions=1)
    write(broker.bootstrap_servers, topic, "x", partition=2)
    write(broker.bootstrap_servers, f"{topic}-b", "yz")
    wanted = {topic: {"0": 0, "1": 0, "2": 1}, f"{topic}-b": {"0": 2}}
    wait_until(lambda: stream.latest(end) == wanted, "new partitions are seen")
    assert stream.ranges(end, wanted) == [Range(topic, 2, 0, 1), Range(f"{topic}-b", 0, 0, 2)]


def test_a_pattern_that_nothing_matches_yet_waits_for_a_topic(
    broker: InProcessBroker, topic: str, driver: Driver
) -> None:
    stream = driver(
        subscribePattern=f"^later-{topic}", kafka_metadata_max_age_ms="0", kafka_fetch_max_wait_ms="50"
    )
    assert stream.initial() == {}
    assert stream.latest({}) == {} == stream.latest({})
    broker.create_topic(f"later-{topic}")
    wait_until(lambda: stream.latest({}) == {f"later-{topic}": {"0": 0}}, "the topic is seen")


def test_a_topic_that_is_deleted_is_data_loss(
    broker: InProcessBroker, topic: str, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    other = f"{topic}-other"
    broker.create_topic(other)
    both = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest", "kafka_metadata_max_age_ms": "0"}
    strict, lenient = driver(**both), driver(**both, failOnDataLoss="false")
    start = strict.initial()
    assert lenient.initial() == start == {topic: {"0": 0, "1": 0}, other: {"0": 0}}
    with Wire(broker.bootstrap_servers) as wire:
        delete_topic(wire, other)
    end = strict.latest(start)
    assert end == {topic: {"0": 0, "1": 0}}
    with pytest.raises(DataLost, match=f"partition 0 of topic '{other}' does not exist any more"):
        strict.ranges(start, end)
    assert lenient.latest(start) == end
    assert lenient.ranges(start, end) == []
    assert f"partition 0 of topic '{other}' does not exist any more" in caplog.text
    write(broker.bootstrap_servers, topic, "x")
    assert lenient.latest(end) == {topic: {"0": 1, "1": 0}}, "the other topics go on"


@pytest.mark.parametrize(("length", "restarted"), [(0, False), (3, True), (5, False), (5, True)])
def test_a_topic_made_anew_is_data_loss_however_long_it_is(
    broker: InProcessBroker,
    topic: str,
    driver: Driver,
    tmp_path: Path,
    length: int,
    restarted: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(broker.bootstrap_servers, topic, "abc")
    options = {
        "startingOffsets": "earliest",
        "kafka_metadata_max_age_ms": "0",
        "offsetsFile": f"{tmp_path}/file.json",
    }
    stream = driver(**options)
    done = stream.latest(stream.initial())
    assert done == {topic: {"0": 3, "1": 0}}
    with Wire(broker.bootstrap_servers) as wire:
        delete_topic(wire, topic)
    broker.create_topic(topic, 2)
    if length:
        write(broker.bootstrap_servers, topic, "x" * length)
    if restarted:
        stream = driver(**options)
    words = f"topic '{topic}' was deleted and made anew: partition 0 of topic '{topic}' had been read up to"
    with pytest.raises(DataLost, match=words):
        stream.latest(done)
    lenient = driver(**options, failOnDataLoss="false")
    assert lenient.latest(done) == {topic: {"0": length, "1": 0}}
    assert words in caplog.text
    assert driver(**options).latest({topic: {"0": length, "1": 0}}) == {topic: {"0": length, "1": 0}}


def test_a_batch_of_a_topic_that_was_made_anew_is_not_read_again_from_the_new_one(
    broker: InProcessBroker, topic: str, driver: Driver, tmp_path: Path
) -> None:
    options = {"startingOffsets": "earliest", "offsetsFile": f"{tmp_path}/file.json"}
    write(broker.bootstrap_servers, topic, "abc")
    stream = driver(**options)
    logged = stream.latest(stream.initial())
    with Wire(broker.bootstrap_servers) as wire:
        delete_topic(wire, topic)
    broker.create_topic(topic, 2)
    write(broker.bootstrap_servers, topic, "xyz")
    again = driver(**options)
    with pytest.raises(DataLost, match="was deleted and made anew"):
        again.ranges(again.initial(), logged)


def test_records_deleted_before_they_were_read_are_data_loss(
    broker: InProcessBroker, topic: str, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    write(broker.bootstrap_servers, topic, "abcdef")
    strict = driver(startingOffsets="earliest")
    lenient = driver(startingOffsets="earliest", failOnDataLoss="false")
    start = strict.initial()
    delete_before(broker.bootstrap_servers, topic, 4)
    end = strict.latest(start)
    with pytest.raises(DataLost, match=r"offsets 0 to 3 were deleted .*failOnDataLoss to false"):
        strict.ranges(start, end)
    assert lenient.ranges(start, lenient.latest(start)) == [Range(topic, 0, 4, 6)]
    assert "offsets 0 to 3 were deleted" in caplog.text
