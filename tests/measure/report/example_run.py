"""The record of a run that has everything, and the profile beside it."""

from __future__ import annotations

from typing import Any

FIGURES = {"relative_error": 1.5e-6, "worst": 2e-5, "worst_at": [0, 1], "cosine": 0.99999, "nan": 0, "inf": 0}
RECORD: dict[str, Any] = {
    "run_id": "20260101T000000000000-abcdef",
    "status": "ok",
    "seconds": 80.0,
    "peak_memory_bytes": 1_500_000_000,
    "output": "/art/my project/models/demo",
    "workflow": "demo",
    "file": "/art/my project/workflows/demo.yaml",
    "command": None,
    "project": "/art/my project",
    "target": {"name": "cuda", "precision": "fp16"},
    "source": {"kind": "folder", "path": "/art/my project/checkpoint"},
    "finished": "2026-01-01T00:01:20+00:00",
    "error": None,
    "versions": {"python": "3.12.1", "olivelike": "0.1.0"},
    "host": {"system": "Linux", "release": "6.1", "machine": "x86_64", "cores": 2, "memory_bytes": 8_000_000_000},
    "loras": [
        {"kind": "file", "path": "/loras/of mine/style.safetensors", "weight": 0.8, "weights": {"unet": 0.5},
         "adapter": None},
    ],
    "embeddings": [{"kind": "file", "path": "/cat.safetensors", "token": "<cat>", "vectors": {"text_encoder": 2}}],
    "source_files": {"unet/diffusion_pytorch_model.safetensors": 3_400_000_000, "vae/model.safetensors": 300_000_000},
    "output_files": {"/art/my project/models/demo": {"unet/model.onnx": 400_000, "unet/weights.pb": 1_700_000_000}},
    "nodes": [
        {
            "id": "unet.load", "component": "unet", "name": "load", "parent": None, "status": "hit",
            "reason": "stored", "facts": {"parameters": 686},
        },
        {
            "id": "unet.fuse", "component": "unet", "name": "fuse", "parent": "unet.load", "status": "executed",
            "reason": "option attention changed", "start_seconds": 2.0, "seconds": 3.5,
            "peak_memory_bytes": 500_000_000, "memory_before_bytes": 380_000_000,
            "facts": {
                "nodes_before": 14, "nodes_after": 9,
                "operators_before": {"Add": 9, "MatMul": 5},
                "operators_after": {"Add": 7, "com.microsoft.MultiHeadAttention": 2},
                "fused": {"attention": {"MultiHeadAttention": 2}},
                "left": {"group_norm": {"cuda has no kernel": 3}},
            },
        },
        {
            "id": "unet.verify", "component": "unet", "name": "verify", "parent": "unet.fuse", "status": "executed",
            "reason": "never run here", "start_seconds": 5.5, "seconds": 7.0,
            "peak_memory_bytes": 900_000_000, "memory_before_bytes": 390_000_000,
            "facts": {
                "verification": {
                    **FIGURES, "precision": "fp16", "limit": 0.02, "passed": True,
                    "samples": [{"case": "batch 1, 16x24", "seed": 0, "outputs": {"out_sample": FIGURES}}],
                },
                "pictures": [{"original": "original.png", "optimised": "optimised.png", "psnr": 41.5}],
            },
        },
    ],
}  # fmt: skip
PREVIOUS: dict[str, Any] = {
    "run_id": "20251231T000000000000-abcdef",
    "finished": "2025-12-31T09:05:00+00:00",
    "seconds": 120.0,
    "target": {"name": "cpu", "precision": "fp16"},
    "source": {"kind": "folder", "path": "/art/my project/checkpoint"},
    "nodes": {"unet.load": ["executed", 9.0], "unet.fuse": ["executed", 4.25], "unet.old": ["hit", 0.0]},
    "output_bytes": {"/art/my project/models/demo": 1_800_000_000},
}
BENCH: dict[str, Any] = {
    "kind": "bench/1",
    "rows": [
        {
            "engine": "onnxruntime", "provider": "CPUExecutionProvider", "dtype": "float32", "batch_size": 1,
            "status": "ok", "height": 512, "width": 512, "steps": 20, "median_latency": 0.5, "speed": 2.3,
            "speed_against": "torch", "spread_percent": 4.2, "peak_resident_MB": 1000.0, "note": None, "error": "",
        },
        {
            "engine": "torch", "provider": "default", "dtype": "float32", "batch_size": 1, "status": "ok",
            "height": 512, "width": 512, "steps": 20, "median_latency": 1.15, "speed": 1.0, "speed_against": "torch",
            "spread_percent": 94.0, "peak_resident_MB": 2000.0, "note": "its runs took 0.5 to 1.6 s", "error": "",
        },
    ],
    "skipped": [],
}  # fmt: skip
PROFILE: dict[str, Any] = {
    "path": "/models/demo",
    "runtime": "onnxruntime 1.23",
    "runs": 3,
    "networks": [
        {
            "name": "unet",
            "inputs": {"sample": "2x4x64x64"},
            "milliseconds": 12.5,
            "runs": 3,
            "providers": {"CUDA": 826},
            "operators": [
                {"operator": f"Operator{place}", "provider": "CUDA", "nodes": 59, "milliseconds": 0.8, "share": 0.07}
                for place in range(14)
            ],
        }
    ],
}
