"""The lines of the broker's log: printable, bounded, and only so many about one client."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator

import pytest

from ottla.clock import ManualClock
from ottla.log_lines import MAX_MESSAGE, MAX_TRACEBACK, ClientLog, LineFormatter, LineLimit

FORGED = "2026-01-01 00:00:00,000 INFO    ottla.broker: all is well"


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter())
    logger = logging.getLogger("ottla")
    level, logger.level = logger.level, logging.INFO
    logger.addHandler(handler)
    yield logger, out
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_line_breaks_in_a_message_are_escaped(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, out = log
    logger.warning("closing %s", f"x\n{FORGED}\x1b[2J")
    (line,) = out.getvalue().splitlines()
    assert "x\\n2026-01-01" in line
    assert line.isprintable()


def test_long_messages_are_truncated(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, out = log
    logger.warning("asked for %s", "g" * 1_000_000)
    assert len(out.getvalue()) < MAX_MESSAGE + 200


def test_no_line_of_a_traceback_can_be_taken_for_a_record(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, out = log
    try:
        raise ValueError(
            "bad\n2026-01-01 00:00:00,000 INFO    ottla.broker: all is well\x1b[2J" + "x" * 100_000
        )
    except ValueError:
        logger.exception("it failed")
    first, *rest = out.getvalue().splitlines()
    assert first.endswith("it failed")
    assert any("ValueError: bad" in line for line in rest)
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    assert len(out.getvalue()) < MAX_TRACEBACK + 1_000


def test_a_client_has_a_line_limit_per_window_and_the_rest_are_counted() -> None:
    limit = LineLimit(per_client=3, window=10.0)
    assert [limit.take("a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert limit.take("b", 1.0)
    assert limit.ended(9.9) == {}
    assert limit.ended(10.0) == {"a": 2}
    assert limit.take("a", 10.0)
    assert limit.ended(25.0) == {}


def test_all_clients_together_have_a_line_limit_and_few_are_named() -> None:
    limit = LineLimit(per_client=3, in_all=10, window=10.0, named=2)
    assert sum(limit.take(f"10.0.0.{n}", 0.0) for n in range(100)) == 10
    left_out = limit.ended(10.0)
    assert sum(left_out.values()) == 90
    assert list(left_out) == ["10.0.0.10", "10.0.0.11", "other addresses"]


class Timers:
    """A loop's `call_later` on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timers:
        self._due.append((self.clock.monotonic() + seconds, call))
        return self

    def cancel(self) -> None:
        self._due.clear()

    def advance(self, seconds: float) -> None:
        self.clock.advance(int(seconds * 1000))
        now = self.clock.monotonic()
        due = [call for at, call in self._due if at <= now]
        self._due = [(at, call) for at, call in self._due if at > now]
        for call in due:
            call()


def test_suppressed_lines_are_counted_when_the_window_ends(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, out = log
    timers = Timers()
    client_log = ClientLog(timers.clock.monotonic, timers.call_later, LineLimit(per_client=2, window=10.0))
    for _ in range(2):
        out.truncate(0)
        for n in range(4_213):
            client_log.warning(logger, "127.0.0.1", "closing %d", n)
        assert len(out.getvalue().splitlines()) == 2
        timers.advance(10.0)
        *_, last = out.getvalue().splitlines()
        assert "and 4,211 more lines about 127.0.0.1 in the last 10 s" in last


def test_suppressed_lines_are_counted_when_the_log_is_closed(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, out = log
    client_log = ClientLog(limit=LineLimit(per_client=1))
    for n in range(3):
        client_log.warning(logger, "127.0.0.1", "closing %d", n)
    client_log.close()
    assert "and 2 more lines about 127.0.0.1" in out.getvalue()
    client_log.close()
    assert len(out.getvalue().splitlines()) == 2
