"""Fetch (1): the log from an offset on, as slices of its files.

A fetch is answered as soon as it has `min_bytes` to give, something went wrong with one of its partitions, or
`max_wait_ms` is over; until then it waits for the partitions it names. At least one whole batch is given even
where it is larger than every limit, so that a large record cannot block its reader for ever. Consumers see
what lies below the high watermark, or below the last stable offset when they read committed records only.

From version 7 on a client may open a session and send only changes (`fetch_sessions`); from 13 on topics are
named by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.dispatch import RequestContext
from ottla.broker.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, FetchSession, Wanted
from ottla.broker.pending import Pending
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from ottla.replication.partition import Partition

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

_READ_COMMITTED = 1
_BY_ID = 13
_NAMES_THE_LEADER = 16
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""A client that gets one of these learns in the same answer who leads now (KIP-951)."""


def fetch(broker: Broker, request: FetchRequest, context: RequestContext) -> FetchResponse | Pending:
    by_id = context.version >= _BY_ID
    now_ms = broker.clock.now_ms()
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
    session: FetchSession | None = None
    incremental = False
    if context.version >= 7:
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                broker.fetch_sessions.close(request.session_id)
            if request.session_epoch == INITIAL_EPOCH:
                connection = context.connection
                session = broker.fetch_sessions.open(
                    by_id, wanted, now_ms, connection.address, repr(connection)
                )
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
            wanted = found.wanted()
            if wanted:
                session, incremental = found, True
            else:
                broker.fetch_sessions.close(found.id)

    attempt = _Fetch(broker, request, context, wanted, session, incremental)
    attempt.read()
    if attempt.enough or request.max_wait_ms <= 0 or not wanted:
        return attempt.response()
    return attempt.wait(request.max_wait_ms / 1000)


class _Fetch:
    """One request on its way: read, perhaps wait and read again, answer."""

    __slots__ = (
        "_broker",
        "_by_id",
        "_committed_only",
        "_incremental",
        "_max_bytes",
        "_min_bytes",
        "_names_the_leader",
        "_replica_id",
        "_results",
        "_session",
        "_wanted",
        "enough",
    )

    def __init__(
        self,
        broker: Broker,
        request: FetchRequest,
        context: RequestContext,
        wanted: list[Wanted],
        session: FetchSession | None,
        incremental: bool,
    ) -> None:
        self._broker = broker
        self._by_id = context.version >= _BY_ID
        self._names_the_leader = context.version >= _NAMES_THE_LEADER
        self._committed_only = request.isolation_level == _READ_COMMITTED
        self._max_bytes = min(request.max_bytes, broker.fetch_max_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._replica_id = request.replica_id if context.version < 15 else request.replica_state.replica_id
        self._wanted = wanted
        self._session = session
        self._incremental = incremental
        self._results: list[PartitionData] = []
        self.enough = False

    def read(self) -> None:
        """Look at every partition once; `enough` says whether the answer may leave."""
        room = self._max_bytes
        size = 0
        failed = False
        results = self._results = []
        for want in self._wanted:
            data = self._read_one(want, min(want.max_bytes, room), at_least_one=size == 0)
            results.append(data)
            if data.error_code or data.diverging_epoch.epoch >= 0:
                failed = True
            given = len(data.records or b"")
            size += given
            room = max(room - given, 0)
        self.enough = failed or size >= self._min_bytes

    def _read_one(self, want: Wanted, max_bytes: int, at_least_one: bool) -> PartitionData:
        try:
            partition = self._partition(want)
            if want.last_fetched_epoch >= 0:
                epoch, end = partition.log.leader_epochs.end_offset_for(
                    want.last_fetched_epoch, partition.log.end_offset
                )
                if epoch < 0:
                    raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
                if epoch < want.last_fetched_epoch or end < want.fetch_offset:
                    return PartitionData(
                        partition_index=want.partition,
                        high_watermark=partition.high_watermark,
                        last_stable_offset=partition.last_stable_offset,
                        log_start_offset=partition.log.log_start_offset,
                        diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end),
                        aborted_transactions=[] if self._committed_only else None,
                        records=b"",
                    )
            records, high_watermark, stable, start = partition.read(
                want.fetch_offset, max_bytes, self._committed_only, at_least_one
            )
        except ApiError as error:
            return self._refusal(want, error)
        return PartitionData(
            partition_index=want.partition,
            high_watermark=high_watermark,
            last_stable_offset=stable,
            log_start_offset=start,
            aborted_transactions=[] if self._committed_only else None,
            records=b"" if records is None else records,
        )

    def _refusal(self, want: Wanted, error: ApiError) -> PartitionData:
        refusal = PartitionData(
            partition_index=want.partition,
            error_code=error.code,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            aborted_transactions=[] if error.code in _UNKNOWN else None,
            records=b"",
        )
        if self._names_the_leader and error.code in _MOVED:
            name = self._broker.topic_name(want.topic) if isinstance(want.topic, bytes) else want.topic
            state = self._broker.image.partition(name, want.partition) if name else None
            if state is not None:
                refusal.current_leader = LeaderIdAndEpoch(
                    leader_id=state.leader, leader_epoch=state.leader_epoch
                )
        return refusal

    def _partition(self, want: Wanted) -> Partition:
        name = want.topic
        if isinstance(name, bytes):
            known = self._broker.topic_name(name)
            if known is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = known
        partition = self._broker.replicas.leader(name, want.partition, want.current_leader_epoch)
        if self._replica_id >= 0 and partition.state.follower(self._replica_id) is None:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self._replica_id} is no replica of this"
            )
        return partition

    def wait(self, seconds: float) -> Pending:
        def ready() -> bool:
            self.read()
            return self.enough

        def done(expired: bool) -> None:
            try:
                if expired:
                    self.read()
                answer: FetchResponse | Exception = self.response()
            except Exception as error:  # noqa: BLE001 - dispatch tells of it; unanswered, the client would hang
                answer = error
            pending.resolve(answer)

        keys = []
        for want in self._wanted:
            try:
                keys.append(self._partition(want))
            except ApiError:  # an error would have been answered at once, so this partition just went away
                continue
        pending = Pending()
        pending.on_cancel = self._broker.room.enter(keys, ready, done, seconds).cancel
        return pending

    def response(self) -> FetchResponse:
        topics: list[FetchableTopicResponse] = []
        session = self._session
        last: bytes | str | None = None
        for want, data in zip(self._wanted, self._results, strict=True):
            if session is not None:
                news = session.worth_telling(
                    (want.topic, want.partition),
                    data.error_code,
                    len(data.records or b""),
                    data.high_watermark,
                    data.log_start_offset,
                    data.diverging_epoch.epoch >= 0,
                )
                if self._incremental and not news:
                    continue
            if want.topic != last:
                last = want.topic
                topics.append(
                    FetchableTopicResponse(topic_id=last, partitions=[])
                    if isinstance(last, bytes)
                    else FetchableTopicResponse(topic=last, partitions=[])
                )
            topics[-1].partitions.append(data)
        return FetchResponse(session_id=NO_SESSION if session is None else session.id, responses=topics)
