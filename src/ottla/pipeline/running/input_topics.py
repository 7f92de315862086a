"""What the broker says about the inputs of stages, asked without Spark and without creating topics.

Which topics are there; and whether a run with `once` has anything to do, or little. Most of such a run is the
start of Spark. When every stage has read its topics to their ends, has no batch that did not come to its end
and is declared as it was, Spark would start, look and stop. All of that is known from the checkpoints and the
broker. In doubt there is something to do: whatever is odd (a topic that was made anew, a changed declaration,
a damaged checkpoint) is for the run to report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.pipeline.checkpoints import CheckpointError, Checkpoints, StageFolder
from ottla.pipeline.fingerprint import declared_shape
from ottla.pipeline.running.lag_watch import positions_of
from ottla.pipeline.topics.offsets_file import OffsetsFile
from ottla.protocol.errors import ApiError
from ottla.protocol.messages.metadata import MetadataResponseTopic
from ottla.protocol_client.groups import Place
from ottla.protocol_client.lag import ends
from ottla.protocol_client.wire import BrokerUnreachable, UnsupportedByBroker, Wire

if TYPE_CHECKING:
    from ottla.pipeline.declarations import Stage
    from ottla.pipeline.running.loading import Pipeline

TIMEOUT = 5.0
FEW = 100_000
"""Records that are read before Java's best compiler would have paid for itself."""


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


def is_idle(pipeline: Pipeline, checkpoints: Checkpoints, bootstrap: str) -> bool:
    """Whether no stage of the pipeline has anything to read or to finish."""
    try:
        with Wire(bootstrap, connect_timeout=TIMEOUT, request_timeout=TIMEOUT) as wire:
            topics = {
                each.name: each for each in wire.metadata().topics if each.name and not each.is_internal
            }
            for stage in pipeline.stages:
                read = [each for name, each in topics.items() if any(t.reads(name) for t in stage.topics)]
                if not read and pipeline.feeders(stage):
                    continue  # nothing has ever been written for it
                if not _is_through(stage, checkpoints.stage(stage.name), read, wire):
                    return False
    except (BrokerUnreachable, UnsupportedByBroker, ApiError, CheckpointError, OSError, ValueError):
        return False
    return True


def has_little_to_read(pipeline: Pipeline, checkpoints: Checkpoints, bootstrap: str) -> bool:
    """Whether few records wait for all stages together; what they write for each other is not counted.

    False in doubt.
    """
    waiting = 0
    try:
        with Wire(bootstrap, connect_timeout=TIMEOUT, request_timeout=TIMEOUT) as wire:
            topics = [each for each in wire.metadata().topics if not each.is_internal]
            for stage in pipeline.stages:
                places = [
                    (each.name, partition.partition_index)
                    for each in topics
                    if each.name and any(source.reads(each.name) for source in stage.read_topics)
                    for partition in each.partitions
                ]
                read_to = positions_of(checkpoints.stage(stage.name).committed_offsets())
                spans = ends(wire, places, read_committed=stage.reads_committed)
                waiting += sum(
                    max(span.end - read_to.get(place, span.start), 0) for place, span in spans.items()
                )
    except (BrokerUnreachable, UnsupportedByBroker, ApiError, CheckpointError, OSError, ValueError):
        return False
    return waiting <= FEW


def _is_through(stage: Stage, folder: StageFolder, read: Iterable[MetadataResponseTopic], wire: Wire) -> bool:
    last = folder.last_committed()
    if last is None or folder.offsets_of(last.batch_id + 1) is not None:
        return False
    stored = folder.read_json("fingerprint.json")
    if stored is None or not is_declared_as(stage, stored["shape"]):
        return False
    ids = {each.name: each.topic_id for each in read if each.name}
    for number in range(len(stage.topics)):
        known = OffsetsFile(folder.offsets_file(number)).topics
        if any(ids.get(name) != topic_id for name, topic_id in known.items()):
            return False
    positions = positions_of(last.offsets)
    there = [(each.name or "", partition.partition_index) for each in read for partition in each.partitions]
    found = ends(wire, there, read_committed=stage.reads_committed)
    return positions.keys() == set(there) and has_read_all(positions, found)


def is_declared_as(stage: Stage, shape: Mapping[str, Any]) -> bool:
    """Whether inputs, outputs and mode are those of the stage that has run last."""
    declared = declared_shape(stage)
    return all(shape.get(part) == declared[part] for part in declared)


def has_read_all(positions: Mapping[Place, int], found: Mapping[Place, Any]) -> bool:
    """Whether each partition ends where it was read to; one that is shorter has to be looked at."""
    return all(place in found and found[place].end == offset for place, offset in positions.items())
