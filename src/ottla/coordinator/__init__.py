"""Consumer groups: pure state machines that live in a compacted, replicated topic and recover by replay.

records.py        what is written to `__consumer_offsets`, in Kafka's own format
effects.py        what a command may ask of the world: write, answer, wait
runtime.py        one shard per partition led here: append, replay, hold answers, timers, loading
group.py          what the kinds of groups have in common
classic_group.py  the classic protocol: join, sync, heartbeat, leave
classic_member.py a member of a classic group, and how a group agrees on a protocol
offsets.py        committed offsets
journal.py        why groups rebalanced, and what moved
groups.py         all groups and offsets of one shard: the commands behind the requests
"""
