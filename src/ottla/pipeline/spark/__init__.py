"""Spark itself: which Java runs it, and the one place where a session is started.

`session` is the launcher; `java` finds a runtime or takes the one from the wheel; `archive` keeps the
classes of Spark ready for a fast start (`training` says which); `connector_jars` is for those who want
Spark's own connector.
"""
