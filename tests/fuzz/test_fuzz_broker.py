"""Runs the fuzzer that watches time and memory, and shows that it finds what it looks for.

OTTLA_FUZZ_BROKER_SECONDS says how long, a minute by default; OTTLA_FUZZ_SEED where to begin.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from attacks.attack import Target
from broker_process import BrokerProcess
from fuzz.fuzz_broker import SETTINGS, Finding, Fuzzer, Limits, Sender, frames_of, prepare
from fuzz.hostile_requests import HostileRequests, api_of
from ottla.protocol.apis import APIS
from ottla.protocol.codec import Malformed, decode
from ottla.protocol.frames import parse_request_header

SECONDS = float(os.environ.get("OTTLA_FUZZ_BROKER_SECONDS", "60"))
SEED = os.environ.get("OTTLA_FUZZ_SEED")
IDS = [bytes(range(16)), bytes(range(16, 32)), bytes(range(32, 48))]
GENEROUS = Limits(wait=30.0, memory=1 << 30)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, SETTINGS) as broker:
        yield broker


def test_every_api_is_fuzzed_with_requests_that_can_be_read() -> None:
    seen: Counter[str] = Counter()
    refused = 0
    wanted = {api.name for api in APIS.values()}
    for number in range(2_000):
        if seen.keys() == wanted:
            break
        frame = HostileRequests(Random(number), IDS).frame()
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        header = parse_request_header(memoryview(frame)[4:])
        api = APIS[header.api_key]
        seen[api.name] += 1
        try:
            decode(api.request, header.api_version, memoryview(frame)[4:], header.body_start)
        except Malformed:  # what would need too much memory for its size
            refused += 1
    assert seen.keys() == wanted
    assert refused < seen.total() / 10


def test_a_seed_gives_the_same_requests_again() -> None:
    """But for the time in the batches, which must be near for a broker to take them."""
    first, second = frames_of(7, IDS, 30), frames_of(7, IDS, 30)
    assert [api_of(frame) for frame in first] == [api_of(frame) for frame in second]
    assert [len(frame) for frame in first] == [len(frame) for frame in second]


def test_the_fuzzer_runs(broker: BrokerProcess) -> None:
    fuzzer = Fuzzer(broker, GENEROUS, Sender())
    topic_ids = prepare(fuzzer.target)
    finding = fuzzer.round(frames_of(3, topic_ids, 20), 3)
    assert finding is None, finding
    assert len(fuzzer.outcomes) > 5


def test_a_request_that_stalls_the_broker_is_found_and_written_down(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    frames = [frame for frame in frames_of(4, IDS, 12) if len(frame) < 1000][:4]
    guilty = frames[2]

    def send(target: Target, sent: Sequence[bytes]) -> int:
        for frame in sent:
            if frame == guilty:
                os.kill(target.pid, signal.SIGSTOP)
                time.sleep(2.0)  # the stall itself
                os.kill(target.pid, signal.SIGCONT)
        return 0

    finding = Fuzzer(broker, Limits(wait=1.2, memory=1 << 30), send).round(frames, 4)
    assert finding is not None
    assert finding.frames == [guilty]
    assert finding.reason.startswith("others waited")
    assert Finding.read(finding.write(tmp_path / "findings")) == finding


def test_a_broker_that_ends_is_found_at_once(broker: BrokerProcess) -> None:
    def send(target: Target, sent: Sequence[bytes]) -> int:
        assert broker.process is not None
        broker.process.kill()
        broker.process.wait()
        return 0

    finding = Fuzzer(broker, GENEROUS, send).round([b"\0\0\0\x08" + bytes(8)], 5)
    assert finding is not None
    assert "ended" in finding.reason


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 3 + 300)
def test_fuzzing_a_broker_finds_nothing_that_stalls_or_grows(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fuzz.fuzz_broker", "--seconds", str(SECONDS)]
    command += ["--findings", str(tmp_path / "findings")] + (["--seed", SEED] if SEED else [])
    result = subprocess.run(
        command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
