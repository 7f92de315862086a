"""What handlers may use of the broker, in small parts.

`Broker` has all of these attributes and methods. No handler knows it: a handler names the ports it needs. A
file that needs several declares a protocol of its own, which inherits from these and adds what no other file
uses. `HandlerPorts` in `handlers` is all of them together, and mypy checks `Broker` against it where the
table of handlers is used. The ports here do not inherit from each other, and are named in alphabetical order
as bases: otherwise Python could not join them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from ottla.broker.controller_channel import ControllerChannel
    from ottla.broker.dispatch import RequestContext
    from ottla.broker.request_scheduler import Steps
    from ottla.broker.transaction_verification import TransactionVerification
    from ottla.clock import Clock
    from ottla.cluster.controller import Controller
    from ottla.cluster.image import ClusterImage
    from ottla.config.values import BrokerConfig
    from ottla.coordinator.group_coordinator import GroupCoordinator
    from ottla.coordinator.transactions.coordinator import TransactionCoordinator
    from ottla.log_lines import ClientLog
    from ottla.replication.purgatory import Purgatory
    from ottla.replication.replicas import Replicas
    from ottla.storage.log_directory import LogDirectory

T = TypeVar("T")


class PartitionAccess(Protocol):
    @property
    def replicas(self) -> Replicas:
        """The partitions on this broker."""
        ...


class WaitingForOffsets(Protocol):
    @property
    def purgatory(self) -> Purgatory: ...


class DirectoryAccess(Protocol):
    @property
    def directory(self) -> LogDirectory: ...


class ImageAccess(Protocol):
    @property
    def image(self) -> ClusterImage:
        """The cluster as this broker knows it now."""
        ...


class SelfFencing(Protocol):
    @property
    def fenced_leader(self) -> int:
        """This broker's id while it is fenced and leads nothing, whatever the image says; else NO_LEADER."""
        ...


class TopicNames(Protocol):
    def topic_name(self, topic_id: bytes) -> str | None: ...


class ControllerAccess(Protocol):
    @property
    def controller(self) -> Controller:
        """For requests that reach a handler only at the active controller."""
        ...


class ChannelAccess(Protocol):
    @property
    def channel(self) -> ControllerChannel:
        """The way to the controller, wherever it is."""
        ...


class ImageFollowing(Protocol):
    async def caught_up(self, version: int) -> None:
        """Return when the image of `version` counts here, so that clients see its effect."""
        ...


class Configuration(Protocol):
    @property
    def config(self) -> BrokerConfig: ...


class GroupAccess(Protocol):
    @property
    def groups(self) -> GroupCoordinator: ...


class TransactionAccess(Protocol):
    @property
    def transactions(self) -> TransactionCoordinator: ...


class ClientLogging(Protocol):
    @property
    def client_log(self) -> ClientLog:
        """Where lines about clients go."""
        ...


class Time(Protocol):
    @property
    def clock(self) -> Clock: ...


class VerificationAccess(Protocol):
    @property
    def verification(self) -> TransactionVerification:
        """Asks the coordinators of transactions about their partitions."""
        ...


class SlicedWork(Protocol):
    async def in_slices(self, steps: Steps[T], context: RequestContext) -> T:
        """Do long work between other requests, for a coroutine that answers `context`."""
        ...
