"""`ottla serve` on damaged files and odd addresses says what is wrong and what to do, without a traceback."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from ipaddress import IPv6Address
from pathlib import Path

import pytest

import ottla.testing
from conformance.command import Command, Result
from ottla.broker.sockets import SystemSockets
from raw_client import RawClient


@pytest.fixture
def ottla_command() -> Command:
    return Command("127.0.0.1:1")


def filled(folder: Path) -> bytes:
    """A data folder with a record in it; what the record's log holds."""
    with ottla.testing.broker(data=folder, topics={"t": 1}) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            assert client.produce("t", b"precious").error_code == 0
    return log_of(folder)


def log_of(folder: Path) -> bytes:
    return (folder / "t-0" / "00000000000000000000.log").read_bytes()


def refused(command: Command, folder: Path, *options: str) -> str:
    """What is said on stderr by a broker that does not start."""
    failed: Result = command("serve", "--data", str(folder), *(options or ("--listen", "127.0.0.1:0")))
    assert failed.code == 1, failed
    assert "Traceback" not in failed.err
    return failed.err[failed.err.index("error: ") :]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x9d\xff\x00garbage", "is not text"),
        (b"garbage\n", "has no cluster.id and no node.id"),
        (b"", "has no cluster.id and no node.id"),
        (b"version=1\nclustes.id=x\nnode.id=1\n", "has no cluster.id"),
    ],
)
def test_a_damaged_meta_properties_is_named(
    ottla_command: Command, tmp_path: Path, content: bytes, reason: str
) -> None:
    before = filled(tmp_path)
    meta = tmp_path / "meta.properties"
    meta.write_bytes(content)
    said = refused(ottla_command, tmp_path)
    assert f"{meta} {reason}" in said
    assert "delete that file" in said
    assert log_of(tmp_path) == before
    meta.unlink()  # what the message advises
    with ottla.testing.broker(data=tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        assert b"precious" in bytes(client.fetch("t", 0).records)


def _random(data: bytes) -> bytes:
    return os.urandom(len(data))


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _zeroed(data: bytes) -> bytes:
    return bytes(len(data))


def _flipped(data: bytes) -> bytes:
    return data[:100] + bytes(byte ^ 0x55 if n % 37 == 0 else byte for n, byte in enumerate(data[100:]))


@pytest.mark.parametrize("damage", [_random, _cut, _zeroed, _flipped])
def test_a_damaged_registry_is_named(
    ottla_command: Command, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    before = filled(tmp_path)
    registry = tmp_path / "registry.sqlite"
    registry.write_bytes(damage(registry.read_bytes()))
    said = refused(ottla_command, tmp_path)
    assert f"the registry {registry}, which knows the topics, is damaged: " in said
    assert "Put back a copy" in said
    assert "disk full" not in said
    assert log_of(tmp_path) == before


@pytest.mark.parametrize(
    "node", [b"{", b"[]", b'{"topic_id":"?","partitions":1}', b'{"partitions":1}', b"\xff"]
)
def test_a_registry_with_a_node_that_cannot_be_read_is_called_damaged(
    ottla_command: Command, tmp_path: Path, node: bytes
) -> None:
    before = filled(tmp_path)
    with sqlite3.connect(tmp_path / "registry.sqlite") as connection:
        changed = connection.execute("UPDATE nodes SET data = ? WHERE path = '/brokers/topics/t'", (node,))
        assert changed.rowcount == 1
    connection.close()
    assert "which knows the topics, is damaged: " in refused(ottla_command, tmp_path)
    assert log_of(tmp_path) == before


def test_a_registry_that_is_a_folder_is_not_reported_as_a_full_disk(
    ottla_command: Command, tmp_path: Path
) -> None:
    (tmp_path / "registry.sqlite").mkdir()
    said = refused(ottla_command, tmp_path)
    assert f"cannot use the registry {tmp_path / 'registry.sqlite'}: " in said
    assert "disk full" not in said


@pytest.mark.parametrize("option", [["--listen", "{}"], ["--set", "listeners=PLAINTEXT://{}"]])
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("[fe80::1%lo]:9092", "error: cannot listen on [fe80::1%lo]:9092: "),
        ("[fe80::1%nope]:9092", "[fe80::1%nope]:9092: no such host or network interface"),
        ("[fe80::1]:9092", "[fe80::1]:9092: a link-local address needs its network interface"),
        ("no-such-host.invalid:9092", "cannot listen on no-such-host.invalid:9092: no such host"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_named(
    ottla_command: Command, tmp_path: Path, option: list[str], address: str, expected: str
) -> None:
    said = refused(ottla_command, tmp_path, *(each.format(address) for each in option))
    assert expected in said
    assert "data folder" not in said


@pytest.mark.parametrize("name", ["SSL", "SASL_PLAINTEXT", "sasl_ssl"])
@pytest.mark.parametrize("option", ["--listen", "--advertise"])
def test_an_unsupported_security_protocol_is_named(
    ottla_command: Command, tmp_path: Path, option: str, name: str
) -> None:
    wrong = ottla_command("serve", "--data", str(tmp_path), option, f"{name}://127.0.0.1:9092")
    assert wrong.code == 2
    assert f"{name} is not built yet, only PLAINTEXT is" in wrong.err
    assert "IPv6" not in wrong.err


def link_local_addresses() -> list[str]:
    """Those of this machine, as fe80::1%eth0; Linux lists them in hexadecimal with their interface."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except FileNotFoundError:
        return []
    found = [(line.split()[0], line.split()[-1]) for line in lines]
    return [f"{IPv6Address(int(each, 16))}%{interface}" for each, interface in found if each[:3] == "fe8"]


@pytest.mark.skipif(not link_local_addresses(), reason="this machine has no link-local address")
def test_a_link_local_address_can_be_listened_on() -> None:
    host = link_local_addresses()[0]
    with SystemSockets().listen(host, 0, 1, receive_buffer=-1, send_buffer=-1) as listener:
        assert listener.getsockname()[3], "the interface counts"
