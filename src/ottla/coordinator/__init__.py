"""Coordinators: pure state machines that live in a compacted, replicated topic and recover by replay.

runtime/          runs any coordinator: commands, append, replay, answers, timers, loading
partitioning.py   which partition of the topic a key belongs to

transactions/     the transaction coordinator, of `__transaction_state`

The group coordinator, of `__consumer_offsets`:

group_coordinator.py  finds the shard of a group, and does what is due without a request
group_shard.py        all groups and offsets of one shard: the commands behind the requests
records.py            the records of `__consumer_offsets`, in Kafka's own format
group.py              what the two kinds of groups have in common
group_effects.py      what a command wants to happen, beyond what every coordinator has
group_environment.py  what groups need to know about their broker
offsets.py            committed offsets, and those of open transactions
rebalance_history.py  why groups rebalanced, and which partitions moved
member_memory.py      the memory that groups and members use
migration.py          a group changes its protocol while it runs

Classic groups:

classic_group.py      the group: rebalance, sync, heartbeat, leave, timers
classic_phases.py     its phases and timers
classic_join.py       the rules of a JoinGroup
classic_members.py    its members, and how they agree on a protocol

Groups of the consumer protocol (KIP-848):

consumer_group.py     the group: epochs, target, removal of members, timers
consumer_state.py     what the log says about it
consumer_heartbeat.py the rules of a ConsumerGroupHeartbeat
consumer_classic_members.py  members that still use the classic protocol
consumer_member.py    a member: its subscription and its partitions
assignors.py          the assignors: uniform and range
reconciliation.py     how a member gets from its present assignment to its target
heartbeat_interval.py when a member has to send its next heartbeat
regex_subscriptions.py, re2_syntax.py, topic_matches.py  topics by regular expression, in linear time
"""
