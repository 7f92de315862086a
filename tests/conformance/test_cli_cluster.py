"""`ottla cluster status` of a single broker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import ottla.testing
from conformance.command import Command
from ottla.storage.files import RealDisk
from ottla.testing.faulty_disk import FaultyDisk
from ottla.testing.in_process import InProcessBroker


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with ottla.testing.broker(topics={"t": 3}, broker_rack="west") as broker:
        yield broker


def test_status_shows_the_broker_and_that_nothing_is_wrong(broker: InProcessBroker) -> None:
    ottla = Command(broker.bootstrap_servers)
    lines = ottla.ok("cluster", "status").lines
    assert lines[1:3] == [
        "Controller  broker 1",
        "Partitions  3 in all: 0 offline, 0 below min ISR, 0 under-replicated",
    ]
    assert lines[-1].split() == ["1", "alive", broker.bootstrap_servers, "west", "3", "3"]


def test_status_for_programs_has_everything(broker: InProcessBroker) -> None:
    document = json.loads(Command(broker.bootstrap_servers).ok("cluster", "status", "--json").out)
    assert document.pop("cluster_id")
    assert document == {
        "controller": 1,
        "healthy": True,
        "supervisor": None,
        "brokers": [
            {
                "id": 1,
                "address": broker.bootstrap_servers,
                "pid": None,
                "rack": "west",
                "state": "alive",
                "leads": 3,
                "replicas": 3,
            }
        ],
        "missing_brokers": [],
        "partitions": 3,
        "offline": [],
        "below_min_isr": [],
        "under_replicated": [],
        "advice": [],
    }


def test_status_names_a_broker_whose_disk_is_full_and_what_to_do() -> None:
    disk = FaultyDisk(RealDisk())
    with ottla.testing.broker(disk=disk, settings={"log.dir.min.free.bytes": 1 << 20}) as broker:
        disk.free_bytes = 1 << 19
        command = Command(broker.bootstrap_servers)
        result = command("cluster", "status")
        assert result.code == 1
        assert "full" in result.out.split()
        assert "Broker 1 takes no records, as its disk is full" in result.out
        disk.heal()
        command.ok("cluster", "status")
