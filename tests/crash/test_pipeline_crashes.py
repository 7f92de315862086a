"""A pipeline's driver, and its broker, are killed again and again; topics lose nothing, the lake has all
once.

Two stages read the same topic, through a pattern: one writes two topics, the other a lake. The second puts
each row into a folder at random, so that a batch which is run again looks different from the first time:
whatever a crash left of the first must go. While it goes on, the lake is compacted, and the topic gets one
more partition.

A topic that is written at least once may have a row twice, but only for a reason: it belongs to a batch that
was begun and not finished when a process was killed, or when the stage failed and was started again. That is
checked record by record, by offset. Exactly once is in test_pipeline_exactly_once.py.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from broker_process import BrokerProcess
from crash.load import read_all
from crash.pipeline_process import PATIENCE, PipelineProcess, Ranges, await_true
from ottla.pipeline.lakes.batches import LakeError
from ottla.pipeline.lakes.compact import compact_lake

PARTITIONS = 3
PIPELINE = """
from ottla.pipeline import lake, stage, topic

limits = {{"startingOffsets": "earliest", "maxOffsetsPerTrigger": "{limit}"}}
clicks = topic(pattern="^clicks", json="id long", options=limits)


@stage(clicks, to=[topic("copies"), topic("others")], delivery="at-least-once")
def copy(rows):
    return rows


@stage(clicks, to=lake("{lake}", partition_by=["folder"]))
def keep(rows):
    return rows.selectExpr("id", "concat('f', cast(rand() * 3 as int)) folder")
"""
STAGES = ("copy", "keep")
COPIES = ("copies", "others")
MOMENTS = ("any time", "any time", "rows on the topic", "files in the lake", "while it starts")
"""When to kill. Between writing and the end of a batch there are milliseconds, which chance seldom meets."""


class Clicks(threading.Thread):
    """Numbers its records and remembers where each one is; goes on through every restart of the broker."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="clicks")
        self.sent = 0
        self._partitions = PARTITIONS
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self.places: dict[int, tuple[int, int]] = {}
        self.errors: list[str] = []
        self._ending = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        while not self._ending.wait(0.02):
            # Slow enough for a pipeline on a busy machine: what it is behind must be read in the end.
            for _ in range(30 if len(self._producer) < 1_000 else 0):
                self._producer.produce(
                    "clicks",
                    b'{"id": %d}' % self.sent,
                    partition=self.sent % self._partitions,
                    on_delivery=self._delivered,
                )
                self.sent += 1
            self._producer.poll(0)

    def grow(self) -> None:
        """Add a partition to the topic, and write to it from now on."""
        (future,) = self._admin.create_partitions([NewPartitions("clicks", PARTITIONS + 1)]).values()
        future.result(30)
        await_true(
            lambda: len(self._producer.list_topics("clicks", 30).topics["clicks"].partitions) > PARTITIONS,
            "the producer does not see the new partition",
        )
        self._partitions = PARTITIONS + 1

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.errors.append(error.str())
            return
        number = int(message.value()[len(b'{"id": ') : -1])
        self.places[number] = (message.partition(), message.offset())

    def finish(self) -> None:
        self._ending.set()
        self.join(PATIENCE)
        assert self._producer.flush(PATIENCE) == 0
        assert self.errors == []
        assert len(self.places) == self.sent


class Excuses:
    """Batches of the stage that writes a topic which may have been written more than once, and why."""

    def __init__(self) -> None:
        self._why: dict[int, str] = {}
        self._ranges: dict[int, Ranges] = {}

    def add(self, why: str, batches: Iterable[int]) -> None:
        for batch in batches:
            self._why.setdefault(batch, why)

    def note(self, ranges: dict[int, Ranges]) -> None:
        """Which records the batches so far consist of."""
        self._ranges.update(ranges)

    def reason(self, partition: int, offset: int) -> str | None:
        for batch, why in self._why.items():
            first, end = self._ranges.get(batch, {}).get(partition, (0, 0))
            if first <= offset < end:
                return why
        return None


