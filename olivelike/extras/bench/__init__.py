"""Latency and memory of engines, side by side on this machine.

```python
from pathlib import Path

from olivelike.extras.bench import BenchSettings, bench, measure_folder

report = bench(BenchSettings(Path("models/demo"), engines=("onnxruntime", "torch"), steps=20))
for row in report.rows:
    print(row.engine, row.median_latency, row.peak_resident_MB)

print(measure_folder(Path("models/demo/unet"), sizes={"unet_sample_height": 32}).median)
```

| module | what it does |
| --- | --- |
| `extra` | what the core finds: the commands |
| `bench_commands`, `bench_tables` | the commands, and how they show what is found |
| `bench_settings` | what to measure: `BenchSettings`, checked before anything is opened |
| `whole_pictures` | `bench`: engines on pictures, a row for each and each batch size; `measure_folder`: networks |
| `fidelity` | `bench --method`: time against fidelity |
| `ablation` | each variant of a workflow: latency, memory and error, network by network |
| `engines`, `torch_engine` | which engines there are, and what each needs; torch's |
| `row`, `bench_report` | rows of what was measured, and how two reports compare |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.extras.bench.bench_report import BenchReport
    from olivelike.extras.bench.bench_settings import BenchSettings
    from olivelike.extras.bench.whole_pictures import Measurement, bench, measure_folder, measure_folders

__all__ = ["BenchReport", "BenchSettings", "Measurement", "bench", "measure_folder", "measure_folders"]

__getattr__ = names_from(__name__, __file__)
