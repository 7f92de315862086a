"""What clients were told in a run, and whether it can be true.

Clients note every answer here as it comes. What can be judged at once is judged at once, the rest when the
whole log has been read at the end. A `Violation` says which promise was broken, by which record.

The promises, for one broker:

* an acknowledged record stays in the log at its offset over kill -9, and over a loss of power too if its
  topic is flushed before the answer (`flushed`); in other topics a loss of power may take back what was
  acknowledged before it, and nothing that comes after;
* a record of an idempotent producer is in its log once at most, and a producer's records keep their order;
* a consumer sees offsets in order, and never another record at an offset than the log holds in the end;
* two members of a group never own one partition in the same generation;
* a committed offset stays committed.

Groups live in a topic that is not flushed, so a loss of power may take them and their offsets back.
"""

from __future__ import annotations

from collections import defaultdict

Partition = tuple[str, int]


class Violation(AssertionError):
    """A promise was broken."""


class History:
    def __init__(self, flushed: frozenset[str]) -> None:
        self._flushed = flushed
        self._acknowledged: dict[Partition, dict[int, str]] = defaultdict(dict)
        self._seen: dict[Partition, dict[int, str]] = defaultdict(dict)
        self._sent: dict[str, list[str]] = defaultdict(list)  # by producer and partition
        self._owners: dict[tuple[str, int, Partition], str] = {}
        self._committed: dict[tuple[str, Partition], int] = {}
        self.acknowledged = 0
        self.read = 0
        self.commits = 0
        self.generations = 0

    # -- what clients note ----------------------------------------------------------------------------

    def send(self, producer: str, partition: Partition, record: str) -> None:
        self._sent[f"{producer} to {partition}"].append(record)

    def acknowledge(self, partition: Partition, offset: int, record: str) -> None:
        known = self._acknowledged[partition].get(offset, record)
        if known != record:
            raise Violation(f"{partition} offset {offset} was acknowledged for {known} and for {record}")
        self._acknowledged[partition][offset] = record
        self.acknowledged += 1

    def consume(self, partition: Partition, offset: int, record: str, after: int) -> None:
        if offset <= after:
            raise Violation(f"{partition}: offset {offset} came after {after}")
        for source in (self._acknowledged, self._seen):
            known = source[partition].get(offset, record)
            if known != record:
                raise Violation(f"{partition} offset {offset} holds {record}, where {known} was before")
        self._seen[partition][offset] = record
        self.read += 1

    def own(self, group: str, generation: int, member: str, partitions: list[Partition]) -> None:
        self.generations = max(self.generations, generation)
        for partition in partitions:
            owner = self._owners.setdefault((group, generation, partition), member)
            if owner != member:
                raise Violation(f"{group} generation {generation}: {partition} is {owner}'s and {member}'s")

    def commit(self, group: str, partition: Partition, offset: int) -> None:
        key = (group, partition)
        self._committed[key] = max(self._committed.get(key, -1), offset)
        self.commits += 1

    def lose_power(self) -> None:
        """What was acknowledged in topics that are not flushed, and committed, may be gone from now on."""
        for known in (self._acknowledged, self._seen):
            for partition in known:
                if partition[0] not in self._flushed:
                    known[partition].clear()
        self._committed.clear()
        self._owners.clear()  # a group that is gone begins with generation 1 again

    def delete_topic(self, topic: str) -> None:
        """Nothing of a deleted topic counts any more; another one may come under its name."""
        for known in (self._acknowledged, self._seen):
            for partition in [each for each in known if each[0] == topic]:
                del known[partition]

    # -- the end --------------------------------------------------------------------------------------

    def check_log(self, partition: Partition, log: dict[int, str]) -> None:
        """Judge by the whole log of a partition, as a consumer reads it at the end."""
        for kind, known in (("acknowledged", self._acknowledged), ("read", self._seen)):
            for offset, record in known[partition].items():
                if log.get(offset) != record:
                    raise Violation(
                        f"{partition} offset {offset}: {record} was {kind}, the log holds {log.get(offset)}"
                    )
        found = list(log.values())
        if len(set(found)) != len(found):
            twice = next(record for record in found if found.count(record) > 1)
            raise Violation(f"{partition} holds {twice} twice")
        places = {record: place for place, record in enumerate(found)}
        for producer, sent in self._sent.items():
            if producer.endswith(str(partition)):
                order = [places[record] for record in sent if record in places]
                if order != sorted(order):
                    raise Violation(f"the records of {producer} are out of order")

    def check_commit(self, group: str, partition: Partition, committed: int) -> None:
        expected = self._committed.get((group, partition), -1)
        if committed < expected:
            raise Violation(f"{group} {partition}: {expected} was committed, {committed} is there")
