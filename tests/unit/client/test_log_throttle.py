"""Log lines that could come with every record."""

from __future__ import annotations

import logging

from ottla.client.log_throttle import LogThrottle, RepeatedLines


def test_the_first_time_is_told_and_the_next_ones_are_counted() -> None:
    throttle = LogThrottle()
    assert [throttle.times() for _ in range(5)] == [1, 0, 0, 0, 0]
    throttle._next = 0.0
    assert throttle.times() == 5
    assert LogThrottle().times() == 1


def test_a_line_that_comes_again_and_again_is_logged_once_and_then_counted() -> None:
    repeated = RepeatedLines()

    def log(text: str) -> str | None:
        record = logging.LogRecord("name", logging.WARNING, "path", 1, "FAIL %s", (text,), None)
        return record.getMessage() if repeated.filter(record) else None

    refused = "Connection refused (after {}ms in state CONNECT)"
    assert log(refused.format(0)) == "FAIL Connection refused"
    assert [log(refused.format(number)) for number in range(5)] == [None] * 5
    assert log("another") == "FAIL another"
    repeated._throttles["FAIL Connection refused"]._next = 0.0
    assert log(refused.format(7)) == "FAIL Connection refused (6 times)"
    for number in range(1000):
        assert log(f"line {number}")
    assert len(repeated._throttles) <= 200
