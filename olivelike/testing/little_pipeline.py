"""A pipeline that is exported in seconds, as a torch checkpoint and as an optimised folder; made once in a process."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.model.graph import Graph, parameter_inputs, real_inputs
from olivelike.testing.checkpoint_configs import INDEX, SCHEDULER
from olivelike.testing.checkpoint_tokenizer import write_tokenizer
from olivelike.testing.little_networks import PREPROCESSING, UNET_CHANNELS, VOCABULARY, make_networks
from olivelike.testing.models import load_model, no_progress
from olivelike.testing.passes import run_pass

if TYPE_CHECKING:
    from olivelike.testing.little_networks import LittleKind
    from olivelike.testing.models import LocalModel

_CLASSES: dict[str, dict[str, Any]] = {
    "sd": {},
    "inpainting": {"_class_name": "StableDiffusionInpaintPipeline"},
    "xl": {
        "_class_name": "StableDiffusionXLPipeline",
        "force_zeros_for_empty_prompt": True,
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
        "tokenizer_2": ["transformers", "CLIPTokenizer"],
    },
}
_CHECKING = ("safety_checker", "feature_extractor")


@cache
def little_checkpoint(kind: LittleKind = "sd") -> Path:
    """Return a diffusers folder of the little networks; treat it as read-only.

    Args:
        kind: Stable Diffusion 1.5 with a safety checker that flags nothing, its inpainting UNet of nine channels, or
            SDXL with two text encoders.
    """
    root = _folder(f"olivelike-little-{kind}-")
    for name, network in make_networks(kind).items():
        network.save_pretrained(root / name)
    # The hub's own config: a setting that is written out would be taken over by other schedulers.
    published = {
        key: SCHEDULER[key] for key in SCHEDULER if key not in ("prediction_type", "timestep_spacing")
    }
    _write(root / "scheduler" / "scheduler_config.json", published)
    index = {**INDEX, **_CLASSES[kind]}
    if kind == "sd":
        _write(root / "feature_extractor" / "preprocessor_config.json", PREPROCESSING)
    else:
        index |= {name: [None, None] for name in _CHECKING}
    for name in index:
        if name.startswith("tokenizer"):
            write_tokenizer(root / name, VOCABULARY)
    _write(root / "model_index.json", index)
    return root


@cache
def little_pipeline(kind: LittleKind = "sd", *, half: bool = False) -> Path:
    """Return the optimised folder of a little checkpoint for target `cpu`; treat it as read-only.

    Args:
        kind: as for `little_checkpoint`.
        half: in half precision.
    """
    from olivelike.output.assets import normalise_assets
    from olivelike.output.folder import INDEX_FILE, component_config, index
    from olivelike.output.materialize import materialize
    from olivelike.output.publish import write_file
    from olivelike.output.record import RECORD_FILE, OutputRecord
    from olivelike.registry import Registry
    from olivelike.sources import SourceSpec, open_source
    from olivelike.targets import find_target

    root = _folder(f"olivelike-little-{kind}-onnx-")
    registry = Registry.built_in()
    made: dict[str, dict[str, Any]] = {}
    written: dict[str, dict[str, Any]] = {}
    for component in _components(kind):
        model = run_pass(registry.get("fuse").cls, little_model(kind, component), target="cpu")
        if half:
            model = run_pass(registry.get("float16").cls, model, target="cpu")
        (root / component).mkdir()
        assert model.architecture is not None
        assert model.graph is not None
        assert model.weights is not None
        files = model.tensors.files
        result = materialize(model.graph, model.weights, files, root / component, no_progress)
        made[component] = {"derivations": result.derivations}
        written |= {f"{component}/{name}": facts for name, facts in result.files.items()}
        write_file(root / component / "config.json", component_config(model.architecture))
    source = open_source(SourceSpec(path=little_checkpoint(kind)), [])
    record = OutputRecord("little", find_target("cpu").choice(), {"kind": "folder"}, made, written)
    assets = normalise_assets(source.index, source.extras)
    assets |= {INDEX_FILE: index(source.index, made), RECORD_FILE: record.to_bytes()}
    for path, data in assets.items():
        write_file(root / path, data)
    return root


@cache
def little_model(kind: LittleKind, component: str) -> LocalModel:
    """Return a network of a little checkpoint with its graph, as `convert` makes it."""
    from olivelike.testing.traced import traced_graph

    model = load_model(little_checkpoint(kind), component)
    if kind != "sd" and component in ("text_encoder", "vae_encoder", "vae_decoder"):
        # The same architecture, so the same graph.
        return model.replace(graph=little_model("sd", component).graph)
    if kind == "inpainting" and component == "unet":
        return model.replace(graph=_with_channels(little_model("sd", component), UNET_CHANNELS[kind]))
    assert model.architecture is not None
    return model.replace(graph=traced_graph(model.architecture))


def _with_channels(unet: LocalModel, channels: int) -> Graph:
    """Return what export gives for a UNet that takes so many channels: only the first convolution knows of them."""
    import onnx_ir as ir

    assert unet.graph is not None
    model = unet.graph.to_ir()
    for value in (real_inputs(model.graph)[0], parameter_inputs(model.graph)["conv_in.weight"]):
        assert value.shape is not None
        value.shape = ir.Shape([*value.shape[:1], channels, *value.shape[2:]])
    return Graph.from_ir(model)


def _components(kind: LittleKind) -> tuple[str, ...]:
    more = {"sd": ("safety_checker",), "xl": ("text_encoder_2",)}.get(kind, ())
    return ("text_encoder", "unet", "vae_encoder", "vae_decoder", *more)


def _folder(prefix: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n")
