"""Support for networks of a pipeline: their classes, options of their configs, and sizes that a network can have.

Asked as a source is opened, before weights are fetched or anything is built, and again where a network is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.families.network import MOST_PATCHES, shown
from olivelike.families.networks import NETWORKS, classes_of, network_of
from olivelike.model.guides import GUIDES, guide_kind

if TYPE_CHECKING:
    from olivelike.families.family import Family
    from olivelike.model.architecture import Config

_REASONS: Final = {
    "UNet2DModel": "it takes no text",
    "UNet3DConditionModel": "it makes videos",
    "UNetMotionModel": "it makes videos",
    "UNetSpatioTemporalConditionModel": "it makes videos",
    "AutoencoderKLTemporalDecoder": "it makes videos",
    "ConsistencyDecoderVAE": "it decodes by a diffusion of its own",
    "VQModel": "its latents come from a table",
    "T5EncoderModel": "it reads no CLIP tokens and has no pooled output",
    "UMT5EncoderModel": "it reads no CLIP tokens and has no pooled output",
    "CLIPTextModelWithProjection": "it has no pooled output beside the projected one",
    "CLIPTextModel": "it has no projected output",
    **{kind.network[1]: f"it is {kind.one}; {kind.place}" for kind in GUIDES.values() if not kind.is_prompt},
    **{name: why for kind in GUIDES.values() for name, why in kind.refused.items()},
}
"""Reasons that a class can't stand where another one is expected, for those that are met."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_LARGEST: Final = 1 << 20
_MOST: Final = 100
_COUNTS: Final = frozenset(key for network in NETWORKS for key in network.counts)
_SIZES: Final = frozenset(key for network in NETWORKS for key in network.sizes)
_LONGEST: Final = 32
"""Members of a list of levels."""
_DEEPEST: Final = 3
"""Levels of lists in a list."""


def check_network(component: str, class_name: str, config: Config, family: Family | None = None) -> None:
    """Check that a component of a checkpoint is a network that can be built and has the inputs that clients know.

    Raises `SourceError` with class, option and reason.

    Args:
        class_name: As `model_index.json` names it.
        config: Raw or normalised; what is absent has the class's default.
        family: Of the pipeline, if it is known.
    """
    class_name = class_name if class_name.isidentifier() else shown(class_name)
    kind = guide_kind(component)
    allowed = classes_of(component, family)
    if allowed and class_name not in allowed:
        reason = f": {_REASONS[class_name]}" if class_name in _REASONS else ""
        key = "components" if kind is None or kind.is_prompt else kind.key
        raise SourceError(
            f"{component}: {class_name} is not supported here{reason}; use a checkpoint with "
            f"{' or '.join(allowed)}, or drop {component if key == 'components' else 'it'} from `{key}:`"
        )
    if problem := next(_wrong_sizes(config), None):
        raise SourceError(f"{component}: the config of {class_name} has {problem}; get its config.json again")
    if (network := network_of(component, class_name)) is not None:
        network.check(component, class_name, config)


REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of libraries for a config that they do not understand."""


def refused_config(component: str, class_name: str, error: Exception, *, from_one_file: bool = False) -> str:
    """Return what to say when a library can't build a network from its config.

    Args:
        error: What the library said.
        from_one_file: The config is the family's published one, with sizes read from the tensors of a single file.
    """
    if from_one_file:
        config, remedy = ("the config of its family", "a network of its own sizes is read from a diffusers folder only")
    else:
        config, remedy = "its config", "compare its config.json with that of the network that it belongs to"
    return f"{component}: {class_name} refuses {config}: {first_line(error)}; {remedy}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without the colours of a terminal."""
    missing = isinstance(error, KeyError) and len(error.args) == 1
    text = _COLOURS.sub("", f"it has no {error.args[0]!r}" if missing else str(error)).strip()
    return text.splitlines()[0].rstrip(":. ") if text else type(error).__name__


def _wrong_sizes(config: Config, inside: str = "") -> Iterator[str]:
    """Yield what in a config no network can have, configs inside it included."""
    for key, value in config.items():
        name = f"{inside}{key}"
        if isinstance(value, dict) and key.endswith("_config"):
            yield from _wrong_sizes(value, f"{name}.")
        elif key in _COUNTS or key in _SIZES:
            least, most = (0, _MOST) if key in _COUNTS else (1, _LARGEST)
            if isinstance(value, list | tuple) and not 0 < len(value) <= _LONGEST:
                yield f"`{name}` of {len(value)} members, where 1 to {_LONGEST} make sense"
            for number in _flat(value):
                # Some are written as 1280.0, and libraries take that.
                whole = isinstance(number, int | float) and not isinstance(number, bool) and number == number // 1
                if not whole or not least <= number <= most:
                    yield f"`{name}: {shown(value)}`, where whole numbers from {least} to {most} make sense"
    size, patch = config.get("image_size"), config.get("patch_size")
    if isinstance(size, int) and isinstance(patch, int) and patch > 0 and size // patch > MOST_PATCHES:
        yield f"`{inside}image_size: {size}` with `{inside}patch_size: {patch}`, which are too many patches"


def _flat(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the members of nested lists; nothing for an absent value."""
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        for member in value[:_LONGEST]:
            yield from _flat(member, depth + 1)
    elif value is not None:
        yield value
