"""The transaction coordinator, of `__transaction_state`.

transaction.py    what is known about a transactional id
transitions.py    the rules: from one state of it to the next, or an error
records.py        the records of `__transaction_state`, in Kafka's own format
shard.py          all transactional ids of one partition of the topic: the commands behind the requests
endings.py        what follows a decision: markers, completion
coordinator.py    finds the shard of a transactional id, and does what is due without a request

Who tells the leaders of the partitions how a transaction ended is the broker's business
(`broker/transaction_markers.py`).
"""
