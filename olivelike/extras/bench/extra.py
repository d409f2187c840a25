"""Declaration of the benchmark: two commands."""

from olivelike._extras import Command

COMMANDS = {
    "ablate": Command(
        "olivelike.extras.bench.bench_commands:ablate",
        "olivelike ablate ablation_sd15_cpu --set source=./my-checkpoint",
        group="Measure",
        after="verify",
    ),
    "bench": Command(
        "olivelike.extras.bench.bench_commands:bench",
        "olivelike bench models/painter --engine onnxruntime --steps 20",
        group="Measure",
        after="ablate",
    ),
}
