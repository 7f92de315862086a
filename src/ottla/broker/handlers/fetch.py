"""Fetch (1): the log from an offset on, as slices of its files.

A fetch is answered as soon as it has `min_bytes` to give, something went wrong with one of its partitions, or
`max_wait_ms` is over; until then it waits for the partitions it names. At least one whole batch is given even
where it is larger than every limit, so that a large record cannot block its reader for ever. Consumers see
what lies below the high watermark, or below the last stable offset when they read committed records only.

A follower fetches as a consumer does, with the id and epoch of its broker, on the listener for brokers. What
it gets, and how partitions are read and waited for, is in `fetch_attempt`.

From version 7 on a client may open a session and send only changes (`fetch_sessions`); from 13 on topics are
named by id.
"""

from __future__ import annotations

from typing import TypeAlias

from ottla.broker.dispatch import RequestContext
from ottla.broker.fetch_attempt import MANY_OF_FOLLOWER, FetchAttempt, Later, RecordReading, replica_of
from ottla.broker.fetch_session import FetchSession, Key, Wanted
from ottla.broker.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from ottla.broker.follower_session import FollowerSession
from ottla.broker.request_scheduler import Steps
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.storage.results import NotInMemory

MAX_WAIT_SECONDS = 600.0
"""No answer waits for longer, whatever the client says: it may be empty, and then the client asks again.
Kafka waits as long as it is told to, up to 24 days."""
_LARGE_REQUEST = 64 * 1024
_PAUSE_AFTER = 64
_BY_ID = 13

_Answer: TypeAlias = "FetchResponse | Later | Steps[FetchResponse] | Steps[Later | Steps[FetchResponse]]"
"""At once, later, or in slices."""


def fetch(broker: RecordReading, request: FetchRequest, context: RequestContext) -> _Answer | Steps[_Answer]:
    by_id = context.version >= _BY_ID
    if context.size > _LARGE_REQUEST:
        return _large_fetch(broker, request, context)
    wanted = [
        Wanted(
            topic.topic_id if by_id else topic.topic,
            p.partition,
            p.fetch_offset,
            p.partition_max_bytes,
            p.current_leader_epoch,
            p.last_fetched_epoch,
            p.log_start_offset,
        )
        for topic in request.topics
        for p in topic.partitions
    ]
    if len(wanted) > 1:
        # A partition that is named twice is read once, from where the last one says; as in Kafka.
        wanted = list({want[:2]: want for want in wanted}.values())
    return _fetch(broker, request, context, wanted)


def _large_fetch(broker: RecordReading, request: FetchRequest, context: RequestContext) -> Steps[_Answer]:
    """The same with pauses."""
    by_id = context.version >= _BY_ID
    wanted: dict[Key, Wanted] = {}
    for topic in request.topics:
        for number, each in enumerate(topic.partitions):
            name = topic.topic_id if by_id else topic.topic
            wanted[name, each.partition] = Wanted(
                name,
                each.partition,
                each.fetch_offset,
                each.partition_max_bytes,
                each.current_leader_epoch,
                each.last_fetched_epoch,
                each.log_start_offset,
            )
            if not number % _PAUSE_AFTER:
                yield
    return _fetch(broker, request, context, list(wanted.values()))


def _open_session(
    broker: RecordReading, request: FetchRequest, context: RequestContext, wanted: list[Wanted], now_ms: int
) -> FetchSession | None:
    by_id = context.version >= _BY_ID
    connection = context.connection
    replica_id = replica_of(request, context.version)
    if replica_id < 0:
        return broker.fetch_sessions.open(by_id, wanted, now_ms, connection.address, repr(connection))
    node = broker.image.brokers.get(replica_id)
    if not context.from_broker or node is None or request.replica_state.replica_epoch < node.epoch:
        return None  # a former run of the broker is refused, and may not end the session of the present one
    return broker.fetch_sessions.open_for_broker(replica_id, by_id, wanted, now_ms)


def _fetch(
    broker: RecordReading, request: FetchRequest, context: RequestContext, wanted: list[Wanted]
) -> _Answer:
    by_id = context.version >= _BY_ID
    now_ms = int(broker.clock.monotonic() * 1000)  # the wall clock may be set back
    session: FetchSession | None = None
    resting: FollowerSession | None = None
    incremental = False
    if context.version >= 7:
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                broker.fetch_sessions.close(request.session_id)
            if request.session_epoch == INITIAL_EPOCH:
                session = _open_session(broker, request, context, wanted, now_ms)
        else:
            found = broker.fetch_sessions.resume(request.session_id, request.session_epoch, by_id, now_ms)
            if isinstance(found, ErrorCode):
                return FetchResponse(error_code=found)
            forgotten = [
                (gone.topic_id if by_id else gone.topic, index)
                for gone in request.forgotten_topics_data
                for index in gone.partitions
            ]
            if not broker.fetch_sessions.update(found, wanted, forgotten):
                return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if isinstance(found, FollowerSession) and len(found) >= MANY_OF_FOLLOWER:
                resting = found
                wanted = found.due(now_ms, broker.isr_changes.max_lag_ms)
            else:
                wanted = found.wanted()
            if len(found):
                session, incremental = found, True
            else:
                broker.fetch_sessions.close(found.id)

    attempt = FetchAttempt(broker, request, context, wanted, session, incremental, resting)
    seconds = min(request.max_wait_ms / 1000, MAX_WAIT_SECONDS)
    if resting is not None or len(wanted) >= attempt.many:
        return attempt.in_slices(seconds)
    try:
        attempt.read(wait=False)
    except NotInMemory as missing:
        return attempt.after_disk(missing, seconds)
    if attempt.enough or seconds <= 0 or not wanted:
        return attempt.answer()
    return attempt.wait(seconds)
