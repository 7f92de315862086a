"""Slow writes are counted, and told now and then."""

from __future__ import annotations

import pytest

from ottla.storage.slow_writes import PAUSE, SlowWrites


def test_slow_writes_are_logged_at_intervals_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = SlowWrites()
    for number in range(10):
        slow.note("t-0", 0.2, 1000, now=number / 100)
    assert caplog.text.count("writing 1000 bytes to t-0 took 200 ms") == 1
    slow.note("u-3", 1.5, 7, now=PAUSE + 1)
    assert "writing 7 bytes to u-3 took 1500 ms" in caplog.text
    assert "(9 more slow writes since the last such line)" in caplog.text
    assert (slow.count, slow.longest) == (11, 1.5)
