"""Tests of pipelines: feed records, run the stages, look at what they wrote. No broker, no files.

    from ottla.pipeline.testing import PipelineDriver

    with PipelineDriver("shop.py") as shop:
        shop.feed("clicks", {"id": 1, "user": "Ada"})
        assert shop.rows("clean") == [{"id": 1, "user": "ada"}]

Stages run as they do in production, as streaming queries of Spark with state, watermarks and output modes;
only the topics and lakes are in memory. With pytest the fixture `ottla_pipeline` makes drivers and closes
them, and `ottla_spark` is the one Spark session of the test run. docs/pipeline/testing.md shows all of it.

    records.py   what is fed and what comes out
    memory.py    topics and lakes in memory, as a stage's connection
    queries.py   a stage as a streaming query that runs when it is told to, on a clock that is set by hand
    driver.py    the driver: all stages of a pipeline, in order
"""

from ottla.pipeline.testing.driver import PipelineDriver
from ottla.pipeline.testing.queries import test_session
from ottla.pipeline.testing.records import Record, record

__all__ = ["PipelineDriver", "Record", "record", "test_session"]
