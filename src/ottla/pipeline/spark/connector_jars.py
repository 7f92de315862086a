"""Spark's own JVM connector for Kafka, for `--connector kafka`: four jars, resolved once.

The connector is part of Spark but not of PySpark's package. It comes from a folder the user names
(`OTTLA_CONNECTOR_JARS`), or through Maven into the cache, in the versions that were tested together: the
connector of the newest Spark is published later than PySpark, and one of the version before works with it. A
cluster's executors get the jars from the driver.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ottla.pipeline.spark.archive import cache_folder
from ottla.pipeline.spark.java import JavaMissing, find_java

FOLDER = "OTTLA_CONNECTOR_JARS"

#: Read and wrote a million rows with PySpark 4.3.0 on Java 17, batch and stream.
TESTED = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)

_DEPENDENCY = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{3}</dependency>"
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    "<groupId>ottla</groupId><artifactId>connector</artifactId><version>1</version>"
    "<dependencies>{dependencies}</dependencies></project>"
)


class ConnectorMissing(RuntimeError):
    """Spark's JVM connector cannot be had; the message says what to install or where to put the jars."""


def jars() -> str:
    """The value for `spark.jars`."""
    return ",".join(str(jar) for jar in jar_paths())


def jar_paths() -> list[Path]:
    """The jars of the connector, from the named folder, the cache, or Maven."""
    named = os.environ.get(FOLDER)
    if named:
        found = sorted(Path(named).glob("*.jar"))
        if not any(jar.name.startswith("spark-sql-kafka-") for jar in found):
            raise ConnectorMissing(f"{FOLDER} is {named}, which holds no spark-sql-kafka jar")
        return found
    import pyspark

    folder = cache_folder("connector-jars", f"spark-{pyspark.__version__}")
    if not folder.is_dir():
        _resolve(folder)
    return sorted(folder.glob("*.jar"))


def _resolve(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ConnectorMissing(
            "Spark's Kafka connector is fetched with Maven, and mvn is not on the PATH "
            f"(Debian: apt-get install maven). Or put these jars in a folder and name it with {FOLDER}: "
            + ", ".join(TESTED)
        )
    try:
        java = find_java()
    except JavaMissing as missing:
        raise ConnectorMissing(str(missing)) from missing
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        dependencies = "".join(_DEPENDENCY.format(*jar.split(":"), _ALONE) for jar in TESTED)
        Path(work, "pom.xml").write_text(_POM.format(dependencies=dependencies))
        answer = subprocess.run(
            [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"],
            cwd=work,
            env={**os.environ, "JAVA_HOME": str(java.home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if answer.returncode != 0:
            raise ConnectorMissing(
                f"Maven could not resolve Spark's Kafka connector ({', '.join(TESTED)}); it said:\n"
                f"{answer.stdout[-2000:]}\nJars in a folder work too: name it with {FOLDER}."
            )
        try:
            Path(work, "lib").rename(folder)
        except OSError:
            # Another process resolved the same meanwhile; its folder is as good as ours.
            if not folder.is_dir():
                raise
