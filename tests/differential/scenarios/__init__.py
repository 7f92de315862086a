"""All scenarios. Importing this package registers them."""

from differential.scenarios import (
    configs,
    connections,
    consumer_groups,
    disks_and_acls,
    fetch,
    groups,
    metadata,
    offsets,
    produce,
    producers,
    quorum,
    reassignments,
    topics,
    transactional_reads,
    transactional_writes,
    transactions,
)

__all__ = [
    "configs",
    "connections",
    "consumer_groups",
    "disks_and_acls",
    "fetch",
    "groups",
    "metadata",
    "offsets",
    "produce",
    "producers",
    "quorum",
    "reassignments",
    "topics",
    "transactional_reads",
    "transactional_writes",
    "transactions",
]
