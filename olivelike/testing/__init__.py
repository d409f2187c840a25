"""Tools for the tests of passes: checkpoints, models at hand, a runner for passes, comparison with torch.

```python
from olivelike.testing import compare_with_torch, run_pass, tiny_model

def test_my_pass_keeps_the_numbers():
    result = run_pass(MyPass(strength=2), tiny_model("vae_decoder", graph=True), target="cuda")
    assert result.facts["rewritten"] == 12
    compare_with_torch(result).require(1e-5)
```

| name | what it does |
| --- | --- |
| `run_pass` | runs a pass as the engine does, with its checks, in this process |
| `fuse_with` | runs `fuse` with more rules |
| `tiny_model` | a component of a small SD 1.5 checkpoint, with its graph if wanted; traced once on a machine |
| `load_model` | a component of a checkpoint folder |
| `random_model` | seeded random weights for any architecture |
| `LocalModel`, `LocalTensors` | a model whose weight bytes are on this machine, and its access to them |
| `compare_with_torch` | relative errors of a model, or of an output folder, against the torch network in float64 |
| `make_checkpoint` | writes a whole pipeline folder with seeded random weights, of any family |
| `make_single_file` | writes such a folder's weights into one file, as model sites hold them |
| `make_lora` | writes a LoRA for such a folder, in the spelling of any trainer |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.measure.network_sizes import Case
    from olivelike.testing.checkpoints import make_checkpoint
    from olivelike.testing.lora_files import make_lora
    from olivelike.testing.models import LocalModel, LocalTensors, load_model, random_model, tiny_model
    from olivelike.testing.parity import Comparison, compare_with_torch
    from olivelike.testing.pass_runner import fuse_with, run_pass
    from olivelike.testing.single_file_writer import make_single_file

__all__ = [
    "Case", "Comparison", "LocalModel", "LocalTensors", "compare_with_torch", "fuse_with", "load_model",
    "make_checkpoint", "make_lora", "make_single_file", "random_model", "run_pass", "tiny_model",
]  # fmt: skip

__getattr__ = names_from(__name__, __file__)
