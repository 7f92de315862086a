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
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.maven import PeerMissing, require, resolve

JAVA_VERSIONS = ("3.9.2", "4.3.1")
"""The first speaks the first protocol of transactions, the other the second (KIP-890, part 2)."""
HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("OTTLA_CLIENTS", Path.home() / ".cache" / "ottla-clients"))
BUILD_SECONDS = 400
RUN_SECONDS = 600

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
_COPY = ("copy with rebalances in between",)
_TRANSACTIONS = (
    "commit and abort",
    "an open transaction is invisible",
    "a transaction runs out of time",
    "a second instance fences the first",
    *_in_groups(*_COPY, protocols=("classic",)),
)
_EVERY_PROTOCOL = (*_TRANSACTIONS, *_in_groups(*_COPY, protocols=("cooperative", "consumer")))
_JAVA_TRANSACTIONS = (
    *_EVERY_PROTOCOL,
    "offsets count with the transaction",
    "each transaction has its own epoch",
    "an administrator fences a producer",
)


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


def java(version: str, program: str, *parts: str) -> list[str]:
    """How to start a program in `java/` with this version of the client; `parts` are its other files."""
    require("java")
    jars = resolve(
        f"kafka-clients-{version}",
        f"org.apache.kafka:kafka-clients:{version}",
        "org.slf4j:slf4j-nop:1.7.36",
    )
    classes = compiled(f"java-{program}-{version}", jars, "Checks", program, *parts)
    return ["java", "-Xmx512m", "-cp", f"{classes}:{jars}/*", program]


def compiled(name: str, jars: Path, *sources: str) -> Path:
    """The folder with the classes of some sources, compiled again when one of them has changed."""
    require("javac")
    files = [HERE / "java" / f"{source}.java" for source in sources]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    folder = CACHE / f"{name}-{digest}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            command = ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", f"{work}/classes", *map(str, files)]
            subprocess.run(command, check=True, timeout=BUILD_SECONDS)
            (Path(work) / "classes").rename(folder)
    return folder


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
    *(
        program
        for version in JAVA_VERSIONS
        for program in (
            Program(
                f"java-{version}",
                (*_EVERYTHING, *_JAVA_GROUPS),
                partial(java, version, "Conformance", "Groups"),
            ),
            Program(
                f"java-transactions-{version}",
                _JAVA_TRANSACTIONS,
                partial(java, version, "Transactions", "Copying", "Groups"),
            ),
        )
    ),
    Program(
        "java-consumer-protocol",
        (
            "share the partitions",
            "commit and go on",
            "follow new partitions",
            "follow an expression",
            "refuse a bad expression",
            "a static member comes back",
            "describe the group",
            "take over from the classic protocol",
        ),
        partial(java, JAVA_VERSIONS[-1], "ConsumerProtocol"),
    ),
    Program("franz-go", (*_EVERYTHING, *_GROUPS, *_EVERY_PROTOCOL), lambda: _go("franz_go")),
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
            *_TRANSACTIONS,
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
            *_TRANSACTIONS,
        ),
        lambda: ["node", str(HERE / "kafkajs" / "conformance.js")],
        lambda: {"NODE_PATH": str(_node_modules()), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
    ),
)
