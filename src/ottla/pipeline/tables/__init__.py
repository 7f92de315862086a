"""Tables that are made of a topic: the latest value per key, kept up to date while a stage runs.

`versions` decides what has to be read for a batch and keeps the notes about it; `merging` puts new records
and the files of the version before together; `relation` shows the files of the current version to Spark as a
table; `changelog` connects the three.
"""
