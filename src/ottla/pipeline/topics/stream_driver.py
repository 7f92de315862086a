"""The driver's side of a stream: from offsets Spark has done to offsets it shall do next.

Spark asks `latest` before each micro-batch, with the offsets that the last one ended at. The answer is made
of three steps: look where the partitions end; admit as much as the options allow; and when there is nothing
to admit, wait for records with a long poll instead of letting Spark ask a hundred times a second. Then
`ranges` says what lies between two offsets.

Two things come from how Spark treats sources written in Python:

- Spark does not keep the offsets a query began at, only those at which batches ended, and asking again may
  give others. So they are written to the file that the option offsetsFile names (`offsets_file.py`). Without
  one the first batch is made an empty one: from then on the beginning is in the checkpoint, and a failure in
  between loses nothing.
- The sources of one query are asked one after the other. A source that waits long holds up the others, so one
  that notices that batches run without it waits only shortly.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Mapping

from ottla.pipeline.topics.admission import HoldBack, admitted, waiting
from ottla.pipeline.topics.brokers import Brokers, Found
from ottla.pipeline.topics.group_progress import GroupProgress
from ottla.pipeline.topics.offsets import (
    UNSURE_FOR,
    OffsetsJson,
    check_there,
    find_all,
    json_of,
    places_of,
    ranges_between,
    report,
    resolve,
)
from ottla.pipeline.topics.offsets import name as topic_name
from ottla.pipeline.topics.offsets_file import OffsetsFile
from ottla.pipeline.topics.options import Bound, Place, SourceOptions
from ottla.pipeline.topics.planning import Range
from ottla.pipeline.topics.watching import Watch
from ottla.protocol.schema import ZERO_UUID
from ottla.protocol_client.offsets import Span

log = logging.getLogger("ottla.pipeline")

WAIT = 0.5
"""Seconds that an idle stream waits for records before Spark may do its housekeeping."""

WAIT_AMONG_OTHERS = 0.1
"""The same for a stream that is not the only one of its query."""

METADATA_AGE = 1.0
METADATA_AGE_OF_PATTERNS = 5.0
"""How old the list of partitions may be; a pattern asks for all topics of the cluster."""

SETTLE = 1.0
SETTLE_AT_THE_END = 5.0

_PAUSE = 0.1


class StreamDriver:
    """One stream, from its start to its end. Lives in a process of its own that Spark starts."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.brokers = Brokers(options)
        self.progress = GroupProgress(options)
        self._watch = Watch(options)
        self._bound = options.starting or Bound("latest")
        self._hold = HoldBack(options.min_offsets_per_trigger, options.max_trigger_delay)
        self._file = OffsetsFile(options.offsets_file)
        self._initial: OffsetsJson | None = None
        self._is_noted = False
        """Whether `_initial` is what was written down when the query began."""
        self._target: dict[Place, int] | None = None
        self._found = Found(())
        self._found_at = float("-inf")
        self._spans: dict[Place, Span] = {}
        self._asked = False
        self._idle = False
        self._among_others = False
        self._ran_without_us = False
        self._batches_without_us = 0
        self._strangers: list[tuple[str, int | None]] = []
        for text in options.notices:
            log.warning("%s", text)
        if self.progress.enabled and not options.group_id:
            log.info(
                "the progress of this stream (%s) is shown by consumer group %r; kafka.group.id gives it "
                "another, commitOffsets=false none",
                options.subscription,
                self.progress.group,
            )

    def close(self) -> None:
        self._watch.close()
        self.progress.close()
        self.brokers.close()

    # What Spark asks

    def initial(self) -> OffsetsJson:
        """Where a new query begins. Spark asks more than once and must hear the same."""
        if self._initial is None:
            self._initial = self._file.start
            self._is_noted = self._initial is not None
        if self._initial is None:
            spans = self.brokers.spans(find_all(self.brokers).places)
            self._initial = json_of(resolve(self._bound, self.brokers, spans, self.options))
            self._file.begin(self._initial, self._ids(self._initial))
        return self._initial

    def stop_at_what_is_there(self) -> None:
        """Trigger.AvailableNow: what comes later belongs to the next run."""
        found = self.brokers.find()
        self._target = {place: span.end for place, span in self.brokers.spans(found.places).items()}

    def latest(self, start_json: OffsetsJson, *, everything: bool = False) -> OffsetsJson:
        """Where the next batch ends; `start_json` itself when there is nothing to do.

        `everything` (Trigger.Once) knows no limits, and no second batch to leave something to.
        """
        start = places_of(start_json)
        self.progress.submit(start)
        first, self._asked = not self._asked, True
        if first and start_json == self._initial and self._file.path is None and not everything:
            self._idle = False
            return start_json
        wait = self._wait()
        deadline = time.monotonic() + wait
        while True:
            begin, ends = self._look(start)
            end = self._admit(begin, ends, everything)
            if end != start:
                self._idle, self._batches_without_us = False, 0
                return json_of(end)
            if everything or self._target is not None:
                self.progress.settle(SETTLE_AT_THE_END)
                return start_json
            settled = self.progress.settle(min(SETTLE, wait))
            left = min(deadline - time.monotonic(), self._hold.left(time.monotonic()))
            nap = left if settled else min(left, SETTLE)
            if left <= 0 or not (self._watch.wait(ends, self.brokers.leaders, nap) or nap < left):
                self._idle = True
                return start_json

    def ends(self) -> OffsetsJson | None:
        """Where the partitions ended when they were last looked at, for reports of progress."""
        return json_of({place: span.end for place, span in self._spans.items()}) or None

    def ranges(self, start_json: OffsetsJson, end_json: OffsetsJson) -> list[Range]:
        """What lies between; failOnDataLoss decides about what is gone."""
        start, end = places_of(start_json), places_of(end_json)
        if start == end:
            return []
        again = not self._asked
        if again and start_json == self._initial and not self._is_noted:
            # The first batch runs again, and only its end was written down. Where that lies before what would
            # be the beginning now, or does not know the partition, there was nothing in it.
            start = {place: min(offset, end[place]) for place, offset in start.items() if place in end}
        deadline = time.monotonic() + UNSURE_FOR
        spans: Mapping[Place, Span] = self._spans
        if again or not end.keys() <= spans.keys():
            spans = self.brokers.spans(end)
            self._check_topics(end)
        plan = ranges_between(start, end, spans)
        while plan.unsure and time.monotonic() < deadline:
            time.sleep(_PAUSE)
            self.brokers.find()
            plan = ranges_between(start, end, self.brokers.spans(end))
        report(plan.losses, self.options)
        return plan.ranges

    def done(self, end_json: OffsetsJson) -> None:
        """Spark is through with everything before these offsets."""
        self.progress.submit(places_of(end_json))
        if self._idle:
            # A batch was made though we had nothing new. Once may be Spark cleaning up state after our own
            # last batch; twice in a row is another source.
            self._ran_without_us = True
            self._batches_without_us += 1
            self._among_others = self._among_others or self._batches_without_us >= 2

    # The steps

    def _wait(self) -> float:
        """How long to wait for records: not at all while other sources keep the query busy."""
        busy, self._ran_without_us = self._ran_without_us, False
        if self._among_others and busy:
            return 0.0
        if self.options.fetch_wait is not None:
            return self.options.fetch_wait
        return WAIT_AMONG_OTHERS if self._among_others else WAIT

    def _look(self, start: Mapping[Place, int]) -> tuple[dict[Place, int], dict[Place, int]]:
        """Where reading would begin in each partition that there is, and where it ends."""
        deadline = time.monotonic() + UNSURE_FOR
        while True:
            self._find()
            self._spans = self.brokers.spans(self._found.places)
            read = {topic for topic, _ in start}
            strangers = [m for m in self._found.missing if m[0] not in read]
            doubtful = any(p not in self._spans or self._spans[p].end < offset for p, offset in start.items())
            if (strangers == self._strangers and not doubtful) or time.monotonic() >= deadline:
                break
            # A broker that has just started may not know all topics yet, a new leader not the whole log.
            self._found_at = float("-inf")
            time.sleep(_PAUSE)
        if strangers != self._strangers:
            # Names that are new in the options may be misspelt, so a query that is strict does not begin.
            check_there(strangers, self.options)
            self._strangers = strangers
        self._check_topics(start)
        begin = {place: start.get(place, span.start) for place, span in self._spans.items()}
        ends = {place: span.end for place, span in self._spans.items()}
        if (target := self._target) is not None:
            ends = {
                place: min(end, max(target.get(place, 0), begin[place]))
                for place, end in ends.items()
                if place in target or place in start
            }
        return begin, ends

    def _check_topics(self, read: Mapping[Place, int]) -> None:
        """Notice topics that were deleted and made anew, by their ids; `read` is how far each was read."""
        known, now = self._file.topics, self._ids()
        changed = {name: each for name, each in now.items() if known.get(name) != each}
        if not changed:
            return
        losses = [
            f"topic {name!r} was deleted and made anew: {topic_name(place)} had been read up to offset "
            f"{offset} of the old one, and the records of the new one before that offset are not read"
            for place, offset in sorted(read.items())
            if (name := place[0]) in changed and name in known and offset > 0
        ]
        report(losses, self.options)
        self._file.learn(changed)

    def _ids(self, topics: Container[str] | None = None) -> dict[str, bytes]:
        """The ids of the topics that are read, as metadata last told; brokers before 2.8 have none."""
        return {
            name: topic_id
            for (name, _), (_, topic_id) in self.brokers.leaders.items()
            if topic_id != ZERO_UUID and (topics is None or name in topics)
        }

    def _find(self) -> None:
        age = self.options.metadata_age
        if age is None:
            by_pattern = self.options.subscription.kind == "subscribePattern"
            age = METADATA_AGE_OF_PATTERNS if by_pattern else METADATA_AGE
        now = time.monotonic()
        moved = self._found.places and not self.brokers.leaders
        if moved or now - self._found_at >= age:
            self._found, self._found_at = self.brokers.find(), now

    def _admit(
        self, begin: Mapping[Place, int], ends: Mapping[Place, int], everything: bool
    ) -> dict[Place, int]:
        amounts = waiting(begin, ends)
        if everything or not amounts:
            return dict(ends)
        if self._target is None and self._hold.waits(sum(amounts.values()), time.monotonic()):
            return {place: offset for place, offset in begin.items() if place in ends}
        weights = None
        if self.options.max_bytes_per_trigger is not None:
            heads = {place: max(begin[place], self._spans[place].start) for place in amounts}
            weights = self.brokers.weigh(heads)
        return admitted(
            begin,
            ends,
            max_offsets=self.options.max_offsets_per_trigger,
            max_bytes=self.options.max_bytes_per_trigger,
            bytes_each=weights,
        )
