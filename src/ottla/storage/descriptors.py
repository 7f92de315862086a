"""How the descriptors of a process are shared out: one half for log files, the other for clients.

Both sides keep to their half, so that no number of clients can keep the log from opening its files, and no
number of partitions can keep clients out. What is neither (the registry, the listener, a folder that is
being synced) has some set aside. With fewer than `FEWEST` there is no way to share them out.
"""

from __future__ import annotations

import resource

_SET_ASIDE = 64
_MOST_FILES = 32_768
_FEWEST_FILES = 64
_FEWEST_CLIENTS = 16

FEWEST = 160
"""With so many, half are enough for files and, with those set aside, the rest for a few clients."""


class TooFewDescriptors(Exception):
    """The system does not let this process open as many files as a broker needs."""


def raise_limit() -> None:
    """Take as many descriptors as the system grants without privileges (`ulimit -Hn`)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_limit() -> None:
    """TooFewDescriptors when a broker cannot work within the limit of this process."""
    allowed = _allowed()
    if allowed < FEWEST:
        raise TooFewDescriptors(
            f"this process may open {allowed} files (ulimit -n), and a broker needs at least {FEWEST}"
        )


def descriptors_for_files() -> int:
    return max(min(_allowed() // 2, _MOST_FILES), _FEWEST_FILES)


def descriptors_for_clients() -> int:
    return max(_allowed() - descriptors_for_files() - _SET_ASIDE, _FEWEST_CLIENTS)


def _allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else soft
