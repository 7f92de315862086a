"""The figures of one broker: `broker.metrics.snapshot()`.

Requests are counted and timed per API, from the arrival of a frame until the response is ready to be sent: a
long poll's time includes its wait. That is done once per request, never per record or partition. Gauges are
read from the parts of the broker when a snapshot is taken, on the broker's own event loop.

Names: `request_seconds.<Api>` (for APIs that were used), `bytes_in`, `bytes_out`, `flush_seconds`,
`rebalance_seconds`, and the gauges of `add_gauges`.
"""

from __future__ import annotations

from bisect import bisect_left

from ottla.broker.server import Server
from ottla.broker.watchdog import StallCounts
from ottla.metrics import LATENCY_BOUNDS, Histogram, Metrics, SharedHistogram
from ottla.protocol.apis import APIS
from ottla.replication.purgatory import Purgatory
from ottla.replication.replicas import Replicas


class RequestMetrics(Histogram):
    """Requests of one API: how long they took, in seconds, and their bytes and those of their responses."""

    __slots__ = ("bytes_in", "bytes_out")

    def __init__(self) -> None:
        super().__init__()
        self.bytes_in = 0
        self.bytes_out = 0

    def answered(self, seconds: float, size_in: int, size_out: int) -> None:
        """A response is ready to be sent; with `size_out` 0 none is due."""
        self.buckets[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self.total += seconds
        if seconds > self.largest:
            self.largest = seconds
        self.bytes_in += size_in
        self.bytes_out += size_out


class BrokerMetrics(Metrics):
    def __init__(self) -> None:
        super().__init__()
        self.requests = _ByApi(self)
        """By the key of the API."""
        self.gauge("bytes_in", lambda: sum(each.bytes_in for each in self.requests.values()))
        self.gauge("bytes_out", lambda: sum(each.bytes_out for each in self.requests.values()))
        self.flush_seconds = SharedHistogram()
        """How long syncing a partition's files took; threads do it."""
        self.histogram("flush_seconds", self.flush_seconds)
        self.rebalance_seconds = self.histogram("rebalance_seconds")
        """How long groups took to rebalance, from the cause until all members have their partitions."""

    def add_gauges(
        self, server: Server, stalls: StallCounts, purgatory: Purgatory, replicas: Replicas
    ) -> None:
        """What these parts of the broker know."""
        self.gauge("connections", lambda: len(server.connections))
        self.gauge("request_memory_bytes", lambda: server.memory.lent)
        self.gauge("unsent_bytes", lambda: server.unsent.size)
        self.gauge("purgatory_size", lambda: len(purgatory))
        self.gauge("partitions", lambda: len(replicas))
        self.gauge(
            "under_replicated_partitions",
            lambda: sum(partition.state.is_under_replicated for partition in replicas),
        )
        self.gauge(
            "under_min_isr_partitions",
            lambda: sum(p.state.is_leader and p.state.is_under_min_isr for p in replicas),
        )
        self.gauge("log_bytes", lambda: sum(partition.log.size for partition in replicas))
        self.gauge("stalls_by_requests", lambda: stalls.by_requests)
        self.gauge("stalls_by_others", lambda: stalls.by_others)
        self.gauge("stall_seconds", lambda: stalls.seconds)
        self.gauge("longest_stall_seconds", lambda: stalls.longest)


class _ByApi(dict[int, RequestMetrics]):
    def __init__(self, metrics: Metrics) -> None:
        super().__init__()
        self._metrics = metrics

    def __missing__(self, api_key: int) -> RequestMetrics:
        requests = self[api_key] = RequestMetrics()
        self._metrics.histogram(f"request_seconds.{APIS[api_key].name}", requests)
        return requests
