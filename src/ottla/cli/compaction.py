"""What `ottla topic describe` shows of compaction, and `ottla topic compact`."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ottla.cli.failure import Failure
from ottla.cli.output import Column, count_text, print_json, print_table, seconds_text, size_text, write

if TYPE_CHECKING:
    from ottla.protocol.messages.log_state import LogStatePartition
    from ottla.protocol.messages.metadata import MetadataResponseTopic
    from ottla.protocol_client.log_state import LogStates
    from ottla.protocol_client.wire import Wire

_POLL_SECONDS = 0.1


def state_document(state: LogStatePartition | None) -> dict[str, Any]:
    """What a partition's log adds to its JSON; nothing when the broker does not report it."""
    if state is None:
        return {}
    document: dict[str, Any] = {"segments": state.segments}
    if state.is_compacted:
        last = None
        if state.last_finished_ms >= 0:
            last = {
                "finished": _time_text(state.last_finished_ms),
                "seconds": round(state.last_seconds, 3),
                "bytes_before": state.last_bytes_before,
                "bytes_after": state.last_bytes_after,
            }
        document["compaction"] = {
            "dirty_ratio": round(_ratio(state), 4),
            "clean_bytes": state.clean_bytes,
            "dirty_bytes": state.dirty_bytes,
            "first_dirty_offset": state.first_dirty_offset,
            "running": state.is_running,
            "last": last,
            "uncleanable": state.uncleanable,
        }
    return document


def print_states(states: LogStates) -> None:
    """The table of compaction, for a topic that is compacted, and a warning when producers are refused."""
    compacted = [state for _, state in sorted(states.partitions.items()) if state.is_compacted]
    if compacted:
        write("\n")
        titles = ("partition", "dirty", "clean", "ratio", "last compaction", "took", "before", "after")
        print_table(
            [Column(title, number=title != "last compaction") for title in titles] + [Column("state")],
            [_row(state) for state in compacted],
        )
    for node, free, kept_back in states.refusing:
        write(
            f"\nBroker {node} takes no records: {size_text(free)} are free on its disk, and "
            f"{size_text(kept_back)} are kept back (log.dir.min.free.bytes).\n"
        )


def _row(state: LogStatePartition) -> list[str]:
    done = state.last_finished_ms >= 0
    return [
        str(state.partition_index),
        size_text(state.dirty_bytes),
        size_text(state.clean_bytes),
        f"{_ratio(state):.0%}",
        _time_text(state.last_finished_ms) if done else "not since the start",
        seconds_text(state.last_seconds) if done else "-",
        size_text(state.last_bytes_before) if done else "-",
        size_text(state.last_bytes_after) if done else "-",
        _state_text(state),
    ]


def _state_text(state: LogStatePartition) -> str:
    if state.uncleanable:
        return f"uncleanable: {state.uncleanable}"
    if state.is_running:
        return f"running, {_share(state):.0%}"
    return "waiting" if state.is_asked_for else "idle"


def _ratio(state: LogStatePartition) -> float:
    total = state.clean_bytes + state.dirty_bytes
    return state.dirty_bytes / total if total else 0.0


def _share(state: LogStatePartition) -> float:
    return state.bytes_read / state.bytes_to_read if state.bytes_to_read else 0.0


def _time_text(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def compact_now(wire: Wire, topic: MetadataResponseTopic, *, wait: bool, as_json: bool) -> None:
    """Order the compaction, and show how it goes until it is done."""
    from ottla.protocol_client.log_state import compact_logs, is_busy, log_states
    from ottla.protocol_client.wire import UnsupportedByBroker

    before = log_states(wire, topic).partitions
    try:
        compact_logs(wire, topic)
    except UnsupportedByBroker:
        raise Failure(
            "this broker does not compact topics on request: only Ottla's do",
            "Apache Kafka compacts by itself, when min.cleanable.dirty.ratio is reached.",
        ) from None
    if not wait:
        write(f"compacting {topic.name}; `ottla topic describe {topic.name}` shows how far it is\n")
        return
    states = before
    while is_busy((states := log_states(wire, topic).partitions).values()):
        _show_progress(list(states.values()))
        time.sleep(_POLL_SECONDS)
    _show_progress([])
    if as_json:
        rows = [{"partition": index, **state_document(state)} for index, state in sorted(states.items())]
        print_json({"name": topic.name, "partitions": rows})
    else:
        for index, state in sorted(states.items()):
            write(f"{topic.name}-{index}: {_outcome(before.get(index), state)}\n")
    failed = [state for state in states.values() if state.problem or state.uncleanable]
    if failed:
        raise Failure(
            f"{count_text(len(failed), 'partition')} could not be compacted: "
            f"{failed[0].uncleanable or failed[0].problem}"
        )


def _outcome(before: LogStatePartition | None, state: LogStatePartition) -> str:
    if state.uncleanable or state.problem:
        return f"not compacted: {state.uncleanable or state.problem}"
    if before is not None and state.passes == before.passes:
        return "nothing to compact"
    passes = state.passes - (before.passes if before else 0)
    several = f", {passes} passes" if passes > 1 else ""
    return (
        f"{size_text(state.last_bytes_before)} became {size_text(state.last_bytes_after)} "
        f"in {seconds_text(state.last_seconds)}{several}"
    )


def _show_progress(states: list[LogStatePartition]) -> None:
    if not sys.stderr.isatty():
        return
    busy = [state for state in states if state.is_running or state.is_asked_for]
    parts = [f"partition {state.partition_index}: {_state_text(state)}" for state in busy[:3]]
    line = "; ".join(parts) + (f"; {len(busy) - 3} more" if len(busy) > 3 else "")
    sys.stderr.write(f"\r\x1b[2K\x1b[2m{line}\x1b[0m" if line else "\r\x1b[2K")
    sys.stderr.flush()
