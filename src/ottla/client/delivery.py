"""The named options of a consumer and what they mean to librdkafka: delivery, commits, groups.

`delivery` says what a crash may do to a record: lose it (`at-most-once`), do its work again
(`at-least-once`), or neither (`exactly-once`, together with `producer.transaction(consumer)`). Each option
decides when offsets are committed, so that no combination of settings can break its promise: settings that
would are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from ottla.client.errors import ConfigurationError

Delivery = Literal["at-most-once", "at-least-once", "exactly-once"]
CommitMode = Literal["auto", "sync", "async", "async-then-sync", "manual"]
"""When an at-least-once consumer commits: `auto` every `commit_interval` seconds, `sync` and `async` after
each batch that it reads, `async-then-sync` after each batch and once more synchronously after an error;
`manual` when told to. All but `manual` and `async` commit synchronously when partitions are revoked and on
close."""
Start = Literal["earliest", "latest", "error"]
GroupProtocol = Literal["classic", "consumer"]

ARGUMENTS = {
    "bootstrap.servers": "bootstrap_servers",
    "group.id": "group_id",
    "group.instance.id": "group_instance_id",
    "group.protocol": "group_protocol",
    "auto.offset.reset": "start",
    "client.id": "client_id",
    "enable.auto.commit": "commit",
    "enable.auto.offset.store": "commit",
    "auto.commit.interval.ms": "commit_interval",
}
"""Keys that arguments of the consumer stand for."""


def commit_mode(delivery: Delivery, commit: CommitMode | None) -> CommitMode:
    """How a consumer with this delivery commits; refuses what would break the delivery's promise."""
    if delivery not in get_args(Delivery):
        raise ConfigurationError(f"no delivery is called {delivery!r}: choose one of {get_args(Delivery)}")
    if commit is not None and commit not in get_args(CommitMode):
        raise ConfigurationError(f"no commit mode is called {commit!r}: choose one of {get_args(CommitMode)}")
    if delivery == "at-least-once":
        return commit or "auto"
    if commit is not None:
        when = (
            "before records are handed out" if delivery == "at-most-once" else "in the producer's transaction"
        )
        raise ConfigurationError(f"delivery={delivery!r} commits {when}: leave `commit` out")
    return "manual"


def librdkafka_config(
    *,
    bootstrap_servers: str | Sequence[str],
    group_id: str,
    group_instance_id: str | None,
    group_protocol: GroupProtocol,
    start: Start,
    client_id: str | None,
    delivery: Delivery,
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """The configuration for confluent-kafka's consumer."""
    for name in config:
        if name in ARGUMENTS:
            raise ConfigurationError(f"{name} is not for `config`: use the argument {ARGUMENTS[name]}=")
    if group_protocol not in get_args(GroupProtocol):
        raise ConfigurationError(
            f"no group protocol is called {group_protocol!r}: choose classic or consumer"
        )
    if start not in get_args(Start):
        raise ConfigurationError(f"start is {start!r}: choose one of {get_args(Start)}")
    if delivery == "exactly-once" and config.get("isolation.level", "read_committed") != "read_committed":
        raise ConfigurationError("delivery='exactly-once' reads committed records only")
    servers = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
    made: dict[str, Any] = {
        "bootstrap.servers": servers,
        "client.id": client_id or "ottla",
        "group.id": group_id,
        "group.protocol": group_protocol,
        "auto.offset.reset": start,
        "isolation.level": "read_committed",
        # Offsets are committed by the consumer, which knows what the application has finished with.
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # librdkafka would not fetch for a second after it had 100,000 records in its queue.
        "fetch.queue.backoff.ms": 10,
        # New topics of a pattern and new partitions are noticed by this: librdkafka's default is 5 minutes.
        "topic.metadata.refresh.interval.ms": 30_000,
    }
    if group_protocol == "classic":
        made["partition.assignment.strategy"] = "cooperative-sticky"
    if group_instance_id is not None:
        made["group.instance.id"] = group_instance_id
    return made | dict(config)


def is_incremental(config: Mapping[str, Any]) -> bool:
    """Whether rebalances move single partitions: the next protocol, or cooperative assignment in the classic
    one."""
    return config["group.protocol"] == "consumer" or "cooperative" in config["partition.assignment.strategy"]
