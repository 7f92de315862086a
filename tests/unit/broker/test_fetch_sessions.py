"""Fetch sessions return what changed, and notice a lost or duplicate request."""

from itertools import count

from ottla.broker.client_memory import ClientMemory
from ottla.broker.fetch_session import FetchSession, Wanted
from ottla.broker.fetch_sessions import FetchSessions
from ottla.log_lines import ClientLog
from ottla.protocol.errors import ErrorCode


def wanted(topic: str, index: int = 0, offset: int = 0) -> Wanted:
    return Wanted(topic, index, offset, 1024, -1, -1, -1)


def sessions(limit: int = 10) -> FetchSessions:
    numbers = count(1)
    return FetchSessions(limit, lambda low, high: next(numbers))


def tell(
    session: FetchSession, topic: str, *, error: int = 0, size: int = 0, mark: int = 5, start: int = 0
) -> bool:
    return session.worth_telling((topic, 0), error, size, mark, start, diverging=False)


def opened(cache: FetchSessions, *topics: str) -> FetchSession:
    session = cache.open(False, [wanted(topic) for topic in topics], 0)
    assert session is not None
    return session


def test_an_incremental_response_contains_only_changed_partitions() -> None:
    session = opened(sessions(), "a")
    assert tell(session, "a")
    assert not tell(session, "a")
    assert tell(session, "a", mark=6)
    assert tell(session, "a", mark=6, start=1)
    assert tell(session, "a", mark=6, start=1, size=100)
    assert not tell(session, "a", mark=6, start=1)


def test_a_partition_whose_error_is_over_is_in_the_next_response() -> None:
    session = opened(sessions(), "a")
    tell(session, "a")
    assert tell(session, "a", error=3, mark=-1, start=-1)
    assert tell(session, "a", error=3, mark=-1, start=-1)
    assert tell(session, "a")


def test_the_response_after_a_divergence_tells_the_high_watermark_again() -> None:
    session = opened(sessions(), "a")
    tell(session, "a")
    assert session.worth_telling(("a", 0), 0, 0, 5, 0, diverging=True)
    assert tell(session, "a")
    assert not tell(session, "a")


def test_a_new_leader_epoch_is_told_the_high_watermark_again() -> None:
    session = opened(sessions(), "a")
    tell(session, "a")
    session.update([wanted("a", offset=3)], [])
    assert not tell(session, "a")
    session.update([wanted("a", offset=3)._replace(current_leader_epoch=2)], [])
    assert tell(session, "a")


def test_a_partition_that_returned_records_is_read_last_next_time() -> None:
    session = opened(sessions(), "a", "b", "c")
    tell(session, "a", size=10)
    assert [w.topic for w in session.wanted()] == ["b", "c", "a"]


def test_each_request_must_carry_the_next_epoch() -> None:
    cache = sessions()
    session = opened(cache, "a")
    assert cache.resume(session.id, 1, False, 0) is session
    assert cache.resume(session.id, 1, False, 0) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert cache.resume(session.id, 2, False, 0) is session
    assert cache.resume(99, 1, False, 0) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.resume(session.id, 3, True, 0) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_session_follows_added_changed_and_forgotten_partitions() -> None:
    session = opened(sessions(), "a", "b")
    session.update([wanted("a", offset=7), wanted("c")], [("b", 0)])
    assert [(w.topic, w.fetch_offset) for w in session.wanted()] == [("a", 7), ("c", 0)]


def test_a_full_cache_opens_no_session_until_the_oldest_is_long_unused() -> None:
    cache = sessions(limit=1)
    first = opened(cache, "a")
    assert cache.open(False, [wanted("b")], 1_000) is None
    assert cache.open(False, [wanted("b")], 121_000) is not None
    assert cache.resume(first.id, 1, False, 0) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(cache) == 1


def test_fetch_sessions_can_be_switched_off() -> None:
    assert sessions(limit=0).open(False, [wanted("a")], 0) is None


def accounted(limit: int) -> tuple[FetchSessions, ClientMemory]:
    log = ClientLog(lambda: 0.0)
    memory = ClientMemory(limit, limit, lambda: 0.0, lambda: log)
    numbers = count(1)
    return FetchSessions(1000, lambda low, high: next(numbers), memory=memory), memory


def test_sessions_count_as_client_memory_until_they_are_closed() -> None:
    sessions, memory = accounted(1_000_000)
    wanted = [Wanted("t" * 100, index, 0, 1000, -1, -1, -1) for index in range(100)]
    first = sessions.open(False, wanted, 0, "a", "client")
    second = sessions.open(False, wanted[:1], 0, "a", "client")
    assert first is not None and second is not None
    assert 50_000 < memory.used < 150_000
    before = memory.used
    assert sessions.update(second, wanted[1:50], [])
    assert memory.used > before
    assert sessions.update(second, [], [("t" * 100, index) for index in range(1, 50)])
    assert memory.used == before
    sessions.close(first.id)
    sessions.close(second.id)
    assert memory.used == 0


def test_no_session_is_opened_when_client_memory_is_used_up() -> None:
    sessions, memory = accounted(10_000)
    wanted = [Wanted("t", index, 0, 1000, -1, -1, -1) for index in range(100)]
    assert sessions.open(False, wanted, 0, "a", "client") is None
    small = sessions.open(False, wanted[:3], 0, "a", "client")
    assert small is not None
    assert not sessions.update(small, wanted, [])
    assert len(sessions) == 0 and memory.used == 0


def test_a_broker_has_a_session_though_clients_have_taken_all() -> None:
    cache = sessions(limit=1)
    opened(cache, "a")
    session = cache.open_for_broker(2, False, [wanted("t")], 0)
    assert cache.resume(session.id, 1, False, 0) is session
    assert len(cache) == 1, "clients do not lose a slot"


def test_a_new_session_of_a_broker_replaces_the_one_before() -> None:
    cache = sessions()
    before, other = (cache.open_for_broker(broker, False, [wanted("t")], 0) for broker in (2, 3))
    after = cache.open_for_broker(2, False, [wanted("t")], 0)
    assert cache.resume(before.id, 1, False, 0) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.resume(after.id, 1, False, 0) is after
    assert cache.resume(other.id, 1, False, 0) is other
    cache.close(after.id)
    assert cache.resume(after.id, 2, False, 0) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
