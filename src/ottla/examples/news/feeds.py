"""RSS and Atom files as outlets write them: every outlet its own format, encoding and idea of HTML.

Most entries are fine. Some have one of the faults that the world gave them, and one outlet says UTF-8 and
writes Windows-1252, as one always does. A feed holds the newest entries only, so whoever looks too seldom
misses some.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from email.utils import format_datetime
from xml.sax.saxutils import escape

from ottla.examples.news.vocabulary import Outlet
from ottla.examples.news.world import Article

LENGTH = 25
"""Entries in a feed."""

_LYING = "windows-1252"
_TRACKED = "?utm_source=rss&utm_medium=feed"


def feed(outlet: Outlet, articles: Iterable[Article], now: datetime) -> bytes:
    """The outlet's feed as it is at `now`, from its articles in order of publication."""
    newest = [a for a in articles if a.published <= now][-LENGTH:][::-1]
    if outlet.format == "atom":
        text = _atom(outlet, newest, now)
    else:
        text = _rss(outlet, newest, now)
    return text.encode(outlet.encoding, errors="xmlcharrefreplace")


def file_name(outlet: Outlet) -> str:
    return f"{outlet.site.split('.')[0]}.{'atom' if outlet.format == 'atom' else 'rss'}"


def _declaration(outlet: Outlet) -> str:
    said = "utf-8" if outlet.encoding == _LYING else outlet.encoding
    return f'<?xml version="1.0" encoding="{said}"?>\n'


def _rss(outlet: Outlet, articles: Sequence[Article], now: datetime) -> str:
    lines = [
        _declaration(outlet) + '<rss version="2.0" xmlns:dc="http://purl.org/dc/elements/1.1/"><channel>',
        f"<title>{escape(outlet.name)}</title><link>https://{outlet.site}/</link>",
        "<description>All the news that fits.</description>",
        f"<lastBuildDate>{format_datetime(now)}</lastBuildDate>",
    ]
    for article in articles:
        title, body = _words(article)
        lines.append("<item>")
        if title:
            lines.append(f"  <title>{escape(title)}</title>")
        if article.fault != "no link":
            lines.append(f"  <link>{escape(article.link + _TRACKED)}</link>")
        if article.fault != "no guid":
            lines.append(f'  <guid isPermaLink="false">{article.guid}</guid>')
        if article.fault != "no author":
            lines.append(f"  <dc:creator>{escape(article.author)}</dc:creator>")
        if article.fault != "no date":
            lines.append(f"  <pubDate>{_date(article, format_datetime(article.published))}</pubDate>")
        lines.append(f"  <description><![CDATA[{body}]]></description>\n</item>")
    lines.append("</channel></rss>\n")
    return "\n".join(lines)


def _atom(outlet: Outlet, articles: Sequence[Article], now: datetime) -> str:
    lines = [
        _declaration(outlet) + '<feed xmlns="http://www.w3.org/2005/Atom">',
        f'<title>{escape(outlet.name)}</title><link href="https://{outlet.site}/"/>',
        f"<id>https://{outlet.site}/</id><updated>{now.isoformat()}</updated>",
    ]
    for article in articles:
        title, body = _words(article)
        lines.append("<entry>")
        if title:
            lines.append(f"  <title>{escape(title)}</title>")
        if article.fault != "no link":
            lines.append(f'  <link href="{escape(article.link + _TRACKED)}"/>')
        if article.fault != "no guid":
            lines.append(f"  <id>{article.guid}</id>")
        if article.fault != "no author":
            lines.append(f"  <author><name>{escape(article.author)}</name></author>")
        if article.fault != "no date":
            lines.append(f"  <published>{_date(article, article.published.isoformat())}</published>")
        lines.append(f'  <content type="html">{escape(body)}</content>\n</entry>')
    lines.append("</feed>\n")
    return "\n".join(lines)


def _date(article: Article, date: str) -> str:
    match article.fault:
        case "unreadable date":
            return ("the day before yesterday", "31.02.2026, 25:61", "Mon, 99 Mar", "soon")[
                article.number % 4
            ]
        case "date in the future":
            return format_datetime(article.published + timedelta(days=365 * (1 + article.number % 40)))
        case _:
            return date


def _words(article: Article) -> tuple[str, str]:
    """Title and body as the outlet's system puts them out."""
    if article.fault == "nothing in it":
        return "", ""
    title = html.escape(article.title, quote=False) if article.outlet.html == "escaped" else article.title
    if article.fault == "no text":
        return title, "<p>&nbsp;</p>"
    body = _markup(article)
    match article.fault:
        case "wrongly decoded":
            body = (body + f"<p>\u2014 {article.author}</p>").encode().decode("cp1252", errors="ignore")
            title = title.encode().decode("cp1252", errors="ignore")
        case "escaped twice":
            body = html.escape(html.escape(body))
        case "tag soup":
            body = (
                f"<div class='x'><b>{body.replace('</p>', '<br><font color=red>')}"
                "<script>track('a < b');</script><table><tr><td><!-- end <b"
            )
    return title, body


def _markup(article: Article) -> str:
    sentences = article.sentences
    text = [" ".join(sentences[i : i + 3]) for i in range(0, len(sentences), 3)]
    match article.outlet.html:
        case "plain":
            return html.escape(" ".join(text), quote=False)
        case "soup":
            joined = "<br><br />\n".join(html.escape(part, quote=False) for part in text)
            pixel = f'<img src="https://{article.outlet.site}/pixel.gif?id={article.number}" width=1>'
            return f"<p style='margin:0'>{joined}<i>{pixel}"
        case "links":
            paragraphs = "".join(f"<p>{html.escape(part)}</p>" for part in text)
            more = f"https://{article.outlet.site}/{article.subject}"
            return f'{paragraphs}<p><a href="{more}">More on {article.subject}&nbsp;&raquo;</a></p>'
        case _:
            return "".join(f"<p>{html.escape(part)}</p>\n" for part in text)
