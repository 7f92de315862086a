"""Who uses transactions in the simulation: producers that send to and poll random keys, and group members
that transform what they read, with its offsets in the same transaction.

Each has a transactional id, and one instance after the other works with it. Sometimes an instance stalls in
the middle of a transaction, another takes its place, and then the first one goes on: a zombie.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from random import Random
from typing import Any

from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.produce import ProduceRequest
from simulation.clients import Caller, Member, Retry
from simulation.history import History as GroupHistory
from simulation.transactions_network import LateNetwork
from simulation.transactions_producer import Abortable, Fenced, TransactionalProducer
from simulation.transactions_readers import Reader, stable_offsets
from transaction_history.history import History, Key, Read, Source, Transaction

_TIMEOUTS_MS = (4000, 8000, 20_000)
_ABORTED_SHARE = 0.2
_ZOMBIE_SHARE = 0.12
_STALLED_SHARE = 0.2
_STALL_SECONDS = (0.5, 6.0, 15.0)
_MOST_TRANSACTIONS = 12


def any_request(request: Any) -> bool:
    return True


def harmless_when_late(request: Any) -> bool:
    """Which requests of the first protocol a network may deliver late and no harm is done.

    A late EndTxn can end the next transaction, and late offsets become part of it.
    """
    return isinstance(request, ProduceRequest | AddPartitionsToTxnRequest)


class Instances:
    """The instances of one transactional id, each with connections of its own."""

    def __init__(
        self,
        transactional_id: str,
        connect: Callable[[str], Caller],
        history: History,
        rng: Random,
        *,
        protocol: int,
        may_be_late: Callable[[Any], bool],
    ) -> None:
        self.id = transactional_id
        self.history = history
        self.rng = rng
        self._connect = connect
        self._protocol = protocol
        self._may_be_late = may_be_late
        self._numbers = itertools.count(1)
        self._values = itertools.count(1)
        self._networks: list[LateNetwork] = []
        self._zombies: set[asyncio.Task[None]] = set()

    async def start(self) -> TransactionalProducer:
        """A new instance, which fences those before it."""
        while True:
            name = f"{self.id}.{next(self._numbers)}"
            late = self._connect(f"{name} late")
            network = LateNetwork(self._connect(name), late, self.rng, self._may_be_late)
            self._networks.append(network)
            producer = TransactionalProducer(
                name,
                self.id,
                network,
                self.history,
                self.rng,
                protocol=self._protocol,
                timeout_ms=self.rng.choice(_TIMEOUTS_MS),
            )
            try:
                await producer.initialize()
            except Fenced:
                continue
            return producer

    def values(self, count: int) -> list[str]:
        return [f"{self.id}:{next(self._values)}" for _ in range(count)]

    def leave_behind(self, work: asyncio.Task[None]) -> None:
        """An instance that goes on while another one takes its place."""
        self._zombies.add(work)
        work.add_done_callback(self._zombies.discard)

    async def end(self) -> None:
        """Nothing of any instance is under way any more."""
        for network in self._networks:
            network.is_reliable = True
        while self._zombies:
            await asyncio.wait(set(self._zombies))
        for network in self._networks:
            await network.everything_arrived()

    @property
    def copies(self) -> int:
        return sum(network.copies for network in self._networks)

    def draw_stall(self) -> float:
        return self.rng.choice(_STALL_SECONDS) * self.rng.random()


class Writer:
    """Transactions that send to random keys, and poll others."""

    def __init__(self, instances: Instances, reader: Reader, keys: list[Key]) -> None:
        self._instances = instances
        self._reader = reader
        self._keys = keys
        self._rng = instances.rng

    async def run(self, pause: float) -> None:
        while True:
            producer = await self._instances.start()
            for _ in range(self._rng.randint(1, _MOST_TRANSACTIONS)):
                if self._rng.random() < _ZOMBIE_SHARE:
                    stall = self._rng.randrange(5), self._instances.draw_stall()
                    self._instances.leave_behind(asyncio.create_task(self._as_zombie(producer, stall)))
                    await asyncio.sleep(self._rng.random())
                    break
                try:
                    await self._transaction(producer)
                except Fenced:
                    break
                await asyncio.sleep(pause * self._rng.uniform(0.2, 1.5))

    async def _as_zombie(self, producer: TransactionalProducer, stall: tuple[int, float]) -> None:
        try:
            await self._transaction(producer, stall)
            await self._transaction(producer)
        except Fenced:
            return

    async def _transaction(
        self, producer: TransactionalProducer, stall: tuple[int, float] | None = None
    ) -> None:
        transaction = producer.begin()
        steps = self._rng.randint(1, 4)
        try:
            for step in range(steps + 1):
                if stall is not None and step == min(stall[0], steps):
                    await asyncio.sleep(stall[1])
                if step == steps:
                    break
                key = self._rng.choice(self._keys)
                if self._rng.random() < 0.2 and stall is None:
                    await self._poll(transaction, key)
                else:
                    values = self._instances.values(self._rng.randint(1, 3))
                    await producer.send(transaction, key, values)
        except Abortable:
            await producer.abort(transaction)
            return
        if self._rng.random() < _ABORTED_SHARE:
            await producer.abort(transaction)
        else:
            await producer.commit(transaction)

    async def _poll(self, transaction: Transaction, key: Key) -> None:
        transaction.reads += [Read(key, value) for _, value in await self._reader.poll(key)]


class Transformer(Member):
    """A member of a group that makes a record of each that it reads, exactly once."""

    def __init__(
        self,
        group: str,
        client: Caller,
        owners: GroupHistory,
        topic: str,
        partitions: int,
        *,
        instances: Instances,
        reader: Reader,
        outputs: list[Key],
    ) -> None:
        super().__init__(group, client, owners, topic, partitions)
        self._instances = instances
        self._reader = reader
        self._outputs = outputs
        self._producer: TransactionalProducer | None = None

    async def _work(self) -> None:
        await self._go_to_committed()
        while True:
            beat = HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self._id)
            self._check((await self._call(beat, 3)).error_code)
            if self._producer is None:
                self._producer = await self._instances.start()
                await self._go_to_committed()
            read = {}
            for key in self._keys:
                if records := await self._reader.poll(key):
                    read[key] = [offset for offset, _ in records]
            if read:
                await self._transform(self._producer, read)
            await asyncio.sleep(0.5)

    @property
    def _keys(self) -> list[Key]:
        return [(self._topic, n) for n in self._owned]

    async def _go_to_committed(self) -> None:
        found = await stable_offsets(self._client, self._group, self._keys, self._instances.history)
        self._reader.assign(found)

    async def _transform(self, producer: TransactionalProducer, read: dict[Key, list[int]]) -> None:
        """One transaction. If it is not committed, what was read is read again."""
        rng, member = self._instances.rng, (self._id, self._generation)
        transaction = producer.begin()
        positions = {key: self._reader.to_commit(key) for key in read}
        stall = self._instances.draw_stall() if rng.random() < _STALLED_SHARE else 0.0
        stall_at = rng.randrange(2)
        try:
            for key, offsets in read.items():
                sources = [Source(self._group, key, offset) for offset in offsets]
                values = self._instances.values(len(offsets))
                await producer.send(transaction, rng.choice(self._outputs), values, sources)
            for place in range(2):
                if stall and place == stall_at:
                    await asyncio.sleep(stall)
                if place == 0:
                    await producer.commit_offsets(transaction, self._group, member, positions)
            await producer.commit(transaction)
        except Abortable as reason:
            try:
                await producer.abort(transaction)
            except Fenced:
                self._producer = None
            raise Retry(str(reason)) from None  # whatever it is, the member joins again
        except Fenced as reason:
            self._producer = None
            raise Retry(str(reason)) from None