def run_crashes(folder: Path, kills: int, broker_kills: int) -> None:
    seed = int(os.environ.get("OTTLA_CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"replay with OTTLA_CRASH_SEED={seed}")
    rng = random.Random(seed)
    lake = folder / "lake"
    file = folder / "pipeline.py"
    file.write_text(PIPELINE.format(lake=lake, limit=20_000))
    excuses = Excuses()
    with BrokerProcess(folder) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        wanted = [NewTopic(name, PARTITIONS, 1) for name in ("clicks", *COPIES)]
        for future in admin.create_topics(wanted).values():
            future.result(30)
        clicks = Clicks(broker.bootstrap_servers)
        clicks.start()
        with PipelineProcess(file, broker.bootstrap_servers, folder / "checkpoints", "clicks") as driver:
            try:
                _kill_and_restart(rng, driver, broker, lake, excuses, clicks, kills, broker_kills)
            finally:
                clicks.finish()
            # What is left in large batches; another limit is a change that a checkpoint follows.
            file.write_text(PIPELINE.format(lake=lake, limit=1_000_000))
            last = driver.position("copy")
            driver.run_once()
            excuses.add("a stage failed and was started again", driver.restarts("copy", last.committed))
            excuses.note(driver.ranges("copy"))
            await_true(lambda: not driver.stragglers, "processes of killed drivers stayed")
        for name in COPIES:
            _check_topic(broker, name, clicks, excuses)
    _check_lake(lake, clicks.sent)
    compact_lake(lake)
    _check_lake(lake, clicks.sent)
    assert not [path for path in lake.rglob("*") if path.is_file() and path.suffix != ".parquet"]


def _kill_and_restart(
    rng: random.Random,
    driver: PipelineProcess,
    broker: BrokerProcess,
    lake: Path,
    excuses: Excuses,
    clicks: Clicks,
    kills: int,
    broker_kills: int,
) -> None:
    moment = threading.Event()
    with_broker = set(rng.sample(range(kills), broker_kills))
    moments = [rng.choice(MOMENTS) for _ in range(kills)] if kills > 3 else [MOMENTS[0]] * kills
    for kill, when in enumerate(moments):
        before = {stage: driver.position(stage) for stage in STAGES}
        driver.start()
        starting_up = when == "while it starts" and kill > 0
        if starting_up:
            moment.wait(rng.uniform(1.0, 12.0))
        else:
            driver.await_progress(before, rng.randrange(1, 4))
        if kill == 0:
            clicks.grow()
        if kill in with_broker:
            at_work = {stage: driver.position(stage) for stage in STAGES}
            broker.kill()
            moment.wait(rng.uniform(0.0, 2.0))
            broker.start()
            if not starting_up:
                driver.await_progress(at_work, 2)
            met = range(at_work["copy"].committed + 1, driver.position("copy").planned + 1)
            excuses.add("the broker was killed", met)
        if not starting_up and rng.random() < 0.7:
            _compact(lake)
        if when == "rows on the topic":
            _await_growth(broker, driver)
        elif when == "files in the lake":
            _await_file(lake, driver)
        elif not starting_up:
            moment.wait(rng.uniform(0.0, 1.5))
        driver_only = rng.random() < 0.3
        driver.kill(driver_only=driver_only)
        excuses.add("the driver was killed", driver.position("copy").open)
        excuses.add("a stage failed and was started again", driver.restarts("copy", before["copy"].committed))
        excuses.note(driver.ranges("copy"))
        now = {stage: driver.position(stage) for stage in STAGES}
        print(
            f"kill {kill + 1}: {when},"
            f" {'broker too, ' if kill in with_broker else ''}{'driver only, ' if driver_only else ''}"
            + ", ".join(
                f"{stage} had {each.committed} done, {each.planned} begun" for stage, each in now.items()
            )
        )


def _await_growth(broker: BrokerProcess, driver: PipelineProcess) -> None:
    """Until a batch that is not done yet has rows on the topic."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "looks-only"})

    def size() -> int:
        places = [TopicPartition("copies", partition) for partition in range(PARTITIONS)]
        return sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)

    try:
        before = size()
        await_true(lambda: size() > before, "nothing came to the topic", driver.text)
    finally:
        consumer.close()


def _await_file(lake: Path, driver: PipelineProcess) -> None:
    """Until a batch that is not done yet has a file in the lake."""
    known = set(lake.rglob("*.parquet"))
    await_true(lambda: not known.issuperset(lake.rglob("*.parquet")), "no file came", driver.text)


def _compact(lake: Path) -> None:
    try:
        compact_lake(lake, target_bytes=1 << 20)
    except LakeError as error:
        assert "no lake" in str(error)


def _check_topic(broker: BrokerProcess, name: str, clicks: Clicks, excuses: Excuses) -> None:
    counts: Counter[int] = Counter()
    for partition in range(PARTITIONS):
        for _, value in read_all(broker.bootstrap_servers, name, partition):
            counts[int(value[len(b'{"id":') : -1])] += 1
    missing = sorted(set(range(clicks.sent)) - counts.keys())
    assert missing == [], f"{len(missing)} of {clicks.sent} are missing, the first {missing[:5]}"
    assert set(counts) == set(range(clicks.sent))
    doubled = {number: count for number, count in counts.items() if count > 1}
    by_reason: dict[str, int] = defaultdict(int)
    unexplained = []
    for number, count in doubled.items():
        why = excuses.reason(*clicks.places[number])
        if why:
            by_reason[why] += count - 1
        else:
            unexplained.append((number, clicks.places[number], count))
    more = sum(doubled.values()) - len(doubled)
    print(f"{name}: {clicks.sent} records, none missing, {more} more than once: {dict(by_reason)}")
    assert unexplained == [], f"{len(unexplained)} doubles without a reason: {unexplained[:5]}"


def _check_lake(lake: Path, sent: int) -> None:
    counts = Counter(ds.dataset(lake, partitioning="hive").to_table(columns=["id"])["id"].to_pylist())
    missing = sorted(set(range(sent)) - counts.keys())
    doubled = sorted(number for number, count in counts.items() if count > 1)
    assert (missing[:5], doubled[:5]) == ([], []), f"{len(missing)} missing, {len(doubled)} doubled of {sent}"
    assert len(counts) == sent
    print(f"lake: {sent} records, each once, in {sum(1 for _ in lake.rglob('*.parquet'))} files")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_rows_are_lost_or_duplicated_in_the_lake_after_a_kill_of_the_driver(tmp_path: Path) -> None:
    run_crashes(tmp_path, kills=1, broker_kills=0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_rows_are_lost_or_duplicated_in_the_lake_after_many_kills(tmp_path: Path) -> None:
    run_crashes(tmp_path, kills=14, broker_kills=5)
