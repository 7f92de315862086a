"""What the pipeline has left on its topics, and the figures made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ottla.examples.news import measure
from ottla.examples.news.world import World
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol_client.consume import Consumer
from ottla.protocol_client.offsets import spans
from ottla.protocol_client.wire import Wire

DEAD_LETTERS = "news.normalise.dead-letters"


def records(wire: Wire, topic: str) -> list[bytes]:
    """The values of all records that are on the topic now; none if there is no such topic."""
    try:
        found = spans(wire, topic, [p.partition_index for p in wire.topic(topic).partitions])
    except ApiError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return []
        raise
    start = {partition: span.start for partition, span in found.items()}
    stop = {partition: span.end for partition, span in found.items()}
    return [record.value or b"" for _, record in Consumer(wire, topic, start, stop)]


def rows(wire: Wire, topic: str) -> list[Mapping[str, Any]]:
    return [json.loads(value) for value in records(wire, topic)]


def figures(world: World, bootstrap: str) -> measure.Figures:
    """Everything that was promised, measured."""
    with Wire(bootstrap) as wire:
        unique = rows(wire, "articles.unique")
        return measure.Figures(
            measure.cleaning(
                world,
                rows(wire, "articles.clean"),
                rows(wire, "articles.rejected"),
                len(records(wire, DEAD_LETTERS)),
            ),
            measure.copies(world, unique, rows(wire, "articles.duplicates")),
            measure.trends(world, rows(wire, "trends"), unique),
            measure.recommendations(world, rows(wire, "recommendations"), unique),
        )
