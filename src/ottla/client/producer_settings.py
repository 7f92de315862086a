"""The producer's arguments as keys of librdkafka, where names or rules differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.client.configuration import client_config
from ottla.client.errors import ConfigurationError

ARGUMENTS = {
    "buffer.memory": "buffer_memory",
    "max.block.ms": "max_block_ms",
    "max.request.size": "max_request_size",
    "key.serializer": "key_serializer",
    "value.serializer": "value_serializer",
    "interceptor.classes": "interceptors",
    "partitioner.class": "partitioner",
    "report.failures": "report_failures",
}
"""Kafka's names of what librdkafka does not have, and our arguments for it."""


def producer_settings(
    bootstrap_servers: str | Iterable[str],
    client_id: str | None,
    own: dict[str, Any],
    config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """librdkafka's configuration of a producer. As in Kafka, idempotence is on unless `acks` says
    otherwise.
    """
    own = dict(own)
    if str(own["acks"]) not in (
        "all",
        "-1",
        "0",
        "1",
    ):  # librdkafka takes any number, and brokers refuse it later
        raise ConfigurationError(f"acks is {own['acks']!r}: choose 'all', 1 or 0")
    own["queue.buffering.max.kbytes"] = max(1, own.pop("buffer.memory") // 1024)
    own["topic.metadata.refresh.interval.ms"] = own["metadata.max.age.ms"]
    if own["enable.idempotence"] is None:
        own["enable.idempotence"] = str(own["acks"]) in ("all", "-1")
    own["socket.timeout.ms"] = min(own["request.timeout.ms"], 300_000)
    if own["transactional.id"] is None:
        del own["transaction.timeout.ms"]
    else:  # librdkafka refuses longer ones: nothing may outlive its transaction
        limit = own["transaction.timeout.ms"]
        own["delivery.timeout.ms"] = min(own["delivery.timeout.ms"], limit)
        own["socket.timeout.ms"] = min(own["socket.timeout.ms"], max(10, limit - 100))
    return client_config(bootstrap_servers, client_id, own, config)
