"""The `ottla` command itself: its commands put together, and how it starts and ends."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ottla import __version__
from ottla.cli import (
    cluster,
    consume,
    failure,
    group,
    log,
    pipeline,
    produce,
    registry,
    serve,
    topic,
    transaction,
)
from ottla.cli.options import Json
from ottla.cli.output import print_json, write

app = typer.Typer(
    name="ottla",
    help="A Kafka you can pip install: run a broker, look after topics, write, read and process records.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # plain help is there in half the time of drawn help, and reads as well
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(transaction.app, name="transaction")
app.add_typer(cluster.app, name="cluster")
app.add_typer(registry.app, name="registry")
app.add_typer(log.app, name="log")
app.add_typer(pipeline.app, name="pipeline")


def _print_version(wanted: bool) -> None:
    if wanted:
        write(f"ottla {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@app.command("version")
def _version(as_json: Json = False) -> None:
    """Print the version."""
    if as_json:
        print_json({"ottla": __version__, "python": sys.version.split()[0]})
    else:
        write(f"ottla {__version__}\n")


def main() -> None:
    """Entry point of the `ottla` command."""
    try:
        code = app(standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(failure.INTERRUPTED)
    except Exception as error:
        known = failure.as_failure(error)
        if known is None:
            raise
        failure.report(known)
        sys.exit(known.code)
    sys.exit(code if isinstance(code, int) else failure.OK)
