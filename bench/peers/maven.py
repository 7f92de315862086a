"""Jars by Maven coordinates, resolved once into a cache folder (OTTLA_PEERS, default ~/.cache/ottla-peers).

Standard library only, so that it runs with any Python. What is missing on the machine is said in one
sentence with the Debian command that brings it, as `PeerMissing`: a test or a benchmark decides what follows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CACHE = Path(os.environ.get("OTTLA_PEERS", Path.home() / ".cache" / "ottla-peers"))

_PACKAGES = {"java": "default-jdk-headless", "mvn": "maven"}
_DEPENDENCY = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{3}</dependency>"
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    "<groupId>peer</groupId><artifactId>{name}</artifactId><version>1</version>"
    "<dependencies>{dependencies}</dependencies></project>"
)


class PeerMissing(RuntimeError):
    """A peer cannot be had on this machine; the message says what to install or what Maven answered."""


def require(program: str) -> str:
    """The path of `java` or `mvn`, or `PeerMissing` with the command that installs it."""
    path = shutil.which(program)
    if path is None:
        package = _PACKAGES.get(program, program)
        raise PeerMissing(f"{program} is not on the PATH (Debian: apt-get install {package})")
    return path


def resolve(name: str, *coordinates: str, transitive: bool = True) -> Path:
    """The folder that holds the jars of `group:artifact:version` coordinates, with what they need."""
    folder = CACHE / name
    if folder.is_dir():
        return folder
    require("java")
    require("mvn")
    CACHE.mkdir(parents=True, exist_ok=True)
    exclusions = "" if transitive else _ALONE
    dependencies = "".join(_DEPENDENCY.format(*c.split(":"), exclusions) for c in coordinates)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        (Path(work) / "pom.xml").write_text(_POM.format(name=name, dependencies=dependencies))
        print(f"resolving {name} with Maven into {CACHE}", file=sys.stderr)
        maven = subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"],
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if maven.returncode != 0:
            raise PeerMissing(f"Maven could not resolve {', '.join(coordinates)}:\n{maven.stdout[-2000:]}")
        try:
            (Path(work) / "lib").rename(folder)
        except OSError:
            # Another process resolved the same name meanwhile; its folder is as good as ours.
            if not folder.is_dir():
                raise
    return folder
