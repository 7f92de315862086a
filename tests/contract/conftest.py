"""The registry contract runs once for each back end."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.coroutines import pytest_pyfunc_call as pytest_pyfunc_call
from contract.places import PLACES, Place


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return PLACES[request.param](tmp_path)
