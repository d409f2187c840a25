"""Latency and memory of engines, side by side on this machine.

```python
from pathlib import Path

from olivelike.measure.bench import BenchSettings, bench, measure_folder

report = bench(BenchSettings(Path("models/demo"), engines=("onnxruntime", "torch"), steps=20))
for row in report.rows:
    print(row["engine"], row["median_latency"], row["peak_resident_MB"])

print(measure_folder(Path("models/demo/unet"), sizes={"unet_sample_height": 32}).median)
```

| module | what it does |
| --- | --- |
| `bench_settings` | what to measure: `BenchSettings`, checked before anything is opened |
| `whole_pictures` | `bench`: engines on pictures, a row for each and each batch size; `measure_folder`: networks |
| `ablation` | each variant of a workflow: latency, memory and error, network by network |
| `engines` | which engines there are, and what each needs |
| `contest` | processes that take turns, and the parent's end of each |
| `bench_job`, `bench_worker` | what goes to a child, and comes back; the child, which runs an engine when told to |
| `runtime_engine`, `torch_engine` | what a child may open |
| `memory` | what is measured, on what, and what speaks against it |
| `row`, `bench_report` | what comes out, and how two of them compare |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.measure.bench.bench_report import BenchReport
    from olivelike.measure.bench.bench_settings import BenchSettings
    from olivelike.measure.bench.whole_pictures import Measurement, bench, measure_folder, measure_folders

__all__ = ["BenchReport", "BenchSettings", "Measurement", "bench", "measure_folder", "measure_folders"]

__getattr__ = names_from(__name__, __file__)
