"""A view: what a command shows, apart from how. Printed once, or again and again with --watch.

A view is made of blocks, each of them names with values, a table or a line of text, and of the document that
--json prints in their place. At a terminal `watch` repaints it in place; into a pipe each look goes below the
last one, with the time above it; as JSON each look is one line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.failure import unreachable
from ottla.cli.moments import time_text
from ottla.cli.output import (
    Column,
    plain_table,
    print_fields,
    print_json,
    print_table,
    rich_table,
    say,
    write,
)
from ottla.printable import escaped
from ottla.protocol_client.connection import BrokerUnreachable

if TYPE_CHECKING:
    from rich.console import Group


class Fields(NamedTuple):
    pairs: Sequence[tuple[str, str]]


class Table(NamedTuple):
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]


Block = Fields | Table | str


class View(NamedTuple):
    document: Any
    blocks: Sequence[Block]


def show(view: View, *, as_json: bool) -> None:
    """Print it once; blocks stand a blank line apart."""
    if as_json:
        print_json(view.document)
        return
    for index, block in enumerate(view.blocks):
        if index:
            write("\n")
        if isinstance(block, Fields):
            print_fields(block.pairs)
        elif isinstance(block, Table):
            print_table(block.columns, block.rows)
        else:
            write(block + "\n")


def watch(look: Callable[[], View], *, every: float, as_json: bool) -> None:
    """Show what `look` sees, every so many seconds until Ctrl-C. A broker that is away is waited for."""
    if not as_json and sys.stdout.isatty():
        _repaint(look, every)
        return
    while True:
        try:
            view = look()
        except BrokerUnreachable as error:
            say(f"{unreachable(error).what}; trying again")
        else:
            if as_json:
                print_json(view.document, one_line=True)
            else:
                write(f"{_now()}\n{plain(view)}\n")
        time.sleep(every)


def plain(view: View) -> str:
    """The blocks as text without colours."""
    texts = []
    for block in view.blocks:
        if isinstance(block, Fields):
            width = max(len(name) for name, _ in block.pairs)
            texts.append("".join(f"{name.ljust(width)}  {escaped(value)}\n" for name, value in block.pairs))
        elif isinstance(block, Table):
            texts.append(plain_table(block.columns, block.rows))
        else:
            texts.append(block + "\n")
    return "\n".join(texts)


def _repaint(look: Callable[[], View], every: float) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    view: View | None = None
    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            note = Text(f"{_now()}, every {every:g} s; Ctrl-C ends", style="dim")
            try:
                view = look()
            except BrokerUnreachable as error:
                note = Text(f"{_now()}, {unreachable(error).what}; trying again", style="red")
            live.update(note if view is None else Group(_drawn(view), Text(), note), refresh=True)
            time.sleep(every)


def _drawn(view: View) -> Group:
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    for index, block in enumerate(view.blocks):
        if index:
            parts.append(Text())
        if isinstance(block, Fields):
            width = max(len(name) for name, _ in block.pairs)
            for name, value in block.pairs:
                parts.append(Text.assemble((name.ljust(width), "bold"), "  ", escaped(value)))
        elif isinstance(block, Table):
            parts.append(rich_table(block.columns, block.rows))
        else:
            parts.append(Text(block))
    return Group(*parts)


def _now() -> str:
    return time_text(time.time_ns() // 1_000_000, zone=False).partition("T")[2].partition(".")[0]
