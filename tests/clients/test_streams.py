"""Kafka Streams with processing.guarantee=exactly_once_v2 counts each word once, killed with the brokers.

Each record of the input gives a record of the output with the count of its word so far. So the counts of a
word must be 1, 2, 3 and so on to the number of its occurrences: one that is missing or double shows, in the
output, in the changelog that counts are restored from, and in the repartition topic between.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from bench.peers.maven import PeerMissing, require, resolve

from clients.exactly_once import SETTINGS, JvmProgram, Reader, create_topics, without_broker, write
from clients.programs import compiled
from crash.cluster_processes import ClusterProcesses

VERSION = "4.3.1"
PORTION, PORTIONS = 600, 6
WORDS = [f"word-{number}" for number in range(40)]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("clients")]


def _instance(bootstrap: str, state: Path) -> JvmProgram:
    try:
        require("java")
        coordinates = f"org.apache.kafka:kafka-streams:{VERSION}", "org.slf4j:slf4j-nop:1.7.36"
        jars = resolve(f"kafka-streams-{VERSION}", *coordinates)
        classes = compiled(f"java-WordCount-{VERSION}", jars, "WordCount")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    command = ["java", "-Xmx256m", "-cp", f"{classes}:{jars}/*", "WordCount", bootstrap, "count"]
    return JvmProgram([*command, "words", "counts", str(state)], state.with_suffix(".txt"))


def test_streams_count_each_word_once_over_kills(tmp_path: Path) -> None:
    rng = random.Random(7)
    written: list[str] = []
    with ClusterProcesses(tmp_path, SETTINGS) as cluster:
        bootstrap = cluster.bootstrap_servers
        create_topics(bootstrap, "words", "counts")
        reader = Reader(bootstrap, "counts")
        states = [tmp_path / f"state-{number}" for number in range(2)]
        instances = [_instance(bootstrap, state) for state in states]
        try:
            for number in range(PORTIONS):
                portion = [rng.choice(WORDS) for _ in range(PORTION)]
                write(bootstrap, "words", portion)
                written += portion
                middle = len(written) - PORTION // 2
                if number % 2:
                    with without_broker(cluster, number // 2 + 1):
                        reader.await_count(middle, f"portion {number}")
                    continue
                reader.await_count(middle, f"portion {number}")
                victim = number // 2 % 2
                instances[victim].kill()
                if number == 2:
                    shutil.rmtree(states[victim])  # its counts are restored from the changelog
                instances[victim].start()
            reader.await_count(len(written), "the last portion")
        finally:
            for instance in instances:
                instance.end()
        reader.await_end(cluster)
        reader.close()
    counts: dict[str | None, list[int]] = defaultdict(list)
    for records in reader.records.values():
        for word, count in records:
            counts[word].append(int(count))
    assert counts == {word: list(range(1, times + 1)) for word, times in Counter(written).items()}
