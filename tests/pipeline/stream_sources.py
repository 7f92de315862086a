"""Options of a stream source that reads from the broker of the tests."""

from __future__ import annotations

from collections.abc import Callable

from ottla.pipeline.topics.options import SourceOptions
from ottla.pipeline.topics.stream_driver import StreamDriver
from ottla.testing.in_process import InProcessBroker

Driver = Callable[..., StreamDriver]


def source(broker: InProcessBroker, topic: str, **options: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    if not {"subscribePattern", "assign"} & options.keys():
        given["subscribe"] = topic
    return SourceOptions.parse(given | {name.replace("_", "."): text for name, text in options.items()})
