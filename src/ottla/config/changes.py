"""What a resource's dynamic configuration becomes when a client changes it: functions from text to text.

AlterConfigs gives the whole new configuration. IncrementalAlterConfigs gives operations on single keys: set
one, delete it (back to the default), append to a list what it does not hold yet, subtract from a list what it
holds. A list that was not set starts from its default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum

from ottla.config.keys import ConfigKey, Type, parse
from ottla.protocol.errors import ApiError, ErrorCode


class Operation(IntEnum):
    """What to do with a key, numbered as in IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


Step = tuple[str, int, str | None]
"""(key, operation, value)"""


def replacement(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """The configuration that AlterConfigs asks for; `ApiError` when a key comes twice or has no value."""
    pairs = list(pairs)
    check_no_twice(name for name, _ in pairs)
    return {name: _required(name, value) for name, value in pairs}


def edited(
    present: Mapping[str, str],
    steps: Iterable[Step],
    keys: Mapping[str, ConfigKey],
    default_of: Callable[[str], list[str]],
) -> dict[str, str]:
    """The configuration after the steps of IncrementalAlterConfigs; `ApiError` when a step makes no sense."""
    steps = list(steps)
    check_no_twice(name for name, _, _ in steps)
    new = dict(present)
    for name, operation, value in steps:
        if operation == Operation.DELETE:
            new.pop(name, None)
            continue
        text = _required(name, value)
        if operation == Operation.SET:
            new[name] = text
            continue
        if operation not in (Operation.APPEND, Operation.SUBTRACT):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: there is no operation {operation}")
        if name not in keys or keys[name].type is not Type.LIST:
            verb = "append to" if operation == Operation.APPEND else "subtract from"
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{name}: cannot {verb} what is not a list")
        items = parse(Type.LIST, new[name]) if name in new else list(default_of(name))
        for item in parse(Type.LIST, text):
            if operation == Operation.APPEND and item not in items:
                items.append(item)
            elif operation == Operation.SUBTRACT and item in items:
                items.remove(item)
        new[name] = ",".join(items)
    return new


def difference(present: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str | None]:
    """What to write to get from one to the other: None for keys that are gone."""
    changed: dict[str, str | None] = {name: None for name in present if name not in new}
    changed.update({name: text for name, text in new.items() if present.get(name) != text})
    return changed


def check_no_twice(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} is named twice")
        seen.add(name)


def _required(name: str, value: str | None) -> str:
    if value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: the value must not be null")
    return value
