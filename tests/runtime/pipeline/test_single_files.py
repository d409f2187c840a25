"""Pipelines of transformers in single files draw what their folders draw, at tiny size."""

from __future__ import annotations

import json
import shutil
from functools import cache

import numpy as np
import pytest
import torch

from olivelike.engine.convert_request import ConvertRequest, draft
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.families import FAMILIES
from olivelike.runtime import Request, open_pipeline
from olivelike.sources.identify.published import tokenizer_classes
from olivelike.testing.models import lend_graphs, load_model
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.maker_files import (
    SMALL,
    in_llamas_names,
    in_makers_names,
    maker_folder,
    maker_tokenizers,
    states,
    write_parts,
)

PREFIXES = {
    "transformer": "model.diffusion_model.", "text_encoder": "text_encoders.clip_l.transformer.",
    "vae": {"flux": "vae.", "sd3": "first_stage_model."},
    "text_encoder_2": {"flux": "text_encoders.t5xxl.transformer.", "sd3": "text_encoders.clip_g.transformer."},
    "text_encoder_3": "text_encoders.t5xxl.transformer.",
}  # fmt: skip
"""Beginnings of names in ComfyUI's checkpoints."""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Return what converts a source and draws with it."""
    root = tmp_path_factory.mktemp("single-files")

    @cache
    def lend(family):
        components = [name for name in SMALL[family] if name != "vae"]
        graphs = [load_model(maker_folder(family), name).architecture for name in (*components, *VAES)]
        lend_graphs(root / "cache", graphs)

    def draw(family, name, source, parts=()):
        lend(family)
        own = [f"{path.name}={path}" for path in sorted(maker_tokenizers(family).iterdir())] if source.is_file() else []
        request = ConvertRequest(str(source), "cpu", root / family / name, precision="fp32", parts=(*parts, *own))
        place, options = draft(request, Options(cache_dir=root / "cache"))
        run(place, options, executor=InlineExecutor)
        pipeline = open_pipeline(root / family / name)
        asked = Request(prompts=("a red circle",), steps=2, seed=5, size=(32, 32))
        picture = np.asarray(pipeline.generate(asked).pictures[0].image)
        assert picture.std() > 5
        return picture

    return draw


VAES = ("vae_encoder", "vae_decoder")


def folder_of(family, root):
    """Return the folder of a pipeline with its tokenizers."""
    folder = shutil.copytree(maker_folder(family), root / "folder")
    shutil.copytree(maker_tokenizers(family), folder, dirs_exist_ok=True)
    index = json.loads((folder / "model_index.json").read_text()) | tokenizer_classes(FAMILIES[family])
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def named(parts):
    return tuple(f"{name}={path}" for name, path in parts.items() if name != "transformer")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["flux", "sd3"])
def test_a_file_of_all_networks_and_one_for_each_draw_what_the_folder_draws(drawn, family, tmp_path):
    expected = drawn(family, "folder", folder_of(family, tmp_path))
    held = {name: in_makers_names(family, name, state) for name, state in states(maker_folder(family)).items()}
    prefixes = {name: own if isinstance(own, str) else own[family] for name, own in PREFIXES.items()}
    whole = {prefixes[name] + key: value for name, state in held.items() for key, value in state.items()}
    # What ComfyUI writes besides.
    whole["text_encoders.clip_l.logit_scale"] = torch.ones(())
    if family == "flux":
        whole[prefixes["text_encoder"] + "text_projection.weight"] = torch.eye(64)
    in_one = write_parts(tmp_path, {"all": whole})["all"]
    assert np.array_equal(drawn(family, "in-one", in_one), expected)
    parts = write_parts(tmp_path, held)
    assert np.array_equal(drawn(family, "apart", parts["transformer"], named(parts)), expected)


def test_a_pipeline_in_gguf_draws_what_its_values_draw(drawn, tmp_path):
    from tests.fixtures.gguf_files import write_gguf

    parts, wide = {}, {}
    for name, state in states(maker_folder("z_image")).items():
        held = in_makers_names("z_image", name, state)
        own = in_llamas_names("qwen3", held) if name == "text_encoder" else held
        parts[name] = tmp_path / f"{name}.gguf"
        meant = write_gguf(parts[name], {key: value.numpy() for key, value in own.items()}, rows_of_256=name == "vae")
        wide |= write_parts(
            tmp_path, {name: {key: torch.from_numpy(meant[other]) for key, other in zip(held, own, strict=True)}}
        )
    pictures = [
        drawn("z_image", kind, files["transformer"], named(files)) for kind, files in (("q8", parts), ("wide", wide))
    ]
    assert np.array_equal(*pictures)
