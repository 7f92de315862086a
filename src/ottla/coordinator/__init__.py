"""Consumer groups: pure state machines that live in a compacted, replicated topic and recover by replay.

records.py        what is written to `__consumer_offsets`, in Kafka's own format
effects.py        what a command may ask of the world: write, answer, wait
runtime.py        one shard per partition led here: append, replay, hold answers, timers, loading
group.py          what the kinds of groups have in common
classic_group.py  the classic protocol: join, sync, heartbeat, leave
classic_member.py a member of a classic group, and how a group agrees on a protocol
offsets.py        committed offsets
journal.py        why groups rebalanced, and what moved
groups.py         classic groups and offsets of one shard: the commands behind the requests

The consumer protocol (KIP-848):

consumer_group.py     a group at work: what happens at a heartbeat
consumer_state.py     what a group is: members, epochs, target, owners, and how it lies in the log
consumer_member.py    a member: what it wants, and what it has
assignors.py          who shall read what: uniform and range
reconciliation.py     how a member comes from what it has to what it shall have
heartbeat_pace.py     when a member shall send its next heartbeat
regex_subscriptions.py, re2_syntax.py  topics by regular expression, in linear time
migration.py          a group changes its protocol while it runs
all_groups.py         all groups of one shard, of both protocols
"""
