"""Where the registry is, as people write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.config.registry_url import RegistryUrl, parse_registry_url
from ottla.config.values import BrokerConfig, ConfigError


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("sqlite:/data/registry.sqlite", "sqlite", "/data/registry.sqlite"),
        ("zookeeper://zk1:2181", "zookeeper", "zk1:2181"),
        ("zookeeper://zk1", "zookeeper", "zk1:2181"),
        ("ZooKeeper://zk1:1, zk2:2/kafka/one/", "zookeeper", "zk1:1,zk2:2/kafka/one"),
        ("zookeeper://[::1]:1,[::2]/a", "zookeeper", "[::1]:1,[::2]:2181/a"),
    ],
)
def test_a_registry_is_named_by_kind_and_place(text: str, kind: str, place: str) -> None:
    url = parse_registry_url(text)
    assert url == (kind, place)
    assert parse_registry_url(str(url)) == url


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no registry"),
        ("/data/registry.sqlite", "is no registry"),
        ("etcd://a:1", "is no registry"),
        ("sqlite:", "names no file"),
        ("sqlite://host/file", "names no file"),
        ("zookeeper:zk1:2181", "no // before"),
        ("zookeeper://", "names no ZooKeeper server"),
        ("zookeeper:///path", "names no ZooKeeper server"),
        ("zookeeper://a:b", "from 1 to 65535"),
        ("zookeeper://a:0", "from 1 to 65535"),
    ],
)
def test_what_is_no_registry_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_registry_url(text)
    with pytest.raises(ConfigError, match=rf"ottla\.registry: .*{reason}"):
        BrokerConfig.load(overrides={"ottla.registry": text or " "})


def test_without_a_name_the_registry_is_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = BrokerConfig.load(overrides={"log.dirs": "/data"})
    assert config.registry == RegistryUrl("sqlite", "/data/registry.sqlite")
    config = BrokerConfig.load(overrides={"ottla.registry": "sqlite:shared.sqlite"})
    assert config.registry.place == str(tmp_path / "shared.sqlite")
