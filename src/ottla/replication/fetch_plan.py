"""What a follower asks its leader for next: pure state behind `fetch_loop`.

One plan is for all partitions in which this broker follows one other. With a fetch session (KIP-227) the
leader remembers them, so a request names only those whose position has changed, and an answer only those with
news: a thousand idle partitions cost one small request in `replica.fetch.wait.max.ms`.

A partition is asked for unless it is

* busy: its log is being written to or flushed, so its position is not known yet;
* backing off: its last answer was an error. It is out of the session meanwhile, since the leader answers a
  request with an error at once. Each error in a row doubles the pause, up to `replica.fetch.backoff.ms`.

An answer counts for the position it was asked with; who takes it compares that with the present one.

No clock, no I/O: time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from ottla.protocol.errors import error_of
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from ottla.replication.following import Position

Key = tuple[bytes, int]
"""Topic id and partition."""

NO_SESSION = 0
_INITIAL_EPOCH = 0
_LAST_EPOCH = 0x7FFFFFFF
FIRST_BACKOFF = 0.02


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Kafka's names: `replica.fetch.*` and `replica.socket.timeout.ms`."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1024 * 1024
    """Of one partition."""
    response_max_bytes: int = 10 * 1024 * 1024
    backoff: float = 1.0
    timeout: float = 30.0


class Answer(NamedTuple):
    key: Key
    data: PartitionData
    asked: Position


class SessionLost(Exception):
    """The leader does not go on with the fetch session; the next request begins another."""


class FetchPlan:
    def __init__(self, replica_id: int) -> None:
        self._replica_id = replica_id
        self._positions: dict[Key, Position | None] = {}  # of all that are followed; None: busy
        self._told: dict[
            Key, Position
        ] = {}  # what the leader has in the session, or in the request under way
        self._changed: dict[Key, None] = {}  # may be other than the leader was told
        self._retry_at: dict[Key, float] = {}  # of those that back off
        self._failures: dict[Key, int] = {}  # in a row
        self._session_id = NO_SESSION
        self._session_epoch = _INITIAL_EPOCH

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, key: object) -> bool:
        return key in self._positions

    # -- partitions ---------------------------------------------------------------------------------------

    def follow(self, key: Key, position: Position | None) -> None:
        """Ask for a partition from now on, or in a new leader epoch: errors before do not count."""
        self._retry_at.pop(key, None)
        self._failures.pop(key, None)
        self._positions[key] = position
        self._changed[key] = None

    def forget(self, key: Key) -> None:
        if key in self._positions:
            del self._positions[key]
            self._retry_at.pop(key, None)
            self._failures.pop(key, None)
            self._changed[key] = None

    def move(self, key: Key, position: Position | None) -> None:
        """The partition is to be asked for from another position on; None while that is not known."""
        if key in self._positions:
            self._positions[key] = position
            self._changed[key] = None

    def succeed(self, key: Key) -> None:
        """The answer for a partition was good."""
        self._failures.pop(key, None)

    def back_off(self, key: Key, now: float, longest: float) -> int:
        """Ask for the partition later. How often in a row it has failed now."""
        if key not in self._positions:
            return 0
        before = self._failures.get(key, 0)
        self._retry_at[key] = now + min(FIRST_BACKOFF * 2.0 ** min(before, 20), longest)
        self._failures[key] = before + 1
        self._changed[key] = None
        return before + 1

    def backs_off(self, key: Key, now: float) -> bool:
        return self._retry_at.get(key, 0.0) > now

    def retry_at(self) -> float | None:
        """When the first of those that back off is asked for again."""
        return min(self._retry_at.values(), default=None)

    # -- requests and answers -----------------------------------------------------------------------------

    def request(self, replica_epoch: int, settings: FetchSettings, now: float) -> FetchRequest | None:
        """The next request; None while there is nothing to ask for."""
        for key in [key for key, due in self._retry_at.items() if due <= now]:
            del self._retry_at[key]
            self._changed[key] = None
        named: list[tuple[Key, Position]] = []
        forgotten: list[Key] = []
        told = self._told
        for key in self._changed if self._session_epoch else self._positions:
            wanted = None if key in self._retry_at else self._positions.get(key)
            if wanted is None:
                if told.pop(key, None) is not None:
                    forgotten.append(key)
            elif wanted != told.get(key):
                named.append((key, wanted))
                told[key] = wanted
        self._changed.clear()
        if not told:
            self.failed()  # the leader ends a session without partitions
            return None
        max_wait_ms = settings.max_wait_ms
        if self._retry_at:  # those are asked for in the request after this one
            max_wait_ms = min(max_wait_ms, ceil((min(self._retry_at.values()) - now) * 1000))
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._replica_id, replica_epoch=replica_epoch),
            max_wait_ms=max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=_wanted_topics(named, settings.max_bytes),
            forgotten_topics_data=_forgotten_topics(forgotten),
        )

    def answered(self, response: FetchResponse) -> list[Answer]:
        """What the leader says of partitions that it was asked for. SessionLost when it says nothing."""
        if response.error_code:
            self.failed()
            raise SessionLost(error_of(response.error_code).name)
        if self._session_epoch and response.session_id != self._session_id:
            self.failed()
            raise SessionLost(f"it answered for session {response.session_id}")
        answers: dict[Key, Answer] = {}
        for topic in response.responses:
            for data in topic.partitions:
                key = topic.topic_id, data.partition_index
                if key in self._positions and (asked := self._told.get(key)) is not None:
                    answers[key] = Answer(key, data, asked)
        self._session_id = response.session_id
        if self._session_id == NO_SESSION:
            self._told = {}
            for key, answer in answers.items():
                if answer.data.records:
                    # The leader reads in the order of the request, up to a limit: others are first next time.
                    self._positions[key] = self._positions.pop(key)
        else:
            self._session_epoch = 1 if self._session_epoch == _LAST_EPOCH else self._session_epoch + 1
        return list(answers.values())

    def failed(self) -> None:
        """No answer came, or none of use: begin another session, and end this one if it still exists."""
        self._session_epoch = _INITIAL_EPOCH
        self._told = {}


def _wanted_topics(named: Iterable[tuple[Key, Position]], max_bytes: int) -> list[FetchTopic]:
    topics: dict[bytes, FetchTopic] = {}
    for (topic_id, index), position in named:
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = FetchTopic(topic_id=topic_id, partitions=[])
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=position.leader_epoch,
                fetch_offset=position.fetch_offset,
                last_fetched_epoch=position.last_fetched_epoch,
                log_start_offset=position.log_start_offset,
                partition_max_bytes=max_bytes,
            )
        )
    return list(topics.values())


def _forgotten_topics(forgotten: Iterable[Key]) -> list[ForgottenTopic]:
    topics: dict[bytes, ForgottenTopic] = {}
    for topic_id, index in forgotten:
        topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id, partitions=[])).partitions.append(index)
    return list(topics.values())
