"""Which processes of this machine are the brokers of a cluster, and which supervises them.

The kernel knows which process listens on a port, so neither brokers nor files have to say it. That works on
Linux, for brokers on this machine and of this user; what is not known is left out.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

_LISTENS = "0A"
_PORT, _STATE, _INODE = 1, 3, 9
"""Columns of /proc/net/tcp."""


def broker_processes(addresses: Mapping[int, str], proc: Path = Path("/proc")) -> dict[int, int]:
    """By broker id: the process that listens on the broker's address, where that is on this machine."""
    ports = {
        int(port): broker
        for broker, (host, _, port) in ((each, text.rpartition(":")) for each, text in addresses.items())
        if _is_local(host.strip("[]"))
    }
    sockets = {inode: ports[port] for port, inode in _listening(proc) if port in ports}
    if not sockets:
        return {}
    found: dict[int, int] = {}
    for pid, arguments in _processes(proc):
        if b"serve" not in arguments:
            continue
        with suppress(OSError):  # it ended, or is of another user
            for each in (proc / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    broker = sockets.get(str(each.readlink()))
                    if broker is not None:
                        found[broker] = pid
    return found


def supervisor_of(pids: Iterable[int], proc: Path = Path("/proc")) -> int | None:
    """The `ottla serve --brokers` that these processes were started by; None if there is none."""
    for pid in pids:
        with suppress(OSError):
            arguments = _arguments(proc / str(pid))
            if any(each.startswith(b"--supervised") for each in arguments):
                # Behind the name, which may hold anything: the state and the parent.
                parent = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
                if b"serve" in _arguments(proc / str(parent)):
                    return parent
    return None


def _is_local(host: str) -> bool:
    """Whether an address of this name is one of this machine's."""
    try:
        family, kind, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with closing(socket.socket(family, kind)) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _listening(proc: Path) -> Iterator[tuple[int, str]]:
    """Ports on which this machine listens, with the name that the socket has among a process's files."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                columns = line.split()
                if columns[_STATE] == _LISTENS:
                    yield int(columns[_PORT].rpartition(":")[2], 16), f"socket:[{columns[_INODE]}]"


def _processes(proc: Path) -> Iterator[tuple[int, list[bytes]]]:
    with suppress(OSError):  # no Linux
        for folder in proc.iterdir():
            if folder.name.isdecimal():
                with suppress(OSError):
                    yield int(folder.name), _arguments(folder)


def _arguments(folder: Path) -> list[bytes]:
    return (folder / "cmdline").read_bytes().split(b"\0")
