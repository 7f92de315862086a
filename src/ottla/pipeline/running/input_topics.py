"""Which of the topics a stage reads are there, asked of the broker without creating any."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.pipeline.declarations import Stage
from ottla.protocol.errors import ApiError
from ottla.protocol_client.wire import BrokerUnreachable, Wire


def topic_names(bootstrap: str, *, timeout: float = 5.0) -> set[str]:
    """The topics that the broker has, its own aside. BrokerUnreachable when there is no broker."""
    with Wire(bootstrap, connect_timeout=timeout, request_timeout=timeout) as wire:
        topics = wire.metadata().topics
    return {topic.name for topic in topics if topic.name and not topic.is_internal}


def missing_inputs(stage: Stage, there: Iterable[str]) -> list[str]:
    """What `stage` reads and the broker does not have, as a person calls it."""
    known = list(there)
    return [each.title for each in stage.read_topics if not any(each.reads(name) for name in known)]


def missing_now(stage: Stage, bootstrap: str) -> list[str]:
    """The same, asked now. A broker that is away is missing itself."""
    try:
        return missing_inputs(stage, topic_names(bootstrap))
    except (BrokerUnreachable, ApiError):
        return [f"the broker at {bootstrap}"]
