"""The end of the story: what was trending, what to read, and how good all of it was, for people."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ottla.examples.news import measure, results
from ottla.examples.news.measure import Figures, Row, moment
from ottla.examples.news.text import tokens
from ottla.examples.news.world import World
from ottla.protocol_client.wire import Wire

_TRENDS = 8
_READERS = 3
_ARTICLES = 4
_COPIES = 3


def console() -> Console:
    """As wide as the terminal; where there is none, wide enough for a headline."""
    width = None if sys.stdout.isatty() else 110
    return Console(highlight=False, width=width)


def tell(console: Console, world: World, bootstrap: str, lake: Path | None = None) -> Figures:
    """Print the results that are on the topics, and how they compare with the truth."""
    with Wire(bootstrap) as wire:
        trends = results.rows(wire, "trends")
        lists = results.rows(wire, "recommendations")
        unique = results.rows(wire, "articles.unique")
        duplicates = results.rows(wire, "articles.duplicates")
    figures = results.figures(world, bootstrap)
    console.print("\n[bold cyan]What was trending[/]")
    console.print(trend_table(trends))
    console.print("\n[bold cyan]What was said twice[/]")
    for line in _examples(unique, duplicates):
        console.print(line)
    console.print("\n[bold cyan]What to read next[/]")
    for line in _for_readers(world, lists):
        console.print(line)
    console.print("\n[bold cyan]How good it was[/]  [dim](the generator knows the truth)[/]")
    console.print(figure_table(figures))
    if lake is not None:
        console.print("\n[bold cyan]In the lake[/]  [dim](plain Parquet, any tool reads it)[/]")
        console.print(lake_table(lake))
    return figures


def trend_table(rows: Sequence[Row], limit: int = _TRENDS) -> Table:
    """The strongest trends in the order of time; the words of one event are one line."""
    events: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (-row["score"], row["term"])):
        # An event is told by its strongest words; the same words later are the same event.
        name = next((n for n, known in events.items() if _same_event(known, row)), row["term"])
        events[name].append(row)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("when")
    table.add_column("words", style="bold")
    table.add_column("articles", justify="right")
    table.add_column("expected", justify="right")
    table.add_column("headline", style="italic", overflow="fold")
    best = sorted(list(events.values())[:limit], key=lambda found: moment(found[0]["end"]))
    for found in best:
        top = found[0]
        words = dict.fromkeys(row["term"] for row in found if row["end"] == top["end"])
        table.add_row(
            f"{moment(top['start']):%a %H}-{moment(top['end']):%H} h",
            ", ".join(list(words)[:3]),
            str(top["articles"]),
            f"{top['expected']:.1f}",
            escape(top["headline"]),
        )
    return table


def _same_event(known: Sequence[Row], row: Row) -> bool:
    """The same word or headline, or a word of the headline, within half a day."""
    near = timedelta(hours=12)
    return any(
        (
            other["term"] == row["term"]
            or other["headline"] == row["headline"]
            or row["term"] in tokens(other["headline"])
            or other["term"] in tokens(row["headline"])
        )
        and abs(moment(other["end"]) - moment(row["end"])) <= near
        for other in known
    )


def _examples(unique: Sequence[Row], duplicates: Sequence[Row]) -> Iterator[str]:
    """Some copies with headlines of their own."""
    first = {row["id"]: row for row in unique}
    pairs = [(row, first[row["duplicate_of"]]) for row in duplicates if row["duplicate_of"] in first]
    different = [
        pair
        for pair in pairs
        if pair[0]["title"].casefold() != pair[1]["title"].casefold() and 0.35 < pair[0]["likeness"] < 0.7
    ]
    for copy, original in different[:: max(1, len(different) // _COPIES)][:_COPIES]:
        yield f"  {escape(original['title'])} [dim]({escape(original['outlet'])})[/]"
        yield (
            f"  [dim]= {escape(copy['title'])} ({escape(copy['outlet'])}), {copy['likeness']:.0%} the same[/]"
        )


def _for_readers(world: World, lists: Sequence[Row]) -> Iterator[str]:
    """The last lists of a few readers who differ in what they like."""
    latest: dict[str, Row] = {}
    for row in lists:
        if row["reader"] not in latest or moment(row["at"]) >= moment(latest[row["reader"]]["at"]):
            latest[row["reader"]] = row
    told: set[str] = set()
    for reader in world.readers:
        favourite = next(iter(reader.interests))
        if reader.name not in latest or favourite in told or len(reader.interests) > 2:
            continue
        told.add(favourite)
        row = latest[reader.name]
        likes = " and ".join(reader.interests)
        when = _day(moment(row["at"]))
        yield f"  [bold]{escape(reader.name)}[/] [dim]secretly likes {likes}; {when}:[/]"
        for article in row["articles"][:_ARTICLES]:
            because = ", ".join(article["because"])
            yield f"    {escape(article['title'])} [dim]({escape(because)})[/]"
        if len(told) == _READERS:
            return


def _day(at: datetime) -> str:
    return f"{at:%A %H:%M}"


def figure_table(figures: Figures) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("")
    table.add_column("result", style="bold")
    table.add_column("beside", style="dim", overflow="fold")
    cleaning, copies, trends, recommended = (
        figures.cleaning,
        figures.copies,
        figures.trends,
        figures.recommended,
    )
    table.add_row(
        "broken entries",
        f"{cleaning.repaired} of {cleaning.faulty} repaired",
        f"{cleaning.rejected} of {cleaning.hopeless} hopeless ones rejected,"
        f" {cleaning.wrongly_rejected} good ones; {cleaning.dead_letters} of {cleaning.junk} junk records"
        " in the dead letters",
    )
    table.add_row(
        "copies",
        f"{copies.recall:.1%} found",
        f"{copies.found} of {copies.found + copies.missed}; {copies.wrong} articles wrongly taken for copies"
        f" (precision {copies.precision:.1%})",
    )
    table.add_row(
        "trends",
        f"{trends.found} of {len(trends.bursts)} found",
        f"{_delays(trends)}; {trends.precision:.0%} of the terms shown belong to one,"
        f" of the most frequent terms {trends.counting_precision:.0%}",
    )
    table.add_row(
        "recommendations",
        f"{recommended.hit_rate:.0%} read one of ten",
        f"of the ten most read articles {recommended.popular_hit_rate:.0%};"
        f" on a subject they like {recommended.interest:.0%} against {recommended.popular_interest:.0%}",
    )
    return table


def _delays(trends: measure.Trends) -> str:
    hours = sorted((b.seen - b.start) / timedelta(hours=1) for b in trends.bursts if b.seen is not None)
    return f"half of them within {hours[len(hours) // 2]:.1f} hours" if hours else "none in time"


def lake_table(lake: Path) -> Table:
    import pyarrow.dataset as ds

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title, justify in (("folder", "left"), ("rows", "right"), ("files", "right"), ("size", "right")):
        table.add_column(title, justify="right" if justify == "right" else "left")
    for folder in sorted(path for path in lake.iterdir() if path.is_dir() and path.name[0] != "."):
        files = [str(path) for path in folder.rglob("*.parquet") if not _hidden(path, folder)]
        rows = ds.dataset(files, format="parquet").count_rows() if files else 0
        size = sum(Path(file).stat().st_size for file in files)
        table.add_row(str(folder), f"{rows:,}", str(len(files)), f"{size / 1000:,.0f} KB")
    return table


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts)
