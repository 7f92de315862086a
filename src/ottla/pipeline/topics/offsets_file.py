"""A small file of a stream that holds what Spark's checkpoint does not: where it began, and its topics' ids.

Spark keeps the offsets at which batches ended, but not those at which a Python source began. Asked again
after a failure of the first batch, the brokers may give others: a partition was added, records were deleted.
And offsets alone do not say of which topic: one that was deleted and made anew under the same name has other
records at the same offsets. With the option `offsetsFile` both are written down before Spark plans the first
batch.

    {"start": {"clicks": {"0": 17}}, "topics": {"clicks": "c29tZSAxNiBieXRlcy4uLg=="}}

The file belongs to one query: stages keep it inside Spark's checkpoint, so that it goes when that goes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from ottla.pipeline.topics.offsets import OffsetsJson


class OffsetsFile:
    """The file, read when it is first asked for. Without a path everything is kept in memory only."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._content: dict[str, Any] | None = None

    @property
    def start(self) -> OffsetsJson | None:
        """Where the query began; None before it did, and for queries older than the file."""
        found: OffsetsJson | None = self._read().get("start")
        return found

    @property
    def topics(self) -> dict[str, bytes]:
        """The ids of the topics that the query has met."""
        return {name: base64.b64decode(text) for name, text in self._read().get("topics", {}).items()}

    def begin(self, start: OffsetsJson, topics: Mapping[str, bytes]) -> None:
        """Write down where a new query begins."""
        self._write({"start": start, "topics": _texts(topics)})

    def learn(self, topics: Mapping[str, bytes]) -> None:
        """Write down the ids of topics that are new, or new again."""
        known = self._read()
        self._write({**known, "topics": {**known.get("topics", {}), **_texts(topics)}})

    def _read(self) -> dict[str, Any]:
        if self._content is None:
            data = None
            if self.path is not None:
                folder, name = self._place()
                data = folder.read(name)
            self._content = {} if data is None else json.loads(data)
        return self._content

    def _write(self, content: dict[str, Any]) -> None:
        if self.path is not None:
            folder, name = self._place()
            folder.make()
            folder.write(name, json.dumps(content, sort_keys=True).encode() + b"\n")
        self._content = content

    def _place(self) -> tuple[Any, str]:
        from ottla.pipeline.folders import Folder  # brings pyarrow's file systems, which few need

        assert self.path is not None
        parent, _, name = self.path.rpartition("/")
        return Folder(parent or "."), name


def _texts(topics: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(each).decode() for name, each in topics.items()}
