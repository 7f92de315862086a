"""From arguments to librdkafka's configuration, with errors that name what was meant.

Every client has keyword arguments for what is often set, under Kafka's names with underscores, and
`config={...}` for every other key of librdkafka; a key there wins over an argument. librdkafka says whether
it knows a key. If it does not, the error names the nearest key or argument.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ottla.client.errors import ConfigurationError
from ottla.client.librdkafka import confluent_kafka
from ottla.client.librdkafka_keys import KEYS
from ottla.client.log_throttle import RepeatedLines

T = TypeVar("T")

LOG = logging.getLogger("ottla.client")
"""Where the clients log."""
LIBRDKAFKA_LOG = logging.getLogger("ottla.client.librdkafka")
"""What librdkafka logs and what it tells of connections: many lines a second while no broker answers."""
LIBRDKAFKA_LOG.addFilter(RepeatedLines())


def client_config(
    bootstrap_servers: str | Iterable[str],
    client_id: str | None,
    own: Mapping[str, Any],
    config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The configuration of a client: its arguments (`own`, by librdkafka's names), then `config`."""
    servers = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
    if not servers.strip():
        raise ConfigurationError(
            "bootstrap_servers is empty: give the address of a broker, like 'localhost:9092'"
        )
    settings: dict[str, Any] = {
        "bootstrap.servers": servers,
        "client.id": client_id or "ottla",
        "logger": LIBRDKAFKA_LOG,
    }
    settings.update((key, value) for key, value in own.items() if value is not None)
    settings["error_cb"] = _log_error
    settings.update(config or {})
    return settings


def _log_error(error: confluent_kafka.KafkaError) -> None:
    """What librdkafka tells of connections and of the client as a whole; it goes on by itself if it can."""
    level = logging.ERROR if error.fatal() else logging.WARNING
    LIBRDKAFKA_LOG.log(level, "%s (%s)", error.str(), error.name())


def make_client(
    factory: Callable[[dict[str, Any]], T], settings: dict[str, Any], arguments: Mapping[str, str]
) -> T:
    """Make a client of confluent-kafka. `arguments` are our arguments by the names that Kafka gives them."""
    try:
        return factory(settings)
    except confluent_kafka.KafkaException as failure:
        error = failure.args[0]
        unknown = error.str().partition("No such configuration property: ")[2].strip('"')
        if unknown:
            raise ConfigurationError(_unknown_key(unknown, arguments), name=error.name()) from None
        raise ConfigurationError(error.str(), code=error.code(), name=error.name()) from None
    except (TypeError, ValueError) as failure:
        raise ConfigurationError(f"a value in the configuration cannot be: {failure}") from failure


def _unknown_key(key: str, arguments: Mapping[str, str]) -> str:
    dotted = key.replace("_", ".")
    if dotted in arguments:
        return f"{key!r} is no key of librdkafka: use the argument {arguments[dotted]}="
    if dotted in KEYS:
        return f"{key!r} is no key of librdkafka: it is written {dotted!r}"
    nearest = difflib.get_close_matches(dotted, [*KEYS, *arguments], n=1, cutoff=0.6)
    if not nearest:
        return f"{key!r} is no key of librdkafka"
    if nearest[0] in arguments and nearest[0] not in KEYS:
        return f"{key!r} is no key of librdkafka: did you mean the argument {arguments[nearest[0]]}=?"
    return f"{key!r} is no key of librdkafka: did you mean {nearest[0]!r}?"
