"""Declaration of the benchmark: two commands."""

from olivelike._extras import Command

COMMANDS = {
    "ablate": Command(
        "olivelike.extras.bench.bench_commands:ablate",
        "Measure",
        after="verify",
        example="olivelike ablate ablation_sd15_cpu --set source=./my-checkpoint",
    ),
    "bench": Command(
        "olivelike.extras.bench.bench_commands:bench",
        "Measure",
        after="ablate",
        example="olivelike bench models/painter --engine onnxruntime --steps 20",
    ),
}
