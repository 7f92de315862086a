"""Reports code that nothing uses: `python scripts/dead_code.py`, a part of `make check`.

vulture finds names that are defined and never mentioned again, in the sources, tests, benchmarks and scripts
together. Left out are names that are called from elsewhere by their form (tests, fixtures, commands), the
declarations of messages and error codes, and the names in `ALLOWED`. A name there that is used again, or
gone, is reported too, so that the list stays short.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).parents[1]
FOLDERS = ("src/ottla", "src/pyspark_ottla", "tests", "bench", "scripts")
DECLARATIONS = ("src/ottla/protocol/messages/", "src/ottla/protocol/errors.py")

NAMES = ["test_*", "pytest_*", "pytestmark", "__test__", "_value_"]
DECORATORS = [
    "@pytest.fixture*",
    "@*.command*",
    "@*.callback*",
    "@attack*",
    "@scenario*",
    "@rule*",
    "@invariant*",
    "@initialize*",
]

ALLOWED = {
    # Called by the standard library, pytest, asyncio or the selector protocol.
    "formatStack", "teardown", "daemon_threads", "gettimeout", "modify", "get_map",
    "_run_once", "_timer_handle_cancelled", "_log_destroy_pending", "__dir__", "do_GET", "log_message",
    # Called by Spark and pyarrow.
    "streamReader", "streamWriter", "latestOffset", "reportLatestOffset", "getDefaultReadLimit",
    "prepareForTriggerAvailableNow", "onQueryStarted", "onQueryProgress", "onQueryIdle", "onQueryTerminated",
    "metadataOpsTimeNs", "isTimeTravel", "hashCode", "implements",
    "handleInputRows", "get_type_name", "normalize_path", "get_file_info_selector",
    "delete_root_dir_contents", "open_append_stream",
    # Called by Kafka clients.
    "on_partitions_revoked", "on_partitions_assigned", "on_commit",
    # A kind of field that Kafka's schemas have and our messages do not need yet.
    # Members of enumerations that come from text, and of tuples of Kafka's constants.
    "uncommitted", "HIGH", "LOW", "EARLIEST_PENDING", "BROKER_LOGGER",
    # Fixtures that a test takes for their effect.
    "never_read_again", "always_read_again",
    # A type for the checker, a field of a stored record, a task that must not be collected.
    "_Handle", "partition_metadata", "_committing",
    # For users of the simulator.
    "is_up",
    # Set and not read; goes with the next change of the pipeline's supervision.
    "spark_gone",
}  # fmt: skip


def main() -> int:
    finder = Vulture(ignore_names=NAMES, ignore_decorators=DECORATORS)
    finder.scavenge([str(ROOT / folder) for folder in FOLDERS])
    declared: set[str] = set()
    found: list[tuple[str, str, str]] = []
    for item in finder.get_unused_code(min_confidence=60):
        path = str(Path(item.filename).relative_to(ROOT))
        if path.startswith(DECLARATIONS) and item.typ == "variable":
            continue
        found.append((f"{path}:{item.first_lineno}", item.typ, str(item.name)))
    for source in (ROOT / "src/ottla/protocol/messages").glob("*.py"):
        declared.update(re.findall(r"^    (\w+): ", source.read_text(), re.MULTILINE))
    dead = [
        (place, kind, name)
        for place, kind, name in found
        if name not in ALLOWED and not (kind == "attribute" and name in declared)
    ]
    for place, kind, name in dead:
        print(f"{place}: {kind} {name} is not used")
    stale = sorted(ALLOWED - {name for _, _, name in found})
    for name in stale:
        print(f"scripts/dead_code.py: {name} is used or gone; take it out of ALLOWED")
    return 1 if dead or stale else 0


if __name__ == "__main__":
    sys.exit(main())
