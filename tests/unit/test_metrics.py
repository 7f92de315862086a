"""Counters, histograms and gauges, and what a snapshot shows of them."""

from __future__ import annotations

import threading

import pytest

from ottla.metrics import LATENCY_BOUNDS, Histogram, Metrics, SharedHistogram


def test_a_snapshot_has_counters_gauges_and_histograms_by_name() -> None:
    metrics = Metrics()
    queue = [1, 2]
    counter = metrics.counter("done")
    metrics.gauge("waiting", lambda: len(queue))
    seconds = metrics.histogram("seconds")
    counter.add()
    counter.add(4)
    seconds.add(0.003)
    assert metrics.snapshot() == {
        "done": 5,
        "waiting": 2,
        "seconds": {"count": 1, "sum": 0.003, "max": 0.003, "p50": 0.003, "p99": 0.003},
    }
    queue.clear()
    assert metrics.snapshot()["waiting"] == 0


def test_a_metric_name_is_unique() -> None:
    metrics = Metrics()
    metrics.counter("x")
    with pytest.raises(ValueError, match="'x'"):
        metrics.gauge("x", lambda: 1)


def test_quantiles_are_right_to_within_a_bucket() -> None:
    histogram = Histogram((1.0, 2.0, 4.0, 8.0))
    for value in [0.5] * 50 + [1.5] * 40 + [3.0] * 9 + [100.0]:
        histogram.add(value)
    assert histogram.count == 100
    assert histogram.quantile(0.5) == 1.0
    assert histogram.quantile(0.9) == 2.0
    assert histogram.quantile(0.99) == 4.0
    assert histogram.quantile(1.0) == 100.0, "above all bounds it is the largest value"
    assert Histogram().quantile(0.99) == 0.0


def test_a_value_at_a_bound_counts_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.add(1.0)
    histogram.add(2.5)
    assert histogram.buckets == [1, 0, 1]


def test_latency_buckets_range_from_100_microseconds_to_30_seconds() -> None:
    assert LATENCY_BOUNDS[0] == 0.0001
    assert 20 < LATENCY_BOUNDS[-1] < 60
    assert list(LATENCY_BOUNDS) == sorted(set(LATENCY_BOUNDS))


def test_threads_that_add_to_a_shared_histogram_lose_nothing() -> None:
    histogram = SharedHistogram()

    def add_many() -> None:
        for _ in range(5_000):
            histogram.add(0.001)

    threads = [threading.Thread(target=add_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert histogram.count == 20_000
    assert histogram.total == pytest.approx(20.0)
