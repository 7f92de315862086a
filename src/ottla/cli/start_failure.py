"""What a person reads when `ottla serve` cannot start a broker: what is wrong, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.failure import Failure

if TYPE_CHECKING:
    from ottla.broker.sockets import CannotListen
    from ottla.cluster.registry import RegistryError
    from ottla.config.registry_url import RegistryUrl
    from ottla.config.values import BrokerConfig

OTHER_FOLDER = "Give another one with --data DIR."


def start_failure(error: Exception, config: BrokerConfig, folder: Path) -> Failure | None:
    """What a person should read when the broker does not start."""
    from ottla.broker.data_folder import WrongFolder
    from ottla.broker.sockets import CannotListen
    from ottla.cluster.registration import BrokerIdInUse
    from ottla.cluster.registry import RegistryError
    from ottla.storage.log_directory import DirectoryInUse

    if isinstance(error, DirectoryInUse):
        return Failure(str(error).split(";")[0], "Stop that one, or give another folder with --data DIR.")
    if isinstance(error, WrongFolder):
        return Failure(str(error))
    if isinstance(error, BrokerIdInUse):
        return Failure(str(error), "Give this one another id with --node-id N.")
    if isinstance(error, RegistryError):
        return registry_failure(error, config.registry)
    if isinstance(error, CannotListen):
        return _listen_failure(error)
    if not isinstance(error, OSError):
        return None
    return Failure(f"cannot use the data folder {folder}: {error.strerror or error}", OTHER_FOLDER)


def registry_failure(error: RegistryError, url: RegistryUrl) -> Failure:
    """What a person should read when a registry cannot be used."""
    from ottla.cluster.registry_backends import BackendMissing
    from ottla.config.registry_url import ZOOKEEPER

    if isinstance(error, BackendMissing):
        return Failure(str(error), "Install it with: pip install 'ottla[zookeeper]'")
    if url.kind == ZOOKEEPER:
        return Failure(
            f"cannot use the registry {url}: {error}",
            "Does ZooKeeper run there, and can this machine reach it? --registry gives another address.",
        )
    return _sqlite_failure(error, Path(url.place))


def _sqlite_failure(error: RegistryError, file: Path) -> Failure:
    import sqlite3

    from ottla.cluster.registry import Damaged

    if isinstance(error, Damaged):
        return Failure(
            f"the registry {file}, which knows the topics, is damaged: {_reason(error, file)}",
            "Put back a copy of it, or try `sqlite3 registry.sqlite .recover` on a copy. "
            "Records are in other files; do not delete them.",
        )
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, sqlite3.Error):
        cause = cause.__cause__
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    advice = {
        sqlite3.SQLITE_FULL: "Free some space on the disk.",
        sqlite3.SQLITE_IOERR: "Is the disk full, or failing?",
        sqlite3.SQLITE_READONLY: "May this user write to it?",
        sqlite3.SQLITE_CANTOPEN: "May this user read and write it?",
        sqlite3.SQLITE_PERM: "May this user read and write it?",
        sqlite3.SQLITE_BUSY: "Another process holds it. Which one, says `fuser` or `lsof`.",
    }
    return Failure(f"cannot use the registry {file}: {_reason(error, file)}", advice.get(code, ""))


def _reason(error: Exception, file: Path) -> str:
    return str(error).removeprefix(f"the registry at {file}: ")


def _listen_failure(error: CannotListen) -> Failure:
    import errno
    import ipaddress
    import socket

    host, port = error.host, error.port
    what = f"cannot listen on {f'[{host}]' if ':' in host else host}:{port}"
    if isinstance(error.__cause__, socket.gaierror):
        return Failure(f"{what}: no such host{' or network interface' if '%' in host else ''}")
    if error.errno == errno.EADDRINUSE:
        return Failure(
            f"{what}: the port is in use", "Is a broker running already? --listen HOST:0 picks a free port."
        )
    if error.errno == errno.EINVAL and ":" in host and ipaddress.ip_address(host).is_link_local:
        return Failure(
            f"{what}: a link-local address needs its network interface",
            f"Write it behind the address, for example [{host}%eth0]:{port}.",
        )
    return Failure(f"{what}: {(error.strerror or str(error)).lower()}")
