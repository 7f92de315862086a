"""The pytest plugin: fixtures with a real broker in the test's own process.

`ottla_broker` and `ottla_cluster` are fresh for each test. `ottla_session_broker` is one for the whole
session (under xdist: one per worker), for tests that keep apart by topic name. `ottla_pipeline` makes test
drivers of pipelines, on `ottla_spark`, one Spark session for all tests. Nothing is imported before a test
asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.pipeline.testing import PipelineDriver
    from ottla.testing.in_process import InProcessBroker
    from ottla.testing.in_process_cluster import InProcessCluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "ottla(topics=..., settings=..., **settings): topics and settings of this test's `ottla_broker` or "
        "`ottla_cluster`",
    )


@pytest.fixture
def ottla_broker(request: pytest.FixtureRequest) -> Iterator[InProcessBroker]:
    """A fresh broker for this test. `@pytest.mark.ottla(topics={"t": 3}, ...)` says what it begins with."""
    import ottla.testing

    mark = request.node.get_closest_marker("ottla")
    with ottla.testing.broker(**(mark.kwargs if mark else {})) as broker:
        yield broker


@pytest.fixture
def ottla_cluster(request: pytest.FixtureRequest) -> Iterator[InProcessCluster]:
    """A fresh cluster of three brokers; `@pytest.mark.ottla(brokers=5, network=True, ...)` says otherwise."""
    import ottla.testing

    mark = request.node.get_closest_marker("ottla")
    with ottla.testing.cluster(**(mark.kwargs if mark else {})) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def ottla_session_settings() -> Mapping[str, object]:
    """Override it in a conftest.py to give the broker of the session other settings."""
    return {}


@pytest.fixture(scope="session")
def ottla_session_broker(ottla_session_settings: Mapping[str, object]) -> Iterator[InProcessBroker]:
    """One broker for all tests of this session; use topic names of your own."""
    import ottla.testing

    with ottla.testing.broker(settings=ottla_session_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def ottla_spark_settings() -> Mapping[str, str]:
    """Override it in a conftest.py to give the Spark session of the tests other settings."""
    return {}


@pytest.fixture(scope="session")
def ottla_spark(ottla_spark_settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """One Spark session for all tests of this run, made for small data; one that runs already is taken."""
    from pyspark import SparkContext

    from ottla.pipeline.testing import test_session

    was_there = SparkContext._active_spark_context is not None
    session = test_session(ottla_spark_settings)
    yield session
    if not was_there:
        session.stop()


@pytest.fixture
def ottla_pipeline(ottla_spark: SparkSession) -> Iterator[Callable[..., PipelineDriver]]:
    """Makes the driver of a pipeline, `ottla_pipeline("shop.py")`, and closes it at the end of the test."""
    from ottla.pipeline.testing import PipelineDriver

    with ExitStack() as drivers:

        def make(pipeline: Any, **options: Any) -> PipelineDriver:
            return drivers.enter_context(PipelineDriver(pipeline, spark=ottla_spark, **options))

        yield make
