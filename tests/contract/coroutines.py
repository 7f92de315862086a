"""Lets a test be a coroutine: a `conftest` that imports `pytest_pyfunc_call` from here runs them."""

from __future__ import annotations

import asyncio
import inspect

import pytest

DEADLINE_SECONDS = 30


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs coroutine tests, each on a loop of its own and within a deadline."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), DEADLINE_SECONDS))
    return True
