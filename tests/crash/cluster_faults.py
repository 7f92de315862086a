"""Random faults for a cluster of processes, from a seed: what breaks, for how long, and how it is mended.

At most `at_once` faults last at the same time. A broker that is killed, paused or restarting is not chosen
again before it is back. Faults of the network are independent of that: a broker may be restarted while it is
cut off. One thing at a time happens to the registry. A clock that was set stays wrong, until it is set again.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from crash.cluster_processes import ClusterProcesses
from crash.cluster_registries import NODES

SESSION_SECONDS = 1.5
"""`broker.session.timeout.ms` of the brokers."""
REGISTRY_SESSION_SECONDS = 6.0
KINDS = ("kill", "pause", "restart", "cut one way", "cut", "lose answers", "cut clients")
LONG_KINDS = (*KINDS, "long pause")
"""With those that take longer than a session of the registry."""
WRONG_CLOCK = "wrong clock"
_PROCESS_KINDS = ("kill", "pause", "restart", "long pause")
_LOOK_AGAIN_SECONDS = 0.3
_WRONG_SECONDS = 3000.0
"""Less than an hour: records further in the future are refused (message.timestamp.after.max.ms)."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    node: int
    other: int
    """Another broker; for a clock how many seconds it is wrong."""
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} {self.node} ({self.other}) for {self.seconds:.2f} s"


def draw(rng: random.Random, kind: str, busy: set[int]) -> Fault:
    """A fault of this kind on a broker whose process is well."""
    nodes = [node for node in NODES if kind not in _PROCESS_KINDS or node not in busy]
    node = rng.choice(nodes)
    other = rng.choice([each for each in NODES if each != node])
    match kind:
        case "pause":
            seconds = SESSION_SECONDS + rng.uniform(0.5, 1.5)
        case "long pause":
            seconds = REGISTRY_SESSION_SECONDS + rng.uniform(1.0, 3.0)
        case "kill" | "restart":
            seconds = rng.choice([0.0, rng.uniform(0.2, 2.0)])
        case "lock registry" | "cut registry" | "restart registry" | "pause registry":
            seconds = rng.choice([rng.uniform(0.2, 3.0), REGISTRY_SESSION_SECONDS + rng.uniform(0.5, 2.0)])
        case "wrong clock":
            return Fault(kind, node, round(rng.uniform(-_WRONG_SECONDS, _WRONG_SECONDS)), 0.0)
        case _:
            seconds = rng.uniform(0.5, 3.0)
    return Fault(kind, node, other, seconds)


def begin(cluster: ClusterProcesses, fault: Fault) -> Callable[[], None]:
    """Does it; what is returned mends it."""
    node, there, back = fault.node, (fault.node, fault.other), (fault.other, fault.node)
    match fault.kind:
        case "kill":
            cluster.kill(node)
            return lambda: cluster.start(node)
        case "pause" | "long pause":
            cluster.pause(node)
            return lambda: cluster.resume(node)
        case "restart":
            cluster.terminate(node)

            def start_again() -> None:
                cluster.ended(node)
                cluster.start(node)

            return start_again
        case "cut clients":
            cluster.clients[node].cut()

            def mend_clients() -> None:
                # What a client gave up is not delivered late: a commit could arrive behind its successor's.
                cluster.clients[node].reset()
                cluster.clients[node].mend()

            return mend_clients
        case "lose answers":
            cluster.links[there].lose_answers()
            return cluster.links[there].mend
        case "cut one way":
            cluster.links[there].cut()
            return cluster.links[there].mend
        case "cut":
            cluster.links[there].cut()
            cluster.links[back].cut()

            def mend_both() -> None:
                cluster.links[there].mend()
                cluster.links[back].mend()

            return mend_both
        case "wrong clock":
            cluster.set_clock(node, fault.other)
            return lambda: None
        case _:
            return cluster.registry.begin(fault.kind, node)


def cause(
    cluster: ClusterProcesses, rng: random.Random, kinds: Iterator[str], *, at_once: int, gap: float
) -> None:
    """One fault of each kind in turn; all is mended on return, and every broker runs."""
    began = time.monotonic()
    moment = threading.Event()
    lasting: list[tuple[float, Fault, Callable[[], None]]] = []

    def mend_first() -> None:
        lasting.sort(key=lambda each: each[0])
        until, fault, mend = lasting.pop(0)
        moment.wait(max(0.0, until - time.monotonic()))
        if fault.kind == "restart" and cluster.runs(fault.node) and lasting:
            # It may not be able to stop before another fault is mended.
            lasting.append((time.monotonic() + _LOOK_AGAIN_SECONDS, fault, mend))
            return
        mend()
        print(f"{time.monotonic() - began:7.2f}  mended: {fault}", flush=True)

    def hurt_registry() -> bool:
        return any(fault.kind in cluster.registry.kinds for _, fault, _ in lasting)

    try:
        for kind in kinds:
            while len(lasting) >= at_once or (kind in cluster.registry.kinds and hurt_registry()):
                mend_first()
            moment.wait(rng.uniform(0.0, gap))
            cluster.start_again()
            busy = {fault.node for _, fault, _ in lasting if fault.kind in _PROCESS_KINDS}
            fault = draw(rng, kind, busy)
            print(f"{time.monotonic() - began:7.2f}  {fault}", flush=True)
            mend = begin(cluster, fault)
            lasting.append((time.monotonic() + fault.seconds, fault, mend))
    finally:
        while lasting:
            mend_first()
