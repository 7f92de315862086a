"""What `ottla pipeline status` shows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ottla.cli.blocks import Block, Table, View
from ottla.cli.moments import time_text
from ottla.cli.output import Column
from ottla.pipeline.running.display import count_text, span_text
from ottla.pipeline.running.status import StageStatus, look

if TYPE_CHECKING:
    from ottla.pipeline.checkpoints import Checkpoints
    from ottla.pipeline.running.loading import Pipeline
    from ottla.protocol_client.wire import Wire


def status_view(pipeline: Pipeline, checkpoints: Checkpoints, wire: Wire) -> View:
    found = look(pipeline, checkpoints, wire)
    document = {
        "pipeline": pipeline.name,
        "checkpoints": checkpoints.root,
        "stages": [each.document() for each in found.stages],
        "broker_problem": found.broker_problem,
    }
    columns = [
        Column("stage", style="bold"),
        Column("status"),
        Column("batch", number=True),
        Column("rows", number=True),
        Column("took", number=True),
        Column("ago", number=True),
        Column("lag", number=True),
        Column("behind", number=True),
        Column("state", number=True),
        Column("bad", number=True),
        Column("late", number=True),
        Column("restarts", number=True),
    ]
    blocks: list[Block] = [Table(columns, [_row(each) for each in found.stages])]
    errors = [
        f"{each.stage}: {_when(each.error_at)}{each.error}" for each in found.stages if each.error is not None
    ]
    if errors:
        blocks.append("Last errors\n" + "\n".join(f"  {line}" for line in errors))
    offsets = [
        [
            each.stage,
            row["topic"],
            str(row["partition"]),
            "-" if row["offset"] is None else str(row["offset"]),
            "-" if row["group_offset"] is None else str(row["group_offset"]),
        ]
        for each in found.stages
        for row in each.partitions
    ]
    if offsets:
        titles = (("stage", False), ("topic", False), ("partition", True), ("next", True), ("group", True))
        blocks.append(Table([Column(title, number) for title, number in titles], offsets))
    if found.broker_problem:
        blocks.append(f"The lag is not known: {found.broker_problem}")
    return View(document, blocks)


def _row(stage: StageStatus) -> list[str]:
    phase = stage.phase
    if stage.pid is not None:
        phase += f" (process {stage.pid})"
    if stage.note:
        phase += f": {stage.note}"
    return [
        stage.stage,
        phase,
        count_text(stage.batch),
        count_text(stage.batch_rows),
        span_text(stage.batch_seconds),
        span_text(None if stage.batch_at is None else max(time.time() - stage.batch_at, 0)),
        count_text(stage.lag_records),
        span_text(stage.lag_seconds),
        count_text(stage.state_rows),
        count_text(stage.bad or None),
        count_text(stage.late or None),
        str(stage.restarts) if stage.restarts else "-",
    ]


def _when(seconds: float | None) -> str:
    return "" if seconds is None else time_text(int(seconds * 1000), zone=False).partition(".")[0] + " "
