"""One fetch on its way: partitions are read, waited for and read again, and the response is composed.

Used by the handler of Fetch (`handlers/fetch`), which knows which partitions are wanted and in which session.
A fetch of few partitions is read at once. One of many is read and answered in slices, and while it waits it
looks again only at those that something happened to, so an append costs the same however many partitions are
waited for. Where records are not in memory a thread reads them first.

Consumers see what lies below the high watermark, or below the last stable offset when they read committed
records only. A follower sees the whole log, is woken by appends instead of the high watermark, and with the
offset it asks for it says what it has: that is counted once for each request, before the partition is read,
unless its log has diverged. It names all its partitions of this leader with every fetch, through its session.
Most are idle: those of which it has all, and was told all, are passed over, and where it has many they are
not even looked at before something happens to them (`follower_session`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeAlias

from ottla.broker.dispatch import RequestContext
from ottla.broker.fetch_session import FetchSession, Key, Wanted
from ottla.broker.fetch_sessions import NO_SESSION, FetchSessions
from ottla.broker.follower_session import FollowerSession
from ottla.broker.isr_changes import IsrChanges
from ottla.broker.page_cache import Done
from ottla.broker.ports import ImageAccess, PartitionAccess, Time, TopicNames, WaitingForOffsets
from ottla.broker.request_scheduler import Steps
from ottla.completion import Completion
from ottla.protocol.errors import ApiError, ErrorCode
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from ottla.replication.follower_progress import FollowerFetch
from ottla.replication.leading import check_follower, follower_fetched, is_idle
from ottla.replication.partition import Partition
from ottla.replication.partition_reading import Isolation
from ottla.storage.results import NotInMemory

_MANY = 256
"""A fetch of so many partitions is worked on in slices."""
MANY_OF_FOLLOWER = 16
"""For a follower: it is woken by every append to one of them. From so many on idle ones are at rest."""
_PAUSE_AFTER = 64
_MANY_ABORTED = 500
"""An answer that names so many aborted transactions is encoded in slices."""
_STARTS = 2
"""So often a search in pieces may begin, for a fetch of many partitions. Then it is made in one."""
_READ_COMMITTED = 1
_LOG_END, _HIGH_WATERMARK, _LAST_STABLE_OFFSET = Isolation
_NAMES_THE_LEADER = 16
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""A client that gets one of these gets the current leader in the same response (KIP-951)."""

Later: TypeAlias = "Completion[FetchResponse | Steps[FetchResponse]]"


class RecordReading(ImageAccess, PartitionAccess, Time, TopicNames, WaitingForOffsets, Protocol):
    @property
    def fetch_max_bytes(self) -> int: ...
    @property
    def fetch_sessions(self) -> FetchSessions: ...
    @property
    def isr_changes(self) -> IsrChanges: ...
    def read_ahead(self, missing: NotInMemory, done: Done) -> None: ...


def replica_of(request: FetchRequest, version: int) -> int:
    """The broker that fetches as a follower; -1 for a consumer."""
    return request.replica_id if version < 15 else request.replica_state.replica_id


