"""Features: abilities of the whole cluster that have a level, which an administrator raises or lowers.

A feature is switched on when all brokers know it, so that none writes what another cannot read. Its level is
part of the cluster's state: an entry of a configuration resource of its own, that clients cannot name. A new
cluster begins with the newest level of each feature. A cluster that was made before there were features has
level 0 of each, until UpdateFeatures says otherwise.

`transaction.version`: with 2, each transaction has an epoch of its own (KIP-890, part 2). 1 means in Kafka
that records of `__transaction_state` may have tagged fields, which ours always have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.cluster.image import FEATURES, ClusterImage
from ottla.protocol.errors import ApiError, ErrorCode

TRANSACTION_VERSION = "transaction.version"
RESOURCE = (FEATURES, "cluster")
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class Levels(NamedTuple):
    lowest: int
    highest: int


SUPPORTED: Mapping[str, Levels] = {TRANSACTION_VERSION: Levels(0, 2)}
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


def _invalid(feature: str, wanted: int, why: str) -> ApiError:
    text = f"Invalid update version {wanted} for feature {feature}. {why}"
    return ApiError(ErrorCode.INVALID_UPDATE_VERSION, text)
