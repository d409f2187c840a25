"""What each fusion buys blocks of transformers on the CPU, at their published widths: in turns, medians.

    python benchmarks/fusion_transformers.py               # T5-XXL, Qwen3-4B, Stable Diffusion 3.5 medium
    python benchmarks/fusion_transformers.py klein         # 1.5 GB of weights, as much again while it runs

One block of each kind, random weights, float32. Beside the graph as it is converted and the fused one it measures the
latter without each rule that wrote something. Seconds are of the processor, one thread; sessions are opened in turns,
with ONNX Runtime's own optimisations off, as olivelike opens its networks.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from olivelike.families.networks import interface_of
from olivelike.measure.network_sizes import Case, random_inputs
from olivelike.model import Architecture
from olivelike.testing import run_pass
from olivelike.testing.models import random_model, traced_graph
from olivelike.testing.parity import materialize_model
from olivelike.workflow.passes import Registry

T5: Final = {
    "d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_heads": 64, "num_layers": 1, "vocab_size": 128,
    "feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
}  # fmt: skip
QWEN3: Final = {
    "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 2, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128, "max_position_embeddings": 1024,
    "tie_word_embeddings": True, "taken_states": [1],
}  # fmt: skip
SD3: Final = {
    "sample_size": 128, "patch_size": 2, "in_channels": 16, "out_channels": 16, "num_layers": 2,
    "attention_head_dim": 64, "num_attention_heads": 24, "joint_attention_dim": 4096, "caption_projection_dim": 1536,
    "pooled_projection_dim": 2048, "pos_embed_max_size": 64, "dual_attention_layers": [0], "qk_norm": "rms_norm",
}  # fmt: skip
KLEIN: Final = {
    "in_channels": 128, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 128, "num_attention_heads": 24,
    "joint_attention_dim": 7680, "axes_dims_rope": [32, 32, 32, 32], "timestep_guidance_channels": 256,
    "guidance_embeds": False,
}  # fmt: skip
NETWORKS: Final = {
    "t5": (Architecture("text_encoder_2", "transformers", "T5EncoderModel", T5), Case(1, 8, 8, 256)),
    "qwen3": (Architecture("text_encoder", "transformers", "Qwen3ForCausalLM", QWEN3), Case(1, 8, 8, 512)),
    "sd3": (Architecture("transformer", "diffusers", "SD3Transformer2DModel", SD3), Case(1, 64, 64, 333)),
    "klein": (Architecture("transformer", "diffusers", "Flux2Transformer2DModel", KLEIN), Case(1, 32, 32, 512)),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["t5", "qwen3", "sd3"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| network | graph | nodes | processor seconds | of the converted one |\n" + "| --- " * 5 + "|", flush=True)
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            measure(name, options.rounds, Path(folder))


def measure(name: str, rounds: int, folder: Path) -> None:
    """Measure one network, and print its rows."""
    architecture, case = NETWORKS[name]
    model = random_model(architecture).replace(graph=traced_graph(architecture))
    fuse = Registry.built_in().get("fuse").cls
    fused = run_pass(fuse, model, target="cpu")
    graphs = {"as converted": model, "fused": fused}
    for rule in fused.facts["fused"]:
        if rule in fuse.model_fields and rule != "cleanup":
            graphs[f"fused, without `{rule}`"] = run_pass(fuse, model, target="cpu", **{rule: False})
    nodes = {}
    for index, (graph, found) in enumerate(graphs.items()):
        (folder / str(index)).mkdir()
        materialize_model(found, folder / str(index))
        nodes[graph] = fused.facts["nodes_before"] if found is model else found.facts["nodes_after"]
    feeds = random_inputs(interface_of(architecture).inputs, case, architecture.config, 0)
    turns: dict[str, list[float]] = {graph: [] for graph in graphs}
    results: list[Any] = []
    for _ in range(rounds):
        for index, graph in enumerate(graphs):
            session = opened(folder / str(index))
            session.run(None, feeds)
            before = processor_seconds()
            results.append(session.run(None, feeds)[0])
            turns[graph].append(processor_seconds() - before)
    assert all(np.allclose(one, results[0], rtol=1e-3, atol=1e-3 * np.abs(results[0]).max()) for one in results)
    base = statistics.median(turns["as converted"])
    for graph, found in turns.items():
        median = statistics.median(found)
        print(f"| {name} | {graph} | {nodes[graph]} | {median:.3f} | {median / base:.3f} |", flush=True)


def opened(folder: Path) -> onnxruntime.InferenceSession:
    """Open a network with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])


def processor_seconds() -> float:
    """Return those of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
