"""What may be asked of topics: pure decisions, from an image and a request to a plan or a refusal.

The controller asks here before it writes anything. Codes, texts and the order of the checks are those of
Apache Kafka 4.3, observed by sending it the same requests: people search the web for these texts.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.cluster.image import BrokerNode, ClusterImage, PartitionState, TopicImage
from ottla.cluster.placement import place_replicas
from ottla.cluster.topic_ids import random_id
from ottla.protocol.errors import ApiError, ErrorCode

MAX_NAME_LENGTH = 249
MAX_PARTITIONS_PER_REQUEST = 10_000
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_TOPIC, "__share_group_state"})

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")

ConfigCheck = Callable[[Mapping[str, str]], None]
"""Raises `ApiError` if these are not good overrides for a topic."""


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    partitions: int = 1
    replication_factor: int = 1
    max_partitions: int = 100_000
    """In the whole cluster; each costs every broker memory."""
    offsets_partitions: int = 50
    """Of OFFSETS_TOPIC; so many of its partitions do not count, or topics could take its place."""
    transaction_partitions: int = 50
    """The same of TRANSACTION_TOPIC."""
    max_configured_groups: int = 10_000
    """In the whole cluster; they need not exist (`config_rules`)."""
    min_insync_replicas: int = 1
    unclean_elections: bool = False

    def uncounted_of(self, topic: str) -> int:
        """How many partitions of a topic do not count against `max_partitions`."""
        if topic == OFFSETS_TOPIC:
            return self.offsets_partitions
        return self.transaction_partitions if topic == TRANSACTION_TOPIC else 0


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    """Partition and its replicas; empty: the controller places them."""
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MorePartitions:
    name: str
    count: int
    """The number of partitions the topic shall have."""
    assignments: Sequence[Sequence[int]] | None = None
    """Replicas of each partition to add; None: the controller places them."""


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    topic: TopicImage
    configs: Mapping[str, str]


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


def check_name(name: str) -> None:
    """Refuses names that could not be a folder, a metric or a path."""
    reason = ""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    elif not _LEGAL_NAME.match(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if reason:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def plan_topics(
    requests: Sequence[NewTopic],
    image: ClusterImage,
    *,
    defaults: TopicDefaults,
    check_configs: ConfigCheck,
    rng: random.Random,
) -> list[PlannedTopic | ApiError]:
    """What to create for each request, or why not; in the order of the requests.

    Names must be unique among the requests; the request handler has checked that.
    """
    asked = sum(_partitions_asked(request, defaults) for request in requests)
    if asked > MAX_PARTITIONS_PER_REQUEST:
        refusal = ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        return [refusal] * len(requests)
    names = _CollisionCheck(image)
    free_partitions = defaults.max_partitions - _counted_partitions(image, defaults)
    plans: list[PlannedTopic | ApiError] = []
    for request in requests:
        try:
            plan = _plan_topic(request, image, names, defaults, check_configs, rng)
            counted = max(len(plan.topic.partitions) - defaults.uncounted_of(request.name), 0)
            if counted > max(free_partitions, 0):
                raise _too_many(defaults)
        except ApiError as error:
            plans.append(error)
        else:
            free_partitions -= counted
            plans.append(plan)
    return plans


def _counted_partitions(image: ClusterImage, defaults: TopicDefaults) -> int:
    """What counts against `max_partitions`."""
    uncounted = 0
    for name in (OFFSETS_TOPIC, TRANSACTION_TOPIC):
        topic = image.topics.get(name)
        if topic is not None:
            uncounted += min(len(topic.partitions), defaults.uncounted_of(name))
    return image.partition_count - uncounted


def _partitions_asked(request: NewTopic, defaults: TopicDefaults) -> int:
    if request.assignments:
        return len(request.assignments)
    return defaults.partitions if request.partitions == -1 else max(request.partitions, 0)


def _plan_topic(
    request: NewTopic,
    image: ClusterImage,
    names: _CollisionCheck,
    defaults: TopicDefaults,
    check_configs: ConfigCheck,
    rng: random.Random,
) -> PlannedTopic:
    name = request.name
    if name == CLUSTER_METADATA_TOPIC:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
        )
    check_name(name)
    if name in image.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    names.refuse_collision(name)
    configs = {key: value for key, value in request.configs.items() if value is not None}
    if len(configs) < len(request.configs):
        nulls = ", ".join(key for key, value in request.configs.items() if value is None)
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {nulls}")
    check_configs(configs)
    if request.assignments:
        replicas = _manual_assignment(request, image)
    else:
        replicas = _automatic_assignment(request, image, defaults, rng)
    return PlannedTopic(
        TopicImage(name, random_id(rng), tuple(_first_states(replicas, image.brokers))), configs
    )


def _manual_assignment(request: NewTopic, image: ClusterImage) -> list[tuple[int, ...]]:
    said = "A manual partition assignment was specified, but"
    if request.replication_factor != -1:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{said} replication factor was not set to -1.")
    if request.partitions != -1:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{said} numPartitions was not set to -1.")
    by_partition: dict[int, tuple[int, ...]] = {}
    factor = None
    for partition, assigned in request.assignments:
        if partition in by_partition:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {partition}",
            )
        by_partition[partition] = tuple(assigned)
        _check_assignment(assigned, image.brokers, factor)
        factor = len(assigned)
    if set(by_partition) != set(range(len(by_partition))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return [by_partition[partition] for partition in range(len(by_partition))]


def _check_assignment(
    assigned: Sequence[int], brokers: Mapping[int, BrokerNode], replication_factor: int | None
) -> None:
    if not assigned:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes an empty replica list.",
        )
    for broker in sorted(assigned):
        if broker not in brokers:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes broker {broker}, "
                "but no such broker is registered.",
            )
        if assigned.count(broker) > 1:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes the broker {broker} more than once.",
            )
    if replication_factor not in (None, len(assigned)):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes a partition with {len(assigned)} replica(s), "
            f"but this is not consistent with previous partitions, which have {replication_factor} "
            "replica(s).",
        )


def _automatic_assignment(
    request: NewTopic, image: ClusterImage, defaults: TopicDefaults, rng: random.Random
) -> list[tuple[int, ...]]:
    if request.replication_factor < -1 or request.replication_factor == 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if request.partitions < -1 or request.partitions == 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    partitions = defaults.partitions if request.partitions == -1 else request.partitions
    factor = defaults.replication_factor if request.replication_factor == -1 else request.replication_factor
    return _place(image, partitions, factor, rng)


def _place(
    image: ClusterImage, partitions: int, replication_factor: int, rng: random.Random
) -> list[tuple[int, ...]]:
    """On brokers that are not fenced: there is a replica that can be written at once, and no other."""
    usable = [broker for broker in image.brokers.values() if not broker.fenced]
    if replication_factor > len(usable):
        why = (
            "All brokers are currently fenced."
            if image.brokers and not usable
            else f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(usable)} broker(s) are registered."
        )
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): {why}",
        )
    return place_replicas(usable, partitions=partitions, replication_factor=replication_factor, rng=rng)


def _first_states(
    placed: Iterable[tuple[int, ...]], brokers: Mapping[int, BrokerNode]
) -> Iterator[PartitionState]:
    """How partitions begin: every replica is empty, hence in sync unless its broker is fenced, and the first
    leads.

    Partitions on the same brokers share one state: it never changes, and there may be thousands.
    """
    states: dict[tuple[int, ...], PartitionState] = {}
    for partition, replicas in enumerate(placed):
        if replicas not in states:
            isr = tuple(broker for broker in replicas if not brokers[broker].fenced)
            if not isr:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    "All brokers specified in the manual partition assignment for partition "
                    f"{partition} are fenced or in controlled shutdown.",
                )
            states[replicas] = PartitionState(replicas=replicas, isr=isr, leader=isr[0])
        yield states[replicas]


def plan_more_partitions(
    request: MorePartitions, image: ClusterImage, *, defaults: TopicDefaults, rng: random.Random
) -> dict[int, PartitionState]:
    """The partitions to add, by index; raises the refusal."""
    topic = image.topics.get(request.name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    have = len(topic.partitions)
    if request.count == have:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {have} partition(s).")
    if request.count < have:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {request.name} currently has {have} partition(s); "
            f"{request.count} would not be an increase.",
        )
    more = request.count - have
    if request.assignments is not None and len(request.assignments) != more:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {more} additional partition(s), but only {len(request.assignments)} "
            "assignment(s) were specified.",
        )
    if more > MAX_PARTITIONS_PER_REQUEST:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    if _counted_partitions(image, defaults) + more > defaults.max_partitions:
        raise _too_many(defaults)
    factor = len(topic.partitions[0].replicas)
    if request.assignments is None:
        replicas = _place(image, more, factor, rng)
    else:
        for assigned in request.assignments:
            _check_assignment(assigned, image.brokers, factor)
        replicas = [tuple(assigned) for assigned in request.assignments]
    return dict(enumerate(_first_states(replicas, image.brokers), have))


def _too_many(defaults: TopicDefaults) -> ApiError:
    return ApiError(
        ErrorCode.POLICY_VIOLATION,
        f"The cluster would have more than {defaults.max_partitions} partitions (max.partitions).",
    )


class _CollisionCheck:
    """Metrics write "." as "_", so two topics that differ only in these would be counted as one."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._existing: dict[str, str] | None = None

    def refuse_collision(self, name: str) -> None:
        if "." not in name and "_" not in name:
            return
        if self._existing is None:  # one pass over all topics, and only when a name can collide
            self._existing = {existing.replace(".", "_"): existing for existing in self._image.topics}
        other = self._existing.get(name.replace(".", "_"))
        if other is not None:
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
            )
