"""Tests of the cluster package may be coroutines."""

from __future__ import annotations

from contract.coroutines import pytest_pyfunc_call as pytest_pyfunc_call
