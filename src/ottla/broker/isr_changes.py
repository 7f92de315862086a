"""Bringing changes of in-sync sets (ISR) to the controller: AlterPartition, in batches.

Two things make a change due. A follower's fetch shows that it has caught up: the fetch handler says so
(`noted`). A follower lags for longer than `replica.lag.time.max.ms`: all partitions led here are looked at
twice within that time. What to ask for is decided by `ReplicaState`; from then on the proposal is under way,
and both sets count for the high watermark, until the controller has answered or the cluster image brings
another state.

One request is under way at a time. Changes that come meanwhile share the next one, so a broker that leads
thousands of partitions sends a few requests when a follower dies. A request whose outcome is not known is
sent again, after a pause: the partition epoch in it makes sure that it counts once. A proposal with a member
that the controller does not accept (yet) is over; nothing is proposed for that partition for a moment then,
so that the follower causes no storm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from ottla.broker.portions import in_portions
from ottla.clock import Clock
from ottla.cluster.image import ClusterImage
from ottla.protocol.errors import ApiError, ErrorCode, error_of
from ottla.protocol.messages.alter_partition import (
    AlteredPartition,
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
    BrokerState,
)
from ottla.replication.follower_progress import FollowerFetch
from ottla.replication.leading import forget_gone, isr_altered, isr_due, isr_refused
from ottla.replication.partition import Partition
from ottla.replication.replica_state import IsrProposal

logger = logging.getLogger("ottla.isr")

Alter = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]

_AT_A_TIME = 1000
"""Partitions in one request."""
_LOOKED_AT_A_TIME = 200
"""Partitions that are looked at in one iteration of the event loop."""
_RETRY_SECONDS = (0.05, 0.2, 0.5, 1.0)
_PAUSE_AFTER_REFUSAL = 1.0


class IsrChanges:
    """`image` is the cluster as this broker knows it, `max_lag_ms` `replica.lag.time.max.ms` of now."""

    def __init__(
        self,
        broker_id: int,
        partitions: Iterable[Partition],
        image: Callable[[], ClusterImage],
        max_lag_ms: Callable[[], int],
        alter: Alter,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._image = image
        self._max_lag_ms = max_lag_ms
        self._alter = alter
        self._clock = clock
        self._noted: dict[Partition, None] = {}
        self._under_way: dict[Partition, IsrProposal] = {}
        self._refused: dict[Partition, float] = {}
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._send_all(), name="isr-changes"),
            loop.create_task(self._check_all(), name="isr-lag"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    @property
    def max_lag_ms(self) -> int:
        return self._max_lag_ms()

    def fetch_of(self, broker_id: int, broker_epoch: int) -> FollowerFetch:
        """A fetch of a follower, now. ApiError when its broker has started again since."""
        node = self._image().brokers.get(broker_id)
        if node is not None and broker_epoch < node.epoch:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {broker_id} is registered with epoch {node.epoch}, not {broker_epoch}",
            )
        # With a newer epoch the image is behind: the fetch counts, but the follower may not join yet.
        may_join = (
            node is not None and not node.fenced and node.epoch == broker_epoch and not node.disk.impaired
        )
        now_ms = int(self._clock.monotonic() * 1000)
        return FollowerFetch(broker_id, broker_epoch, may_join, now_ms, self._max_lag_ms())

    def noted(self, partition: Partition) -> None:
        """A follower of this partition may join its ISR."""
        if partition not in self._under_way and not self._is_paused(partition):
            self._noted[partition] = None
            self._wake.set()

    def brokers_changed(self) -> None:
        """Brokers came, went or were fenced: those that are gone are not waited for any longer."""
        for partition in self._partitions:
            forget_gone(partition, self.broker_epoch)
            if partition.state.may_expand:
                self._noted[partition] = None
                self._wake.set()

    def broker_epoch(self, broker_id: int) -> int | None:
        """The epoch under which a broker is registered, not fenced, and may join in-sync sets."""
        node = self._image().brokers.get(broker_id)
        return None if node is None or node.fenced or node.disk.impaired else node.epoch

    # -- what is due --------------------------------------------------------------------------------------

    def _propose(self, partition: Partition, *, check_lag: bool) -> None:
        if partition in self._under_way or partition.log.failure is not None:
            return
        before = partition.state.isr
        proposal = isr_due(partition, self.broker_epoch, self._max_lag_ms(), check_lag=check_lag)
        if proposal is not None:
            self._under_way[partition] = proposal
            self._wake.set()
            level = logging.WARNING if len(proposal.isr) < len(before) else logging.INFO
            logger.log(
                level,
                "%s-%d: in-sync replicas %s, asking for %s in leader epoch %d",
                partition.topic,
                partition.index,
                list(before),
                list(proposal.isr),
                proposal.leader_epoch,
            )

    async def check_lag(self) -> None:
        """Look at all partitions led here for followers that lag, and for some that may join."""
        now = self._clock.monotonic()
        self._refused = {partition: until for partition, until in self._refused.items() if until > now}
        for some in in_portions(list(self._partitions), _LOOKED_AT_A_TIME):
            for partition in some:
                if partition.state.has_followers and not self._is_paused(partition):
                    self._propose(partition, check_lag=True)
            await asyncio.sleep(0)

    async def _check_all(self) -> None:
        while True:
            await asyncio.sleep(self._max_lag_ms() / 2000)
            try:
                await self.check_lag()
            except Exception:
                logger.exception("looking for followers that lag failed by a defect of ours; trying again")

    def _is_paused(self, partition: Partition) -> bool:
        until = self._refused.get(partition)
        if until is None:
            return False
        if self._clock.monotonic() < until:
            return True
        del self._refused[partition]
        return False

    # -- sending ------------------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        failures = 0
        while True:
            if not self._under_way:
                await self._wake.wait()
            try:
                is_known = await self.send()
            except Exception:
                logger.exception("changing in-sync sets failed by a defect of ours; trying again")
                is_known = False
            failures = 0 if is_known else failures + 1
            if failures:
                await asyncio.sleep(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS)) - 1])

    async def send(self) -> bool:
        """Ask the controller for what is due, in one request. False when an outcome is not known."""
        self._wake.clear()
        noted, self._noted = self._noted, {}
        for partition in noted:
            self._propose(partition, check_lag=False)
        asked: dict[tuple[bytes, int], Partition] = {}
        topics: dict[bytes, AlterPartitionTopic] = {}
        image = self._image()
        me = image.brokers.get(self._broker_id)
        for partition, proposal in list(self._under_way.items()):
            if partition.state.proposal is not proposal or partition.is_closed:  # the image says otherwise
                del self._under_way[partition]
                continue
            if len(asked) == _AT_A_TIME or me is None:
                continue
            asked[partition.topic_id, partition.index] = partition
            topic = topics.setdefault(partition.topic_id, AlterPartitionTopic(topic_id=partition.topic_id))
            topic.partitions.append(_data(partition, proposal, me.epoch))
        if not asked or me is None:
            return not self._under_way
        request = AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=me.epoch, topics=list(topics.values())
        )
        try:
            response = await self._alter(request)
        except ApiError as error:
            logger.warning("the controller did not answer for %d in-sync sets: %s", len(asked), error)
            return False
        if response.error_code:
            name = error_of(response.error_code).name
            logger.warning("the controller did not change %d in-sync sets: %s", len(asked), name)
            return False
        answers = {
            (topic.topic_id, answer.partition_index): answer
            for topic in response.topics
            for answer in topic.partitions
        }
        known = [self._take(partition, answers.get(key)) for key, partition in asked.items()]
        return all(known)

    def _take(self, partition: Partition, answer: AlteredPartition | None) -> bool:
        """Take the answer for a partition over; False when it has to be asked for again."""
        proposal = self._under_way[partition]
        error = ErrorCode.REQUEST_TIMED_OUT if answer is None else error_of(answer.error_code)
        if answer is not None and error is ErrorCode.NONE:
            isr_altered(
                partition,
                proposal,
                answer.leader_id,
                answer.leader_epoch,
                answer.isr,
                answer.partition_epoch,
            )
        elif error is ErrorCode.INELIGIBLE_REPLICA:
            # The epochs were right, so nothing has changed and this proposal cannot count any more.
            self._refused[partition] = self._clock.monotonic() + _PAUSE_AFTER_REFUSAL
            isr_refused(partition, proposal)
        is_over = partition.state.proposal is not proposal
        if is_over:
            self._under_way.pop(partition, None)
        if error is not ErrorCode.NONE:
            logger.log(
                logging.INFO if is_over else logging.DEBUG,
                "%s-%d: the controller did not take the in-sync replicas %s: %s%s",
                partition.topic,
                partition.index,
                list(proposal.isr),
                error.name,
                "" if is_over else "; asking again until the cluster image brings another state",
            )
        return is_over


def _data(partition: Partition, proposal: IsrProposal, local_epoch: int) -> AlterPartitionData:
    broker_id = partition.state.local_id
    return AlterPartitionData(
        partition_index=partition.index,
        leader_epoch=proposal.leader_epoch,
        new_isr_with_epochs=[
            BrokerState(broker_id=member, broker_epoch=local_epoch if member == broker_id else epoch)
            for member, epoch in zip(proposal.isr, proposal.broker_epochs, strict=True)
        ],
        partition_epoch=proposal.partition_epoch,
    )
