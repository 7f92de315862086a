"""`ottla cluster convert` and `ottla registry copy`: from one broker to a cluster with a new registry."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conformance.command import LIMIT, Command


@pytest.fixture
def ottla() -> Command:
    return Command("127.0.0.1:1")


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.02)


@contextmanager
def serving(ottla: Command, folder: Path, *options: str) -> Iterator[dict[str, Any]]:
    process = ottla.start(
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--json",
        "--data",
        str(folder),
        *options,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line
        yield json.loads(line)
    finally:
        process.terminate()
        process.communicate()


def test_a_single_broker_becomes_a_cluster_whose_registry_moves(ottla: Command, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(ottla, data) as ready:
        cluster_id = ready["cluster_id"]
        client = Command(ready["bootstrap"])
        client.ok("produce", "t", input="a\nb\n")
        client.ok("consume", "t", "--group", "g")
        refused = ottla("cluster", "convert", str(data))
        assert (refused.code, "is used by a broker" in refused.err) == (1, True)
    refused = ottla("serve", "--brokers", "3", "--data", str(data))
    assert f"ottla cluster convert {data}" in refused.err
    assert json.loads(ottla.ok("cluster", "convert", str(data), "--json").out)["broker"] == 1
    with serving(ottla, data, "--brokers", "3") as ready:
        assert ready["cluster_id"] == cluster_id
        client = Command(ready["bootstrap"])
        client.ok("topic", "replicate", "--all", "--factor", "3")
        until(lambda: client("cluster", "status").code == 0, "all replicas to be in sync")
        topics = json.loads(client.ok("topic", "list", "--internal", "--json").out)
        assert {topic["name"]: topic["replication_factor"] for topic in topics} == {
            "__consumer_offsets": 3,
            "t": 3,
        }
        assert "has 3 replicas or more already" in client.ok("topic", "replicate", "t").out
        refused = client("topic", "replicate", "t", "--factor", "4")
        assert "4 replicas need as many brokers" in refused.err
        client.ok("produce", "t", input="c\n")
        assert client.ok("consume", "t", "--group", "g").out == "c\n"
    old, new = f"sqlite:{data}/cluster.sqlite", f"sqlite:{tmp_path}/moved.sqlite"
    copied = json.loads(ottla.ok("registry", "copy", old, new, "--json").out)
    assert copied["cluster_id"] == cluster_id
    refused = ottla("registry", "copy", old, new)
    assert (refused.code, "not empty" in refused.err) == (1, True)
    with serving(ottla, data, "--brokers", "3", "--registry", new) as ready:
        assert (ready["cluster_id"], ready["registry"]) == (cluster_id, new)
        assert Command(ready["bootstrap"]).ok("consume", "t").out == "a\nb\nc\n"
        refused = ottla("registry", "copy", new, f"sqlite:{tmp_path}/third.sqlite")
        assert "brokers 1, 2, 3 are registered and may be running" in refused.err


@pytest.mark.parametrize(
    ("addresses", "code", "text"),
    [
        (["nonsense", "sqlite:/x"], 2, "no registry"),
        (["sqlite:/x/y", "sqlite:/x/y"], 2, "the same"),
        (["sqlite:/no/such/file", "sqlite:/x"], 1, "there is no registry"),
    ],
)
def test_addresses_that_cannot_be_copied_are_refused(
    ottla: Command, addresses: list[str], code: int, text: str
) -> None:
    refused = ottla("registry", "copy", *addresses)
    assert (refused.code, text in refused.err) == (code, True), refused.err
