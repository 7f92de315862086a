"""The benchmark: Ottla beside Apache Kafka, same machine, same clients, one run. See docs/benchmarks.md."""
