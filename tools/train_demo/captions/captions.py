"""The captions of the demo's data set: whole or with parts left out, in several forms."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.train_demo.captions.scenes import COLORS, POSITIONS, SHAPES, SIZES, Scene

if TYPE_CHECKING:
    import numpy as np

_PLACES = {
    "center": "in the center",
    "left": "on the left",
    "right": "on the right",
    "top": "at the top",
    "bottom": "at the bottom",
}
_FORMS = ("on", "on, place last", "with", "tags")
_OPENINGS = ("", "", "", "", "a picture of ", "a drawing of ")

WORDS = tuple(
    dict.fromkeys(" ".join((*SHAPES, *COLORS, *SIZES, *_PLACES.values(), *_OPENINGS, "shape background with")).split())
)
"""Every word that a caption can hold."""


@dataclass(frozen=True)
class Mention:
    """What a caption says of a scene; `None` for what it leaves out."""

    shape: str | None = None
    color: str | None = None
    background: str | None = None
    size: str | None = None
    position: str | None = None


def whole_caption(scene: Scene) -> str:
    """Return shape and colours in the plainest form: `a red circle on a blue background`."""
    return f"a {scene.color} {scene.shape} on a {scene.background} background"


def random_caption(scene: Scene, rng: np.random.Generator) -> str:
    """Return a caption that names shape and both colours, and perhaps size and place."""
    return phrase(_drop(scene, rng, keep=1.0), rng)


def partial_caption(scene: Scene, rng: np.random.Generator) -> str:
    """Return a caption that may leave out any part, as training takes them."""
    return phrase(_drop(scene, rng, keep=0.85), rng)


def phrase(mention: Mention, rng: np.random.Generator) -> str:
    """Say what is mentioned in one of several forms."""
    thing = " ".join(filter(None, (mention.size, mention.color, mention.shape or "shape")))
    place = _PLACES[mention.position] if mention.position else ""
    background = f"{mention.background} background" if mention.background else ""
    form = str(rng.choice(_FORMS))
    if form == "tags":
        # A colour may stand alone, since negative prompts are often single words.
        if mention.color and not mention.shape and not mention.size:
            thing = mention.color
        return ", ".join(filter(None, (thing, background, place)))
    opening = str(rng.choice(_OPENINGS))
    if not background:
        return f"{opening}a {thing} {place}".strip()
    if form == "with":
        return f"{opening}a {background} with a {thing} {place}".strip()
    if form == "on":
        return f"{opening}a {thing} {place} on a {background}".replace("  ", " ")
    return ", ".join(filter(None, (f"{opening}a {thing} on a {background}", place)))


def read_caption(caption: str) -> Mention:
    """Return what a caption of this grammar mentions."""
    words = re.findall(r"[a-z]+", caption)
    background = next((words[i - 1] for i, word in enumerate(words) if word == "background"), None)
    colors = [
        word for word, after in zip(words, [*words[1:], ""], strict=True)
        if word in COLORS and after != "background"
    ]  # fmt: skip
    return Mention(
        shape=next((word for word in words if word in SHAPES), None),
        color=colors[0] if colors else None,
        background=background,
        size=next((word for word in words if word in SIZES), None),
        position=next((word for word in words if word in POSITIONS), None),
    )


def _drop(scene: Scene, rng: np.random.Generator, keep: float) -> Mention:
    def kept(value: str, chance: float) -> str | None:
        return value if rng.random() < chance else None

    return Mention(
        shape=kept(scene.shape, keep),
        color=kept(scene.color, keep),
        background=kept(scene.background, keep),
        size=kept(scene.size, 0.5 if scene.size != "medium" else 0.0),
        position=kept(scene.position, 0.75 if scene.position != "center" else 0.3),
    )
