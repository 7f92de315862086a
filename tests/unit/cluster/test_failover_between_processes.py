"""Several brokers' processes on one registry file: when the controller's is killed, another takes over."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

DEADLINE_SECONDS = 20

MEMBER = """
import asyncio, json, random, sys
from pathlib import Path
from ottla.clock import SystemClock
from ottla.cluster.controller import Controller
from ottla.cluster.image import BrokerNode
from ottla.cluster.registration import Registration
from ottla.cluster.sqlite_registry import SqliteRegistry
from ottla.cluster.topic_rules import NewTopic

async def main(path, number):
    registry = SqliteRegistry(Path(path), SystemClock())
    await registry.open()
    controller = Controller(
        registry, rng=random.Random(number), broker_id=number, check_topic_configs=lambda configs: None
    )
    await controller.start()
    registration = Registration(registry, BrokerNode(number, "localhost", 9000 + number))
    await registration.start()
    print(json.dumps({"member": number, "is": "ready"}), flush=True)
    await controller.feed.after(0)
    epoch = controller.image.controller_epoch
    while number not in controller.image.brokers:
        await controller.feed.after(controller.image.version)
    await controller.create_topics([NewTopic(f"made-in-{epoch}")])
    print(json.dumps({
        "member": number, "is": "controller", "epoch": epoch,
        "topics": sorted(controller.image.topics), "cluster": controller.image.cluster_id,
    }), flush=True)
    while True:
        image = controller.image
        print(json.dumps({"member": number, "brokers": sorted(image.brokers)}), flush=True)
        await controller.feed.after(image.version)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


class Members:
    """The processes, and what they say."""

    def __init__(self, path: Path, count: int) -> None:
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self._heard: list[dict[str, Any]] = []
        self.processes = {number: self._start(path, number) for number in range(1, count + 1)}

    def _start(self, path: Path, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", MEMBER, str(path), str(number)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._said.put(json.loads(line))
        process.stdout.close()

    def next_report(self, **wanted: object) -> dict[str, Any]:
        """The first thing said that fits and was not asked for before."""
        while True:
            for said in self._heard:
                if wanted.items() <= said.items():
                    self._heard.remove(said)
                    return said
            self._heard.append(self._said.get(timeout=DEADLINE_SECONDS))

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self.processes):
            self.kill(number)


def test_a_killed_controller_is_replaced_without_losing_metadata(tmp_path: Path) -> None:
    with Members(tmp_path / "registry.sqlite", 3) as members:
        for _ in range(3):
            members.next_report(**{"is": "ready"})
        topics: list[str] = []
        clusters = set()
        epoch = 0
        while members.processes:
            said = members.next_report(**{"is": "controller"})
            assert said["epoch"] == epoch + 1
            epoch = said["epoch"]
            topics.append(f"made-in-{epoch}")
            assert said["topics"] == topics
            clusters.add(said["cluster"])
            members.next_report(member=said["member"], brokers=sorted(members.processes))
            members.kill(said["member"])
        assert epoch == 3
        assert len(clusters) == 1
