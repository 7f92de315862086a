"""Features: abilities of the whole cluster that have a level, which an administrator raises or lowers.

A feature is switched on when all brokers know it, so that none writes what another cannot read: each says
which levels it supports when it registers, and one that says nothing is of a release before that. A broker
that does not support what is switched on does not start. The level of a feature is
part of the cluster's state: an entry of a configuration resource of its own, that clients cannot name. A new
cluster begins with the newest level of each feature. A cluster that was made before there were features has
level 0 of each, until UpdateFeatures says otherwise.

`transaction.version`: with 2, each transaction has an epoch of its own (KIP-890, part 2). 1 means in Kafka
that records of `__transaction_state` may have tagged fields, which ours always have.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.cluster.image import FEATURES, BrokerNode, ClusterImage, FeatureLevels
from ottla.protocol.errors import ApiError, ErrorCode

TRANSACTION_VERSION = "transaction.version"
RESOURCE = (FEATURES, "cluster")
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


SUPPORTED: Mapping[str, FeatureLevels] = {TRANSACTION_VERSION: FeatureLevels(TRANSACTION_VERSION, 0, 2)}
REGISTERED = tuple(SUPPORTED.values())
"""As a broker registers."""
NEWEST = {name: str(levels.highest) for name, levels in SUPPORTED.items()}
"""As it is stored in a new cluster."""


def level(image: ClusterImage, feature: str) -> int:
    """The level of a feature in the cluster."""
    return int(image.config(*RESOURCE).get(feature, 0))


def finalized(image: ClusterImage) -> dict[str, int]:
    """The features that are switched on, with their levels."""
    return {name: found for name in SUPPORTED if (found := level(image, name))}


def check_update(image: ClusterImage, feature: str, wanted: int, upgrade_type: int) -> None:
    """INVALID_UPDATE_VERSION when the level of the feature may not be changed like this."""
    levels = SUPPORTED.get(feature)
    if levels is None:
        raise _invalid(feature, wanted, "This cluster does not support this feature.")
    if not levels.lowest <= wanted <= levels.highest:
        text = f"This cluster supports the levels {levels.lowest} to {levels.highest}."
        raise _invalid(feature, wanted, text)
    if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _invalid(feature, wanted, f"There is no upgrade type {upgrade_type}.")
    if wanted < level(image, feature) and upgrade_type == UPGRADE:
        raise _invalid(feature, wanted, "Lowering a feature must be asked for as a downgrade.")
    if wanted > level(image, feature) and upgrade_type != UPGRADE:
        raise _invalid(feature, wanted, "Raising a feature must not be asked for as a downgrade.")
    behind = [broker.id for broker in image.brokers.values() if not _supports(broker, feature, wanted)]
    if behind and wanted != level(image, feature):
        names = ", ".join(map(str, sorted(behind)))
        raise _invalid(feature, wanted, f"Brokers that do not support it: {names}.")


def _supports(broker: BrokerNode, feature: str, wanted: int) -> bool:
    """Level 0 is that of brokers which do not know the feature."""
    levels = next((each for each in broker.features if each.feature == feature), None)
    return wanted == 0 if levels is None else levels.lowest <= wanted <= levels.highest


def unsupported(switched_on: Mapping[str, str]) -> str | None:
    """A level of a cluster's features that this release cannot do."""
    for name, found in switched_on.items():
        levels = SUPPORTED.get(name)
        if int(found) and (levels is None or not levels.lowest <= int(found) <= levels.highest):
            return f"{name}={found}"
    return None


def _invalid(feature: str, wanted: int, why: str) -> ApiError:
    text = f"Invalid update version {wanted} for feature {feature}. {why}"
    return ApiError(ErrorCode.INVALID_UPDATE_VERSION, text)
