"""Which processes are the brokers of a cluster, and which is their supervisor."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ottla.cli.local_processes import broker_processes, supervisor_of

_TABLE = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def write_process(proc: Path, pid: int, parent: int, *arguments: str, inode: int | None = None) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"\0".join(map(os.fsencode, arguments)) + b"\0")
    (folder / "stat").write_text(f"{pid} (a name) S {parent} 1 1")
    if inode is not None:
        (folder / "fd" / "5").symlink_to(f"socket:[{inode}]")


def write_sockets(proc: Path, **states: str) -> None:
    (proc / "net").mkdir()
    lines = [
        f"   {n}: 0100007F:{port[1:]} 00000000:0000 {state} 0:0 00:0 00000000 0 0 {70 + n} 1\n"
        for n, (port, state) in enumerate(states.items())
    ]
    (proc / "net" / "tcp").write_text(_TABLE + "".join(lines))


def test_brokers_are_found_by_their_ports_and_the_supervisor_by_them(tmp_path: Path) -> None:
    write_sockets(tmp_path, p2384="0A", p2385="0A", p2386="01")
    write_process(tmp_path, 10, 1, "ottla", "serve", "--brokers=3")
    write_process(tmp_path, 11, 10, "python", "serve", "--supervised=broker 1", inode=70)
    write_process(tmp_path, 12, 10, "python", "serve", "--supervised=broker 2", inode=71)
    write_process(tmp_path, 13, 10, "python", "serve", "--supervised=broker 3", inode=72)
    addresses = {1: "127.0.0.1:9092", 2: "127.0.0.1:9093", 3: "127.0.0.1:9094"}
    pids = broker_processes(addresses, tmp_path)
    assert pids == {1: 11, 2: 12}, "the third has a connection on that port, and does not listen there"
    assert supervisor_of(pids.values(), tmp_path) == 10


def test_a_broker_on_its_own_has_no_supervisor(tmp_path: Path) -> None:
    write_sockets(tmp_path, p2384="0A")
    write_process(tmp_path, 11, 1, "ottla", "serve", inode=70)
    pids = broker_processes({1: "127.0.0.1:9092"}, tmp_path)
    assert pids == {1: 11}
    assert supervisor_of(pids.values(), tmp_path) is None


def test_a_broker_on_another_machine_is_not_taken_for_a_process_here(tmp_path: Path) -> None:
    write_sockets(tmp_path, p2384="0A")
    write_process(tmp_path, 11, 1, "ottla", "serve", inode=70)
    assert broker_processes({1: "192.0.2.1:9092"}, tmp_path) == {}


def test_nothing_is_known_where_there_is_no_proc(tmp_path: Path) -> None:
    assert broker_processes({1: "127.0.0.1:9092"}, tmp_path / "none") == {}
    assert supervisor_of([11], tmp_path / "none") is None


def test_a_listening_process_that_is_no_broker_is_left_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert broker_processes({1: f"127.0.0.1:{server.getsockname()[1]}"}) == {}
