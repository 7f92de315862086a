"""Where the pipeline keeps what can be made again: the class-data archive and jars that Maven resolved.

`OTTLA_CACHE` names another folder. Everything in it may be removed at any time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder(*parts: str) -> Path:
    """The folder of this name in the user's cache; it need not exist yet."""
    named = os.environ.get("OTTLA_CACHE")
    if named:
        return Path(named, *parts)
    if sys.platform == "darwin":
        return Path.home().joinpath("Library", "Caches", "ottla", *parts)
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache").joinpath("ottla", *parts)
