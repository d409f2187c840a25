"""Folders of FLUX.2-klein-4B and Z-Image-Turbo at real size, with random weights in bfloat16, a tensor at a time.

    python benchmarks/large_folders.py klein DIR/klein          # 16 GB: transformer, text encoder, VAE
    python benchmarks/large_folders.py z_image DIR/z_image      # 21 GB
    python benchmarks/large_folders.py klein DIR/klein --layers 27
    python benchmarks/large_folders.py klein DIR/klein --component transformer    # no model_index.json then

Sizes are those of the published configs. Weights are spread as the libraries' own classes spread them before any
training, but for norms, which are 1 ± 0.1. A text encoder may have fewer layers, if those are there whose states are
taken.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from olivelike.testing.checkpoints import write_safetensors

sys.path.append(str(Path(__file__).parent.parent))
from tests.fixtures.chat_tokenizer import write_chat_tokenizer

_QWEN: Final[dict[str, Any]] = {
    "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
    "tie_word_embeddings": True, "rope_theta": 1000000.0,
}  # fmt: skip
_VAE_16: Final[dict[str, Any]] = {
    "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 16, "sample_size": 1024,
    "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
    "use_quant_conv": False, "use_post_quant_conv": False, "scaling_factor": 0.3611, "shift_factor": 0.1159,
}  # fmt: skip
PIPELINES: Final[dict[str, dict[str, Any]]] = {
    "klein": {
        "index": {"_class_name": "Flux2KleinPipeline", "is_distilled": True},
        "scheduler": {"shift": 3.0, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15},
        "text_encoder": ("transformers", "Qwen3ForCausalLM", _QWEN),
        "transformer": (
            "diffusers",
            "Flux2Transformer2DModel",
            {
                "num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "joint_attention_dim": 7680,
                "guidance_embeds": False,
            },
        ),
        "vae": ("diffusers", "AutoencoderKLFlux2", {}),
    },
    "z_image": {
        "index": {"_class_name": "ZImagePipeline"},
        "scheduler": {"shift": 3.0, "use_dynamic_shifting": False},
        "text_encoder": ("transformers", "Qwen3Model", _QWEN),
        "transformer": ("diffusers", "ZImageTransformer2DModel", {}),
        "vae": ("diffusers", "AutoencoderKL", _VAE_16),
    },
}  # fmt: skip
_COUNT: Final = "bn.num_batches_tracked"
COMPONENTS: Final = ("text_encoder", "transformer", "vae")


def main() -> None:
    """Write a folder, or some of its components."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline", choices=PIPELINES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--component", choices=COMPONENTS, action="append", help="these alone")
    parser.add_argument("--layers", type=int, help="of the text encoder, in place of 36")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    root: Path = options.folder
    root.mkdir(parents=True, exist_ok=True)
    parts = PIPELINES[options.pipeline]
    for component in options.component or COMPONENTS:
        library, class_name, config = parts[component]
        if component == "text_encoder" and options.layers:
            config = {**config, "num_hidden_layers": options.layers}
        write_component(root / component, library, class_name, config, options.seed)
    if options.component:
        return
    write_chat_tokenizer(root / "tokenizer")
    write_json(
        root / "scheduler/scheduler_config.json",
        {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, **parts["scheduler"]},
    )
    index = {name: list(parts[name][:2]) for name in COMPONENTS}
    index |= {"tokenizer": ["transformers", "Qwen2Tokenizer"]}
    index |= {"scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"]}
    write_json(root / "model_index.json", parts["index"] | index)


def build(library: str, class_name: str, config: dict[str, Any]) -> Any:
    """Return a network without values."""
    import torch

    with torch.device("meta"):
        if library == "diffusers":
            import diffusers

            return getattr(diffusers, class_name)(**config)
        import transformers

        network: Any = getattr(transformers, class_name)
        return network(network.config_class(**config))


def write_component(folder: Path, library: str, class_name: str, config: dict[str, Any], seed: int) -> None:
    """Write the config and weights of a network."""
    import torch

    network = build(library, class_name, config)
    folder.mkdir(parents=True, exist_ok=True)
    if library == "diffusers":
        network.save_config(folder)
        stem = "diffusion_pytorch_model"
        kinds = (torch.nn.Linear, torch.nn.Conv2d)
        spread = {
            f"{n}.{k}": fan_in(m)
            for n, m in network.named_modules()
            if isinstance(m, kinds)
            for k in ("weight", "bias")
        }
    else:
        network.config.architectures = [class_name]
        network.config.save_pretrained(folder)
        stem, spread = "model", {}
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    shapes.pop("lm_head.weight", None)  # It is the table of the embeddings.

    def value(name: str) -> np.ndarray[Any, Any]:
        if name == _COUNT:
            return np.zeros(shapes[name], np.int64)
        word = hashlib.sha256(f"{seed}/{class_name}/{name}".encode()).digest()
        generator = np.random.Generator(np.random.SFC64(int.from_bytes(word[:16], "little")))
        if name in spread:  # As torch's own layers: even, between ± 1 / sqrt(inputs).
            values = generator.random(shapes[name], dtype=np.float32)
            values -= np.float32(0.5)
            values *= np.float32(2 / math.sqrt(spread[name]))
            return values
        values = generator.standard_normal(shapes[name], dtype=np.float32)
        if len(shapes[name]) > 1:  # transformers' own, of all matrices and tables.
            values *= np.float32(1.0 if "pad_token" in name else 0.02)
            return values
        values *= np.float32(0.1)
        values += np.float32(1.0 if name.endswith(("weight", "running_var")) else 0.0)
        return values

    tensors: Any = {name: ("I64" if name == _COUNT else "BF16", shape) for name, shape in shapes.items()}
    write_safetensors(folder / f"{stem}.safetensors", tensors, value)


def fan_in(layer: Any) -> int:
    """Return how many values a layer sums over for each that it makes."""
    return math.prod(layer.weight.shape[1:])


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
