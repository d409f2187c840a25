"""A step of klein or Z-Image beside stable-diffusion.cpp and diffusers in bfloat16, on the CPU, in turns; medians.

    python -m venv PEER && PEER/bin/pip install numpy stable-diffusion-cpp-python    # builds it for this processor
    python benchmarks/large_step.py DIR --peer PEER/bin/python                 # 1 and 4 blocks in place of 5 and 20
    python benchmarks/large_step.py DIR --peer PEER/bin/python --blocks 5 20   # the whole denoiser
    python benchmarks/large_step.py DIR --pipeline z_image --tokens 64         # 3 blocks and 1 of each refiner

All widths are the published ones, and 512 tokens of text lead klein. Blocks of a kind are alike, so a denoiser of fewer
has the same ratios. Z-Image's first step, which has the blocks that read the text alone, is the one that warms up. The
peer's files are holes that read as zeros, as speed does not depend on values; it ends before its VAE. For Z-Image it is
built of a source whose `z_image.hpp` says 3 and 1 for `num_layers` and `num_refiner_layers`.
Processor seconds are those of all threads; they say more than seconds on a machine with other work.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

WIDTH, MLP, TEXT, CELL = 3072, 9216, 7680, 16
BLOCKS: Final = {"klein": (1, 4), "z_image": (3, 1)}
DEPTHS: Final = {"klein": ("num_layers", "num_single_layers"), "z_image": ("n_layers", "n_refiner_layers")}
_PROMPT: Final = "a lighthouse on a cliff at dusk"
_MOST_TOKENS: Final = 512
_TEMPLATE: Final = 8
"""Tokens of Z-Image's chat template around a prompt."""
_QWEN: Final = {"hidden": 2560, "inner": 256, "layers": 36, "vocabulary": 151936}
"""Its text encoder, with narrow feed-forward networks: no step waits for it."""

