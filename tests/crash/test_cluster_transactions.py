"""Transactions of a real client on three brokers that are killed, paused, restarted and cut off.

`transaction_load` says what is checked, beside what `cluster_load` checks of other clients. OTTLA_CRASH_SEED
repeats the faults of a run.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from crash.cluster_faults import LONG_KINDS, cause
from crash.cluster_load import PARTITIONS, SETTINGS, await_in_time, in_sync, under_load
from crash.cluster_processes import ClusterProcesses
from crash.load import PATIENCE
from crash.transaction_load import ABORTED, COMMITTED, UNKNOWN, TransactionLoad

TOPIC = "transactions"
FAULTS = 30


@contextlib.contextmanager
def transactions_on(cluster: ClusterProcesses, seed: int) -> Iterator[TransactionLoad]:
    """A transactional producer works while the block runs; its promises are checked at the end."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(PATIENCE)
    load = TransactionLoad(cluster.bootstrap_servers, TOPIC, PARTITIONS, seed)
    load.start()
    try:
        await_in_time(lambda: load.count(COMMITTED) > 0, "the first transaction")
        yield load
        await_in_time(lambda: in_sync(cluster), "all replicas to be in sync")
    finally:
        load.finish()
    print(
        f"{load.count(COMMITTED)} transactions committed, {load.count(ABORTED)} aborted, "
        f"{load.count(UNKNOWN)} not known, {load.producers} producers"
    )
    load.check(cluster.bootstrap_servers)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(20, 24))
def test_transactions_are_whole_or_not_there_under_faults(tmp_path: Path, seed: int) -> None:
    seed = int(os.environ.get("OTTLA_CRASH_SEED") or seed)
    print(f"replay with OTTLA_CRASH_SEED={seed}")
    rng = random.Random(seed)
    with ClusterProcesses(tmp_path, SETTINGS) as cluster:
        with under_load(cluster), transactions_on(cluster, seed) as load:
            kinds = (rng.choice(LONG_KINDS) for _ in range(FAULTS))
            cause(cluster, rng, kinds, at_once=2, gap=0.5)
        assert load.count(COMMITTED) > 1
