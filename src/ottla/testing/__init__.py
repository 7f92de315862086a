"""A real broker inside a test: no container, no JVM, no port to choose, ready in a tenth of a second.

    import ottla.testing

    with ottla.testing.broker(topics={"orders": 3}) as broker:
        producer = SomeKafkaProducer(bootstrap_servers=broker.bootstrap_servers)

It is the broker that `ottla serve` runs, on a thread of this process, with its log in a temporary folder, so
what a test sees is what production does. The pytest plugin gives the same as fixtures; docs/testing.md shows
all of it. This module stays cheap to import: the plugin is loaded in every pytest run where Ottla
is installed, so the broker itself is imported when the first one starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.storage.files import Disk
    from ottla.testing.in_process import InProcessBroker
    from ottla.testing.in_process_cluster import InProcessCluster

__all__ = ["broker", "cluster"]


def broker(
    *,
    topics: Mapping[str, int] | Iterable[str] = (),
    data: str | Path | None = None,
    disk: Disk | None = None,
    network: bool = False,
    settings: Mapping[str, object] | None = None,
    **more_settings: object,
) -> InProcessBroker:
    """A broker to use in a `with` statement.

    `topics` are created before the block begins: names, or a mapping from name to number of partitions.
    `data` is a folder that is kept; without it the log lives in a temporary one that is removed at the end.
    `disk` stands between the log and the file system: `ottla.testing.faulty_disk.FaultyDisk` can fail.
    `network` puts a network between the broker and its clients that can be cut: `broker.network.cut()`.
    `settings` are Kafka's broker settings by name; they may also be given as keywords with underscores in
    place of the dots: `broker(log_segment_bytes=1_000_000)`.
    """
    from ottla.testing.in_process import InProcessBroker

    return InProcessBroker(
        topics=_partitions(topics),
        data=None if data is None else Path(data),
        disk=disk,
        network=network,
        settings={**(settings or {}), **_by_name(more_settings)},
    )


def cluster(
    brokers: int = 3,
    *,
    topics: Mapping[str, int] | Iterable[str] = (),
    data: str | Path | None = None,
    network: bool = False,
    settings: Mapping[str, object] | None = None,
    **more_settings: object,
) -> InProcessCluster:
    """A cluster of several brokers to use in a `with` statement; their ids begin with 1.

    New topics have three replicas, or as many as there are brokers, and with three brokers acks=all waits for
    two. `network` puts a network before and between the brokers: `cluster.cut(2)`. The rest is as for
    `broker`, with the settings for all brokers alike.
    """
    from ottla.testing.in_process_cluster import InProcessCluster

    return InProcessCluster(
        brokers,
        topics=_partitions(topics),
        data=None if data is None else Path(data),
        network=network,
        settings={**(settings or {}), **_by_name(more_settings)},
    )


def _partitions(topics: Mapping[str, int] | Iterable[str]) -> dict[str, int]:
    return dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)


def _by_name(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings that were given as keywords."""
    return {name.replace("_", "."): value for name, value in settings.items()}
