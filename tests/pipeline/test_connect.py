"""Over Spark Connect: the client has no JVM, and the server finds `format("ottla")` by itself.

The client's packages (gRPC, pandas) are not among Ottla's, so this test fetches them into a folder of the
cache, once, and no other test sees them.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.pipeline.spark.archive import cache_folder
from ottla.pipeline.spark.java import find_java
from pipeline.spark_programs import program, until
from pipeline.standalone import free_port

if TYPE_CHECKING:
    from ottla.testing.in_process import InProcessBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

READ_AND_WRITE = """
import sys
from ottla.pipeline.spark.session import spark_session

server, bootstrap, folder = sys.argv[1:]
spark = spark_session("connected", server)
print(type(spark).__module__, spark.conf.get("spark.sql.session.timeZone"))
there = {"kafka.bootstrap.servers": bootstrap}
rows = spark.range(0, 2000, 1, 2).selectExpr("cast(id as string) key", "cast(2 * id as string) value")
rows.write.format("ottla").options(**there, topic="connect.in").mode("append").save()
read = spark.read.format("ottla").options(**there, subscribe="connect.in").load()
print(*read.selectExpr("count(*)", "sum(cast(cast(value as string) as long))").collect()[0])
stream = spark.readStream.format("ottla").options(**there, subscribe="connect.in", startingOffsets="earliest")
for _ in range(2):
    writer = stream.load().select("key", "value").writeStream.format("ottla")
    writer = writer.options(**there, topic="connect.out").option("checkpointLocation", folder)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    print(sum(progress.numInputRows for progress in query.recentProgress))
"""


@pytest.fixture(scope="module")
def packages() -> Path:
    """What `pip install 'pyspark[connect]'` would add, in a folder of its own."""
    import pyspark

    folder = cache_folder("spark-connect", f"{pyspark.__version__}-python-3.{sys.version_info[1]}")
    if not folder.is_dir():
        needed = [
            requirement.partition(";")[0].strip()
            for requirement in importlib.metadata.requires("pyspark") or []
            if 'extra == "connect"' in requirement and "pyarrow" not in requirement
        ]
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        # PySpark 4.3 says at every start that it does not know pandas 3 yet.
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--target",
            str(partial),
            "pandas<3",
            *needed,
        ]
        subprocess.run(pip, check=True)
        partial.rename(folder)
    return folder


@pytest.fixture(scope="module")
def server(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Connect server with two cores of this machine."""
    import pyspark

    port = free_port()
    folder = tmp_path_factory.mktemp("connect")
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder),
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {
        **os.environ,
        **find_java().environment(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(packages),
    }
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: _listens(port), f"the Connect server listens; its log is {folder / 'log'}", 300)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def test_a_connect_session_reads_and_writes_topics_in_batches_and_streams(
    server: str, packages: Path, broker: InProcessBroker, tmp_path: Path
) -> None:
    for name in ("connect.in", "connect.out"):
        broker.create_topic(name, partitions=2)
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    arguments = (server, broker.bootstrap_servers, str(tmp_path / "checkpoint"))
    with program(READ_AND_WRITE, environment, *arguments) as process:
        output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    total = sum(2 * number for number in range(2000))
    assert output.splitlines() == ["pyspark.sql.connect.session UTC", f"2000 {total}", "2000", "0"]


def test_missing_packages_are_reported_with_what_to_install() -> None:
    code = (
        "from ottla.pipeline.spark.session import *\n"
        "try: spark_session('x', 'sc://127.0.0.1:1')\n"
        "except SparkFailed as failed: print(failed)"
    )
    with program(code) as process:
        output, errors = process.communicate(timeout=60)
    assert "pip install 'pyspark[connect]'" in output, errors
