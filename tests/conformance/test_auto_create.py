"""Topics that are created by the first write to them, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.clients.model import EARLIEST, Message, Refused

UNKNOWN_TOPIC_OR_PARTITION = 3


def test_writing_to_an_unknown_topic_creates_it(client: Any, name: str) -> None:
    client.produce(name, [Message(b"first"), Message(b"second")])
    with client.reading(name, 0, EARLIEST) as reader:
        assert [r.value for r in reader.take(2)] == [b"first", b"second"]


@pytest.mark.needs("config-reset")
def test_metadata_of_an_unknown_topic_does_not_create_it(client: Any, name: str) -> None:
    with pytest.raises(Refused) as refused:
        client.partition_count(name)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION
    assert name not in client.topics()
