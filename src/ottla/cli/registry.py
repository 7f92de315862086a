"""`ottla registry`: move the state of a cluster to another registry, while its brokers are stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failure import Failure, usage
from ottla.cli.options import Json
from ottla.cli.output import count_text, print_json, write

if TYPE_CHECKING:
    from ottla.config.registry_url import RegistryUrl

app = typer.Typer(help="Look after the registry of a cluster.", no_args_is_help=True, rich_markup_mode=None)

_FORMS = "sqlite:PATH, or zookeeper://HOST:PORT,HOST:PORT/PATH."


@app.callback()
def _registry() -> None:
    """Look after the registry of a cluster."""


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help=f"Where the state is: {_FORMS}")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Where it is to be; nothing may be there.")],
    as_json: Json = False,
) -> None:
    """Copy the state of a cluster to another registry, and read it back.

    All brokers must be stopped, and use the new registry from then on. The old one stays as it is: a broker
    that is started with it would begin a second life of the cluster.
    """
    import asyncio

    old, new = _parsed(source), _parsed(target)
    if old == new:
        raise usage("both addresses are the same registry")
    if old.kind == "sqlite" and not Path(old.place).is_file():
        raise Failure(f"there is no registry {old}")
    if new.kind == "sqlite" and not Path(new.place).parent.is_dir():
        raise Failure(f"there is no folder {Path(new.place).parent}")
    nodes, cluster_id = asyncio.run(copied(old, new))
    if as_json:
        print_json({"from": str(old), "to": str(new), "nodes": nodes, "cluster_id": cluster_id})
    else:
        write(f"copied cluster {cluster_id}, {count_text(nodes)} nodes, to {new}\n")


def _parsed(text: str) -> RegistryUrl:
    from ottla.config.registry_url import parse_registry_url

    try:
        return parse_registry_url(text)
    except ValueError as error:
        raise usage(str(error)) from None


async def copied(old: RegistryUrl, new: RegistryUrl) -> tuple[int, str]:
    """Copies; the number of nodes and the id of the cluster. `Failure` says why not."""
    from contextlib import AsyncExitStack

    from ottla.cli.start_failure import registry_failure
    from ottla.clock import SystemClock
    from ottla.cluster.layout import cluster_id_of
    from ottla.cluster.registry import Registry, RegistryError
    from ottla.cluster.registry_backends import registry_at
    from ottla.cluster.registry_copy import CannotCopy, copy_registry

    async with AsyncExitStack() as closing:

        async def opened(url: RegistryUrl) -> Registry:
            try:
                registry = registry_at(url, SystemClock())
                await registry.open()
            except RegistryError as error:
                raise registry_failure(error, url) from None
            closing.push_async_callback(registry.close)
            return registry

        source = await opened(old)
        target = await opened(new)
        try:
            nodes = await copy_registry(source, target)
            return nodes, await cluster_id_of(target)
        except CannotCopy as refusal:
            raise Failure(f"cannot copy {old} to {new}: {refusal}", _advice(str(refusal))) from None
        except RegistryError as error:
            raise Failure(
                f"the copy to {new} is not complete: {type(error).__name__}: {error}",
                "Run the command again: it begins from the start.",
            ) from None


def _advice(why: str) -> str:
    if "running" in why:
        return "Stop all brokers. ZooKeeper takes a few seconds to notice the end of one that was killed."
    return ""
