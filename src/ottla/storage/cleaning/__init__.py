"""Compaction: keeping the latest record of each key, and no more, in the closed segments of a log.

* `decisions`: which log, which segments, which groups. Pure.
* `rules`: which batches are kept whole, opened or dropped: the seat for transactions. Pure.
* `key_map` and `record_loops`: the latest offset of each key in a bounded table, and the loops over records.
* `rewrite`: one batch with some of its records.
* `job`: a whole pass over a log, from its closed segments to `.cleaned` files. `worker` runs it elsewhere.
* `swap`: from `.cleaned` files to the log's own segments, safe at every step.
* `state`: what is known of each log's cleaning, for the choice of the next one and for people.
"""
