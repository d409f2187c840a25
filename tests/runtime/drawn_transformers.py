"""Little transformers as they are converted and drawn here, beside what diffusers' pipelines draw of them."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch_pipelines import psnr

from olivelike.engine.convert_request import ConvertRequest, draft
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.families import FAMILIES
from olivelike.runtime import Request, open_pipeline
from olivelike.testing.models import lend_graphs, load_model
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.little_transformers import LAYERS, little_transformer

LEAST: Final = 60.0
"""PSNR in dB of 8-bit pictures that are equal but for a few roundings."""
_NEGATIVE: Final = {"negative_prompt": "a dark dog"}
_FACTS: Final[dict[str, tuple[str, int, dict[str, Any], dict[str, Any]]]] = {
    "flux": ("Flux{}Pipeline", 32, {"guidance_scale": 3.5}, {"guidance_scale": 3.5}),
    "flux2": (
        "Flux2Klein{}Pipeline",
        64,
        {"guidance_scale": 3.5},
        {"guidance_scale": 3.5, "text_encoder_out_layers": LAYERS},
    ),
    "sd3": (
        "StableDiffusion3{}Pipeline",
        32,
        {**_NEGATIVE, "guidance_scale": 5.0},
        {**_NEGATIVE, "guidance_scale": 5.0},
    ),
    "z_image": ("ZImage{}Pipeline", 32, {"guidance_scale": 1.0}, {"guidance_scale": 0.0}),
    "qwen_image": (
        "QwenImage{}Pipeline",
        32,
        {**_NEGATIVE, "guidance_scale": 4.0},
        {**_NEGATIVE, "true_cfg_scale": 4.0},
    ),
}
"""Family → names of diffusers' pipelines, side of a picture, what is asked here, and what is asked there."""


@dataclass(frozen=True)
class Drawn:
    """A little pipeline; all that is made of it is made once."""

    root: Path
    family: str
    variant: str = ""

    @cached_property
    def source(self) -> Path:
        return little_transformer(self.family, self.variant)

    @cached_property
    def components(self) -> tuple[str, ...]:
        texts = (part.component for part in FAMILIES[self.family].texts)
        there = (name for name in texts if (self.source / name).is_dir())
        return (*there, "transformer", "vae_encoder", "vae_decoder")

    @cached_property
    def store(self) -> Path:
        """The store of its conversions, with the graphs of all of its networks."""
        store = self.root / "cache"
        lend_graphs(store, [load_model(self.source, name).architecture for name in self.components])
        return store

    @cache  # noqa: B019  (as long as the session)
    def converted(self, **options: Any) -> Path:
        """Return the folder of a conversion."""
        name = "-".join((self.family, self.variant, *map(str, options.values())))
        request = ConvertRequest(str(self.source), "cpu", self.root / name, **options)
        run(*draft(request, Options(cache_dir=self.store)), executor=InlineExecutor)
        return self.root / name

    @property
    def folder(self) -> Path:
        return self.converted()

    @cached_property
    def pipeline(self):
        return open_pipeline(self.folder)

    def ask(self, **more: Any) -> Request:
        side, ours = _FACTS[self.family][1:3]
        default = {"prompts": ("a red circle",), "steps": 4, "seed": 5, "size": (side, side)}
        return Request(**default | ours | more)

    @cache  # noqa: B019
    def torch_pipeline(self, work: str):
        """Return diffusers' pipeline for texts, or for `Img2Img` or `Inpaint`."""
        import diffusers

        index = json.loads((self.source / "model_index.json").read_bytes())
        absent = {name: None for name, found in index.items() if found == [None, None]}
        made = getattr(diffusers, _FACTS[self.family][0].format(work)).from_pretrained(self.source, **absent)
        made.set_progress_bar_config(disable=True)
        return made

    def painted(self, work: str = "", seed: int = 5, **arguments: Any):
        """Return what such a pipeline draws."""
        import torch

        _, side, _, theirs = _FACTS[self.family]
        pipeline = self.torch_pipeline(work)
        default = {"prompt": "a red circle", "num_inference_steps": 4, **theirs}
        if self.family == "flux":
            # The card of schnell has 256, and the pipeline 512.
            default["max_sequence_length"] = 512 if self.variant == "dev" else 256
        if "width" in inspect.signature(pipeline.__call__).parameters:
            default |= {"width": side, "height": side}
        return pipeline(generator=torch.Generator().manual_seed(seed), **default | arguments).images[0]

    @cache  # noqa: B019
    def picture(self) -> Any:
        """Return a picture to start from."""
        return self.painted(seed=9)


def assert_alike(result: Any, image: Any, least: float = LEAST) -> None:
    """Check the first picture of a result against one of torch that has something to show."""
    assert np.asarray(image).std() > 20
    assert psnr(result.pictures[0].image, image) >= least
