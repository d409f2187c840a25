"""Classes of networks, a file for each kind.

Each says what they take and give, how torch runs them, how files hold them, and what of them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from olivelike.errors import PassError, UsageError
from olivelike.families.networks import (
    autoencoder,
    clip,
    flux2_transformer,
    flux_transformer,
    guide_networks,
    qwen3,
    qwen_image_networks,
    sd3_transformer,
    t5,
    unet,
    z_image_transformer,
)

if TYPE_CHECKING:
    from olivelike.families.family import Family
    from olivelike.families.network import Interface, Network, Stored
    from olivelike.model.architecture import Architecture

NETWORKS: Final[tuple[Network, ...]] = (
    *unet.NETWORKS, *autoencoder.NETWORKS, *clip.NETWORKS, *sd3_transformer.NETWORKS, *t5.NETWORKS,
    *flux_transformer.NETWORKS, *flux2_transformer.NETWORKS, *qwen3.NETWORKS, *z_image_transformer.NETWORKS,
    *qwen_image_networks.NETWORKS,
    *guide_networks.NETWORKS,
)  # fmt: skip
STORED: Final[Mapping[str, Stored]] = {stored.name: stored for network in NETWORKS for stored in network.stored}
"""Ways in which files of original names hold networks, by their names."""


def network_of(component: str, class_name: str) -> Network | None:
    """Return what is known of a class in a component's place; `None` if it can't stand there."""
    return next((one for one in NETWORKS if one.class_name == class_name and component in one.components), None)


def classes_of(component: str, family: Family | None = None) -> tuple[str, ...]:
    """Return the classes that may stand in a component's place; none for a component that is not judged.

    Args:
        component: Name within a pipeline.
        family: The pipeline's, if it is known, which has classes for each of its text encoders.
    """
    texts = [text for text in family.texts if text.component == component] if family else []
    own = [name for text in texts for name in (text.class_name, *text.other_classes)]
    return tuple(own or (one.class_name for one in NETWORKS if component in one.components))


def stored_as(component: str) -> tuple[Stored, ...]:
    """Return the ways in which files of original names hold what may stand in a component's place."""
    return tuple(dict.fromkeys(way for one in NETWORKS if component in one.components for way in one.stored))


def interface_of(architecture: Architecture) -> Interface:
    """Return what a network takes and gives.

    Raises `UsageError` for a component that `convert` does not know, and `PassError` for a config that lacks what
    decides the interface.
    """
    component = architecture.component
    if (network := network_of(component, architecture.class_name)) is None:
        raise UsageError(f"convert knows no component {component!r} of class {architecture.class_name}")
    try:
        return network.interface(architecture.config)
    except (KeyError, TypeError) as error:
        lack = repr(error.args[0]) if isinstance(error, KeyError) else "value for a setting"
        raise PassError(
            f"{component}: its config has no {lack}, which decides the inputs; it is the config of another "
            "class, or not complete"
        ) from error
