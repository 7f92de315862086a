"""Registers `format("ottla")` with Spark, which looks for modules named `pyspark_*` by itself.

Spark imports this module whenever it looks a data source up, so nothing else is in it.
"""

from ottla.pipeline.topics.source import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
