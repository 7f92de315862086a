"""The programs in other languages that check a broker with their own clients: how each is built and run.

A program takes a bootstrap address and a prefix for its topics, and prints one line of JSON for each check.
What is downloaded or built lies in ~/.cache/ottla-clients (or OTTLA_CLIENTS), never in the repository.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.maven import PeerMissing, require, resolve

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("OTTLA_CLIENTS", Path.home() / ".cache" / "ottla-clients"))
BUILD_SECONDS = 400
RUN_SECONDS = 300

_ADMIN = (
    "create and describe a topic",
    "refuse bad topics",
    "add partitions",
    "describe and alter configs",
    "describe the cluster",
    "describe acls",
    "delete a topic",
)
_RECORDS = (
    "produce idempotently",
    "every size of record",
    "a record too large",
    "headers, nulls and timestamps",
    "delete records",
)
_READING = ("consume from every kind of offset", "wait for a record", "broker timestamps")
_GROUP_CHECKS = (
    "share a topic",
    "keep commits over a restart",
    "read partitions that are added",
    "list and describe groups",
    "list, alter and delete offsets",
    "remove members and delete a group",
)


def _in_groups(*checks: str, protocols: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{check}, {protocol}" for check in checks for protocol in protocols)


_GROUPS = (
    *_in_groups(*_GROUP_CHECKS, protocols=("classic", "consumer")),
    "share a topic, cooperative",
)
_JAVA_GROUPS = (*_GROUPS, *_in_groups("static members come back", protocols=("classic", "consumer")))


def _produced_with(*codecs: str) -> tuple[str, ...]:
    return tuple(f"produce {codec} acks {acks}" for codec in codecs for acks in ("0", "1", "all"))


_ALL_CODECS = _produced_with("none", "gzip", "snappy", "lz4", "zstd")
_EVERYTHING = (
    *_ADMIN,
    "describe log dirs",
    *_ALL_CODECS,
    *_RECORDS,
    *_READING,
    "list offsets",
    "describe producers",
)


@dataclass(frozen=True)
class Program:
    """One client's program: `command` makes what is needed and says how to start it."""

    name: str
    checks: tuple[str, ...]
    command: Callable[[], list[str]]
    environment: Callable[[], dict[str, str]] = dict

    def run(self, bootstrap: str, prefix: str) -> dict[str, dict[str, Any]]:
        """The result of each check by its name. PeerMissing when the language is not on this machine."""
        done = subprocess.run(
            [*self.command(), bootstrap, prefix],
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            env={**os.environ, **self.environment()},
        )
        if done.returncode != 0:
            raise RuntimeError(f"{self.name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
        results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return {result["check"]: result for result in results}


def _java(version: str) -> list[str]:
    require("java")
    jars = resolve(
        f"kafka-clients-{version}",
        f"org.apache.kafka:kafka-clients:{version}",
        "org.slf4j:slf4j-nop:1.7.36",
    )
    require("javac")
    sources = [HERE / "java" / name for name in ("Conformance.java", "Groups.java")]
    classes = CACHE / f"java-{version}"
    made = classes / "Conformance.class"
    if not made.exists() or made.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        classes.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), *map(str, sources)],
            check=True,
            timeout=BUILD_SECONDS,
        )
    return ["java", "-Xmx512m", "-cp", f"{classes}:{jars}/*", "Conformance"]


def _go(folder: str) -> list[str]:
    require("go")
    binary = CACHE / folder / "conformance"
    binary.parent.mkdir(parents=True, exist_ok=True)
    # Go knows itself what has changed since the last build.
    _build(["go", "build", "-buildvcs=false", "-o", str(binary), "."], HERE / folder)
    return [str(binary)]


def _node_modules() -> Path:
    """The modules of kafkajs/package.json, installed once for each version of that file."""
    require("node")
    require("npm")
    manifest = HERE / "kafkajs" / "package.json"
    folder = CACHE / f"kafkajs-{hashlib.sha256(manifest.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            shutil.copy(manifest, work)
            _build(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], Path(work))
            (Path(work) / "node_modules").rename(folder)
    return folder


def _build(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_SECONDS,
    )
    if done.returncode != 0:
        raise PeerMissing(f"`{' '.join(command[:2])}` in {folder.name} failed:\n{done.stdout[-2000:]}")


PROGRAMS = (
    Program("java-3.9", (*_EVERYTHING, *_JAVA_GROUPS), lambda: _java("3.9.1")),
    Program("java-4.3", (*_EVERYTHING, *_JAVA_GROUPS), lambda: _java("4.3.1")),
    Program("franz-go", (*_EVERYTHING, *_GROUPS), lambda: _go("franz_go")),
    Program(
        "sarama",
        # It has no call for the offset of the largest timestamp, nor for producers.
        (
            *_ADMIN,
            "describe log dirs",
            *_ALL_CODECS,
            *_RECORDS,
            *_READING,
            *_in_groups(*_GROUP_CHECKS, protocols=("classic",)),
        ),
        lambda: _go("sarama"),
    ),
    Program(
        "kafkajs",
        # It reads only as a member of a group, and compresses lz4 only with a native module.
        (
            *_ADMIN,
            *_produced_with("none", "gzip", "snappy", "zstd"),
            *_RECORDS,
            "list offsets",
            *_in_groups(*_GROUP_CHECKS, protocols=("classic",)),
        ),
        lambda: ["node", str(HERE / "kafkajs" / "conformance.js")],
        lambda: {"NODE_PATH": str(_node_modules()), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
    ),
)
