"""What the driver asks the brokers: which partitions there are, and where they start and end.

`protocol_client/offsets.py` asks about one topic at a time; a stream may read hundreds of partitions of many
topics and asks before every micro-batch, so here one metadata request covers all topics, and every leader
gets its questions together and at the same time as the others.

Brokers that are away are waited for: `api_timeout` seconds once they have been reached, less at first
contact (a wrong address should not take a minute to show). What does not come back is a `BrokersAway` with
what to do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ottla.pipeline.patterns import matches
from ottla.pipeline.topics.options import Place, SourceOptions
from ottla.pipeline.topics.watching import bytes_per_offset
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol_client.groups import by_topic
from ottla.protocol_client.offsets import EARLIEST, LATEST, Span
from ottla.protocol_client.wire import BrokerUnreachable, Patience, Pending, Wire, check

log = logging.getLogger("ottla.pipeline")

FIRST_CONTACT = 10.0
"""Seconds to wait for brokers that have never been reached."""

_QUIET_FOR = 1.0
"""Trouble that passes within this many seconds is not reported."""

T = TypeVar("T")


class BrokersAway(Exception):
    """The brokers, or the leaders of some partitions, cannot be reached."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a subscription comes to at the moment."""

    places: tuple[Place, ...]
    missing: tuple[tuple[str, int | None], ...] = ()
    """What was asked for by name and is not there: topics, and partitions of topics that are."""


class Brokers:
    """The driver's requests. Keeps connections and the leaders of partitions; not for several threads."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.wire = Wire(
            options.bootstrap,
            client_id=options.client_id,
            connect_timeout=options.connect_timeout,
            request_timeout=options.request_timeout,
        )
        self.leaders: dict[Place, tuple[int, bytes]] = {}
        """The broker that leads each partition, and the topic's id; as `find` saw it last."""

    def close(self) -> None:
        self.wire.close()

    def find(self) -> Found:
        """The partitions of the subscription, in order; asks afresh."""
        return self._patiently(self._find)

    def spans(self, places: Iterable[Place]) -> dict[Place, Span]:
        """Where each partition starts and ends. Partitions that do not exist any more are left out."""
        wanted = dict.fromkeys(places)
        starts = dict.fromkeys(wanted, EARLIEST)
        ends = dict.fromkeys(wanted, LATEST)
        found = self._offsets([starts, ends])
        return {
            place: Span(found[0][place], found[1][place])
            for place in wanted
            if place in found[0] and place in found[1]
        }

    def offsets_at(self, times: Mapping[Place, int]) -> dict[Place, int]:
        """The first offset at or after a time in ms; -1 where nothing is that late."""
        return self._offsets([times])[0]

    def weigh(self, positions: Mapping[Place, int]) -> dict[Place, float]:
        """About how many bytes an offset takes in the log, from each position on."""

        def ask() -> dict[Place, float]:
            if not positions.keys() <= self.leaders.keys():
                self._find()
            return bytes_per_offset(self.wire, positions, self.leaders)

        return self._patiently(ask)

    # The requests

    def _find(self) -> Found:
        chosen = self.options.subscription
        names: Iterable[str] | None = chosen.topics
        if chosen.kind == "subscribePattern":
            names = None
        elif chosen.kind == "assign":
            names = dict.fromkeys(topic for topic, _ in chosen.places)
        places: list[Place] = []
        missing: list[tuple[str, int | None]] = []
        leaders: dict[Place, tuple[int, bytes]] = {}
        for topic in self.wire.metadata(names).topics:
            name = topic.name or ""
            if names is None and (topic.is_internal or not matches(chosen.pattern, name)):
                continue
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                missing.append((name, None))
                continue
            check(topic.error_code)
            for partition in topic.partitions:
                place = name, partition.partition_index
                leaders[place] = partition.leader_id, topic.topic_id
                if chosen.kind != "assign" or place in chosen.places:
                    places.append(place)
        there = {topic for topic, _ in leaders}
        missing += [place for place in chosen.places if place[0] in there and place not in leaders]
        self.leaders = leaders
        return Found(tuple(sorted(places)), tuple(missing))

    def _offsets(self, questions: list[Mapping[Place, int]]) -> list[dict[Place, int]]:
        """Ask each question of all its places; asks again where leaders have moved."""
        answers: list[dict[Place, int]] = [{} for _ in questions]

        def ask() -> None:
            left = [
                {place: when for place, when in question.items() if place not in answer}
                for question, answer in zip(questions, answers, strict=True)
            ]
            if any(place not in self.leaders or self.leaders[place][0] < 0 for q in left for place in q):
                self._find()
                left = [{p: when for p, when in q.items() if p in self.leaders} for q in left]
            error: ApiError | None = None
            for number, pending in self._send(left):
                response: ListOffsetsResponse = self.wire.receive(pending)
                for topic in response.topics:
                    for partition in topic.partitions:
                        place = topic.name, partition.partition_index
                        try:
                            check(partition.error_code)
                            answers[number][place] = partition.offset
                        except ApiError as refused:
                            self.leaders.pop(place, None)
                            error = refused
            if error is not None:
                raise error

        self._patiently(ask)
        return answers

    def _send(self, questions: list[dict[Place, int]]) -> list[tuple[int, Pending]]:
        sent = []
        for number, question in enumerate(questions):
            by_leader: dict[int, dict[Place, int]] = {}
            for place, when in question.items():
                leader = self.leaders[place][0]
                if leader < 0:
                    raise ApiError(
                        ErrorCode.LEADER_NOT_AVAILABLE,
                        f"partition {place[1]} of topic {place[0]!r} has no leader; its brokers may be down",
                    )
                by_leader.setdefault(leader, {})[place] = when
            for leader, times in by_leader.items():
                request = ListOffsetsRequest(
                    replica_id=-1,
                    # The start of a log is the same for all readers; its end is not.
                    isolation_level=int(self.options.read_committed),
                    topics=[
                        ListOffsetsTopic(
                            name=topic,
                            partitions=[
                                ListOffsetsPartition(partition_index=p, timestamp=times[topic, p])
                                for p in partitions
                            ],
                        )
                        for topic, partitions in by_topic(times).items()
                    ],
                    timeout_ms=int(self.options.request_timeout * 1000),
                )
                sent.append((number, self.wire.send(request, node=leader)))
        return sent

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask until it works: brokers restart, leaders move. Says so when it takes longer."""
        known = bool(self.wire.nodes)
        limit = self.options.api_timeout if known else min(FIRST_CONTACT, self.options.api_timeout)
        patience = Patience(limit)
        began, told = time.monotonic(), False
        while True:
            try:
                result = ask()
            except (ApiError, BrokerUnreachable) as error:
                self.leaders.clear()
                if not told and time.monotonic() - began > _QUIET_FOR:
                    told = True
                    log.warning("waiting for the brokers at %s: %s", self.options.bootstrap, error)
                try:
                    patience.pause(error)
                except BrokerUnreachable as final:
                    raise BrokersAway(
                        f"the brokers at {self.options.bootstrap} were not reached for {limit:g} s: {final}. "
                        f"{final.advice or 'Check kafka.bootstrap.servers, and that the brokers run.'}"
                    ) from None
                except ApiError as final:
                    raise BrokersAway(
                        f"the brokers at {self.options.bootstrap} answered {final.code.name}: {final.message}"
                    ) from None
            else:
                if told:
                    log.warning("the brokers at %s are back", self.options.bootstrap)
                return result
