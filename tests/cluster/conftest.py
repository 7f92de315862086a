"""Tests with several brokers run as coroutines on one event loop."""

from __future__ import annotations

import asyncio
import inspect

import pytest

DEADLINE_SECONDS = 200


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), DEADLINE_SECONDS))
    return True
