"""`make demo`: broker, feeds, the news pipeline and a report, in .demo/ of this clone.

The demo itself ships with the package (`python -m ottla.examples.news demo`); docs/news.md tells it all.
`scripts/quickstart.py` shows the broker alone, with an unmodified Kafka client.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ottla.examples.news.__main__ import app

if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent.parent)
    app(["demo", ".demo", *sys.argv[1:]])
