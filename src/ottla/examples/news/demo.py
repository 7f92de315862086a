"""The whole thing in two minutes: a broker, four days of news, a pipeline at work, and how good it was.

A broker is started on a free port and the pipeline beside it, each a process of its own, as a user would
start them. This process plays the world: it rewrites feeds, reads them back with feedparser, and lets readers
read. When the news are over and every stage has read all there is, the pipeline is asked to stop and the
report is told. Everything is kept in one folder. However it ends, also by Ctrl-C, both processes are ended
first, the pipeline before the broker.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from ottla.examples.news import report
from ottla.examples.news.measure import Figures
from ottla.examples.news.player import create_topics, play
from ottla.examples.news.world import make_world
from ottla.pipeline.spark import archive
from ottla.pipeline.spark.java import find_java
from ottla.protocol.errors import ApiError
from ottla.protocol_client.group_offsets import committed_offsets
from ottla.protocol_client.offsets import spans
from ottla.protocol_client.wire import BrokerUnreachable, Wire

PIPELINE = "ottla.examples.news.news"
READS = {
    "normalise": ("articles.raw",),
    "deduplicate": ("articles.clean",),
    "trends": ("articles.unique",),
    "readings": ("reads", "articles.clean"),
    "interests": ("reads.articles", "articles.unique"),
    "recommend": ("readers.interests", "articles.unique"),
}
_PATIENCE = 60.0
_STILL = 5
"""Looks in a row, a second apart, at which nothing was left to read and nothing was written."""


class Failed(Exception):
    """The demo cannot go on; the text says why and where the details are."""


def run(
    folder: Path, *, seconds: float = 45.0, days: int = 4, seed: int = 7, console: Console | None = None
) -> Figures:
    """Run the demo in a folder of its own, whose old content is removed. Returns the figures."""
    console = console or report.console()
    _make_room(folder)
    with _terminated():
        console.print("\n[bold cyan]A broker, from nothing[/]")
        with _broker(folder, console) as bootstrap:
            with Wire(bootstrap) as wire:
                create_topics(wire)
            world = make_world(seed, days)
            console.print("\n[bold cyan]News[/]")
            console.print(
                f"{days} days in {seconds:.0f} s: {len(world.articles):,} entries in 12 feeds,"
                f" {len(world.reads):,} reads by {len(world.readers)} readers; some are broken, some copied"
            )
            console.print(
                "\n[bold cyan]A pipeline of six stages[/]  [dim](Spark takes some seconds to start)[/]"
            )
            with _pipeline(folder, bootstrap, console) as process:
                _until_running(process, folder)
                play(
                    world,
                    folder / "feeds",
                    bootstrap,
                    seconds=seconds,
                    stop=lambda: process.poll() is not None,
                )
                _until_read(bootstrap, process, folder)
            figures = report.tell(console, world, bootstrap, folder / "lake")
        _what_next(console, folder)
    if archive.find(java := find_java()) is None:
        archive.make_at_exit(java)
    return figures


def _make_room(folder: Path) -> None:
    """The demo's own folder may be removed, no other."""
    mark = folder / "demo"
    if folder.exists() and any(folder.iterdir()) and not mark.exists() and folder.name != ".demo":
        raise Failed(f"{folder} is not empty and not from an earlier demo; name another folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mark.write_text("made by the news example; its content is removed when the demo runs again\n")


@contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: after the processes it started."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _command(*arguments: str) -> list[str]:
    # By the interpreter, not by its name: the script may lie in a folder that is not on the path.
    return [sys.executable, "-c", "from ottla.cli.main import main; main()", *arguments]


@contextmanager
def _broker(folder: Path, console: Console) -> Iterator[str]:
    began = time.monotonic()
    console.print(f"[dim]$[/] ottla serve --data {folder}/data --listen 127.0.0.1:0")
    with (folder / "broker.log").open("w") as log:
        # A session of its own: Ctrl-C comes to this process alone, which ends the others in their order.
        process = subprocess.Popen(
            _command("serve", "--json", "--data", str(folder / "data"), "--listen", "127.0.0.1:0"),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise Failed(f"the broker did not start: {(folder / 'broker.log').read_text().strip()}")
        bootstrap: str = json.loads(line)["bootstrap"]
        console.print(f"ready on [bold]{bootstrap}[/] after {time.monotonic() - began:.1f} s")
        yield bootstrap
    finally:
        _end(process, signal.SIGTERM)


@contextmanager
def _pipeline(folder: Path, bootstrap: str, console: Console) -> Iterator[subprocess.Popen[bytes]]:
    console.print(f"[dim]$[/] ottla pipeline run {PIPELINE} --bootstrap {bootstrap}", soft_wrap=True)
    sys.stdout.flush()
    process = subprocess.Popen(
        _command(
            *("pipeline", "run", PIPELINE, "--bootstrap", bootstrap),
            *("--checkpoints", str(folder / "checkpoints")),
        ),
        # A first run of Spark leaves a process behind that makes the next one faster; an
        # interrupted demo may not.
        env={"OTTLA_SPARK_ARCHIVE": "use", **os.environ, "NEWS_LAKE": str(folder.absolute() / "lake")},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _end(process, signal.SIGINT)


def _end(process: subprocess.Popen[bytes] | subprocess.Popen[str], number: signal.Signals) -> None:
    """Ask, ask again, then insist. A second Ctrl-C does not leave a process behind."""
    for wanted, patience in ((number, _PATIENCE), (number, 10.0), (signal.SIGKILL, 10.0)):
        if process.poll() is not None:
            return
        process.send_signal(wanted)
        try:
            process.wait(patience)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            continue


def _until_running(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until Spark is up and every stage waits for records: hours of news pass in a second from here on."""
    deadline = time.monotonic() + 4 * _PATIENCE
    while not all(_phase(folder / "checkpoints" / stage) == "running" for stage in READS):
        _check(process, folder, deadline, "the stages did not start")
        time.sleep(0.2)


def _phase(folder: Path) -> str:
    try:
        return str(json.loads((folder / "status.json").read_bytes())["phase"])
    except (OSError, ValueError, KeyError):
        return "unknown"


def _check(process: subprocess.Popen[bytes], folder: Path, deadline: float, complaint: str) -> None:
    if process.poll() is not None:
        raise Failed(f"the pipeline ended by itself with {process.returncode}; see {folder}/checkpoints")
    if time.monotonic() > deadline:
        raise Failed(f"{complaint}; see {folder}/checkpoints")


def _until_read(bootstrap: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until every stage has read to the end of its topics, and those behind it too."""
    still, deadline = 0, time.monotonic() + 4 * _PATIENCE
    ends: dict[tuple[str, int], int] | None = None
    with Wire(bootstrap) as wire:
        while still < _STILL:
            _check(process, folder, deadline, "the stages did not come to the end of their topics")
            before, ends = ends, _ends_if_read(wire)
            still = still + 1 if ends is not None and ends == before else 0
            time.sleep(1.0)


def _ends_if_read(wire: Wire) -> dict[tuple[str, int], int] | None:
    """Where the topics end if all stages have read that far, otherwise None.

    Asked from the front of the pipeline to its end, so that nothing slips past between two questions.
    """
    ends = {}
    try:
        for stage, topics in READS.items():
            done = committed_offsets(wire, f"ottla.news.{stage}")
            for topic in topics:
                partitions = [p.partition_index for p in wire.topic(topic).partitions]
                for partition, span in spans(wire, topic, partitions).items():
                    ends[topic, partition] = span.end
                    offset = done.get((topic, partition))
                    if span.end > span.start and (offset is None or offset.offset < span.end):
                        return None
    except (ApiError, BrokerUnreachable):
        return None
    return ends


def _what_next(console: Console, folder: Path) -> None:
    console.print("\n[bold cyan]What to try next[/]")
    for command, why in (
        (f"ottla serve --data {folder}/data", "the broker again, with all topics; then in another terminal"),
        ("ottla consume trends", "what the pipeline wrote, as records"),
        ("ottla consume news.normalise.dead-letters --headers", "what could not be read, and why"),
        ("ottla group list", "how far each stage has read"),
        (
            "python -m ottla.examples.news feed https://example.org/feed.xml",
            "feeds of your own, with the same stages",
        ),
    ):
        console.print(f"  {command}  [dim]# {why}[/]", soft_wrap=True)
    console.print(f"The stages are one readable file: {_stages_file()}", soft_wrap=True)


def _stages_file() -> Path:
    return Path(__file__).with_name("news.py")
