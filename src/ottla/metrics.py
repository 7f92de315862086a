"""Figures about a running program: counters, gauges and histograms that cost next to nothing to keep.

A counter is an integer that the code adds to. A histogram counts values in buckets whose bounds double, so
that adding one is a binary search in a short tuple. A gauge is a function that is called when figures are
read: what exists anyway (the length of a queue, the size of a log) is not kept a second time. All are read
through `Metrics.snapshot()`.

They belong to one thread, the event loop's, and take no lock. `SharedHistogram` is for values that several
threads add.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import accumulate, repeat

LATENCY_BOUNDS = tuple(accumulate(repeat(2.0, 18), lambda bound, factor: bound * factor, initial=0.0001))
"""Seconds: from 0.1 ms to 26 s."""

Value = float | Mapping[str, float]


class Counter:
    """Only grows. Code on a hot path adds to `value` itself."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        self.value += amount

    def read(self) -> float:
        return self.value


class Histogram:
    """How values are spread: their count, sum and largest, and how many are in each bucket."""

    __slots__ = ("bounds", "buckets", "largest", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        """Values up to each bound, and in the last one those above all bounds."""
        self.total = 0.0
        self.largest = 0.0

    def add(self, value: float) -> None:
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.total += value
        if value > self.largest:
            self.largest = value

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def quantile(self, share: float) -> float:
        """The bound below which this share of the values is; the largest value if none is high enough."""
        wanted = share * self.count
        passed = 0
        for bound, count in zip(self.bounds, self.buckets, strict=False):
            passed += count
            if passed >= wanted:
                return min(bound, self.largest)
        return self.largest

    def read(self) -> Mapping[str, float]:
        return {
            "count": self.count,
            "sum": self.total,
            "max": self.largest,
            "p50": self.quantile(0.5),
            "p99": self.quantile(0.99),
        }


class SharedHistogram(Histogram):
    """A histogram that several threads add to."""

    __slots__ = ("_lock",)

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS) -> None:
        super().__init__(bounds)
        self._lock = threading.Lock()

    def add(self, value: float) -> None:
        with self._lock:
            super().add(value)


class Metrics:
    """All figures of one program by their names."""

    def __init__(self) -> None:
        self._read: dict[str, Callable[[], Value]] = {}

    def counter(self, name: str) -> Counter:
        counter = Counter()
        self._register(name, counter.read)
        return counter

    def histogram(self, name: str, histogram: Histogram | None = None) -> Histogram:
        """A new histogram, or a given one under this name."""
        histogram = Histogram() if histogram is None else histogram
        self._register(name, histogram.read)
        return histogram

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        self._register(name, read)

    def _register(self, name: str, read: Callable[[], Value]) -> None:
        if name in self._read:
            raise ValueError(f"there is a metric {name!r} already")
        self._read[name] = read

    def snapshot(self) -> dict[str, Value]:
        """All figures as they are now: a number, or for a histogram its count, sum, max, p50 and p99."""
        return {name: read() for name, read in self._read.items()}
