"""Runs the state machines of any coordinator over the partitions of its topic that this broker leads.

effects.py   what a command wants to happen: records, answers, timers
state.py     what a coordinator must provide: its state machine and the codec of its records
shard.py     one partition led here: runs commands, appends records, sends answers when they are committed
timers.py    the timers of a shard
loading.py   reads the log of a shard and replays it
runtime.py   starts, loads, retries and ends shards as leadership changes

Nothing here knows about groups. The group coordinator runs on it, and the transaction coordinator can.
"""
