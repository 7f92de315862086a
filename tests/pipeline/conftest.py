"""What the pipeline tests share: one Spark session and one broker per test process.

Starting Spark costs seconds, so a process starts it once, for all its tests; tests keep apart by topic name
and checkpoint folder. A test that changes a session setting sets it back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

import ottla.testing

# An archive that is there makes the start of Spark faster; a test run makes none, and leaves nothing behind.
os.environ.setdefault("OTTLA_SPARK_ARCHIVE", "use")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.testing.in_process import InProcessBroker
    from pipeline.stream_sources import Driver


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of this process: local, two tasks at a time."""
    from ottla.pipeline.spark.session import spark_session

    settings = {
        "spark.driver.memory": "1g",
        "ottla.compile": "quick",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    session = spark_session("ottla tests", "local[2]", settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[InProcessBroker]:
    """One broker for all pipeline tests of this process; use topic names of your own."""
    with ottla.testing.broker(settings={"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


@pytest.fixture
def topic(broker: InProcessBroker) -> str:
    """A topic of two partitions."""
    name = f"t-{uuid4().hex[:8]}"
    broker.create_topic(name, 2)
    return name


@pytest.fixture
def driver(broker: InProcessBroker, topic: str, tmp_path: Path) -> Iterator[Driver]:
    """Makes drivers as stages have them, each with an offsetsFile of its own; an empty one is none."""
    from ottla.pipeline.topics.stream_driver import StreamDriver
    from pipeline.stream_sources import source

    made: list[StreamDriver] = []

    def make(**options: str) -> StreamDriver:
        options = {"offsetsFile": f"{tmp_path}/{len(made)}.json", **options}
        made.append(StreamDriver(source(broker, topic, **options)))
        return made[-1]

    yield make
    for each in made:
        each.close()
