"""`ottla group`: list, describe, lag, explain, reset-offsets, delete."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failure import Failure, usage
from ottla.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT,
    Bootstrap,
    Group,
    Groups,
    Json,
    Timeout,
    complete_group,
    complete_topic,
    connect,
    find_topic,
    need_terminal_to_ask,
)
from ottla.cli.output import count_text, print_json, say, write
from ottla.printable import listed, shown

if TYPE_CHECKING:
    from ottla.cli.blocks import View
    from ottla.protocol_client.groups import GroupDescription, Place
    from ottla.protocol_client.wire import Wire

app = typer.Typer(
    help="Look at consumer groups, see their lag, move and delete them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")]
Every = Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.1, help="How often --watch looks.")]
DEFAULT_EVERY = 2.0


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only in this state, like stable; repeatable."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only of this type: classic or consumer; repeatable."),
    ] = None,
    watch: Watch = False,
    every: Every = DEFAULT_EVERY,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """List the groups with their state, type, members and lag."""
    from ottla.cli.group_views import list_view
    from ottla.protocol_client.groups import list_groups

    with connect(bootstrap, timeout) as wire:

        def look() -> View:
            return list_view(wire, list_groups(wire, state or (), kind or ()))

        _show(look, watch, every, as_json, empty="No groups." if state or kind else "No groups yet.")


@app.command()
def describe(
    group: Group,
    watch: Watch = False,
    every: Every = DEFAULT_EVERY,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show a group's state, its members with what they read, and its lag per partition."""
    from ottla.cli.group_views import describe_view

    with connect(bootstrap, timeout) as wire:
        _show(lambda: describe_view(wire, find_group(wire, group)), watch, every, as_json)


