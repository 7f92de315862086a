"""Connect with exactly.once.source.support=enabled writes each line of a file once, killed with the brokers.

Kafka's own connector for files reads ahead: what is in its buffer when a poll has its `batch.size` lines
comes with a later poll only if the file has grown meanwhile. So lines that do not count end the file.
"""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest
from bench.peers.kafka import free_port
from bench.peers.maven import PeerMissing, require, resolve

from clients.exactly_once import SETTINGS, JvmProgram, Reader, create_topics, until, without_broker
from crash.cluster_processes import ClusterProcesses

VERSION = "4.3.1"
PORTION, PORTIONS = 600, 6
FILLER = "filler"
"""More lines of these than the connector's buffer of 1 KB holds stand at the end of the file."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("clients")]


def _worker(bootstrap: str, port: int, folder: Path) -> JvmProgram:
    """A worker of the distributed mode: the other one does not write exactly once."""
    try:
        require("java")
        coordinates = [f"org.apache.kafka:connect-{part}:{VERSION}" for part in ("runtime", "file")]
        jars = resolve(f"connect-{VERSION}", *coordinates, "org.slf4j:slf4j-nop:1.7.36")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "connect",
        "listeners": f"http://127.0.0.1:{port}",
        "exactly.once.source.support": "enabled",
        "plugin.discovery": "service_load",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "500",
        "scheduled.rebalance.max.delay.ms": "0",
        # A worker that starts reads its topics to their ends, and waits for what a killed one left open.
        "producer.transaction.timeout.ms": "10000",
    }
    settings |= {
        f"{part}.converter": "org.apache.kafka.connect.storage.StringConverter" for part in ("key", "value")
    }
    for kind in ("config", "offset", "status"):
        settings |= {f"{kind}.storage.topic": f"connect-{kind}", f"{kind}.storage.replication.factor": "3"}
    config = folder / "worker.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = ["java", "-Xmx384m", "-cp", f"{jars}/*", "org.apache.kafka.connect.cli.ConnectDistributed"]
    return JvmProgram([*command, str(config)], folder / "worker.txt")


def _ask(port: int, method: str, path: str, body: Any = None) -> Any:
    """The answer of the worker; None while it has none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        read = answer.read()
        return json.loads(read) if answer.status in (200, 201) else None
    except OSError:
        return None
    finally:
        connection.close()


def test_connect_writes_each_line_of_a_file_once_over_kills(tmp_path: Path) -> None:
    file = tmp_path / "source.txt"
    file.touch()
    connector = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": "1",
        "file": str(file),
        "topic": "lines",
        "batch.size": "20",
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
    }
    written: list[str] = []
    with ClusterProcesses(tmp_path, SETTINGS) as cluster:
        bootstrap, port = cluster.bootstrap_servers, free_port()
        create_topics(bootstrap, "lines")
        reader = Reader(bootstrap, "lines")
        worker = _worker(bootstrap, port, tmp_path)
        try:
            until(lambda: _ask(port, "PUT", "/connectors/lines/config", connector) is not None, "worker")
            for number in range(PORTIONS):
                lines = [f"line {len(written) + each}" for each in range(PORTION)]
                with file.open("a") as out:
                    out.writelines(f"{line}\n" for line in lines)
                written += lines
                middle = len(written) - PORTION // 2
                if number % 2:
                    with without_broker(cluster, number // 2 + 1):
                        _await(reader, middle, port)
                else:
                    _await(reader, middle, port)
                    worker.kill()
                    worker.start()
            with file.open("a") as out:
                out.write(f"{FILLER}\n" * 400)
            _await(reader, len(written), port)
        finally:
            worker.end()
        reader.await_end(cluster)
        reader.close()
    assert sorted(value for value in reader.values if value != FILLER) == sorted(written)


def _await(reader: Reader, count: int, port: int) -> None:
    """Until so many lines are there. A task that gave up on a broker stays so until somebody restarts it."""

    def are_there() -> bool:
        status = _ask(port, "GET", "/connectors/lines/status") or {"tasks": []}
        if any(task["state"] == "FAILED" for task in status["tasks"]):
            _ask(port, "POST", "/connectors/lines/restart?includeTasks=true&onlyFailed=true")
        reader.read()
        return sum(value != FILLER for value in reader.values) >= count

    until(are_there, f"{count} lines")
