"""From the address of a registry to the back end that it names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ottla.clock import SystemClock
from ottla.cluster.registry import Create
from ottla.cluster.registry_backends import BackendMissing, registry_at
from ottla.config.registry_url import RegistryUrl


async def test_sessions_at_the_same_file_see_each_others_nodes(tmp_path: Path) -> None:
    url = RegistryUrl("sqlite", str(tmp_path / "shared.sqlite"))
    one, two = registry_at(url, SystemClock()), registry_at(url, SystemClock())
    await one.open()
    await two.open()
    await one.commit([Create("/here", b"1")])
    assert (await two.get("/here")).data == b"1"
    await two.close()
    await one.close()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ottla.cluster.zookeeper_registry", raising=False)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(BackendMissing, match="needs the package kazoo"):
        registry_at(RegistryUrl("zookeeper", "zk:2181"), SystemClock())
