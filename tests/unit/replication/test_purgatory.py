"""Who waits for offsets leaves once, in time, and only when something happened."""

from collections.abc import Callable

from ottla.replication.purgatory import Purgatory


class ManualScheduler:
    """An event loop by hand."""

    def __init__(self) -> None:
        self.soon: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self.timers: list[tuple[float, Callable[..., object], tuple[object, ...], list[bool]]] = []
        self.now = 0.0

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self.soon.append((callback, args))

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> "Timer":
        cancelled: list[bool] = []
        self.timers.append((self.now + delay, callback, args, cancelled))
        return Timer(cancelled)

    def run_once(self) -> None:
        soon, self.soon = self.soon, []
        for callback, args in soon:
            callback(*args)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, callback, args, cancelled in due:
            if not cancelled:
                callback(*args)


class Timer:
    def __init__(self, cancelled: list[bool]) -> None:
        self._cancelled = cancelled

    def cancel(self) -> None:
        self._cancelled.append(True)


def test_a_wait_ends_when_a_notified_key_makes_it_ready() -> None:
    scheduler, done, level = ManualScheduler(), [], 0
    purgatory = Purgatory(scheduler)
    purgatory.enter(["a", "b"], lambda: level >= 2, done.append, timeout=1)
    level = 1
    purgatory.notify("a")
    scheduler.run_once()
    assert done == []
    level = 2
    purgatory.notify("b")
    assert done == [], "waking is put off to the next turn"
    scheduler.run_once()
    assert done == [False]
    scheduler.advance(5)
    assert done == [False]
    assert len(purgatory) == 0


def test_a_wait_expires_at_its_deadline() -> None:
    scheduler, done = ManualScheduler(), []
    purgatory = Purgatory(scheduler)
    purgatory.enter(["a"], lambda: False, done.append, timeout=1)
    scheduler.advance(0.9)
    assert done == []
    scheduler.advance(0.2)
    assert done == [True]
    purgatory.notify("a")
    scheduler.run_once()
    assert done == [True]


def test_a_burst_of_notices_asks_once() -> None:
    scheduler, asked = ManualScheduler(), []
    purgatory = Purgatory(scheduler)
    purgatory.enter(["a"], lambda: bool(asked.append(1)), lambda expired: None, timeout=1)
    for _ in range(10):
        purgatory.notify("a")
    scheduler.run_once()
    assert len(asked) == 1


def test_a_notice_for_nobody_costs_no_turn() -> None:
    scheduler = ManualScheduler()
    Purgatory(scheduler).notify("a")
    assert scheduler.soon == []


def test_who_cancels_is_never_called() -> None:
    scheduler, done = ManualScheduler(), []
    purgatory = Purgatory(scheduler)
    wait = purgatory.enter(["a"], lambda: True, done.append, timeout=1)
    purgatory.notify("a")
    wait.cancel()
    scheduler.run_once()
    scheduler.advance(2)
    assert done == []
    assert len(purgatory) == 0


def test_when_the_broker_stops_everybody_is_answered() -> None:
    scheduler, done = ManualScheduler(), []
    purgatory = Purgatory(scheduler)
    for key in "abc":
        purgatory.enter([key, "shared"], lambda: False, done.append, timeout=9)
    purgatory.expire_all()
    assert done == [True] * 3
    assert len(purgatory) == 0


def test_one_who_fails_keeps_nobody_else_from_being_woken() -> None:
    scheduler, done, failed = ManualScheduler(), [], []
    purgatory = Purgatory(scheduler)

    def defect(*_: object) -> bool:
        raise RuntimeError("a defect")

    purgatory.enter(["a"], defect, failed.append, timeout=1)
    purgatory.enter(["a"], lambda: True, defect, timeout=1)
    purgatory.enter(["a"], lambda: True, done.append, timeout=1)
    purgatory.notify("a")
    scheduler.run_once()
    assert (done, failed, len(purgatory)) == ([False], [True], 0)


def test_one_who_left_because_of_another_is_not_called() -> None:
    scheduler, done = ManualScheduler(), []
    purgatory = Purgatory(scheduler)
    purgatory.enter(["a"], lambda: True, lambda expired: second.cancel(), timeout=1)
    second = purgatory.enter(["a"], lambda: True, done.append, timeout=1)
    purgatory.notify("a")
    scheduler.run_once()
    assert done == []


def test_who_waits_for_many_keys_is_asked_once_a_turn_and_told_which_of_them_changed() -> None:
    scheduler = ManualScheduler()
    purgatory = Purgatory(scheduler)
    asked: list[str] = []
    noticed: list[object] = []

    def ready() -> bool:
        asked.append("once")
        return False

    purgatory.enter([f"key-{n}" for n in range(1_000)] * 2, ready, lambda _: None, 1, noticed.append)
    for number in range(500):
        purgatory.notify(f"key-{number}")
    scheduler.run_once()
    assert asked == ["once"]
    assert noticed == [f"key-{n}" for n in range(500)]


def test_a_crowd_that_waits_for_one_key_is_woken_over_several_turns_in_order() -> None:
    scheduler = ManualScheduler()
    purgatory = Purgatory(scheduler)
    left: list[int] = []
    for number in range(1_000):
        purgatory.enter(["a"], lambda: True, lambda _, number=number: left.append(number), timeout=1)  # type: ignore[misc]
    purgatory.notify("a")
    while scheduler.soon:
        before = len(left)
        scheduler.run_once()
        assert len(left) - before <= 100, "others have their turn"
    assert left == list(range(1_000))


def test_who_comes_while_a_crowd_is_being_woken_is_woken_too() -> None:
    scheduler = ManualScheduler()
    purgatory = Purgatory(scheduler)
    left: list[str] = []
    for _ in range(200):
        purgatory.enter(["a"], lambda: True, lambda _: left.append("first"), timeout=1)
    purgatory.notify("a")
    scheduler.run_once()
    purgatory.enter(["a"], lambda: True, lambda _: left.append("second"), timeout=1)
    purgatory.notify("a")
    while scheduler.soon:
        scheduler.run_once()
    assert left == ["first"] * 200 + ["second"]
    assert len(purgatory) == 0
