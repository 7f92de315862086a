"""Log levels that can be read and changed while the broker runs, under the names that Kafka's tools use.

The loggers are those of Python's logging; `root` is the one above all others. A level that is taken back
makes a logger follow the one above it again.
"""

from __future__ import annotations

import logging

from ottla.protocol.errors import ApiError, ErrorCode

ROOT = "root"
_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def log_levels() -> dict[str, str]:
    """Every logger there is, with the level in force for it."""
    found = {ROOT: _name(logging.getLogger().getEffectiveLevel())}
    for name, logger in sorted(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            found[name] = _name(logger.getEffectiveLevel())
    return found


def check_log_level(name: str, level: str | None) -> None:
    """Raise `ApiError` unless the logger exists and can have that level; None takes its level back."""
    if name != ROOT and not isinstance(logging.root.manager.loggerDict.get(name), logging.Logger):
        raise ApiError(ErrorCode.INVALID_CONFIG, f"there is no logger {name}")
    if level is None and name == ROOT:
        raise ApiError(ErrorCode.INVALID_REQUEST, "the root logger must have a level")
    if level is not None and level.upper() not in _LEVELS:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{name}: must be one of {', '.join(_LEVELS)} (got {level})")


def set_log_level(name: str, level: str | None) -> None:
    """Change a level that `check_log_level` has let through."""
    logger = logging.getLogger(None if name == ROOT else name)
    logger.setLevel(logging.NOTSET if level is None else _LEVELS[level.upper()])


def _name(level: int) -> str:
    """The name of the highest of Kafka's levels that is not above `level`."""
    return max((number, name) for name, number in _LEVELS.items() if number <= max(level, 5))[1]
