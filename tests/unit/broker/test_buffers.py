"""Request memory is reused and bounded."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.buffers import RequestMemory, UnsentAnswers, _class_of

MB = 1024 * 1024


def test_a_buffer_given_back_is_lent_again() -> None:
    memory = RequestMemory(limit=10 * MB)
    first = memory.borrow(MB)
    assert first is not None and len(first.view) == MB
    buffer = first.view.obj
    memory.give_back(first)
    again = memory.borrow(MB - 5)
    assert again is not None and again.view.obj is buffer


def test_who_comes_above_the_limit_waits_until_others_are_done() -> None:
    memory, woken = RequestMemory(limit=2 * MB), []
    first = memory.borrow(2 * MB)
    assert first is not None
    assert memory.borrow(MB) is None
    memory.wait(MB, lambda: True, woken.append)
    assert memory.contended
    memory.give_back(first)
    assert len(woken) == 1 and len(woken[0].view) == MB
    assert not memory.contended


def test_who_waits_is_asked_in_order_and_gets_what_fits() -> None:
    memory, granted = RequestMemory(limit=4 * MB), []
    held = [memory.borrow(MB) for _ in range(4)]
    for name, size in (("much", 3 * MB), ("gone", MB), ("little", MB), ("later", MB)):
        memory.wait(
            size, lambda name=name: name != "gone", lambda lease, name=name: granted.append((name, lease))
        )
    memory.give_back(held[0])
    assert [name for name, _ in granted] == ["little"]
    memory.give_back(held[1])
    assert [name for name, _ in granted] == ["little", "later"]
    for lease in (held[2], held[3], granted[0][1]):
        memory.give_back(lease)
    assert [name for name, _ in granted] == ["little", "later", "much"]
    assert not memory.contended


def test_those_who_cannot_be_helped_cost_nothing_when_memory_comes_back() -> None:
    memory, asked = RequestMemory(limit=2 * MB), []
    first, second = memory.borrow(MB), memory.borrow(MB)
    for _ in range(1000):
        memory.wait(MB, lambda: asked.append(True) is None, lambda lease: None)
    memory.give_back(first)
    assert len(asked) == 1
    memory.give_back(second)
    assert len(asked) == 2


def test_a_frame_larger_than_the_limit_is_read_alone() -> None:
    memory = RequestMemory(limit=MB)
    big = memory.borrow(5 * MB)
    assert big is not None
    assert memory.borrow(1) is None
    memory.give_back(big)
    assert memory.lent == 0


def test_only_so_much_is_kept_for_later() -> None:
    memory = RequestMemory(limit=100 * MB, keep=2 * MB)
    leases = [memory.borrow(MB) for _ in range(10)]
    for lease in leases:
        assert lease is not None
        memory.give_back(lease)
    assert memory._kept <= 2 * MB


@given(st.integers(1, 200 * MB))
def test_a_buffer_is_at_most_a_quarter_larger_than_the_frame(size: int) -> None:
    room = _class_of(size)
    assert size <= room <= max(size * 1.25 + 1, 64 * 1024)


class SlowReader:
    def __init__(self, answers: UnsentAnswers) -> None:
        self._answers = answers
        self.why: str | None = None

    def close(self, why: str | None = None) -> None:
        self.why = why
        self._answers.release(self)


def test_who_keeps_an_answer_waiting_for_longest_is_cut_off_when_there_are_too_many() -> None:
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


def test_a_single_answer_may_be_larger_than_the_limit() -> None:
    answers = UnsentAnswers(limit=10)
    small, large = SlowReader(answers), SlowReader(answers)
    answers.hold(small, 1)
    answers.hold(large, 20)
    assert (small.why is not None, large.why) == (True, None)