class FetchAttempt:
    """One request on its way: read, perhaps wait and read again, answer."""

    __slots__ = (
        "_aborted",
        "_broker",
        "_bytes_left",
        "_counted",
        "_failed",
        "_follower",
        "_incremental",
        "_isolation",
        "_looked_at",
        "_max_bytes",
        "_min_bytes",
        "_names_the_leader",
        "_partitions",
        "_places",
        "_refused",
        "_resting",
        "_results",
        "_session",
        "_size",
        "_wait",
        "_wanted",
        "enough",
        "many",
    )

    def __init__(
        self,
        broker: RecordReading,
        request: FetchRequest,
        context: RequestContext,
        wanted: list[Wanted],
        session: FetchSession | None,
        incremental: bool,
        resting: FollowerSession | None = None,
    ) -> None:
        """`resting` is the session if partitions that are not `wanted` now are at rest in it."""
        self._broker = broker
        self._names_the_leader = context.version >= _NAMES_THE_LEADER
        committed_only = request.isolation_level == _READ_COMMITTED
        self._isolation = _LAST_STABLE_OFFSET if committed_only else _HIGH_WATERMARK
        self._max_bytes = min(request.max_bytes, broker.fetch_max_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._follower: FollowerFetch | None = None
        self._refused: ApiError | None = None
        self._counted = 0
        self._looked_at: Partition | None = None
        replica_id = replica_of(request, context.version)
        if replica_id >= 0:
            self._is_of(replica_id, request.replica_state.replica_epoch, context.from_broker)
        self._wanted = wanted
        self._session = session
        self._incremental = incremental
        self._resting = resting
        self._places: dict[Key, int] | None = None  # in `wanted`, made when first needed
        self._results: list[PartitionData | None] = []  # None: there is nothing to tell
        self._partitions: list[Partition | None] = []  # that were read for them
        self._wait = True
        self.enough = False
        self.many = _MANY if self._follower is None else MANY_OF_FOLLOWER

    def _is_of(self, replica_id: int, broker_epoch: int, from_broker: bool) -> None:
        self._isolation = _LOG_END
        if not from_broker:
            self._refused = ApiError(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED, "followers fetch on the listener for other brokers"
            )
            return
        try:
            self._follower = self._broker.isr_changes.fetch_of(replica_id, broker_epoch)
        except ApiError as stale:
            self._refused = stale

    def read(self, wait: bool = True) -> None:
        """Look at every partition once; `enough` says whether the answer may leave.

        NotInMemory when the disk would have to be waited for and `wait` is False.
        """
        self._wait = wait
        self._begin_reading()
        for place, want in enumerate(self._wanted):
            self._results.append(self._read_next(want, place))
            self._partitions.append(self._looked_at)
        self.enough = self._failed or self._size >= self._min_bytes

    def after_disk(self, missing: NotInMemory, seconds: float) -> Later:
        """Go on when a thread has read what was missing, as often as something else is missing then."""
        completion: Later = Completion()
        rounds = len(self._wanted) + 2

        def go_on(error: OSError | None) -> None:
            nonlocal rounds
            if completion.cancelled:
                return
            rounds -= 1
            try:
                self.read(wait=rounds <= 0 or error is not None)  # with an error, to answer with it
                answer = self.answer() if self.enough or seconds <= 0 else self.wait(seconds)
            except NotInMemory as more:
                if more.gets_on:
                    rounds += 1
                self._broker.read_ahead(more, go_on)
            except Exception as defect:  # noqa: BLE001 - unanswered, the client would hang
                completion.fail(defect)
            else:
                completion.follow(answer)

        self._broker.read_ahead(missing, go_on)
        return completion

    def _begin_reading(self) -> None:
        self._bytes_left = self._max_bytes
        self._size = 0
        self._aborted = 0
        self._failed = False
        self._results = []
        self._partitions = []

    def _read_next(self, want: Wanted, place: int) -> PartitionData | None:
        if self._incremental and self._is_idle(want):
            return None
        bytes_left = self._bytes_left
        data = self._read_one(want, place, min(want.max_bytes, bytes_left), at_least_one=self._size == 0)
        if data.error_code or data.diverging_epoch.epoch >= 0:
            self._failed = True
        given = len(data.records or b"")
        self._size += given
        self._bytes_left = max(bytes_left - given, 0)
        return data

    def _is_idle(self, want: Wanted) -> bool:
        """Whether there is nothing of the partition to tell to a follower."""
        if self._follower is None or self._session is None:
            return False
        partition = self._looked_at = self._session.unchanged((want.topic, want.partition))
        return partition is not None and is_idle(
            partition,
            self._follower,
            want.current_leader_epoch,
            want.fetch_offset,
            want.log_start_offset,
        )

    # -- many partitions ----------------------------------------------------------------------------------

    def in_slices(self, seconds: float) -> Steps[Later | Steps[FetchResponse]]:
        """The same for so many partitions that others must be served in between."""
        places: dict[Hashable, int] = {}
        seen: list[tuple[Partition, int, int]] = []
        self._begin_reading()
        for place, want in enumerate(self._wanted):
            data = (
                (yield from self._read_in_pieces(want, place))
                if self._isolation is _LAST_STABLE_OFFSET
                else self._read_next(want, place)
            )
            self._results.append(data)
            partition = self._looked_at
            if self._resting is not None:
                self._watch(self._resting, want, data)
            elif partition is not None and (data is None or not data.error_code):
                places[self._key(partition)] = place
                seen.append((partition, place, partition.end_for(self._isolation)))
            if place % _PAUSE_AFTER == _PAUSE_AFTER - 1:
                yield
        # What has come meanwhile; from here on the partitions tell.
        for partition, place, end in seen:
            if partition.end_for(self._isolation) != end:
                self._read_again(place)
        self._read_woken()
        if self._has_enough() or seconds <= 0:
            return self._compose()

        def noticed(key: Hashable) -> None:
            if key is self._resting:
                self._read_woken()
            else:
                self._read_again(places[key])

        keys = [*places] if self._resting is None else [self._resting]
        return self._waiting(keys, self._has_enough, self._compose, seconds, noticed)

    def _watch(self, session: FollowerSession, want: Wanted, data: PartitionData | None) -> None:
        """Let a partition that was read wake the session; one that is idle is at rest until then."""
        if self._looked_at is not None and (data is None or not data.error_code):
            session.watch((want.topic, want.partition), self._looked_at, idle=data is None)

    def _read_woken(self) -> None:
        """Read what has woken the session since it was looked at."""
        session = self._resting
        woken = session.take_woken() if session is not None else []
        if session is None or not woken:
            return
        if self._places is None:
            self._places = {(want.topic, want.partition): at for at, want in enumerate(self._wanted)}
        for want in woken:
            key = want.topic, want.partition
            place = self._places.get(key)
            if place is None:
                place = self._places[key] = len(self._wanted)
                self._wanted.append(want)
                self._results.append(None)
            self._read_again(place)
            self._watch(session, want, self._results[place])

    def _read_in_pieces(self, want: Wanted, place: int) -> Steps[PartitionData | None]:
        """Read a partition, with pauses while a large index of its aborted transactions is read."""
        starts = _STARTS
        while True:
            self._wait = starts == 0
            try:
                return self._read_next(want, place)
            except NotInMemory as missing:
                if not missing.gets_on:
                    starts -= 1
            finally:
                self._wait = True
            yield

    def _read_again(self, place: int) -> None:
        old = self._results[place]
        before = 0 if old is None else len(old.records or b"")
        self._size -= before
        self._bytes_left += before
        self._results[place] = self._read_next(self._wanted[place], place)

    def _has_enough(self) -> bool:
        self.enough = self._failed or self._size >= self._min_bytes
        return self.enough

    def _read_one(self, want: Wanted, place: int, max_bytes: int, at_least_one: bool) -> PartitionData:
        committed_only = self._isolation is _LAST_STABLE_OFFSET
        try:
            partition = self._looked_at = self._partition(want)
            if want.last_fetched_epoch >= 0:
                parted = partition.divergence(want.last_fetched_epoch, want.fetch_offset)
                if parted is not None:
                    return PartitionData(
                        partition_index=want.partition,
                        high_watermark=partition.high_watermark,
                        last_stable_offset=partition.last_stable_offset,
                        log_start_offset=partition.log_start_offset,
                        diverging_epoch=EpochEndOffset(epoch=parted[0], end_offset=parted[1]),
                        aborted_transactions=[] if committed_only else None,
                        records=b"",
                    )
            if self._follower is not None and place >= self._counted:
                self._counted = place + 1
                if follower_fetched(
                    partition,
                    self._follower,
                    want.current_leader_epoch,
                    want.fetch_offset,
                    want.log_start_offset,
                ):
                    self._broker.isr_changes.noted(partition)
                if self._session is not None:
                    self._session.was_read((want.topic, want.partition), partition)
            records, high_watermark, stable, start, aborted = partition.read(
                want.fetch_offset, max_bytes, self._isolation, at_least_one, wait=self._wait
            )
        except ApiError as error:
            return self._refusal(want, error)
        self._aborted += len(aborted)
        return PartitionData(
            partition_index=want.partition,
            high_watermark=high_watermark,
            last_stable_offset=stable,
            log_start_offset=start,
            aborted_transactions=aborted if committed_only else None,
            records=b"" if records is None else records,
        )

    def _refusal(self, want: Wanted, error: ApiError) -> PartitionData:
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and self._looked_at is not None:
            error = self._looked_at.checked(error)
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
        if self._isolation is _LOG_END:
            if self._follower is None:
                assert self._refused is not None
                raise self._refused
            check_follower(partition, self._follower)
        return partition

    def _key(self, partition: Partition) -> Hashable:
        """What a reader of the partition waits for."""
        return partition.log_end if self._isolation is _LOG_END else partition

    def wait(self, seconds: float) -> Later:
        """Wait for the partitions that were read; an error of one of them would have been answered."""

        def ready() -> bool:
            self.read()
            return self.enough

        def expired() -> FetchResponse | Steps[FetchResponse]:
            self.read()
            return self.answer()

        keys = [self._key(each) for each in self._partitions if each is not None]
        return self._waiting(keys, ready, expired, seconds)

    def _waiting(
        self,
        keys: Sequence[Hashable],
        ready: Callable[[], bool],
        answer_late: Callable[[], FetchResponse | Steps[FetchResponse]],
        seconds: float,
        noticed: Callable[[Hashable], None] | None = None,
    ) -> Later:
        def answer(expired: bool) -> FetchResponse | Steps[FetchResponse]:
            return answer_late() if expired or noticed else self.answer()

        return self._broker.purgatory.enter(keys, ready, seconds, noticed).map(answer)

    def answer(self) -> FetchResponse | Steps[FetchResponse]:
        """The response, or steps to it when it is so long that its encoding must be interrupted."""
        return self._compose() if self._aborted >= _MANY_ABORTED else self.response()

    def response(self) -> FetchResponse:
        """The answer of a fetch that is not of many partitions: composing it takes one step."""
        try:
            next(self._compose())
        except StopIteration as composed:
            response: FetchResponse = composed.value
            return response
        raise AssertionError("a fetch of many partitions is composed in slices")

    def _compose(self) -> Steps[FetchResponse]:
        topics: list[FetchableTopicResponse] = []
        session = self._session
        last: bytes | str | None = None
        for place, (want, data) in enumerate(zip(self._wanted, self._results, strict=True), 1):
            if not place % _MANY:
                yield
            if data is None:
                continue
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
