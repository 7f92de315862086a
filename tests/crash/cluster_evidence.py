"""What a failed check of a cluster under load leaves behind: which check it was, and all that may explain it.

`checking` names the check in the failure and adds what every broker says of every partition, what is in the
brokers' files and the end of their logs. With OTTLA_CRASH_CLIENT_LOG, a list of librdkafka's debug contexts
such as `eos,msg,metadata,cgrp,fetch`, the clients write their logs to files in the folder of the run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crash.cluster_processes import ClusterProcesses
from crash.cluster_registries import NODES
from ottla.protocol.batches import HEADER, LENGTH_OVERHEAD, BatchHeader
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.storage.checkpoints import HIGH_WATERMARKS, decode_offsets
from raw_client import RawClient

METADATA_VERSION = 9
_DEBUG = "OTTLA_CRASH_CLIENT_LOG"
_LOG_END = 4000
_OWN_TOPICS = 20
"""Partitions of other topics than that of the load are many, and left out behind so many."""


def metadata_of(address: str) -> MetadataResponse | None:
    """What a broker says of the cluster; None while it does not answer."""
    try:
        with RawClient(address) as client:
            found = client.call(MetadataRequest(topics=None), METADATA_VERSION)
    except OSError:
        return None
    assert isinstance(found, MetadataResponse)
    return found


def client_log(folder: Path, name: str) -> dict[str, Any]:
    """Settings by which a client writes down what it does, if that is asked for."""
    contexts = os.environ.get(_DEBUG)
    if not contexts:
        return {}
    logger = logging.getLogger(f"crash.{folder.name}.{name}")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    handler = logging.FileHandler(folder / f"client-{name}.txt")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return {"debug": contexts, "log_level": 7, "logger": logger}


@contextlib.contextmanager
def checking(what: str, cluster: ClusterProcesses, *more: object) -> Iterator[None]:
    """A failure in the block names this check and says what was the case; `more` is added as text."""
    began = time.monotonic()
    try:
        yield
    except Exception as error:
        error.add_note(f"FAILED CHECK: {what}, {time.monotonic() - began:.1f} s after it began")
        for each in more:
            error.add_note(str(each() if callable(each) else each))
        error.add_note(evidence(cluster))
        raise
    print(f"checked: {what} ({time.monotonic() - began:.2f} s)", flush=True)


def evidence(cluster: ClusterProcesses) -> str:
    """What all brokers say and hold now."""
    lines = []
    for node, address in zip(NODES, cluster.direct_servers.split(","), strict=True):
        process = cluster.processes.get(node)
        state = "ended" if process is None else "runs" if process.poll() is None else f"code {process.poll()}"
        lines.append(f"== broker {node}: {state}")
        lines += _partitions(metadata_of(address))
        lines += _files(cluster.data(node))
        lines.append(cluster.output(node).read_text(errors="replace")[-_LOG_END:])
    return "\n".join(lines)


def _partitions(metadata: MetadataResponse | None) -> list[str]:
    if metadata is None:
        return ["it does not answer"]
    return [
        f"says {topic.name}-{each.partition_index}: leader {each.leader_id} in epoch {each.leader_epoch}, "
        f"in sync {each.isr_nodes} of {each.replica_nodes}"
        for topic in metadata.topics
        for each in topic.partitions[:_OWN_TOPICS]
    ]


def _files(data: Path) -> list[str]:
    try:
        watermarks = decode_offsets((data / HIGH_WATERMARKS).read_bytes())
    except (OSError, ValueError) as error:
        return [f"no high watermarks in its files: {error!r}"]
    lines = []
    for (topic, partition), offset in sorted(watermarks.items()):
        found = [
            BatchHeader._make(HEADER.unpack_from(batch)) for batch in batches(data / f"{topic}-{partition}")
        ]
        end = found[-1].next_offset if found else 0
        epochs = sorted({header.leader_epoch for header in found})
        producers = sorted({(header.producer_id, header.producer_epoch) for header in found})
        lines.append(
            f"holds {topic}-{partition}: high watermark in the checkpoint {offset}, log end {end}, "
            f"{len(found)} batches of leader epochs {epochs[-10:]}, producers {producers[-10:]}"
        )
    return lines


def batches(folder: Path, below: int = 1 << 62) -> list[bytes]:
    """The batches of a log up to an offset, as they are in its files."""
    found = []
    for segment in sorted(folder.glob("*.log")):
        data, position = segment.read_bytes(), 0
        while position + HEADER.size <= len(data):
            header = BatchHeader._make(HEADER.unpack_from(data, position))
            end = position + LENGTH_OVERHEAD + header.batch_length
            if header.base_offset < below:
                found.append(data[position:end])
            position = end
    return found
