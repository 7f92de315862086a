"""Calls of the operating system that Python does not offer: found at the first use, by the C library."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from functools import cache
from typing import Any, cast

KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_SYNCFS_SINCE = (5, 8)


def _function(*names: str) -> Any:
    """The first of these that the C library has, made to raise OSError. ENOSYS when it has none."""
    import ctypes

    def check(result: int, *_: object) -> None:
        if result != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    library = ctypes.CDLL(None, use_errno=True)
    for name in names:
        function = getattr(library, name, None)
        if function is not None:
            function.restype = check
            return function
    raise OSError(errno.ENOSYS, f"no {names[-1]} here")


@cache
def fallocate() -> Callable[[int, int, int, int], None]:
    """fallocate(2) of Linux, which Python offers only in a form that makes the file longer."""
    from ctypes import c_int, c_int64

    # On machines of 32 bits only the first takes positions of 64, where there is one.
    function = _function("fallocate64", "fallocate")
    function.argtypes = [c_int, c_int, c_int64, c_int64]
    return cast("Callable[[int, int, int, int], None]", function)


@cache
def syncfs() -> Callable[[int], None]:
    """syncfs(2) of Linux. Before version 5.8 it kept silent about bytes that could not be written."""
    from ctypes import c_int

    system = os.uname()
    version = tuple(int(part) for part in re.findall(r"\d+", system.release)[:2])
    if system.sysname != "Linux" or version < _SYNCFS_SINCE:
        raise OSError(errno.ENOSYS, "no syncfs here that reports failures")
    function = _function("syncfs")
    function.argtypes = [c_int]
    return cast("Callable[[int], None]", function)
