"""All attacks: importing this module imports every `*_attacks.py` of this folder, which declares them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from attacks.attack import ATTACKS

__all__ = ["ATTACKS"]

for _path in sorted(Path(__file__).parent.glob("*_attacks.py")):
    if not _path.name.startswith("test_"):
        import_module(f"attacks.{_path.stem}")
