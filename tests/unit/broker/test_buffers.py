"""Request memory is reused and bounded."""

from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.buffers import PATIENCE, Lease, RequestMemory, UnsentAnswers, _class_of

MB = 1024 * 1024


def borrowed(memory: RequestMemory, size: int, address: str = "") -> Lease:
    lease = memory.borrow(size, address)
    assert lease is not None
    return lease


def test_a_returned_buffer_is_reused() -> None:
    memory = RequestMemory(limit=10 * MB)
    first = memory.borrow(MB)
    assert first is not None and len(first.view) == MB
    buffer = first.view.obj
    memory.give_back(first)
    again = memory.borrow(MB - 5)
    assert again is not None and again.view.obj is buffer


def test_a_request_above_the_memory_limit_waits_until_memory_is_given_back() -> None:
    memory = RequestMemory(limit=2 * MB)
    woken: list[Any] = []
    first = memory.borrow(2 * MB)
    assert first is not None
    assert memory.borrow(MB) is None
    memory.wait(MB, woken.append)
    assert memory.contended
    memory.give_back(first)
    assert len(woken) == 1 and len(woken[0].view) == MB
    assert not memory.contended


def test_waiting_requests_get_memory_in_order_as_far_as_they_fit() -> None:
    memory = RequestMemory(limit=5 * MB)
    granted: list[Any] = []
    held = [borrowed(memory, MB) for _ in range(4)]

    def note(name: str, lease: Lease) -> None:
        granted.append((name, lease))

    for name, size in (("much", 3 * MB), ("gone", MB), ("little", MB), ("later", MB)):
        claim = memory.wait(size, partial(note, name))
        if name == "gone":
            memory.withdraw(claim)
    memory.give_back(held[0])
    assert [name for name, _ in granted] == ["little"]
    memory.give_back(held[1])
    assert [name for name, _ in granted] == ["little", "later"]
    for lease in (held[2], held[3], granted[0][1]):
        memory.give_back(lease)
    assert [name for name, _ in granted] == ["little", "later", "much"]
    assert not memory.contended


def test_a_frame_above_the_memory_limit_is_read_when_no_other_is_held() -> None:
    memory = RequestMemory(limit=MB)
    big = memory.borrow(5 * MB)
    assert big is not None
    assert memory.borrow(1) is None
    memory.give_back(big)
    assert memory.lent == 0


def test_large_frames_leave_memory_for_small_ones() -> None:
    memory = RequestMemory(limit=256 * MB)
    held = [memory.borrow(100 * MB), memory.borrow(100 * MB), memory.borrow(20 * MB)]
    assert [lease is not None for lease in held] == [True, True, False]
    memory.wait(100 * MB, lambda lease: None)
    small = [memory.borrow(MB) for _ in range(32)]
    assert all(small)
    assert memory.lent <= 256 * MB


def test_smaller_frames_overtake_a_large_one_only_for_a_limited_time() -> None:
    now = [0.0]
    memory = RequestMemory(limit=80 * MB, now=lambda: now[0])
    granted: list[Any] = []
    stream = [borrowed(memory, 10 * MB) for _ in range(7)]
    memory.wait(60 * MB, granted.append)
    for _ in range(20):  # others come and go, and there is always one that would fit
        memory.give_back(stream.pop(0))
        stream.append(borrowed(memory, 10 * MB))
    now[0] = PATIENCE + 1
    small = memory.borrow(100_000)
    assert small is not None, "small frames pass at any time"
    while stream:
        memory.give_back(stream.pop(0))
        assert granted or memory.borrow(10 * MB) is None
    assert len(granted) == 1


def test_an_address_that_holds_much_memory_is_served_after_others() -> None:
    memory = RequestMemory(limit=160 * MB)
    granted: list[Any] = []
    greedy = [borrowed(memory, 20 * MB, "greedy") for _ in range(7)]
    memory.wait(20 * MB, lambda lease: granted.append("greedy"), "greedy")
    memory.wait(20 * MB, lambda lease: granted.append("other"), "other")
    memory.give_back(greedy[0])
    assert granted == ["other"]
    assert memory.borrow(20 * MB, "greedy") is None


def test_an_address_alone_may_have_all_memory() -> None:
    memory = RequestMemory(limit=160 * MB)
    held = [borrowed(memory, 20 * MB, "one") for _ in range(7)]
    memory.wait(20 * MB, lambda lease: None, "one")
    memory.give_back(held[0])
    assert not memory.contended


def test_memory_is_granted_to_no_request_once_the_broker_stops() -> None:
    memory = RequestMemory(limit=80 * MB)
    granted: list[Any] = []
    held = borrowed(memory, 70 * MB)
    for _ in range(1000):
        memory.wait(70 * MB, granted.append)
    memory.refuse_all()
    memory.give_back(held)
    assert not granted and not memory.contended


def test_the_pool_of_free_buffers_is_bounded() -> None:
    memory = RequestMemory(limit=100 * MB, keep=2 * MB)
    leases = [memory.borrow(MB) for _ in range(10)]
    for lease in leases:
        assert lease is not None
        memory.give_back(lease)
    assert memory._kept <= 2 * MB


@given(st.integers(1, 200 * MB))
def test_a_buffer_is_at_most_a_quarter_larger_than_the_frame(size: int) -> None:
    capacity = _class_of(size)
    assert size <= capacity <= max(size * 1.25 + 1, 64 * 1024)


class SlowReader:
    def __init__(self, answers: UnsentAnswers) -> None:
        self._answers = answers
        self.why: str | None = None

    def close(self, why: str | None = None) -> None:
        self.why = why
        self._answers.release(self)


def test_the_oldest_unread_response_is_disconnected_above_the_limit_of_unsent_bytes() -> None:
    answers = UnsentAnswers(limit=10)
    readers = [SlowReader(answers) for _ in range(4)]
    for reader in readers[:3]:
        answers.hold(reader, 3)
    assert not any(reader.why for reader in readers)
    answers.release(readers[1])
    answers.hold(readers[3], 6)
    assert [bool(reader.why) for reader in readers] == [True, False, False, False]
    assert "queued.max.request.bytes" in (readers[0].why or "")
    assert answers.size == 9
    for reader in readers:
        answers.release(reader)
    assert answers.size == 0


def test_a_single_response_may_exceed_the_limit_of_unsent_bytes() -> None:
    answers = UnsentAnswers(limit=10)
    small, large = SlowReader(answers), SlowReader(answers)
    answers.hold(small, 1)
    answers.hold(large, 20)
    assert (small.why is not None, large.why) == (True, None)
