"""A broker is killed while topics are made, grown and deleted: what it answered is so."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.schema import Request
from raw_client import FETCH_VERSION, RawClient, fetch_request

NAMES = [f"topic-{number}" for number in range(5)]
GONE = 0
"""As a number of partitions: there is no such topic."""
PATIENCE = 30.0


class Changes:
    """Changes topics and writes to them until the broker is gone; knows what each may look like then."""

    def __init__(self, rng: random.Random) -> None:
        self.possible = {name: {GONE} for name in NAMES}
        self.written: dict[str, list[int]] = {}
        """For each partition of a topic how many records were acknowledged since the topic was made."""
        self.in_doubt: set[str] = set()
        """Topics that were being deleted when the broker died: their records may be gone."""
        self.defects: list[AssertionError] = []
        self.count = 0
        self._rng = rng

    def run(self, address: str) -> None:
        try:
            with RawClient(address) as client:
                while True:
                    self._change(client, self._rng.choice(NAMES))
                    self.count += 1
        except OSError:
            return  # the broker is gone, as it has to be
        except AssertionError as error:
            self.defects.append(error)

    def _change(self, client: RawClient, name: str) -> None:
        (before,) = self.possible[name]
        request: Request
        if before == GONE:
            after = self._rng.choice([1, 3, 40])
            topic = CreatableTopic(name=name, num_partitions=after, replication_factor=1)
            request, version, results = CreateTopicsRequest(topics=[topic]), 5, "topics"
        elif self._rng.random() < 0.5:
            after = GONE
            self.in_doubt.add(name)
            request, version, results = (
                DeleteTopicsRequest(topics=[DeleteTopicState(name=name)]),
                6,
                "responses",
            )
        else:
            after = before + self._rng.choice([1, 20])
            more = CreatePartitionsTopic(name=name, count=after, assignments=None)
            request, version, results = CreatePartitionsRequest(topics=[more]), 2, "results"
        self.possible[name] = {before, after}
        (result,) = getattr(client.call(request, version), results)
        assert result.error_code == 0, f"{name}: {result.error_message}"
        self.possible[name] = {after}
        self.in_doubt.discard(name)
        known = self.written.get(name, []) if before else []
        self.written[name] = known + [0] * (after - len(known))
        if after and self._rng.random() < 0.7:
            index = self._rng.randrange(after)
            answer = client.produce(name, b"v", partition=index)
            assert answer.error_code == 0, f"{name}-{index}: {answer.error_message}"
            self.written[name][index] += 1

    def check(self, address: str) -> None:
        """Every topic is as it was left, or as the change under way would have made it, and works."""
        with RawClient(address, timeout=PATIENCE) as client:
            found = {t.name: len(t.partitions) for t in client.call(MetadataRequest(topics=None), 9).topics}
            for name, allowed in self.possible.items():
                count = found.pop(name, GONE)
                assert count in allowed, f"{name} has {count} partitions, not one of {allowed}"
                if count == GONE or name not in self.written or allowed == {GONE, count}:
                    self.written[name] = [0] * count
                known = self.written[name]
                self.written[name] = known = known + [0] * (count - len(known))
                for index in range(count):
                    self._check_partition(client, name, index, known)
                self.possible[name] = {count}
            assert not found, f"no client created {found}"
        self.in_doubt.clear()

    def _check_partition(self, client: RawClient, name: str, index: int, known: list[int]) -> None:
        answer = client.call(fetch_request(name, 0, partition=index), FETCH_VERSION)
        (data,) = answer.responses[0].partitions
        assert data.error_code == 0, f"{name}-{index}: error {data.error_code}"
        # One record more than was acknowledged may be there; a topic made again under its name begins empty.
        if name in self.in_doubt:
            known[index] = data.high_watermark
        assert known[index] <= data.high_watermark <= known[index] + 1, (
            f"{name}-{index}: {data.high_watermark}"
        )
        known[index] = data.high_watermark


def run_kills(folder: Path, kills: int) -> None:
    seed = int(os.environ.get("OTTLA_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"replay with OTTLA_CRASH_SEED={seed}")
    rng = random.Random(seed)
    changes, moment = Changes(random.Random(seed)), threading.Event()
    # A client of another test may come by the port, which was another broker's before.
    with BrokerProcess(folder, {"auto.create.topics.enable": False}) as broker:
        for _ in range(kills):
            changing = threading.Thread(target=changes.run, args=(broker.bootstrap_servers,))
            changing.start()
            moment.wait(rng.uniform(0.02, 0.25))
            broker.kill()
            changing.join(PATIENCE)
            assert not changes.defects, changes.defects
            broker.start()
            changes.check(broker.bootstrap_servers)
        print(f"{changes.count} changes in {kills} lives")
        assert changes.count > kills
        names = [path.name for path in broker.data.iterdir() if path.is_dir()]
        folders = {
            name for name in names if name.startswith("topic-") and not name.endswith(("-delete", "-stray"))
        }
        wanted = {f"{name}-{i}" for name, (count,) in changes.possible.items() for i in range(count)}
        assert folders == wanted


def test_topics_survive_kills_in_the_middle_of_their_changes(tmp_path: Path) -> None:
    run_kills(tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_topics_survive_sixty_kills_in_the_middle_of_their_changes(tmp_path: Path) -> None:
    run_kills(tmp_path, 60)
