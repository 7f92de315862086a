"""Offsets as Spark keeps them, and what startingOffsets and endingOffsets come to.

In Spark's checkpoint, in the options and in progress reports offsets have the form of Spark's Kafka source:
`{"clicks": {"0": 17, "1": 4}}`, read and written here by `places_of` and `json_of`. `resolve` makes offsets
of what was asked for, and `ranges_between` makes ranges to read of two such maps, noticing what is gone:
every reason to believe that records were lost becomes a sentence with topic, partition and offsets. Whether
that ends the query is failOnDataLoss's to say.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ottla.pipeline.topics.options import (
    EARLIEST,
    LATEST,
    Bound,
    OptionError,
    Place,
    SourceOptions,
    TopicMissing,
)
from ottla.pipeline.topics.planning import Range

if TYPE_CHECKING:
    from ottla.pipeline.topics.brokers import Brokers, Found
    from ottla.protocol_client.offsets import Span

log = logging.getLogger("ottla.pipeline")

UNSURE_FOR = 2.0
"""Seconds to ask again before believing that something is not there, or has become shorter."""

OffsetsJson: TypeAlias = dict[str, dict[str, int]]


class DataLost(Exception):
    """Records that should have been read are gone: removed by retention, or the topic was made anew."""


class Plan(NamedTuple):
    """What to read, and what cannot be read any more, in words."""

    ranges: list[Range]
    losses: list[str]
    unsure: bool
    """True when some of the losses may be brokers that have not caught up yet: ask again before saying so."""


def json_of(offsets: Mapping[Place, int]) -> OffsetsJson:
    """In the order of topics and partitions, because Spark compares the text."""
    found: OffsetsJson = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def places_of(offsets: OffsetsJson) -> dict[Place, int]:
    return {
        (topic, int(p)): offset for topic, partitions in offsets.items() for p, offset in partitions.items()
    }


def name(place: Place) -> str:
    return f"partition {place[1]} of topic {place[0]!r}"


def resolve(
    bound: Bound, brokers: Brokers, spans: Mapping[Place, Span], options: SourceOptions
) -> dict[Place, int]:
    """The offset of each partition that `bound` stands for."""
    if bound.kind == "earliest":
        return {place: span.start for place, span in spans.items()}
    if bound.kind == "latest":
        return {place: span.end for place, span in spans.items()}
    if bound.kind == "group":
        return _of_group(bound, brokers, spans, options)
    if bound.kind == "timestamp":
        return _at_times(bound, brokers, spans, dict.fromkeys(spans, bound.timestamp))
    given = dict(bound.by_place)
    _check_complete(bound.option, given, spans)
    if bound.kind == "timestamps":
        return _at_times(bound, brokers, spans, given)
    ends = {EARLIEST: 0, LATEST: 1}
    return {p: spans[p][ends[number]] if number in ends else number for p, number in given.items()}


def ranges_between(start: Mapping[Place, int], end: Mapping[Place, int], spans: Mapping[Place, Span]) -> Plan:
    """What lies between two maps of offsets, as far as the brokers still have it.

    A partition that is new in `end` is read from its start. Ranges are cut to what is there, so that a query
    which may go on after losses does not run into them again.
    """
    ranges: list[Range] = []
    losses = [
        f"{name(place)} does not exist any more; it had been read up to offset {start[place]}"
        for place in sorted(start.keys() - end.keys())
    ]
    unsure = False
    for place in sorted(end):
        span = spans.get(place)
        first, last = start.get(place), end[place]
        if span is None:
            unsure = True
            if first is None or first < last:
                since = f"offsets {first} to {last - 1}" if first is not None else f"offsets up to {last - 1}"
                losses.append(f"{name(place)} does not exist any more; {since} had not been read")
            continue
        if first is None:
            if span.start > 0 and last > 0:
                losses.append(
                    f"{name(place)} is new to this query and starts at offset {span.start}; "
                    f"offsets 0 to {span.start - 1} were deleted before they were read"
                )
            first = span.start
        elif last < first:
            losses.append(
                f"{name(place)} ends at offset {last}, but had been read up to offset {first}: "
                "the topic was made anew, a broker lost its data, or the start was set past the end"
            )
        elif first < min(span.start, last):
            losses.append(
                f"{name(place)}: offsets {first} to {min(span.start, last) - 1} were deleted before they "
                f"were read (the partition now starts at {span.start})"
            )
            first = span.start
        if span.end < last and first < last:
            unsure = True
            losses.append(
                f"{name(place)} ends at offset {span.end}, so offsets {max(first, span.end)} to {last - 1} "
                "cannot be read"
            )
            last = span.end
        if first < last:
            ranges.append(Range(*place, first, last))
    return Plan(ranges, losses, unsure)


def report(losses: Iterable[str], options: SourceOptions) -> None:
    """Raise `DataLost`, or say it and go on, as failOnDataLoss wants it."""
    found = list(losses)
    if not found:
        return
    shown = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
    if options.fail_on_data_loss:
        raise DataLost(
            f"{shown}. To go on with what is left, set failOnDataLoss to false; to lose nothing next time, "
            "keep records longer (retention.ms, retention.bytes) and topics until they are read"
        )
    log.warning("%s; going on, since failOnDataLoss is false", shown)


def find_all(brokers: Brokers) -> Found:
    """All that is asked for, which has to be there. A topic made a moment ago may take its time to show."""
    deadline = time.monotonic() + UNSURE_FOR
    found = brokers.find()
    while found.missing and time.monotonic() < deadline:
        time.sleep(0.1)
        found = brokers.find()
    check_there(found.missing, brokers.options, strict=True)
    return found


def check_there(
    missing: Iterable[tuple[str, int | None]], options: SourceOptions, *, strict: bool | None = None
) -> None:
    """Refuse to begin with something that does not exist: it may be a misspelt name.

    A query that goes on after losses (failOnDataLoss) goes on without it, when it is not to be strict.
    """
    absent = [f"topic {topic!r}" if p is None else name((topic, p)) for topic, p in missing]
    if not absent:
        return
    text = f"{', '.join(absent)} {'do' if len(absent) > 1 else 'does'} not exist at {options.bootstrap}"
    if options.fail_on_data_loss if strict is None else strict:
        raise TopicMissing(
            f"{text}; check the option {options.subscription.kind}, or create what is missing first"
        )
    log.warning("%s; going on without", text)


def _check_complete(option: str, given: Mapping[Place, int], spans: Mapping[Place, object]) -> None:
    wrong = []
    if unnamed := sorted(spans.keys() - given.keys()):
        wrong.append(f"it does not name {', '.join(map(name, unnamed))}")
    if unknown := sorted(given.keys() - spans.keys()):
        wrong.append(f"it names {', '.join(map(name, unknown))}, which is not read")
    if wrong:
        hint = "" if "Timestamp" in option else "; -1 stands for latest and -2 for earliest"
        raise OptionError(
            f"{option} has to name exactly the partitions that are read: {' and '.join(wrong)}{hint}"
        )


def _at_times(
    bound: Bound, brokers: Brokers, spans: Mapping[Place, Span], times: Mapping[Place, int]
) -> dict[Place, int]:
    found = {}
    for place, offset in brokers.offsets_at(times).items():
        if offset < 0 and bound.otherwise == "error":
            raise OptionError(
                f"{bound.option}: {name(place)} has no record at or after {times[place]}. "
                "Set startingOffsetsByTimestampStrategy to latest to begin at the end of such partitions"
            )
        found[place] = spans[place].end if offset < 0 else min(offset, spans[place].end)
    return found


def _of_group(
    bound: Bound, brokers: Brokers, spans: Mapping[Place, Span], options: SourceOptions
) -> dict[Place, int]:
    """Where the group left off; the start or the end of partitions it has committed nothing for."""
    from ottla.protocol_client.group_offsets import committed_offsets

    committed = committed_offsets(brokers.wire, options.group)
    found, losses = {}, []
    for place, span in spans.items():
        otherwise = span.end if bound.otherwise == "latest" else span.start
        offset = committed[place].offset if place in committed else otherwise
        if not span.start <= offset <= span.end:
            losses.append(
                f"group {options.group!r} has committed offset {offset} for {name(place)}, "
                f"which holds {span.start} to {span.end}"
            )
            offset = span.start if offset < span.start else otherwise
        found[place] = offset
    report(losses, options)
    return found
