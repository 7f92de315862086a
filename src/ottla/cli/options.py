"""What many commands take: the broker's address, JSON, topic names that complete with the Tab key."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failure import Failure, usage

if TYPE_CHECKING:
    from ottla.protocol.messages.metadata import MetadataResponseTopic
    from ottla.protocol_client.wire import Wire

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT = 30.0
START_SECONDS = 2.0
"""How long a command without `--timeout` tries to connect where nothing listens."""


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topic names for the shell; nothing when no broker answers at once."""
    from ottla.protocol_client.wire import BrokerUnreachable, Wire

    try:
        with Wire(
            ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP, connect_timeout=0.5, request_timeout=0.5
        ) as wire:
            topics = wire.metadata().topics
    except (BrokerUnreachable, ValueError):
        return []
    return sorted(t.name for t in topics if t.name and t.name.startswith(incomplete) and not t.is_internal)


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of groups for the shell; nothing when no broker answers at once."""
    from ottla.protocol.errors import ApiError
    from ottla.protocol_client.groups import list_groups
    from ottla.protocol_client.wire import BrokerUnreachable, UnsupportedByBroker, Wire

    try:
        with Wire(
            ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP, connect_timeout=0.5, request_timeout=0.5
        ) as wire:
            groups = list_groups(wire)
    except (BrokerUnreachable, UnsupportedByBroker, ApiError, ValueError):
        return []
    return [group.group_id for group in groups if group.group_id.startswith(incomplete)]


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="OTTLA_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Address of a broker; several with commas.",
    ),
]


class _GivenTimeout(float):
    """A `--timeout` that the user gave, in contrast to the default."""


def _note_whether_given(ctx: typer.Context, param: typer.CallbackParam, value: float) -> float:
    source = ctx.get_parameter_source(str(param.name))
    return value if source is None or source.name == "DEFAULT" else _GivenTimeout(value)


Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        help="How long to wait for a broker in trouble.",
        callback=_note_whether_given,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topic)
]
Topics = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC", help="Names of the topics.", autocompletion=complete_topic),
]
Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="Name of the group.", autocompletion=complete_group)
]
Groups = Annotated[
    list[str],
    typer.Argument(metavar="GROUP", help="Names of the groups.", autocompletion=complete_group),
]


def need_terminal_to_ask(what: str = "deleting") -> None:
    """Before a command asks whether to do it: a script has to say --yes."""
    if not sys.stdin.isatty():
        raise usage(f"{what} needs --yes when there is no terminal to ask on")


def connect(bootstrap: str, timeout: float, *, waits_for_start: bool = True) -> Wire:
    """A client of the broker at `bootstrap`; it connects on first use.

    With `waits_for_start` it tries again while nothing listens there, because the broker may be starting: for
    as long as `--timeout` says, but only for two seconds when it was not given, so that a person who forgot
    to start the broker is told soon.
    """
    from ottla.protocol_client.wire import Wire

    start_timeout = 0.0
    if waits_for_start:
        start_timeout = timeout if isinstance(timeout, _GivenTimeout) else min(timeout, START_SECONDS)
    try:
        return Wire(
            bootstrap,
            connect_timeout=min(timeout, 5.0),
            request_timeout=timeout,
            start_timeout=start_timeout,
        )
    except ValueError as error:
        raise usage(f"--bootstrap: {error}") from None


def find_topic(wire: Wire, name: str) -> MetadataResponseTopic:
    """The topic called `name`; a failure that names the nearest one when there is none."""
    from ottla.protocol.errors import ApiError, ErrorCode

    try:
        return wire.topic(name)
    except ApiError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise no_such_topic(wire, name) from None


def no_such_topic(wire: Wire, name: str) -> Failure:
    from difflib import get_close_matches

    names = [t.name for t in wire.metadata().topics if t.name and not t.is_internal]
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        advice = f"Did you mean {near[0]!r}?"
    elif names:
        advice = "`ottla topic list` shows the topics there are."
    else:
        advice = f"There are no topics yet. `ottla topic create {name}` makes this one."
    return Failure(f"there is no topic {name!r}", advice)


def parse_pairs(pairs: list[str], option: str) -> dict[str, str]:
    """`key=value` options as a dict; a usage failure for one that has no `=`."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise usage(f"{option} {pair!r}: KEY=VALUE is wanted")
        found[key.strip()] = value.strip()
    return found
