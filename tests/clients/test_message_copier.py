"""Kafka's own TransactionalMessageCopier copies each record once, killed again and again with the brokers."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.peers.kafka import classpath
from bench.peers.maven import PeerMissing

from clients.exactly_once import (
    PARTITIONS,
    SETTINGS,
    JvmProgram,
    Reader,
    create_topics,
    until,
    without_broker,
    write,
)
from crash.cluster_processes import ClusterProcesses

RECORDS = 24_000
KILLS = 6
STEP = 300
"""So many records are copied between two kills."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("clients")]


def _copier(bootstrap: str, partition: int, output: Path) -> JvmProgram:
    """One that copies a partition to its end, aborting some transactions on its own."""
    try:
        jars = classpath()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    options = {
        "broker-list": bootstrap,
        "input-topic": "input",
        "input-partition": str(partition),
        "output-topic": "output",
        "consumer-group": "copiers",
        "transactional-id": f"copier-{partition}",
        "transaction-size": "20",
        "transaction-timeout": "10000",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = ["java", "-Xmx256m", "-cp", jars, "org.apache.kafka.tools.TransactionalMessageCopier"]
    return JvmProgram([*command, *arguments, "--enable-random-aborts", "--use-group-metadata"], output)


def _is_done(copier: JvmProgram) -> bool:
    """It says at its end how many records it has left."""
    return any(
        '"ShutdownComplete"' in line and '"remaining":0' in line for line in copier.said().splitlines()
    )


def test_the_message_copier_copies_each_record_once_over_kills(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, SETTINGS) as cluster:
        bootstrap = cluster.bootstrap_servers
        create_topics(bootstrap, "input", "output")
        values = [f"record {number}" for number in range(RECORDS)]
        write(bootstrap, "input", values)
        reader = Reader(bootstrap, "output")
        copiers = [_copier(bootstrap, index, tmp_path / f"copier-{index}.txt") for index in range(PARTITIONS)]
        try:
            killed = 0
            for number in range(KILLS):
                reader.await_count(min(RECORDS, reader.read() + STEP), f"{killed} copiers were killed")
                victim = copiers[number % PARTITIONS]
                if victim.runs:
                    victim.kill()
                    victim.start()
                    killed += 1
                if number % 2:
                    with without_broker(cluster, number // 2 + 1):
                        reader.await_count(min(RECORDS, reader.read() + STEP), "a broker is dead")
            assert killed >= KILLS // 2

            def all_done() -> bool:
                reader.read()
                for copier in copiers:
                    if not copier.runs and not _is_done(copier):
                        copier.start()  # as a service manager does: it ends when it gives up on a broker
                return not any(copier.runs for copier in copiers)

            until(all_done, "end of the copiers")
        finally:
            for copier in copiers:
                copier.end()
        reader.await_end(cluster)
        reader.close()
    assert sorted(reader.values) == sorted(values)
