"""A standalone Spark cluster on this machine: a master and its workers, real processes on free ports."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ottla.pipeline.spark.java import find_java
from pipeline.spark_programs import until


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[str]:
    """The URL of a master with this many workers of one core each, all ready; logs are in `folder`."""
    port, page = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    master = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
    worker = ["worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "2g"]
    with ExitStack() as running:
        running.enter_context(_part(folder / "master", master))
        for number in range(workers):
            place = folder / f"worker-{number}"
            running.enter_context(_part(place, [*worker, "--work-dir", str(place / "work"), url]))
        until(lambda: _workers_alive(page) == workers, f"{workers} workers are with the master", 120)
        yield url


@contextmanager
def _part(folder: Path, words: list[str]) -> Iterator[None]:
    """One process of the cluster, started as Spark's own scripts do, on the Java that Ottla finds."""
    import pyspark

    home = Path(pyspark.__file__).parent
    folder.mkdir(parents=True)
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", f"org.apache.spark.deploy.{words[0]}", *words[1:]],
            env={
                **os.environ,
                **find_java().environment(),
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_DAEMON_MEMORY": "512m",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        # A worker that is asked to end ends its executors too.
        process.terminate()
        process.wait(timeout=60)


def _workers_alive(page: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            return sum(worker["state"] == "ALIVE" for worker in json.load(answer)["workers"])
    except (OSError, json.JSONDecodeError):  # not there yet, or busy with starting: any path is the page then
        return 0
