"""Batches of rows in a lake, each exactly once: Parquet files (`batches`) or a Delta table (`delta`).

`layout` says where files lie, `staging` and `files` write them unseen, `batches` makes them visible,
`compact` and `swaps` make few of many.
"""
