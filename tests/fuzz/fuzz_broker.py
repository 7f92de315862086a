"""Fuzzing that watches time and memory: hostile requests against a running broker, beside a probe client.

    cd tests && python -m fuzz.fuzz_broker --seconds 600 [--seed N] [--without API] [--wait S] [--memory MB]
    cd tests && python -m fuzz.fuzz_broker --replay FILE

Requests of every API and version (`hostile_requests`) are sent in rounds. While a round runs, the probe of
`tests/attacks` notes how long others wait, and the kernel how much memory the broker takes. A round fails
when the probe waits too long, the broker takes too much memory, answers with more bytes than a client could
fetch honestly, logs a traceback or dies. A wait, or memory, counts only if it comes again when the round is
sent once more, for a busy machine stalls by itself; then the round is halved until the fewest requests are
left that still do it. They are written to a file, with their seed, which `--replay` sends again.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom

from attacks.attack import MB, Outcome, Target, measured
from broker_process import BrokerProcess
from frame_stream import FrameStream
from fuzz.hostile_requests import TOPICS, HostileRequests, api_of
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

FINDINGS = Path(tempfile.gettempdir()) / "fuzz-findings"
SETTINGS = {"max.partitions": 3_000, "group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 5}
PATIENCE = 3.0  # seconds to wait for one response; later ones are taken for lost

Send = Callable[[Target, Sequence[bytes]], int]
"""Sends frames and gives the size of the largest answer."""


@dataclass
class Limits:
    wait: float = 0.5
    memory: int = 256 * MB
    answer: int = 64 * MB


@dataclass
class Finding:
    reason: str
    seed: int
    frames: list[bytes]

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.seed}.json"
        document = {
            "reason": self.reason,
            "seed": self.seed,
            "requests": [api_of(frame) for frame in self.frames],
            "frames": [frame.hex() for frame in self.frames],
        }
        path.write_text(json.dumps(document, indent=1) + "\n")
        return path

    @classmethod
    def read(cls, path: Path) -> Finding:
        document = json.loads(path.read_text())
        return cls(document["reason"], document["seed"], [bytes.fromhex(each) for each in document["frames"]])


@dataclass
class Fuzzer:
    broker: BrokerProcess
    limits: Limits
    send: Send
    outcomes: Counter[str] = field(default_factory=Counter)
    longest_wait: float = 0.0
    most_memory: int = 0

    @property
    def target(self) -> Target:
        assert self.broker.process is not None
        return Target(self.broker.bootstrap_servers, self.broker.process.pid)

    def round(self, frames: list[bytes], seed: int) -> Finding | None:
        """Send the frames and watch; what is wrong comes back with the fewest frames that show it."""
        self.outcomes.update(api_of(frame) for frame in frames)
        reason = self._reason(frames)
        if reason is None:
            return None
        if self.is_final(reason):
            return Finding(reason, seed, frames)
        again = self._reason(frames)
        if again is None:
            print(f"seed {seed}: {reason}, but not when sent again", flush=True)
            return None
        return Finding(again, seed, frames) if self.is_final(again) else self._halved(frames, again, seed)

    def _halved(self, frames: list[bytes], reason: str, seed: int) -> Finding:
        while len(frames) > 1:
            middle = len(frames) // 2
            for half in (frames[:middle], frames[middle:]):
                found = self._reason(half)
                if found is not None:
                    frames, reason = half, found
                    break
            else:
                break  # it takes frames of both halves
            if self.is_final(reason):
                break
        return Finding(reason, seed, frames)

    def is_final(self, reason: str) -> bool:
        """Whether it need not happen twice to be believed."""
        return not reason.startswith(("others waited", "the broker took"))

    def _reason(self, frames: Sequence[bytes]) -> str | None:
        """What is wrong after sending these; None if nothing is."""
        process = self.broker.process
        assert process is not None
        said = self.broker.output.stat().st_size
        answer = 0
        try:
            with measured(self.target) as result:
                answer = self.send(self.target, frames)
        except (AssertionError, OSError) as problem:
            if process.poll() is not None:
                return f"the broker ended with {process.returncode}"
            return f"the probe could not be served: {problem!r}"
        outcome: Outcome = result.outcome
        self.longest_wait = max(self.longest_wait, outcome.longest_wait)
        self.most_memory = max(self.most_memory, outcome.peak_memory)
        with self.broker.output.open("rb") as output:
            output.seek(said)
            text = output.read().decode(errors="replace")
        if "Traceback" in text:
            return "a traceback in the log: " + text[text.index("Traceback") :][-2_000:]
        if outcome.failures:
            return f"{outcome.failures} requests of the probe failed"
        if answer > self.limits.answer:
            return f"an answer of {answer / MB:.0f} MB"
        if outcome.longest_wait > self.limits.wait:
            return f"others waited {outcome.longest_wait:.2f} s"
        if outcome.peak_memory > self.limits.memory:
            return f"the broker took {outcome.peak_memory / MB:.0f} MB more"
        return None


class Sender:
    """Sends frames over one connection, one after the other; a new connection where that one was closed."""

    def __call__(self, target: Target, frames: Sequence[bytes]) -> int:
        host, _, port = target.address.rpartition(":")
        largest = 0
        sock: socket.socket | None = None
        for frame in frames:
            try:
                if sock is None:
                    sock = socket.create_connection((host, int(port)), 10.0)
                    answers = FrameStream(sock)
                sock.settimeout(30.0)
                sock.sendall(frame)
                sock.settimeout(PATIENCE)
                largest = max(largest, self._receive(answers))
            except OSError:  # closed, or an answer that does not come: the next one starts afresh
                if sock is not None:
                    sock.close()
                sock = None
        if sock is not None:
            sock.close()
        return largest

    def _receive(self, frames: FrameStream) -> int:
        """Drop one answer; how many bytes it has."""
        frame = frames.next()
        if frame is None:
            raise ConnectionResetError
        return len(frame)


def prepare(target: Target) -> list[bytes]:
    """Make the topics that requests name; gives their ids."""
    for name in TOPICS:
        policy = "compact" if "compacted" in name else "delete"
        target.create_topic(name, 3, cleanup_policy=policy)
    with target.client() as client:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in TOPICS])
        return [topic.topic_id for topic in client.call(request, 12).topics]


def frames_of(seed: int, topic_ids: Sequence[bytes], count: int, without: Sequence[str] = ()) -> list[bytes]:
    frames = [HostileRequests(Random(f"{seed}-{n}"), topic_ids).frame() for n in range(count)]
    return [frame for frame in frames if api_of(frame).split()[0] not in without]


def fuzz(
    seconds: float,
    seed: int,
    limits: Limits,
    findings: Path,
    *,
    without: Sequence[str] = (),
    per_round: int = 40,
) -> int:
    """Fuzz so long; gives the number of findings. A broker is started anew after each of them."""
    deadline = time.monotonic() + seconds
    found, rounds, requests = 0, 0, 0
    while time.monotonic() < deadline:
        with tempfile.TemporaryDirectory(prefix="ottla-fuzz-") as folder:
            with BrokerProcess(Path(folder), SETTINGS) as broker:
                fuzzer = Fuzzer(broker, limits, Sender())
                topic_ids = prepare(fuzzer.target)
                finding = None
                while finding is None and time.monotonic() < deadline:
                    frames = frames_of(seed + rounds, topic_ids, per_round, without)
                    finding = fuzzer.round(frames, seed + rounds)
                    rounds += 1
                    requests += len(frames)
        print(
            f"{requests} requests of {len(fuzzer.outcomes)} APIs and versions in {rounds} rounds: "
            f"longest wait {fuzzer.longest_wait * 1000:.0f} ms, peak memory {fuzzer.most_memory / MB:.0f} MB",
            flush=True,
        )
        if finding is not None:
            found += 1
            path = finding.write(findings)
            names = ", ".join(
                f"{n} {name}" for name, n in Counter(map(api_of, finding.frames)).most_common(5)
            )
            print(f"FOUND by seed {finding.seed}: {finding.reason}\n  by {names}\n  {path}", flush=True)
    return found


def replay(path: Path, limits: Limits) -> str | None:
    """Send a finding's frames to a new broker; what is wrong then."""
    finding = Finding.read(path)
    with tempfile.TemporaryDirectory(prefix="ottla-fuzz-") as folder:
        with BrokerProcess(Path(folder), SETTINGS) as broker:
            fuzzer = Fuzzer(broker, limits, Sender())
            prepare(fuzzer.target)
            reason = fuzzer._reason(finding.frames)
            print(
                f"longest wait {fuzzer.longest_wait * 1000:.0f} ms, peak memory "
                f"{fuzzer.most_memory / MB:.0f} MB: {reason or 'nothing is wrong'}"
            )
    return reason


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=SystemRandom().getrandbits(32))
    parser.add_argument("--wait", type=float, default=Limits.wait, help="seconds that others may wait")
    parser.add_argument("--memory", type=int, default=Limits.memory // MB, help="MB that a round may take")
    parser.add_argument("--without", action="append", default=[], metavar="API", help="leave out this API")
    parser.add_argument("--findings", type=Path, default=FINDINGS, help="folder for what is found")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="send what was found once more")
    arguments = parser.parse_args()
    limits = Limits(arguments.wait, arguments.memory * MB)
    if arguments.replay:
        return 1 if replay(arguments.replay, limits) else 0
    print(f"seed {arguments.seed}", flush=True)
    found = fuzz(arguments.seconds, arguments.seed, limits, arguments.findings, without=arguments.without)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