@app.command()
def lag(
    group: Annotated[
        str | None,
        typer.Argument(metavar="[GROUP]", help="Name of the group; else all.", autocompletion=complete_group),
    ] = None,
    watch: Watch = False,
    every: Every = DEFAULT_EVERY,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show how far groups are behind, per partition, in records and in time.

    The time is the age of the oldest record that the group has not read.
    """
    from ottla.cli.group_views import group_lags, lag_view
    from ottla.protocol_client.groups import CLASSIC, CONSUMER, list_groups

    with connect(bootstrap, timeout) as wire:

        def look() -> View:
            if group is not None:
                wanted = [find_group(wire, group)]
            else:
                names = [g.group_id for g in list_groups(wire) if g.kind in (CLASSIC, CONSUMER, "")]
                wanted = _still_there(wire, names)
            found = {each.group_id: group_lags(wire, each) for each in wanted}
            return lag_view(found, _now())

        _show(look, watch, every, as_json)


@app.command()
def explain(
    group: Group,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Show why a group rebalanced, what moved, and why members are idle.

    The coordinator of the group remembers its last rebalances until it restarts.
    """
    from ottla.cli.blocks import show
    from ottla.cli.group_views import explain_view
    from ottla.protocol_client.groups import rebalances
    from ottla.protocol_client.wire import UnsupportedByBroker

    with connect(bootstrap, timeout) as wire:
        found = find_group(wire, group)
        try:
            history = rebalances(wire, group)
        except UnsupportedByBroker:
            raise Failure(
                "this broker keeps no history of rebalances",
                "Ottla's own does. Apache Kafka writes why a group rebalances into its log file.",
            ) from None
    show(explain_view(found, history), as_json=as_json)


@app.command("reset-offsets")
def reset_offsets(
    group: Group,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="WHERE", help="earliest, latest, OFFSET, +N, -N, a time, or a span like -1h."
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITION]",
            help="Only this topic, or these partitions of it (0,2,5-7); repeatable.",
            autocompletion=complete_topic,
        ),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it, without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan, without asking.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Move a group to other offsets. Shows the plan first and asks.

    Without --topic, all partitions where the group has committed. A group can be moved only while it has no
    members. One that does not exist yet is made by this, so that it starts where you want.
    """
    from ottla.cli.offset_plan import parse_target, parse_topic
    from ottla.cli.offset_steps import plan_steps, print_steps, step_document
    from ottla.protocol_client.group_offsets import commit_offsets, committed_offsets

    if execute and dry_run:
        raise usage("--execute and --dry-run exclude each other")
    try:
        target = parse_target(to, _now())
    except ValueError as error:
        raise usage(f"--to: {error}") from None
    try:
        chosen = [parse_topic(text) for text in topic or []]
    except ValueError as error:
        raise usage(f"--topic {error}") from None
    with connect(bootstrap, timeout) as wire:
        found = _group_or_none(wire, group) if chosen else find_group(wire, group)
        committed = {place: each.offset for place, each in committed_offsets(wire, group).items()}
        places = _chosen_places(wire, chosen) if chosen else list(committed)
        if not places:
            raise Failure(
                f"group {group!r} has committed nothing yet", "--topic says which partitions to set."
            )
        steps = plan_steps(wire, target, places, committed)
        if not as_json:
            print_steps(steps)
        if found is not None and found.members:
            raise _has_members(found, "be moved")
        asks = not (execute or dry_run or as_json) and sys.stdin.isatty() and sys.stdout.isatty()
        done = execute or (asks and typer.confirm(f"Move {shown(group)} so?", abort=True, err=True))
        if done:
            offsets = {(step.topic, step.partition): step.to for step in steps}
            _change(wire, group, "be moved", partial(commit_offsets, wire, group, offsets))
    if as_json:
        print_json({"group": group, "executed": done, "partitions": [step_document(s) for s in steps]})
    elif done:
        write(f"moved {shown(group)} in {count_text(len(steps), 'partition')}\n")
    else:
        say("This was a dry run: nothing is changed. --execute does it.")


@app.command()
def delete(
    groups: Groups,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT,
) -> None:
    """Delete groups and their offsets, after asking."""
    from ottla.protocol_client.group_offsets import committed_offsets
    from ottla.protocol_client.groups import delete_group

    with connect(bootstrap, timeout) as wire:
        found = [find_group(wire, name) for name in dict.fromkeys(groups)]
        for group in found:
            if group.members:
                raise _has_members(group, "be deleted")
        if not yes:
            need_terminal_to_ask()
            for group in found:
                offsets = count_text(len(committed_offsets(wire, group.group_id)), "committed offset")
                typer.confirm(f"Delete {shown(group.group_id)} ({offsets})?", abort=True, err=True)
        for group in found:
            _change(wire, group.group_id, "be deleted", partial(delete_group, wire, group.group_id))
            if not as_json:
                write(f"deleted {shown(group.group_id)}\n")
    if as_json:
        print_json([{"group": group.group_id, "deleted": True} for group in found])


def find_group(wire: Wire, name: str) -> GroupDescription:
    """The group called `name`; a failure that names the nearest one when there is none."""
    found = _group_or_none(wire, name)
    if found is None:
        raise _no_such_group(wire, name)
    return found


def _group_or_none(wire: Wire, name: str) -> GroupDescription | None:
    from ottla.protocol.errors import ApiError, ErrorCode
    from ottla.protocol_client.groups import describe_group

    try:
        return describe_group(wire, name)
    except ApiError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return None


def _still_there(wire: Wire, names: Iterable[str]) -> list[GroupDescription]:
    return [group for name in names if (group := _group_or_none(wire, name)) is not None]


def _no_such_group(wire: Wire, name: str) -> Failure:
    from difflib import get_close_matches

    from ottla.protocol_client.groups import list_groups

    kinds = {group.group_id: group.kind for group in list_groups(wire)}
    if name in kinds:
        return Failure(
            f"{name!r} is a group of type {kinds[name]}", "Only classic and consumer groups can be shown."
        )
    near = get_close_matches(name, kinds, n=1, cutoff=0.6)
    if near:
        advice = f"Did you mean {near[0]!r}?"
    elif kinds:
        advice = "`ottla group list` shows the groups there are."
    else:
        advice = "There are no groups yet. A consumer makes one when it joins it."
    return Failure(f"there is no group {name!r}", advice)


def _has_members(group: GroupDescription, what: str) -> Failure:
    clients = listed(sorted({member.client_id or member.name for member in group.members}))
    return Failure(
        f"group {shown(group.group_id)!r} cannot {what} while it has members: "
        f"it has {len(group.members)} ({clients})",
        f"Stop them first. `ottla group describe {shown(group.group_id)}` shows where they run.",
    )


def _change(wire: Wire, name: str, what: str, change: Callable[[], None]) -> None:
    """Do it; a member that came in just now is named as the reason why the broker refuses."""
    from ottla.protocol.errors import ApiError, ErrorCode

    try:
        change()
    except ApiError as error:
        busy = (ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS)
        group = _group_or_none(wire, name) if error.code in busy else None
        if group is None or not group.members:
            raise
        raise _has_members(group, what) from None


def _chosen_places(wire: Wire, chosen: Iterable[tuple[str, list[int] | None]]) -> list[Place]:
    places: set[Place] = set()
    for topic, wanted in chosen:
        known = {p.partition_index for p in find_topic(wire, topic).partitions}
        for number in wanted or ():
            if number not in known:
                have = "0" if len(known) == 1 else f"0 to {max(known)}"
                raise Failure(f"topic {topic!r} has no partition {number}, only {have}")
        places.update((topic, partition) for partition in (known if wanted is None else wanted))
    return sorted(places)


def _show(look: Callable[[], View], watch_it: bool, every: float, as_json: bool, *, empty: str = "") -> None:
    from ottla.cli.blocks import show, watch

    if watch_it:
        watch(look, every=every, as_json=as_json)
    view = look()
    if empty and not view.document and not as_json and sys.stdout.isatty():
        write(empty + "\n")
    else:
        show(view, as_json=as_json)


def _now() -> int:
    return time.time_ns() // 1_000_000
