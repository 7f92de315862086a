"""The steps of a move of a consumer group: found by asking the broker, and shown before they are done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.cli.failure import Failure
from ottla.cli.offset_plan import NothingToShift, Step, Target, plan_step
from ottla.cli.output import Column, print_table
from ottla.protocol_client.groups import Place, by_topic
from ottla.protocol_client.lag import ends
from ottla.protocol_client.offsets import list_offsets
from ottla.protocol_client.wire import Wire


def plan_steps(
    wire: Wire, target: Target, places: Iterable[Place], committed: Mapping[Place, int]
) -> list[Step]:
    """The step of each place. What has no leader now is left out."""
    held = ends(wire, places)
    at: dict[Place, int] = {}
    if target.moment is not None and target.moment >= 0:
        for topic, partitions in by_topic(held).items():
            found = list_offsets(wire, topic, dict.fromkeys(partitions, target.moment))
            at |= {(topic, partition): offset for partition, offset in found.items()}
    try:
        return [
            plan_step(target, *place, committed.get(place), held[place], at.get(place, -1))
            for place in sorted(held)
        ]
    except NothingToShift as error:
        raise Failure(str(error), "Give an offset, a time, earliest or latest.") from None


def print_steps(steps: Iterable[Step]) -> None:
    print_table(
        [
            Column("topic", style="bold"),
            Column("partition", number=True),
            Column("from", number=True),
            Column("to", number=True),
            Column("by", number=True),
            Column("note"),
        ],
        [
            [
                step.topic,
                str(step.partition),
                "-" if step.before is None else str(step.before),
                str(step.to),
                "-" if step.before is None else f"{step.to - step.before:+,}",
                step.note,
            ]
            for step in steps
        ],
    )


def step_document(step: Step) -> dict[str, Any]:
    return {
        "topic": step.topic,
        "partition": step.partition,
        "from": step.before,
        "to": step.to,
        "note": step.note or None,
    }
