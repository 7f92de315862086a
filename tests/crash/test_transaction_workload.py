"""No anomaly of transactions is seen by Java clients on three brokers that are killed, paused and cut off.

The clients are `TransactionWorkload.java`, which speak the second protocol. What they did and saw is checked
as in the simulation (`transaction_history`). OTTLA_CRASH_SEED repeats the faults of a run.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from crash.cluster_faults import LONG_KINDS, cause
from crash.cluster_load import SETTINGS, await_in_time
from crash.cluster_processes import ClusterProcesses
from crash.load import PATIENCE
from crash.transaction_events import working
from transaction_history.anomalies import anomalies
from transaction_history.cycles import interleaved
from transaction_history.history import Outcome

TOPICS = {"orders": 4, "invoices": 2}
START_SECONDS = 240.0
"""The clients are compiled first, which takes long on a busy machine."""
ENOUGH = 30
"""Transactions that have to be committed under faults."""
FAULT_SECONDS = float(os.environ.get("OTTLA_FAULT_SECONDS", "90"))


def kinds_for(seconds: float, rng: random.Random, is_enough: Callable[[], bool]) -> Iterator[str]:
    """Faults for so long, and on a busy machine for up to three times as long, until that is enough."""
    began = time.monotonic()
    while (spent := time.monotonic() - began) < seconds or (spent < 3 * seconds and not is_enough()):
        yield rng.choice(LONG_KINDS)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("clients")
@pytest.mark.parametrize("seed", range(1, 4))
def test_no_anomaly_is_seen_under_faults(tmp_path: Path, seed: int) -> None:
    seed = int(os.environ.get("OTTLA_CRASH_SEED") or seed)
    print(f"replay with OTTLA_CRASH_SEED={seed}")
    rng = random.Random(seed)
    with ClusterProcesses(tmp_path, SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        topics = [NewTopic(name, count, 3) for name, count in TOPICS.items()]
        for made in admin.create_topics(topics).values():
            made.result(PATIENCE)
        with working(cluster.bootstrap_servers, TOPICS, seed, tmp_path / "events.json") as workload:
            begun_by = time.monotonic() + START_SECONDS
            await_in_time(lambda: workload.commits > 10, "the first transactions", begun_by)
            kinds = kinds_for(FAULT_SECONDS, rng, lambda: workload.commits > ENOUGH)
            cause(cluster, rng, kinds, at_once=2, gap=0.5)
            cluster.start_again()
            history = workload.finish()
    counts = {each.value: history.count(each) for each in Outcome}
    transformed = sum(bool(t.offsets) and t.outcome is Outcome.COMMITTED for t in history.transactions)
    print(f"transactions: {counts}, {transformed} with offsets; {interleaved(history)} interleaved writes")
    found = anomalies(history)
    assert not found, f"{len(found)} anomalies:\n" + "\n".join(map(str, found[:20]))
    assert counts["committed"] > ENOUGH
    assert history.final_offsets
