"""What a client can make the broker keep: members that never come back, sessions, frames that never end.

The limit is lowered for these, so that a few seconds are enough to go far beyond it.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress

from attacks.attack import MB, Target, attack
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol

SMALL = {"client.memory.max.bytes": 24 * MB}


def find_coordinator(target: Target) -> None:
    with target.client() as client:
        assert client.call(FindCoordinatorRequest(key="group"), 1).error_code == 0


@attack(
    "500 JoinGroups of 1 MB whose clients leave",
    memory=128 * MB,
    # Frames under way are request memory, with a limit of its own: it is small here too.
    settings={**SMALL, "socket.request.max.bytes": 2 * MB, "queued.max.request.bytes": 16 * MB},
    prepare=find_coordinator,
)
def joins_of_clients_that_leave(target: Target) -> None:
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"x" * MB)
    for number in range(500):
        request = JoinGroupRequest(
            group_id=f"group-{number}",
            session_timeout_ms=1_800_000,
            rebalance_timeout_ms=1_800_000,
            protocol_type="consumer",
            protocols=[protocol],
        )
        with target.client() as client:
            client.send(request, 3)


@attack("200 fetch sessions of 500 topics that do not exist", memory=48 * MB, settings=SMALL)
def sessions_of_unknown_partitions(target: Target) -> None:
    names = [f"{number:0200d}" for number in range(500)]
    partitions = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1000,
        session_id=0,
        session_epoch=0,
        topics=[FetchTopic(topic=name, partitions=partitions) for name in names],
    )
    for _ in range(200):
        with target.client() as client:
            client.send(request, 12)
            client.receive_frame()


@attack("1,000 connections with an unfinished frame of 60 KB", memory=48 * MB, settings=SMALL)
def unfinished_frames(target: Target) -> None:
    with ExitStack() as stack:
        for _ in range(1_000):
            client = stack.enter_context(target.client())
            with suppress(ConnectionError):  # cut off, to make space for the next
                client.socket.sendall((60_000).to_bytes(4, "big") + b"\0" * 59_000)
        with target.client() as other:  # answered when what was sent before has been read
            for _ in range(20):
                other.call(ApiVersionsRequest(), 0)
