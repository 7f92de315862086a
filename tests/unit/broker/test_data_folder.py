"""A broker opens only data that is known to be its own, because logs without a topic are deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

import ottla.testing
from ottla.broker.data_folder import WrongFolder
from ottla.config.values import REGISTRY_FILE
from ottla.storage.checkpoints import META
from raw_client import RawClient


def fill(data: Path) -> bytes:
    """A data folder with a record in it; returns what its log holds."""
    with (
        ottla.testing.broker(data=data, topics={"t": 1}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        assert client.produce("t", b"precious").error_code == 0
    return log_of(data)


def log_of(data: Path) -> bytes:
    return (data / "t-0" / "00000000000000000000.log").read_bytes()


@pytest.mark.parametrize("lost", [[REGISTRY_FILE], [REGISTRY_FILE, META]])
def test_a_broker_refuses_to_start_when_the_registry_of_its_logs_is_lost(
    tmp_path: Path, lost: list[str]
) -> None:
    before = fill(tmp_path)
    for name in lost:
        (tmp_path / name).unlink()
    broker = ottla.testing.broker(data=tmp_path)
    try:
        with pytest.raises(WrongFolder, match=REGISTRY_FILE):
            broker.start()
    finally:
        broker.close()
    assert log_of(tmp_path) == before


def test_a_missing_meta_properties_is_restored_from_the_registry(tmp_path: Path) -> None:
    before = fill(tmp_path)
    said = (tmp_path / META).read_bytes()
    (tmp_path / META).unlink()
    with ottla.testing.broker(data=tmp_path):
        assert (tmp_path / META).read_bytes() == said
    assert log_of(tmp_path) == before
