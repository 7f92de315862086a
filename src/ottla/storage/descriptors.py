"""How the descriptors of a process are shared out: one half for log files, the other for clients.

Both sides keep to their half, so that no crowd of clients can keep the log from opening its files, and no
number of partitions can keep clients out. What is neither (the registry, the listener, a folder that is
being synced) has some set aside.
"""

from __future__ import annotations

import resource

_SET_ASIDE = 64
_MOST_FILES = 32_768


def raise_limit() -> None:
    """Take as many descriptors as the system lets this process have without asking anybody (`ulimit -Hn`)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors_for_files() -> int:
    return max(min(_allowed() // 2, _MOST_FILES), 64)


def descriptors_for_clients() -> int:
    return max(_allowed() - descriptors_for_files() - _SET_ASIDE, 16)


def _allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else soft
