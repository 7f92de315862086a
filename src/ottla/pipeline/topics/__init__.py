"""Topics as DataFrames: `format("ottla")`, with the options and the schema of Spark's Kafka connector.

Reading: `options` and `offsets` say what is wanted, `stream` and `stream_driver` (or `reader`, for batches)
decide on the driver what a batch is, `planning` cuts it into tasks, and in each task `fetching` and
`arrow_records` turn fetched bytes into Arrow columns. Writing: `sink` on the driver; `writing`,
`row_batches` and `arrow_encoding` in the tasks. Workers import nothing of this package that they do not need.
"""
