"""Which version of a table a batch joins with: the decision, and the notes that outlive the driver.

A version is a set of Parquet files and the offsets of the topic up to which they hold everything. It is noted
for a batch before the batch runs, files first: a batch that runs again joins with the same files, also when
the topic was compacted meanwhile and no longer holds what they were made of. The last two versions are kept,
because a batch may run again until the one after it has begun.

    <stage>/tables/0/versions.json    query, declaration and versions
    <stage>/tables/0/data-7-recent/   what batch 7 added
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ottla.pipeline.checkpoints import StageFolder

KEPT = 2
"""Versions that are noted and whose files stay."""

DELETIONS_KEPT = 24 * 3600.0
"""Seconds for which compaction keeps deletions that a slow reader may not have seen yet: Kafka's default of
delete.retention.ms. A table that was not brought up to date for longer is loaded anew."""

SMALL = 50_000
"""Records of the newest changes up to which they are kept apart from the rest of the table."""
SHARE = 4
"""They may also be this part of the whole table, ..."""
LARGEST = 500_000
"""... but not more than so many: their keys are held in memory while a batch runs."""


@dataclass(frozen=True)
class Version:
    """What a batch joins with."""

    batch: int
    topic_id: str
    offsets: Mapping[int, int]
    """The next offset of each partition."""
    looked_at: float
    """When the end of the topic was last looked at, in seconds since 1970."""
    base: str | None = None
    """The folder with most of the table, one row for each key."""
    recent: str | None = None
    """The folder with what is newer, deletions with it."""
    base_rows: int = 0
    recent_rows: int = 0

    @property
    def folders(self) -> list[str]:
        return [each for each in (self.base, self.recent) if each is not None]


class Span(NamedTuple):
    """What a topic holds at the moment."""

    topic_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]


class Step(NamedTuple):
    """What has to be read to make the next version."""

    starts: Mapping[int, int]
    ends: Mapping[int, int]
    from_nothing: bool = False
    """Whether the table before does not count any more."""
    why: str = ""

    @property
    def records(self) -> int:
        """At most so many; compaction leaves gaps."""
        return sum(max(end - self.starts[place], 0) for place, end in self.ends.items())


def next_step(before: Version | None, span: Span, now: float) -> Step:
    """What to read of the topic, given the version of the batch before."""
    why = "" if before is None else _no_longer_good(before, span, now)
    if before is None or why:
        return Step(span.starts, span.ends, from_nothing=True, why=why)
    starts = {place: before.offsets.get(place, span.starts[place]) for place in span.ends}
    return Step(starts, span.ends)


def _no_longer_good(before: Version, span: Span, now: float) -> str:
    """Why a version cannot be continued; nothing when it can."""
    if before.topic_id != span.topic_id:
        return "the topic was deleted and made anew"
    if not before.offsets.keys() <= span.ends.keys():
        return "the topic has fewer partitions than it had"
    if any(span.ends[place] < offset for place, offset in before.offsets.items()):
        return "the topic is shorter than it was read"
    if any(span.starts[place] > offset for place, offset in before.offsets.items()):
        return "records were deleted before they were read"
    if any(span.ends[place] > before.offsets.get(place, 0) for place in span.ends) and (
        now - before.looked_at > DELETIONS_KEPT
    ):
        return "it was not read for so long that deletions may have been compacted away"
    return ""


def is_folded(before: Version | None, step: Step) -> bool:
    """Whether the step writes the whole table again instead of its newest part."""
    if before is None or step.from_nothing or before.base is None:
        return True
    allowed = min(max(SMALL, before.base_rows // SHARE), LARGEST)
    return before.recent_rows + step.records > allowed


class Notes:
    """The versions of one table, newest last."""

    def __init__(self, folder: StageFolder, number: int, declared: str) -> None:
        self._folder = folder
        self._name = f"tables/{number}/versions.json"
        self._declared = declared
        """What the files depend on. Those that were made by another declaration do not count."""

    def read(self, query_id: str | None) -> list[Version]:
        noted: Any = self._folder.read_json(self._name)
        if noted is None or (noted["query"], noted["declared"]) != (query_id, self._declared):
            return []
        return [_version(each) for each in noted["versions"]]

    def write(self, query_id: str | None, versions: list[Version]) -> None:
        """Is on stable storage when this returns."""
        self._folder.write_json(
            self._name,
            {"query": query_id, "declared": self._declared, "versions": [asdict(each) for each in versions]},
        )


def with_next(versions: list[Version], version: Version) -> list[Version]:
    """The versions to keep when this one is added. Those of later batches do not count any more."""
    return [*(each for each in versions if each.batch < version.batch), version][-KEPT:]


def _version(noted: dict[str, Any]) -> Version:
    found = Version(**noted)
    return replace(found, offsets={int(place): offset for place, offset in found.offsets.items()})
