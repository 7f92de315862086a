"""When a member of the consumer protocol shall send its next heartbeat.

A member can only learn at a heartbeat that something changed. Sent every five seconds, as Kafka has it, a
group takes ten seconds to form and five to take in a newcomer. Sent every tenth of a second, idle groups
would keep a broker busy. So the broker, which decides in each answer, says

- soon while the group is under way: a tenth of a second, longer in large groups, and longer the longer it
  takes, since then somebody is slow to answer or gone and asking more often does not help;
- later when the group is stable: half a second, longer when the broker has many members to listen to.

Nobody waits longer than is configured. See docs/decisions for what was measured.
"""

from __future__ import annotations

SOON_MS = 100
LATER_MS = 500

GROUP_HEARTBEATS_PER_SECOND = 200
"""From one group that is under way."""
BROKER_HEARTBEATS_PER_SECOND = 250
"""From all groups, when all are stable."""


def heartbeat_interval_ms(
    *, configured_ms: int, members: int, members_in_all_groups: int, under_way_ms: int | None
) -> int:
    """`under_way_ms` is how long the group has been rebalancing, None if it is stable."""
    later = max(LATER_MS, members_in_all_groups * 1000 // BROKER_HEARTBEATS_PER_SECOND)
    if under_way_ms is None:
        return min(later, configured_ms)
    soon = max(SOON_MS, members * 1000 // GROUP_HEARTBEATS_PER_SECOND, min(under_way_ms // 10, later))
    return min(soon, configured_ms)
