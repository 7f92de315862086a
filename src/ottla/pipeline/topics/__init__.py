"""Topics as DataFrames: `format("ottla")`, with the options and the schema of Spark's Kafka connector.

Reading: `options` and `offsets` say what is wanted, `source` (and `stream_driver`, for streams)
decide on the driver what a batch is, `planning` cuts it into tasks, and in each task `fetching` and
`arrow_records` turn fetched bytes into Arrow columns. Writing: `sink` on the driver; `writing`,
`row_batches` and `arrow_encoding` in the tasks. Workers import nothing of this package that they do not need.
"""
