"""What the pipeline tests share: one Spark session and one broker per test process.

Starting Spark costs seconds, so a process starts it once, for all its tests; tests keep apart by topic name
and checkpoint folder. A test that changes a session setting sets it back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ottla.testing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.testing.in_process import InProcessBroker


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of this process: local, two tasks at a time."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("ottla tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        )
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[InProcessBroker]:
    """One broker for all pipeline tests of this process; use topic names of your own."""
    with ottla.testing.broker(**{"group.initial.rebalance.delay.ms": 0}) as running:
        yield running
