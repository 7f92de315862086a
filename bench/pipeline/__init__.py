"""`make bench-pipeline`: the Spark source, sink and pipelines beside Spark's own Kafka connector."""
