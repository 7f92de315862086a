"""One partition's log as files, in Kafka's own formats.

`log_directory` opens a data folder and hands out `log`s. A log is a row of `segment`s, each with an
`offset_index` and a `time_index`. Appends pass `validation` and `producer_state`; `leader_epochs` keeps the
history of leaders. `recovery` opens what a crash left, `retention` decides what may go, `inspect` shows what
is in the files. All of it reaches the disk through the port in `files`.
"""
