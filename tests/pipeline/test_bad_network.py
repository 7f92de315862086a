"""Reading and writing topics over a network that is cut, loses answers or breaks connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

import ottla.testing
from ottla.pipeline import lake, stage, topic
from ottla.pipeline.topics.fetching import ReadOptions, read_range
from ottla.pipeline.topics.links import borrowed
from ottla.pipeline.topics.options import SinkOptions
from ottla.pipeline.topics.writing import Writer
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import BrokerUnreachable, Wire
from pipeline.pipeline_runs import ID, ids, running, until, write
from pipeline.stage_runs import StageRuns
from pipeline.test_writing import batch_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.testing.in_process import InProcessBroker
    from ottla.testing.network import Network

pytestmark = pytest.mark.timeout(300)

NOTICED = 0.4  # seconds without an answer after which a request counts as lost
AWAY = 1.5
TROUBLES = pytest.mark.parametrize("trouble", ["cut", "lose_answers", "reset"])


@pytest.fixture
def far() -> Iterator[InProcessBroker]:
    """A broker whose clients come over a network that can be cut."""
    with ottla.testing.broker(topics={"t": 1}, network=True) as broker:
        yield broker


def begin(network: Network, trouble: str) -> threading.Timer:
    """Trouble from now on, for a while."""
    getattr(network, trouble)()
    mended = threading.Timer(AWAY, network.mend)
    mended.start()
    return mended


@TROUBLES
def test_a_reader_continues_where_it_was(far: InProcessBroker, trouble: str) -> None:
    with Wire(far.direct_servers) as wire, Producer(wire, "t", batch_bytes=2_000) as out:
        for n in range(2_000):
            out.add(None, b"v%d" % n)
    options = ReadOptions(
        timeout=60, request_timeout=NOTICED, connect_timeout=NOTICED, max_partition_fetch_bytes=4_000
    )
    batches = read_range(far.bootstrap_servers, "t", 0, 0, 2_000, options=options)
    found = next(batches)["offset"].to_pylist()
    mended = begin(far.network, trouble)
    for got in batches:
        found += got["offset"].to_pylist()
    mended.join()
    assert found == list(range(2_000))


@TROUBLES
def test_a_writer_loses_nothing_and_writes_nothing_twice(far: InProcessBroker, trouble: str) -> None:
    where = SinkOptions(bootstrap=far.bootstrap_servers, topic="t", batch_bytes=2_000)
    with borrowed(where.bootstrap, "test", NOTICED, NOTICED) as link:
        writer = Writer(link, where)
        for number in range(6):
            writer.write(batch_of(value=[b"%d" % (number * 500 + n) for n in range(500)]))
            if number == 2:
                mended = begin(far.network, trouble)
        assert writer.finish().records == 3_000
        mended.join()
    if trouble == "lose_answers":
        assert far.network.lost > 0, "requests were obeyed whose answers never came"
    with Wire(far.direct_servers) as wire:
        found = [int(record.value or b"") for _, record in Consumer(wire, "t", {0: 0}, {0: 3_000})]
    assert found == list(range(3_000))


def test_a_permanent_network_failure_is_reported(far: InProcessBroker) -> None:
    with Wire(far.direct_servers) as wire, Producer(wire, "t") as out:
        out.add(None, b"v")
    far.network.cut()
    options = ReadOptions(timeout=1, request_timeout=NOTICED, connect_timeout=NOTICED)
    with pytest.raises(BrokerUnreachable, match=far.bootstrap_servers):
        list(read_range(far.bootstrap_servers, "t", 0, 0, 1, options=options))


@pytest.mark.slow
def test_a_pipeline_loses_no_records_over_an_unstable_network(
    far: InProcessBroker, spark: SparkSession, tmp_path: Path
) -> None:
    runs = StageRuns(spark, far, tmp_path)
    source, end, shore = runs.name("in", 2), runs.name("out", 2), tmp_path / "lake"

    @stage(topic(source, json=ID), to=[topic(end), lake(str(shore))])
    def both(records: DataFrame) -> DataFrame:
        return records

    over = threading.Event()

    def come_and_go() -> None:
        while not over.wait(0.4):
            far.network.cut()
            over.wait(0.3)
            far.network.mend()
            if not over.wait(0.2):
                far.network.reset()

    def in_the_lake() -> list[int]:
        if not any(shore.glob("*.parquet")):
            return []
        return sorted(ds.dataset(shore, format="parquet").to_table()["id"].to_pylist())

    def more_than(count: int) -> bool:
        return len(in_the_lake()) > count

    weather = threading.Thread(target=come_and_go)
    weather.start()
    try:
        with running(runs, both) as run:
            for start in range(0, 600, 100):
                write(runs, source, *range(start, start + 100))
                until(partial(more_than, start), "some of what was written")
            over.set()
            until(lambda: len(in_the_lake()) >= 600, "everything in the lake")
            until(lambda: len(set(ids(runs, end))) >= 600, "everything in the topic")
            print(f"restarts: {run['both'].restarts}")
    finally:
        over.set()
        weather.join()
    assert in_the_lake() == list(range(600))
    assert sorted(set(ids(runs, end))) == list(range(600))
