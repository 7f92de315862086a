"""When a member of the consumer protocol has to send its next heartbeat.

A member learns about a change only at a heartbeat. With one every five seconds, Kafka's default, a group
takes ten seconds to form and five to include a new member. With ten heartbeats a second, idle groups would
keep a broker busy. So the broker, which decides in each response, asks for

- short intervals while the group rebalances: a tenth of a second, more in large groups, and more the longer
  the rebalance takes, since then a member is slow or gone and more heartbeats do not help;
- longer ones when the group is stable: half a second, more when the broker has many members.

The interval is never longer than the configured one. The measurements are in docs/decisions.
"""

from __future__ import annotations

REBALANCING_MS = 100
STABLE_MS = 500

GROUP_HEARTBEATS_PER_SECOND = 200
"""From one group that rebalances."""
BROKER_HEARTBEATS_PER_SECOND = 250
"""From all groups, when all are stable."""


def heartbeat_interval_ms(
    *, configured_ms: int, members: int, members_in_all_groups: int, rebalancing_ms: int | None
) -> int:
    """`rebalancing_ms` is how long the group has been rebalancing, None if it is stable."""
    stable = max(STABLE_MS, members_in_all_groups * 1000 // BROKER_HEARTBEATS_PER_SECOND)
    if rebalancing_ms is None:
        return min(stable, configured_ms)
    interval = max(
        REBALANCING_MS, members * 1000 // GROUP_HEARTBEATS_PER_SECOND, min(rebalancing_ms // 10, stable)
    )
    return min(interval, configured_ms)
