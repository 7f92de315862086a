"""Configuration: one table of Kafka's keys, and the values of brokers, topics and groups that it makes.

`table` is the table, `values` reads and holds values, `validation` and `changes` serve clients that change
them, `describe` lists them, `docs` writes the page for people.
"""
