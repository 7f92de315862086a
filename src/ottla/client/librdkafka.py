"""The one place that imports confluent-kafka, and says how to get it when it is missing."""

from __future__ import annotations

from ottla.client.errors import MissingDependencyError

try:
    import confluent_kafka
    import confluent_kafka.admin
except ImportError as error:
    raise MissingDependencyError("ottla's clients", "confluent-kafka", "ottla[client]") from error

__all__ = ["confluent_kafka"]