Turn = tuple[float, float]
"""Seconds and processor seconds of a step."""


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), *map(int, sys.argv[3:6]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where networks go (kept)")
    parser.add_argument("--peer", help="Python with stable-diffusion-cpp-python")
    parser.add_argument("--pipeline", choices=BLOCKS, default="klein")
    parser.add_argument("--blocks", type=int, nargs=2, help="double and single ones; Z-Image's, and of each refiner")
    parser.add_argument("--tokens", type=int, default=_MOST_TOKENS, help="of the text")
    parser.add_argument("--side", type=int, default=512, help="of the picture, in pixels")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="ours whose names have one of these in them, beside diffusers")
    options = parser.parse_args()
    pipeline: str = options.pipeline
    if options.peer and pipeline == "klein" and options.tokens != _MOST_TOKENS:
        parser.error(f"--peer fills klein's texts up to {_MOST_TOKENS} tokens")
    blocks = options.blocks or BLOCKS[pipeline]
    folder: Path = options.folder / "-".join((pipeline, *map(str, blocks)))
    source = folder / "source"
    if not source.exists():
        write_source(source, pipeline, *blocks)
    if options.peer and not (folder / "vae").exists():
        write_holes(folder, pipeline, *blocks)
    feeds = inputs(pipeline, options.side, options.tokens)
    engines: dict[str, Any] = {}
    groups = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "256"}
    for name, target, step, settings in (
        ("olivelike, target cpu, w8 by rows", "cpu", "weights8: {int8_compute: true, int8_rows: true}", {}),
        ("olivelike, target cpu, w8 by blocks", "cpu", "weights8: {int8_compute: true}", {}),
        ("olivelike, target cpu, w8, float activations", "cpu", "weights8", {}),
        ("olivelike, target openvino, w8 in bfloat16", "openvino", "bfloat16, weights8", {}),
        ("olivelike, target openvino, w8, activations in 8 bits", "openvino", "weights8", groups),
    ):
        if not options.only or any(part in name for part in options.only):
            engines[name] = own(folder, source, target, step, feeds, settings)
    engines["diffusers, bfloat16"] = diffusers_step(source, pipeline, feeds)
    turns: dict[str, list[Turn]] = {name: [] for name in engines}
    for number in range(options.rounds + 1):
        for name, step in engines.items():
            start, before = time.perf_counter(), processor_seconds()
            step()
            if number:  # The first warms up.
                turns[name].append((time.perf_counter() - start, processor_seconds() - before))
        if options.peer and number:
            turns.setdefault("stable-diffusion.cpp, q8_0", []).append(peer(options, folder, pipeline))
    operations = operations_of(pipeline, blocks, (options.side // CELL) ** 2, options.tokens)
    print("| engine | seconds per step | processor seconds | GFLOP per processor second |\n| --- | --- | --- | --- |")
    for name, found in turns.items():
        seconds, processor = (statistics.median(part) for part in zip(*found, strict=True))
        print(f"| {name} | {seconds:.2f} | {processor:.2f} | {operations / processor / 1e9:.0f} |")


def processor_seconds() -> float:
    """Return the processor time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def operations_of(pipeline: str, blocks: tuple[int, int], cells: int, words: int) -> int:
    """Return the operations of a step of all blocks; klein's double ones have weights for texts and for pictures."""
    tokens, (first, second) = cells + words, blocks
    if pipeline == "klein":
        block = (4 * WIDTH + 3 * MLP) * WIDTH
        return (first + second) * (2 * tokens * block + 4 * tokens**2 * WIDTH)
    width, refined = 3840, cells**2 + words**2
    block = (4 * width + 3 * (width // 3 * 8)) * width
    return (first + second) * 2 * tokens * block + 4 * (first * tokens**2 + second * refined) * width


def write_source(folder: Path, pipeline: str, first: int, second: int) -> None:
    """Write a denoiser of the published widths."""
    from large_folders import PIPELINES, write_component, write_json

    library, class_name, config = PIPELINES[pipeline]["transformer"]
    config = {**config, **dict(zip(DEPTHS[pipeline], (first, second), strict=True))}
    write_component(folder / "transformer", library, class_name, config, 0)
    write_json(folder / "model_index.json", {**PIPELINES[pipeline]["index"], "transformer": [library, class_name]})


def write_holes(folder: Path, pipeline: str, first: int, second: int) -> None:
    """Write the peer's files: the same denoiser by its makers' names, a text encoder and a VAE."""
    from large_folders import PIPELINES, write_component

    from olivelike.testing.checkpoints import write_safetensors

    shapes = (holes_of_klein if pipeline == "klein" else holes_of_z_image)(first, second)
    whole = (".scale", ".bias", "_token")
    named = {name if name.endswith(whole) else f"{name}.weight": shape for name, shape in shapes.items()}
    tensors: Any = {name: ("BF16", shape) for name, shape in named.items()}
    write_safetensors(folder / "denoiser.safetensors", tensors, None)
    width, inner = _QWEN["hidden"], _QWEN["inner"]
    text = {"embed_tokens": (_QWEN["vocabulary"], width), "norm": (width,)}
    for layer in range(_QWEN["layers"]):
        parts = {
            "input_layernorm": (width,), "post_attention_layernorm": (width,), "self_attn.q_norm": (128,),
            "self_attn.k_norm": (128,), "self_attn.q_proj": (4096, width), "self_attn.k_proj": (1024, width),
            "self_attn.v_proj": (1024, width), "self_attn.o_proj": (width, 4096), "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner),
        }  # fmt: skip
        text |= {f"layers.{layer}.{name}": shape for name, shape in parts.items()}
    tensors = {f"model.{name}.weight": ("BF16", shape) for name, shape in text.items()}
    write_safetensors(folder / "text.safetensors", tensors, None)
    write_component(folder / "vae", *PIPELINES[pipeline]["vae"], 0)


def holes_of_klein(double: int, single: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of klein's weights by its makers' names."""
    shapes: dict[str, tuple[int, ...]] = {
        "img_in": (WIDTH, 128), "txt_in": (WIDTH, TEXT), "time_in.in_layer": (WIDTH, 256),
        "time_in.out_layer": (WIDTH, WIDTH), "double_stream_modulation_img.lin": (6 * WIDTH, WIDTH),
        "double_stream_modulation_txt.lin": (6 * WIDTH, WIDTH), "single_stream_modulation.lin": (3 * WIDTH, WIDTH),
        "final_layer.linear": (128, WIDTH), "final_layer.adaLN_modulation.1": (2 * WIDTH, WIDTH),
    }  # fmt: skip
    for block in range(double):
        for stream in ("img", "txt"):
            start = f"double_blocks.{block}.{stream}"
            shapes |= {f"{start}_attn.qkv": (3 * WIDTH, WIDTH), f"{start}_attn.proj": (WIDTH, WIDTH)}
            shapes |= {f"{start}_attn.norm.{part}_norm.scale": (128,) for part in ("query", "key")}
            shapes |= {f"{start}_mlp.0": (2 * MLP, WIDTH), f"{start}_mlp.2": (WIDTH, MLP)}
    for block in range(single):
        start = f"single_blocks.{block}"
        shapes |= {f"{start}.linear1": (3 * WIDTH + 2 * MLP, WIDTH), f"{start}.linear2": (WIDTH, WIDTH + MLP)}
        shapes |= {f"{start}.norm.{part}_norm.scale": (128,) for part in ("query", "key")}
    return shapes


def holes_of_z_image(layers: int, refiners: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of Z-Image's weights by its makers' names."""
    width, inner, moment, text = 3840, 10240, 256, 2560
    linear = {
        "x_embedder": (width, 64), "t_embedder.mlp.0": (1024, 256), "t_embedder.mlp.2": (moment, 1024),
        "cap_embedder.1": (width, text), "final_layer.linear": (64, width),
        "final_layer.adaLN_modulation.1": (width, moment),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "cap_embedder.0": (text,), "x_pad_token": (1, width), "cap_pad_token": (1, width),
    }  # fmt: skip
    for kind, number in (("layers", layers), ("noise_refiner", refiners), ("context_refiner", refiners)):
        for block in (f"{kind}.{place}" for place in range(number)):
            if kind != "context_refiner":
                linear[f"{block}.adaLN_modulation.0"] = 4 * width, moment
            shapes |= {f"{block}.attention.qkv": (3 * width, width), f"{block}.attention.out": (width, width)}
            shapes |= {f"{block}.attention.{part}_norm": (128,) for part in ("q", "k")}
            shapes |= {f"{block}.feed_forward.{part}": (inner, width) for part in ("w1", "w3")}
            shapes |= {f"{block}.feed_forward.w2": (width, inner)}
            shapes |= {f"{block}.{part}_norm{place}": (width,) for part in ("attention", "ffn") for place in (1, 2)}
    return shapes | linear | {f"{name}.bias": shape[:1] for name, shape in linear.items()}


def inputs(pipeline: str, side: int, words: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return what a step takes."""
    random, cells = np.random.default_rng(0), side // CELL
    if pipeline == "z_image":
        return {
            "sample": random.standard_normal((1, 16, 2 * cells, 2 * cells), np.float32),
            "timestep": np.array([0.3], np.float32),
            "encoder_hidden_states": random.standard_normal((1, words, 2560), np.float32),
        }
    places = np.zeros((cells * cells, 4), np.int64)
    places[:, 1], places[:, 2] = np.divmod(np.arange(cells * cells), cells)
    of_words = np.zeros((words, 4), np.int64)
    of_words[:, 3] = np.arange(words)
    return {
        "hidden_states": random.standard_normal((1, cells * cells, 128), np.float32),
        "encoder_hidden_states": random.standard_normal((1, words, TEXT), np.float32),
        "timestep": np.array([0.7], np.float32), "img_ids": places, "txt_ids": of_words,
    }  # fmt: skip


def own(folder: Path, source: Path, target: str, step: str, feeds: Any, more: dict[str, str]) -> Any:
    """Optimise the denoiser, unless it is there, and return what runs it once; OpenVINO with `more` settings."""
    name = "".join(letter if letter.isalnum() else "_" for letter in f"{target}_{step}")
    output = folder / name
    if not output.exists():
        workflow = folder / f"{name}.yaml"
        workflow.write_text(
            f"source: {{path: {source}}}\ntarget: {target}\ncomponents:\n  transformer: [convert, fuse, {step}]\n"
            f"output: {output}\n"
        )
        command = (sys.executable, "-m", "olivelike", "run", str(workflow), "--cache-dir", str(folder / "cache"))
        subprocess.run(command, check=True)
    path = output / "transformer/model.onnx"
    if target == "openvino":
        import openvino

        # As the runtime opens graphs that say themselves what is in bfloat16.
        settings = {"INFERENCE_NUM_THREADS": "2", "INFERENCE_PRECISION_HINT": "f32", **more}
        request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
        return lambda: request.infer(feeds)
    from olivelike.runtime.sessions.session_settings import SessionSettings
    from olivelike.runtime.sessions.text_part import open_in_two

    session = open_in_two(path, SessionSettings(intra_threads=2), {})
    name, *_ = session.outputs
    call = session.bind(feeds, {name: np.empty_like(next(iter(feeds.values())))})
    return call.run


def diffusers_step(source: Path, pipeline: str, feeds: Any) -> Any:
    """Return what runs diffusers' denoiser in bfloat16 once."""
    import diffusers
    import torch
    from large_folders import PIPELINES

    torch.set_num_threads(2)
    made: Any = getattr(diffusers, PIPELINES[pipeline]["transformer"][1])
    network = made.from_pretrained(source / "transformer", torch_dtype=torch.bfloat16).eval()
    tensors = {name: torch.from_numpy(array) for name, array in feeds.items()}
    taken = {name: one.bfloat16() if one.is_floating_point() else one for name, one in tensors.items()}
    if pipeline == "z_image":  # Lists of pictures, each with an axis of frames, and of texts.
        sample, moment, text = taken.values()
        taken = {"x": [*sample[:, :, None]], "t": moment, "cap_feats": [*text]}

    def step() -> None:
        with torch.inference_mode():
            network(**taken, return_dict=False)

    return step


def peer(options: argparse.Namespace, folder: Path, pipeline: str) -> Turn:
    """Return what the peer's last step takes, in a process of its own."""
    words = 0 if pipeline == "klein" else options.tokens - _TEMPLATE
    command = [options.peer, __file__, "--worker", str(folder), str(options.side), "3", str(words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        seconds, processor = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise SystemExit(f"the peer drew nothing:\n{done.stderr[-2000:]}") from None
    return seconds, processor


def work(folder: Path, side: int, steps: int, words: int) -> None:
    """Be the peer: begin to draw, tell what the last of some steps took, and end."""
    answers = os.dup(1)
    os.dup2(2, 1)
    from stable_diffusion_cpp import StableDiffusion

    model = StableDiffusion(
        diffusion_model_path=str(folder / "denoiser.safetensors"), llm_path=str(folder / "text.safetensors"),
        vae_path=str(folder / "vae/diffusion_pytorch_model.safetensors"), wtype="q8_0", n_threads=2,
        diffusion_flash_attn=True, vae_decode_only=True, verbose=False,
    )  # fmt: skip
    marks: list[Turn] = []

    def mark(*_: object) -> None:
        marks.append((time.perf_counter(), processor_seconds()))
        if len(marks) == steps:
            (a, b), (c, d) = marks[-2:]
            os.write(answers, f"{json.dumps([c - a, d - b])}\n".encode())
            os._exit(0)

    model.generate_image(
        prompt=" ".join(["cat"] * words) or _PROMPT, width=side, height=side, seed=1,
        sample_steps=steps + 1, sample_method="euler", cfg_scale=1.0, progress_callback=mark,
    )  # fmt: skip


if __name__ == "__main__":
    main()
