"""`python -m ottla.examples.news`: the commands of the news example."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="News from feeds to recommendations, as a pipeline.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

Bootstrap = Annotated[
    str, typer.Option("--bootstrap", "-b", envvar="OTTLA_BOOTSTRAP", help="Address of a broker.")
]
Seed = Annotated[int, typer.Option("--seed", help="Another seed is another country.")]
Days = Annotated[int, typer.Option("--days", min=1, help="Days of news.")]
_LOCAL = "127.0.0.1:9092"


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="Where to keep everything.")] = Path(".demo"),
    seconds: Annotated[float, typer.Option("--seconds", help="How long the news are played.")] = 45.0,
    days: Days = 4,
    seed: Seed = 7,
) -> None:
    """A broker, feeds, the pipeline and a report, all in one."""
    from ottla.examples.news import demo

    try:
        demo.run(folder, seconds=seconds, days=days, seed=seed)
    except demo.Failed as problem:
        print(problem, file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print("\nstopped, with all that it started", file=sys.stderr)
        raise typer.Exit(130) from None


@app.command()
def feed(
    places: Annotated[list[str], typer.Argument(help="Addresses, feed files, or folders of them.")],
    listed: Annotated[
        Path | None, typer.Option("--list", help="A file with more of them, one a line.")
    ] = None,
    every: Annotated[float, typer.Option("--every", help="Seconds between two looks.")] = 300.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, then end.")] = False,
    memory: Annotated[Path, typer.Option("--memory", help="Where to remember what was seen.")] = Path(
        ".news-seen.json"
    ),
    bootstrap: Bootstrap = _LOCAL,
) -> None:
    """Watch feeds and write what is new to articles.raw."""
    from ottla.examples.news.feeder import TOPIC, Feeder
    from ottla.examples.news.player import create_topics
    from ottla.protocol_client.produce import Producer
    from ottla.protocol_client.wire import Wire

    if listed is not None:
        places = [*places, *(line.strip() for line in listed.read_text().splitlines() if line.strip())]
    with Wire(bootstrap) as wire:
        create_topics(wire)
        feeder = Feeder(
            Producer(wire, TOPIC), places, memory=memory, notice=lambda text: print(text, file=sys.stderr)
        )
        while True:
            new = feeder.poll()
            print(f"{datetime.now():%H:%M:%S} {new} new, {feeder.written} in all")
            if once:
                return
            try:
                time.sleep(every)
            except KeyboardInterrupt:
                return


@app.command()
def generate(
    folder: Annotated[Path, typer.Argument(help="Where to write the feeds.")],
    days: Days = 4,
    seed: Seed = 7,
) -> None:
    """Write the feeds of the invented country as they are at the end of its days."""
    from ottla.examples.news.player import FeedWriter
    from ottla.examples.news.world import make_world

    world = make_world(seed, days)
    print(f"{FeedWriter(world, folder).write(world.end)} feeds in {folder}")


@app.command()
def play(
    folder: Annotated[Path, typer.Argument(help="Where the feeds are written.")] = Path("feeds"),
    seconds: Annotated[float, typer.Option("--seconds", help="How long it takes.")] = 60.0,
    days: Days = 4,
    seed: Seed = 7,
    bootstrap: Bootstrap = _LOCAL,
) -> None:
    """Let the invented days pass on a broker: feeds, articles and reads."""
    from ottla.examples.news.player import play
    from ottla.examples.news.world import make_world

    world = make_world(seed, days)
    try:
        articles, reads = play(world, folder, bootstrap, seconds=seconds)
    except KeyboardInterrupt:
        return
    print(f"{articles} articles, {reads} reads")


@app.command()
def report(
    lake: Annotated[Path | None, typer.Argument(help="The lake's folder, to list it too.")] = None,
    days: Days = 4,
    seed: Seed = 7,
    bootstrap: Bootstrap = _LOCAL,
) -> None:
    """Tell what the pipeline found, and how good it was."""
    from ottla.examples.news import report
    from ottla.examples.news.world import make_world

    report.tell(report.console(), make_world(seed, days), bootstrap, lake)


if __name__ == "__main__":
    app()
