"""Where things lie in the registry, and how they are written there.

The layout is the first Kafka's, a little flatter:

    /cluster/id                    the cluster's id
    /controller                    ephemeral: which broker is the controller
    /controller_epoch              the controller's epoch, and the number of its last write
    /brokers/ids/N                 ephemeral: host, port and rack of broker N, and whether it lost records
    /brokers/unclean/N             the last broker epoch of N under which it had lost records, once acted on
    /brokers/topics/T              the topic's id and its number of partitions
    /brokers/topics/T/P            one partition: replicas, ISR, ELR, leader, leader epoch, partition epoch
    /config/topics/T, /config/brokers/N, /config/brokers/<default>, ...     dynamic configuration
    /config/features/cluster                                                levels of features
    /producer_ids                  the next producer id that was never handed out
    /consumers/G/...               groups, shown by their coordinators if they are told to; no broker reads it

A topic exists when its node says it has partitions: creating a large topic or deleting one takes several
commits, and the number in the topic's node is the one that counts. What a crash in between left over is not
part of the image (`load_image` reports it as `leftovers`) and the next controller clears it away.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import quote, unquote

from ottla.cluster import features as feature_levels
from ottla.cluster.image import (
    BROKER_CONFIG,
    FEATURES,
    TOPIC_CONFIG,
    BrokerNode,
    ClusterImage,
    ConfigResource,
    Endpoint,
    FeatureLevels,
    PartitionState,
    TopicImage,
)
from ottla.cluster.registry import Ambiguous, Create, Damaged, Node, NodeExists, Operation, Registry
from ottla.cluster.topic_ids import id_from_text, id_text, random_id

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
UNCLEAN = "/brokers/unclean"
TOPICS = "/brokers/topics"
PRODUCER_IDS = "/producer_ids"
CONSUMERS = "/consumers"
"""Not state of the cluster: a copy of what `__consumer_offsets` says (`broker/group_projection.py`)."""

_CONFIG_FOLDERS = {
    TOPIC_CONFIG: "topics",
    BROKER_CONFIG: "brokers",
    16: "client-metrics",
    32: "groups",
    FEATURES: "features",
}
_CONFIG_TYPES = {folder: kind for kind, folder in _CONFIG_FOLDERS.items()}
_EMPTY = "<default>"
"""The node of the resource without a name, which stands for every broker."""

FOLDERS = (
    "/cluster",
    "/brokers",
    BROKER_IDS,
    UNCLEAN,
    TOPICS,
    "/config",
    *(f"/config/{folder}" for folder in _CONFIG_TYPES),
)
"""What must be there before anything else can be."""


def to_bytes(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def from_bytes(data: bytes) -> Any:
    return json.loads(data)


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


class Lost(Enum):
    """What a broker may have lost of its logs since it was registered last; it says so when it registers."""

    NOTHING = "nothing"
    TAIL = "tail"
    """What had not reached the disk: the machine went off without a clean stop."""
    ALL = "all"
    """Its data folder is new or empty."""


def broker_data(broker: BrokerNode, lost: Lost = Lost.NOTHING) -> bytes:
    value: dict[str, object] = {"host": broker.host, "port": broker.port, "rack": broker.rack}
    if broker.endpoints:
        value["endpoints"] = [list(endpoint) for endpoint in broker.endpoints]
    if broker.features:
        value["features"] = [list(levels) for levels in broker.features]
    if lost is not Lost.NOTHING:
        value["lost"] = lost.value
    return to_bytes(value)


def lost_from(node: Node) -> Lost:
    return Lost(from_bytes(node.data).get("lost", Lost.NOTHING.value))


def unclean_path(broker_id: int) -> str:
    return f"{UNCLEAN}/{broker_id}"


def broker_from(broker_id: int, node: Node) -> BrokerNode:
    value = from_bytes(node.data)
    return BrokerNode(
        broker_id,
        value["host"],
        value["port"],
        value["rack"],
        node.creation_id,
        endpoints=tuple(Endpoint(*endpoint) for endpoint in value.get("endpoints", ())),
        features=tuple(FeatureLevels(*levels) for levels in value.get("features", ())),
    )


def topic_path(name: str) -> str:
    return f"{TOPICS}/{name}"


def topic_data(topic_id: bytes, partitions: int) -> bytes:
    return to_bytes({"topic_id": id_text(topic_id), "partitions": partitions})


def partition_path(topic: str, index: int) -> str:
    return f"{TOPICS}/{topic}/{index}"


def partition_data(state: PartitionState) -> bytes:
    value: dict[str, object] = {
        "replicas": state.replicas,
        "isr": state.isr,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
    }
    if state.elr:
        value["elr"] = state.elr
    if state.last_known_elr:
        value["last_known_elr"] = state.last_known_elr
    if state.adding:
        value["adding"] = state.adding
    return to_bytes(value)


def partition_from(data: bytes) -> PartitionState:
    value = from_bytes(data)
    return PartitionState(
        tuple(value["replicas"]),
        tuple(value["isr"]),
        value["leader"],
        value["leader_epoch"],
        value["partition_epoch"],
        tuple(value.get("elr", ())),
        tuple(value.get("last_known_elr", ())),
        tuple(value.get("adding", ())),
    )


def config_path(resource: ConfigResource) -> str:
    """Names of topics and brokers are plain; those of other resources may hold anything."""
    kind, name = resource
    return f"/config/{_CONFIG_FOLDERS[kind]}/{node_name(name)}"


def _config_resource(folder: str, name: str) -> ConfigResource:
    return _CONFIG_TYPES[folder], named_by(name)


def node_name(name: str) -> str:
    """A name for a node that any registry takes, for a name that clients chose. It may be empty."""
    quoted = quote(name, safe="")
    if quoted in (".", ".."):  # ZooKeeper reads these as steps in a path
        quoted = quoted.replace(".", "%2E")
    return quoted or _EMPTY


def named_by(node: str) -> str:
    """The name for which `node_name` made this one."""
    return "" if node == _EMPTY else unquote(node)


async def prepare(registry: Registry, rng: random.Random) -> None:
    """Makes what must be there in a new registry, once for the life of a cluster."""
    wanted: list[Operation] = [Create(folder) for folder in FOLDERS]
    wanted += [
        Create(CLUSTER_ID, to_bytes({"id": id_text(random_id(rng))})),
        Create(CONTROLLER_EPOCH, epoch_data(0, 0)),
        Create(PRODUCER_IDS, to_bytes({"next": 0})),
    ]
    features = Create(config_path(feature_levels.RESOURCE), to_bytes(feature_levels.NEWEST))
    while True:
        missing = [operation for operation in wanted if not await registry.exists(operation.path)]
        if not missing:
            return
        if any(operation.path == CLUSTER_ID for operation in missing):
            missing.append(features)  # a cluster that is older keeps its levels
        try:
            await registry.commit(missing)
        except (NodeExists, Ambiguous):
            continue  # another broker does the same, or we shall see whether we did: look again


async def cluster_id_of(registry: Registry) -> str:
    node = await registry.get(CLUSTER_ID)
    if is_unfinished_copy(node):
        raise Damaged("it is an unfinished copy of another registry; copy it again")
    return str(from_bytes(node.data)["id"])


def unfinished_copy() -> bytes:
    """What stands in `CLUSTER_ID` until a copy of another registry is complete (`registry_copy`)."""
    return to_bytes({"unfinished_copy": True})


def is_unfinished_copy(cluster_id: Node) -> bool:
    return cluster_id.data == unfinished_copy()


def epoch_data(epoch: int, write: int) -> bytes:
    return to_bytes({"epoch": epoch, "write": write})


def frees_space(operations: Sequence[Operation]) -> bool:
    """Whether a commit may help to free space on a full disk: all but what makes topics or shows groups."""
    return not any(
        (isinstance(each, Create) and each.path.startswith(f"{TOPICS}/"))
        or each.path.startswith(f"{CONSUMERS}/")
        for each in operations
    )


@dataclass(frozen=True, slots=True)
class Loaded:
    image: ClusterImage
    leftovers: tuple[str, ...]
    """Nodes of half-made or half-deleted topics, children first, in the order to delete them."""
    lost: Mapping[int, Lost] = field(default_factory=dict)
    """Of the registered brokers that lost something."""
    unclean_epochs: Mapping[int, int] = field(default_factory=dict)
    """The losses that were acted on: for brokers their epoch then."""


async def load_image(registry: Registry, *, version: int, controller_id: int) -> Loaded:
    """The whole registry as an image, in one bulk read."""
    nodes = await registry.subtree("/", without=CONSUMERS)
    try:
        return image_from(nodes, version=version, controller_id=controller_id)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(f"the registry holds a node that no broker wrote: {error!r}") from error


def image_from(nodes: Mapping[str, Node], *, version: int, controller_id: int) -> Loaded:
    cluster_id = ""
    brokers: dict[int, BrokerNode] = {}
    lost: dict[int, Lost] = {}
    unclean_epochs: dict[int, int] = {}
    configs: dict[ConfigResource, Mapping[str, str]] = {}
    declared: dict[str, tuple[bytes, int]] = {}
    partitions: dict[str, dict[int, PartitionState]] = {}
    # Most partitions of a cluster are in one of a few states, and states are immutable: share them.
    states: dict[bytes, PartitionState] = {}
    for path, node in nodes.items():
        match path.split("/")[1:]:
            case ["brokers", "topics", topic, index]:
                state = states.get(node.data)
                if state is None:
                    state = states[node.data] = partition_from(node.data)
                partitions.setdefault(topic, {})[int(index)] = state
            case ["brokers", "topics", topic]:
                value = from_bytes(node.data)
                declared[topic] = (id_from_text(value["topic_id"]), value["partitions"])
            case ["brokers", "ids", broker]:
                brokers[int(broker)] = broker_from(int(broker), node)
                if (loss := lost_from(node)) is not Lost.NOTHING:
                    lost[int(broker)] = loss
            case ["brokers", "unclean", broker]:
                unclean_epochs[int(broker)] = from_bytes(node.data)["epoch"]
            case ["config", folder, name]:
                configs[_config_resource(folder, name)] = from_bytes(node.data)
            case ["cluster", "id"]:
                cluster_id = from_bytes(node.data)["id"]
    topics: dict[str, TopicImage] = {}
    leftovers: list[str] = []
    for topic, (topic_id, count) in declared.items():
        found = partitions.get(topic, {})
        leftovers += [partition_path(topic, index) for index in sorted(found) if index >= count]
        if count:
            topics[topic] = TopicImage(topic, topic_id, tuple(found[index] for index in range(count)))
        else:
            leftovers.append(topic_path(topic))
            if configs.pop((TOPIC_CONFIG, topic), None) is not None:
                leftovers.append(config_path((TOPIC_CONFIG, topic)))
    image = ClusterImage.of(
        version=version,
        cluster_id=cluster_id,
        controller_id=controller_id,
        brokers=brokers,
        topics=topics,
        configs=configs,
    )
    return Loaded(image, tuple(leftovers), lost, unclean_epochs)
