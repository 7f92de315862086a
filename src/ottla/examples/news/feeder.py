"""Feeds in, records out: watches RSS and Atom feeds and writes every new entry to a topic.

A source is a file, a folder of files, or an address. Addresses are asked with the ETag and date of the last
answer, so an unchanged feed costs its server nothing; files are read when their time or size has changed.
What has been seen is remembered (in a file, if one is given), the newest entries of each feed. Entries are
written as the feed has them, markup and all: cleaning is the pipeline's work. The memory is saved after the
broker has acknowledged, so a crash in between writes some entries again and loses none.

feedparser does the parsing; it also forgives wrong encodings and broken XML.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from calendar import timegm
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import feedparser

from ottla.protocol_client.produce import Producer

TOPIC = "articles.raw"
FEED_FILES = ("*.rss", "*.atom", "*.xml")
REMEMBERED = 2000
"""Entries remembered per feed; feeds are far shorter."""

_TIMEOUT = 20.0
_AGENT = "ottla-news-example/1 (+feedparser)"
_LONGEST_PAUSE = 3600.0

Clock = Callable[[Any], datetime]


def wall_clock(parsed: Any) -> datetime:
    return datetime.now(UTC)


def feed_clock(parsed: Any) -> datetime:
    """The time a feed says it was made at: for feeds of another time, played faster than they happened."""
    made = parsed.feed.get("updated_parsed")
    return datetime.fromtimestamp(timegm(made), UTC) if made else datetime.now(UTC)


@dataclass
class Source:
    """What is known of one feed between two looks at it."""

    seen: dict[str, None] = field(default_factory=dict)
    etag: str | None = None
    modified: str | None = None
    stamp: list[int] = field(default_factory=list)
    """Time and size of the file when it was last read."""
    failures: int = 0
    not_before: float = 0.0


class Feeder:
    """Looks at its sources whenever `poll` is called, and writes what is new."""

    def __init__(
        self,
        producer: Producer,
        places: Iterable[str],
        *,
        memory: Path | None = None,
        clock: Clock = wall_clock,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.producer = producer
        self.places = list(places)
        self.memory = memory
        self.clock = clock
        self.notice = notice
        self.sources: dict[str, Source] = {}
        self.written = 0
        if memory is not None and memory.exists():
            saved = json.loads(memory.read_text())
            for place, known in saved.items():
                self.sources[place] = Source(**{**known, "seen": dict.fromkeys(known["seen"])})

    def poll(self) -> int:
        """One look at every source. Returns how many entries were new; they are acknowledged."""
        new: list[tuple[str, list[str]]] = []
        for place in self._expanded():
            source = self.sources.setdefault(place, Source())
            if source.not_before > time.monotonic():
                continue
            try:
                parsed = self._fetch(place, source)
            except (OSError, ValueError) as error:
                source.failures += 1
                pause = min(_LONGEST_PAUSE, 2.0**source.failures)
                source.not_before = time.monotonic() + pause
                self.notice(f"{place}: {error}; again in {pause:g} s")
                continue
            source.failures = 0
            if parsed is not None:
                new.append((place, self._write(place, parsed, source)))
        count = sum(len(keys) for _, keys in new)
        if count:
            self.producer.flush()
        for place, keys in new:
            self._remember(self.sources[place], keys)
        if new and self.memory is not None:
            self._save(self.memory)
        self.written += count
        return count

    def _expanded(self) -> Iterator[str]:
        for place in self.places:
            path = Path(place)
            if "://" not in place and path.is_dir():
                yield from sorted(str(file) for pattern in FEED_FILES for file in path.glob(pattern))
            else:
                yield place

    def _fetch(self, place: str, source: Source) -> Any | None:
        """The parsed feed, or None when nothing has changed."""
        if "://" not in place:
            state = Path(place).stat()
            stamp = [state.st_mtime_ns, state.st_size]
            if stamp == source.stamp:
                return None
            parsed = parse(Path(place).read_bytes())
            source.stamp = stamp
            return parsed
        if not place.startswith(("http://", "https://")):
            raise ValueError("only http, https, files and folders can be watched")
        request = urllib.request.Request(place, headers={"User-Agent": _AGENT})
        if source.etag:
            request.add_header("If-None-Match", source.etag)
        if source.modified:
            request.add_header("If-Modified-Since", source.modified)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
                content = response.read()
                source.etag = response.headers.get("ETag")
                source.modified = response.headers.get("Last-Modified")
                return parse(content, response.headers.get("Content-Type"))
        except urllib.error.HTTPError as error:
            if error.code == 304:
                return None
            raise

    def _write(self, place: str, parsed: Any, source: Source) -> list[str]:
        """Entries that were not seen before, the oldest first as feeds begin with the newest."""
        fetched = self.clock(parsed)
        keys = []
        for entry in reversed(parsed.entries):
            record = raw_article(place, parsed, entry, fetched)
            key = record["guid"] or record["link"] or f"{crc32(repr(sorted(entry.items())).encode()):08x}"
            if key in source.seen or key in keys:
                continue
            keys.append(key)
            self.producer.add(place.encode(), json.dumps(record, ensure_ascii=False).encode())
        return keys

    def _remember(self, source: Source, keys: list[str]) -> None:
        source.seen.update(dict.fromkeys(keys))
        for key in list(source.seen)[: max(0, len(source.seen) - REMEMBERED)]:
            del source.seen[key]

    def _save(self, memory: Path) -> None:
        state = {
            place: {**asdict(source), "seen": list(source.seen), "failures": 0, "not_before": 0.0}
            for place, source in self.sources.items()
        }
        fresh = memory.with_suffix(".new")
        fresh.write_text(json.dumps(state))
        fresh.replace(memory)


def parse(content: bytes, content_type: str | None = None) -> Any:
    """feedparser without its own cleaning: what is raw stays raw."""
    headers = {"content-type": content_type} if content_type else {}
    return feedparser.parse(
        content, response_headers=headers, sanitize_html=False, resolve_relative_uris=False
    )


def raw_article(place: str, parsed: Any, entry: Any, fetched: datetime) -> dict[str, str | None]:
    """The record for one entry, in the words of the feed."""
    contents = entry.get("content")
    return {
        "feed": place,
        "outlet": parsed.feed.get("title"),
        "guid": entry.get("id"),
        "link": entry.get("link"),
        "title": entry.get("title"),
        "body": contents[0].value if contents else entry.get("summary"),
        "author": entry.get("author"),
        "published": entry.get("published") or entry.get("updated"),
        "fetched": fetched.isoformat(),
    }
