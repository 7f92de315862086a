"""The feeder: every entry once, from files and addresses, also after it was started again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ottla.examples.news.feeder import Feeder, feed_clock
from ottla.examples.news.player import play
from ottla.examples.news.results import records, rows
from ottla.examples.news.world import make_world
from ottla.protocol_client.produce import Producer
from ottla.protocol_client.wire import Wire
from ottla.testing.in_process import InProcessBroker


def feed_of(*titles: str) -> bytes:
    items = "".join(
        f"<item><title>{title}</title><link>https://x.example/{title}</link><guid>{title}</guid></item>"
        for title in titles
    )
    made = "<lastBuildDate>Mon, 02 Mar 2026 09:00:00 +0000</lastBuildDate>"
    return f"<rss version='2.0'><channel><title>X</title>{made}{items}</channel></rss>".encode()


@pytest.fixture
def wire(broker: InProcessBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap_servers) as connected:
        yield connected


def titles(wire: Wire, topic: str) -> list[str]:
    return [row["title"] for row in rows(wire, topic)]


def test_each_entry_of_a_folder_is_written_once_and_the_oldest_first(wire: Wire, tmp_path: Path) -> None:
    topic = "feeder.folder"
    feeder = Feeder(Producer(wire, topic), [str(tmp_path)], clock=feed_clock)
    assert feeder.poll() == 0
    (tmp_path / "x.rss").write_bytes(feed_of("two", "one"))
    assert (feeder.poll(), feeder.poll()) == (2, 0)
    (tmp_path / "x.rss").write_bytes(feed_of("three", "two"))
    (tmp_path / "notes.txt").write_text("not a feed")
    assert feeder.poll() == 1
    assert titles(wire, topic) == ["one", "two", "three"]
    assert rows(wire, topic)[0] == {
        "feed": str(tmp_path / "x.rss"),
        "outlet": "X",
        "guid": "one",
        "link": "https://x.example/one",
        "title": "one",
        "body": None,
        "author": None,
        "published": None,
        "fetched": datetime(2026, 3, 2, 9, tzinfo=UTC).isoformat(),
    }


def test_a_feeder_that_is_started_again_knows_what_it_has_seen(wire: Wire, tmp_path: Path) -> None:
    topic, memory = "feeder.again", tmp_path / "seen.json"
    (tmp_path / "x.xml").write_bytes(feed_of("one"))
    assert Feeder(Producer(wire, topic), [str(tmp_path)], memory=memory).poll() == 1
    (tmp_path / "x.xml").write_bytes(feed_of("two", "one"))
    assert Feeder(Producer(wire, topic), [str(tmp_path)], memory=memory).poll() == 1
    assert titles(wire, topic) == ["one", "two"]


class _Site(BaseHTTPRequestHandler):
    content = feed_of("one")
    broken = False
    asked: list[str | None] = []

    def do_GET(self) -> None:
        tag = f'"{hash(self.content)}"'
        known = self.headers.get("If-None-Match")
        self.asked.append(known)
        if self.broken:
            self.send_error(500)
        elif known == tag:
            self.send_response(304)
            self.end_headers()
        else:
            self.send_response(200)
            self.send_header("ETag", tag)
            self.send_header("Content-Type", "application/rss+xml; charset=utf-8")
            self.send_header("Content-Length", str(len(self.content)))
            self.end_headers()
            self.wfile.write(self.content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def site() -> Iterator[tuple[str, type[_Site]]]:
    handler = type("Site", (_Site,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/feed", handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_feeds_are_requested_conditionally(wire: Wire, site: tuple[str, type[_Site]]) -> None:
    address, handler = site
    feeder = Feeder(Producer(wire, "feeder.address"), [address])
    assert (feeder.poll(), feeder.poll()) == (1, 0)
    handler.content = feed_of("two", "one")
    assert feeder.poll() == 1
    assert handler.asked[0] is None
    assert handler.asked[1] == handler.asked[2] is not None
    assert titles(wire, "feeder.address") == ["one", "two"]


def test_a_feed_that_fails_is_left_alone_for_a_while_and_does_not_stop_the_others(
    wire: Wire, site: tuple[str, type[_Site]], tmp_path: Path
) -> None:
    address, handler = site
    handler.broken = True
    (tmp_path / "x.rss").write_bytes(feed_of("one"))
    said: list[str] = []
    feeder = Feeder(
        Producer(wire, "feeder.broken"), [address, "ftp://x.example/", str(tmp_path)], notice=said.append
    )
    assert (feeder.poll(), feeder.poll()) == (1, 0)
    assert len(handler.asked) == 1
    assert len(said) == 2
    assert "500" in said[0]


def test_a_simulated_world_writes_all_entries_and_reads_to_their_topics(tmp_path: Path) -> None:
    import ottla.testing

    world = make_world(5, days=1, readers=20)
    with ottla.testing.broker() as broker:
        written = play(world, tmp_path, broker.bootstrap_servers)
        assert written == (len(world.articles), len(world.reads))
        with Wire(broker.bootstrap_servers) as wire:
            raw = records(wire, "articles.raw")
            assert len(raw) == len(world.articles) + len(world.junk)
            assert sum(_is_article(value) for value in raw) == len(world.articles)
            assert len(records(wire, "reads")) == len(world.reads)


def _is_article(value: bytes) -> bool:
    try:
        return isinstance(json.loads(value), dict)
    except ValueError:
        return False
