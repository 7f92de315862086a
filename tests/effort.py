"""How hard randomised tests try: a little in `make test`, much in `make test-slow`.

A property is worth a few dozen examples on every run; the many that find what is rare run now and then. The
environment variable OTTLA_TEST_EFFORT=thorough chooses the many.
"""

from __future__ import annotations

import os

THOROUGH = os.environ.get("OTTLA_TEST_EFFORT") == "thorough"


def examples(quick: int, thorough: int) -> int:
    """How many examples to try."""
    return thorough if THOROUGH else quick
