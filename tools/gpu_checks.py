"""Check on a machine with a GPU what others can't: small pipelines are drawn, networks of real width are timed.

    python -m tools.gpu_checks make FOLDER                # anywhere, with torch: pipelines, and how the CPU draws them
    python -m tools.gpu_checks run FOLDER OUT             # on the GPU: a table, and OUT/gpu_checks.json
    python -m tools.gpu_checks run FOLDER OUT --provider cpu --quick    # tries all of it without a GPU
    python -m tools.gpu_checks run FOLDER OUT --only demo,serve --limit 60

Each check says what it found, or with what error it ended, and none ends the others. Pictures are compared with those
that the CPU drew in float32, in decibels. Sessions open with ONNX Runtime's warnings on, and nodes that it places on
the CPU are counted by operator. Nothing is traced on the machine; `speed` needs torch and diffusers there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from olivelike.runtime import Pipeline, Request, SessionSettings

TARGET: Final = "cuda"
SOURCES: Final = ("demo", "sd", "xl", "flux2", "z_image", "sd3", "flux")
WIDE: Final[Mapping[str, dict[str, Any]]] = {
    "unet": {
        "class": "UNet2DConditionModel",
        "quick": {"block_out_channels": [32, 64, 64, 64], "cross_attention_dim": 64},
    },
    "transformer": {
        "class": "Flux2Transformer2DModel",
        "config": {
            "in_channels": 128, "num_layers": 1, "num_single_layers": 4, "attention_head_dim": 128,
            "num_attention_heads": 24, "joint_attention_dim": 7680, "axes_dims_rope": [32, 32, 32, 32],
            "timestep_guidance_channels": 256, "guidance_embeds": False,
        },
        "quick": {"num_attention_heads": 2, "joint_attention_dim": 64},
    },
}  # fmt: skip
"""Networks that are timed: SD 1.5's UNet, and 5 of the 25 blocks of FLUX.2-klein 4B at its width."""
PRECISIONS: Final = ("fp32", "fp16")
NARROW_PRECISIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "flux2": ("bf16", "w8", "w4"), "z_image": ("bf16", "w8", "w4"), "sd3": ("bf16",), "flux": ("bf16",),
}  # fmt: skip
"""Others by source, of which the plain case alone is drawn."""
PROMPT: Final = "a red circle on a blue background"
SIZES: Final = {"demo": (64, 64), "sd": (32, 32), "xl": (32, 32)}
"""Width and height by source; 64 by 64 for the others."""
BOUNDS: Final = {"fp32": 45.0, "fp16": 25.0, "bf16": 20.0, "w8": 20.0, "w4": 10.0}
"""Decibels that a picture should reach."""
CASES: Final[Mapping[str, tuple[str, ...]]] = {
    "plain": SOURCES,
    "batch": ("demo", "sd", "flux2"),
    "img2img": ("demo", "sd", "z_image"),
    "inpaint": ("demo",),
    "previews": ("demo", "sd"),
    "deepcache": ("demo",),
    "two calls": ("demo",),
    "hires": ("demo",),
    "tiled": ("demo",),
    "lora": ("demo",),
    "controlnet": ("sd",),
    "reference": ("flux2",),
}
"""Ways to draw, and the sources that are drawn so."""
ALLOWED_ON_CPU: Final = {
    "Shape", "Gather", "Concat", "Unsqueeze", "Squeeze", "Slice", "Cast", "Mul", "Div", "Add", "Sub", "Range",
    "Reshape", "Equal", "Where", "ConstantOfShape", "Expand", "Min", "Max", "ReduceProd", "Mod",
}  # fmt: skip
"""Operators that compute with sizes, which ONNX Runtime keeps on the CPU on purpose."""


def main() -> int:
    """Run the command line; return an exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("make")
    made.add_argument("folder", type=Path)
    made.add_argument("--only", default=",".join((*SOURCES, *WIDE)), metavar="SOURCES")
    made.add_argument("--target", default=TARGET)
    ran = commands.add_parser("run")
    ran.add_argument("folder", type=Path)
    ran.add_argument("out", type=Path)
    ran.add_argument("--provider", default=TARGET)
    ran.add_argument("--only", metavar="CHECKS")
    ran.add_argument("--limit", type=float, default=220, metavar="SECONDS", help="no check begins after it")
    ran.add_argument("--quick", action="store_true", help="time small networks in place of those of real width")
    given = parser.parse_args()
    if given.command == "make":
        make(given.folder.resolve(), given.only.split(","), given.target)
        return 0
    checks = Checks(given.folder.resolve(), given.out.resolve(), given.provider, given.limit, given.quick)
    return checks.run(given.only.split(",") if given.only else None)


# What is made beforehand.


def make(folder: Path, sources: list[str], target: str) -> None:
    """Write pipelines for a target in each precision, LoRA and graphs, and what the CPU draws in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources:
        if source in WIDE:
            _trace(source, folder)
            continue
        checkpoint = _checkpoint(source)
        with tempfile.TemporaryDirectory() as temporary:
            reference = _convert(source, checkpoint, "cpu", "fp32", Path(temporary))
            if "lora" in _cases(source):
                _make_lora(checkpoint, folder / "lora.safetensors")
            for case in _cases(source):
                _save(draw(reference, source, case, folder, _settings("cpu")), folder / "pictures" / f"{source}-{case}")
        for precision in _precisions(source):
            _convert(source, checkpoint, target, precision, folder / f"{source}-{precision}")
        print(source, flush=True)


def _checkpoint(source: str) -> Path:
    from olivelike.data import demo_folder
    from tests.fixtures.little_pipeline import little_checkpoint
    from tests.fixtures.little_transformers import LITTLE, little_transformer

    if source in LITTLE:
        return little_transformer(source)
    return demo_folder() if source == "demo" else little_checkpoint("attending" if source == "sd" else "xl")


def _convert(source: str, checkpoint: Path, target: str, precision: str, output: Path) -> Path:
    """Run a workflow; that of the demo's UNet also writes what DeepCache needs."""
    from olivelike.engine.convert_request import ConvertRequest, draft_workflow
    from olivelike.engine.prepared import Options
    from olivelike.engine.run import run
    from tests.fixtures.little_guides import little_guide

    shutil.rmtree(output, ignore_errors=True)
    guides = {"controlnets": [str(little_guide("controlnet"))]} if source == "sd" else {}
    request = ConvertRequest(str(checkpoint), target, output, precision=precision, guides=guides)
    workflow = output.with_suffix(".yaml")
    text = draft_workflow(request, Options(), workflow.parent)
    if source == "demo":
        text = "\n".join(f"{line[:-1]}, deepcache]" if " unet:" in line else line for line in text.splitlines())
    workflow.write_text(text, encoding="utf-8")
    run(str(workflow), Options())
    workflow.unlink()
    return output


def _make_lora(checkpoint: Path, path: Path) -> None:
    from olivelike.testing import make_lora

    make_lora(path, "peft", base=checkpoint, alpha=8)


def _save(images: list[Image], stem: Path) -> None:
    stem.parent.mkdir(exist_ok=True)
    for number, image in enumerate(images):
        image.save(f"{stem}-{number}.png")


# What is drawn, the same in both places.


def _cases(source: str, precision: str = "fp32") -> list[str]:
    cases = CASES if precision in PRECISIONS else ("plain",)
    return [case for case in cases if source in CASES[case]]


def _precisions(source: str) -> tuple[str, ...]:
    return (*PRECISIONS, *NARROW_PRECISIONS.get(source, ()))


def _settings(provider: str) -> SessionSettings:
    from olivelike.runtime import SessionSettings
    from olivelike.runtime.sessions.session_settings import parse_provider

    return SessionSettings((parse_provider(provider),))


def request_of(source: str, case: str, steps: int = 4) -> Request:
    """Return what is asked for."""
    from olivelike.runtime import Request
    from olivelike.runtime.pipeline.request import Control

    size = SIZES.get(source, (64, 64))
    started = {"init_image": _picture(size), "strength": 0.6}
    more: dict[str, dict[str, Any]] = {
        "batch": {"num_images": 3, "batch_size": 3},
        "img2img": started,
        "inpaint": {**started, "mask": _mask(size)},
        "deepcache": {"cache_interval": 2},
        "two calls": {"guidance_calls": "two"},
        "hires": {"hires": 2.0},
        "tiled": {"tiled_vae": True},
        "controlnet": {"controls": (Control(_picture(size), "controlnet"),)},
        "reference": {"references": (_picture(size),)},
    }
    return Request(**{"prompts": (PROMPT,), "steps": steps, "seed": 5, "size": size, **more.get(case, {})})


def draw(folder: Path, source: str, case: str, made: Path, settings: SessionSettings) -> list[Image]:
    """Open a folder and draw a case; of previews, what each step shows."""
    return drawn_by(open_for(folder, case, made, settings), source, case)


def open_for(folder: Path, case: str, made: Path, settings: SessionSettings) -> Pipeline:
    """Open a folder, with a LoRA swapped in where a case is of one."""
    from olivelike.runtime import open_pipeline

    if case != "lora":
        return open_pipeline(folder, settings)
    from olivelike import WeightedLora, open_lora, swap_loras

    lora = WeightedLora(open_lora(made / "lora.safetensors"), 1.0)
    return open_pipeline(folder, settings, initializers=swap_loras(folder, [lora]))


def drawn_by(pipeline: Pipeline, source: str, case: str) -> list[Image]:
    """Draw a case with an open pipeline."""
    shown: list[Image] = []

    def show(step: Any) -> None:
        shown.extend([*step.preview.rough(), *step.preview.decode()])

    result = pipeline.generate(request_of(source, case), on_step=show if case == "previews" else None)
    return [*shown, *(picture.image for picture in result.pictures)]


def _picture(size: tuple[int, int]) -> Image:
    import numpy as np
    from PIL import Image

    few = np.random.default_rng(0).integers(0, 255, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(few).resize(size)


def _mask(size: tuple[int, int]) -> Image:
    from PIL import Image

    mask = Image.new("L", size, 0)
    mask.paste(255, (size[0] // 4, size[1] // 4, size[0], size[1] // 2))
    return mask


# What is done on the machine.


@dataclass
class Row:
    """What a check found."""

    check: str
    found: str
    seconds: float
    ok: bool
    more: dict[str, Any] = field(default_factory=dict)


@dataclass
class Checks:
    """The checks of one run, one after another."""

    made: Path
    out: Path
    provider: str
    limit: float
    quick: bool
    rows: list[Row] = field(default_factory=list)

    def run(self, only: list[str] | None) -> int:
        """Run what was asked for, print the table, and return how many checks failed."""
        began = time.monotonic()
        self.out.mkdir(parents=True, exist_ok=True)
        for name, check in self._all():
            if only is not None and name.partition(" ")[0] not in only:
                continue
            if time.monotonic() - began > self.limit:
                self._add(Row(name, "left out: no time", 0, ok=False))
                continue
            start = time.monotonic()
            try:
                found, ok, more = check()
            except Exception as error:  # noqa: BLE001  (one failure must not end the others)
                found, ok, more = f"{type(error).__name__}: {error}"[:600], False, {"trace": traceback.format_exc()}
            self._add(Row(name, found, round(time.monotonic() - start, 2), ok, more))
        failed = sum(not row.ok for row in self.rows)
        print(f"{len(self.rows) - failed} right, {failed} not, {time.monotonic() - began:.0f} s", flush=True)
        return min(failed, 1)

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        print(
            f"| {row.check} | {'' if row.ok else '**'}{row.found}{'' if row.ok else '**'} | {row.seconds} |", flush=True
        )
        text = json.dumps([asdict(row) for row in self.rows], indent=1, default=str)
        (self.out / "gpu_checks.json").write_text(text, encoding="utf-8")

    def _all(self) -> Iterator[tuple[str, Check]]:
        yield "machine", self._machine
        for source in SOURCES:
            for precision in _precisions(source):
                folder = self.made / f"{source}-{precision}"
                if folder.is_dir():
                    yield f"{source} {precision} opens", lambda one=folder: self._opens(one)  # type: ignore[misc]
                    for case in _cases(source, precision):
                        yield (
                            f"{source} {precision} {case}",
                            lambda *, one=folder, two=source, three=case, four=precision: self._draws(
                                one, two, three, four
                            ),
                        )
                    yield f"{source} {precision} step", lambda one=folder, two=source: self._steps(one, two)  # type: ignore[misc]
        yield "graph replay", self._replay
        yield "first picture", self._first
        yield "memory limit", self._memory_limit
        yield "serve", self._serve
        yield "generate", self._generate
        for name in WIDE:
            yield f"speed {name}", lambda one=name: self._speed(one)  # type: ignore[misc]
        yield "tests", self._tests

    def _settings(self) -> SessionSettings:
        return _settings(self.provider)

    def _machine(self) -> Found:
        import onnxruntime

        from olivelike.runtime.sessions.devices import list_devices, require_nvidia
        from olivelike.runtime.sessions.providers import find_provider

        provider = find_provider(self.provider)
        require_nvidia(provider)
        devices = ", ".join(device.name for device in list_devices(provider))
        return f"onnxruntime {onnxruntime.__version__}; {devices}; Python {sys.version.split()[0]}", True, {}

    def _opens(self, folder: Path) -> Found:
        """Open each network by itself, with warnings and the places of nodes."""
        found = {path.parent.name: look(path, self.provider) for path in sorted(folder.glob("*/model.onnx"))}
        strays = {name: one.strays for name, one in found.items() if one.strays}
        warnings = sorted({line for one in found.values() for line in one.warnings})
        seconds = sum(one.seconds for one in found.values())
        text = f"{len(found)} networks in {seconds:.2f} s; on the CPU: {strays or 'sizes alone'}"
        text += f"; {len(warnings)} kinds of warnings" if warnings else "; no warnings"
        return text, not strays, {"warnings": warnings, "networks": {name: asdict(one) for name, one in found.items()}}

    def _draws(self, folder: Path, source: str, case: str, precision: str) -> Found:
        from PIL import Image

        start = time.monotonic()
        pipeline = open_for(folder, case, self.made, self._settings())
        opened = time.monotonic() - start
        images = drawn_by(pipeline, source, case)
        first = time.monotonic() - start - opened
        wanted = [Image.open(self.made / "pictures" / f"{source}-{case}-{number}.png") for number in range(len(images))]
        decibels = [psnr(one, other) for one, other in zip(images, wanted, strict=True)]
        least = min(decibels)
        for number, image in enumerate(images):
            image.save(self.out / f"{source}-{precision}-{case.replace(' ', '-')}-{number}.png")
        text = f"{least:.1f} dB ({pipeline.provider}); opened in {opened:.2f} s, drawn in {first:.2f} s"
        return text, least >= BOUNDS[precision], {"decibels": decibels}

    def _steps(self, folder: Path, source: str) -> Found:
        """Time steps of 12, warm."""
        pipeline = open_for(folder, "plain", self.made, self._settings())
        times: list[float] = []
        for _ in range(2):
            times.clear()
            pipeline.generate(request_of(source, "plain", 12), on_step=lambda _: times.append(time.perf_counter()))
        taken = [later - earlier for earlier, later in pairwise(times)]
        return f"{statistics.median(taken) * 1000:.2f} ms a step", True, {"steps": taken}

    def _replay(self) -> Found:
        """Draw with recorded graphs, which a provider on a GPU replays."""
        found = {}
        for source in SOURCES:
            folder = self.made / f"{source}-fp16"
            if folder.is_dir():
                plain = drawn_by(open_for(folder, "plain", self.made, self._settings()), source, "plain")
                settings = replace(self._settings(), cuda_graph=self.provider == TARGET)
                try:
                    replayed = drawn_by(open_for(folder, "plain", self.made, settings), source, "plain")
                    found[source] = f"{psnr(replayed[0], plain[0]):.1f} dB"
                except Exception as error:  # noqa: BLE001  (what is found of each)
                    found[source] = f"{type(error).__name__}: {error}"[:300]
        return str(found), all(text.endswith("dB") for text in found.values()), {}

    def _first(self) -> Found:
        """Time pictures of a pipeline that is just open, by how cuDNN looks for the kernel of a convolution."""
        found = {}
        for way in ("EXHAUSTIVE", "HEURISTIC", "DEFAULT") if self.provider == TARGET else ("",):
            option = f"{self.provider}:cudnn_conv_algo_search={way}" if way else self.provider
            pipeline = open_for(self.made / "demo-fp16", "plain", self.made, _settings(option))
            times = [time.monotonic()]
            for _ in range(3):
                drawn_by(pipeline, "demo", "plain")
                times.append(time.monotonic())
            found[way] = [round(later - earlier, 3) for earlier, later in pairwise(times)]
        return str(found), True, found

    def _memory_limit(self) -> Found:
        """Draw with networks that are open in turns."""
        folder = self.made / "demo-fp16"
        limit = max(path.stat().st_size for path in folder.rglob("*.pb*")) * 3 // 2
        settings = replace(self._settings(), memory_limit=limit)
        images = drawn_by(open_for(folder, "plain", self.made, settings), "demo", "plain")
        plain = drawn_by(open_for(folder, "plain", self.made, self._settings()), "demo", "plain")
        decibels = psnr(images[0], plain[0])
        return f"{limit} bytes: {decibels:.1f} dB of the same without one", decibels > BOUNDS["fp32"], {}

    def _serve(self) -> Found:
        """Start a server in a process and draw four pictures there."""
        from urllib.request import Request, urlopen

        command = [sys.executable, "-m", "olivelike", "serve", self.made / "demo-fp16", "--port", "0"]
        with tempfile.TemporaryDirectory() as there, (self.out / "serve.log").open("w") as log:
            process = subprocess.Popen(
                [*map(str, command), "--provider", self.provider],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=there,
            )
            try:
                start = time.monotonic()
                url = _url_of(process)
                body = {"prompt": PROMPT, "size": "64x64", "n": 1}
                times = [time.monotonic() - start]
                for _ in range(4):
                    asked = Request(  # noqa: S310  (a server of ours)
                        f"{url}/v1/images/generations", json.dumps(body).encode(), {"Content-Type": "application/json"}
                    )
                    with urlopen(asked, timeout=60) as answer:  # noqa: S310
                        content = json.load(answer)
                    times.append(time.monotonic() - start)
            finally:
                process.kill()
                process.wait()
        size = len(content["data"][0]["b64_json"])
        taken = ", ".join(f"{later - earlier:.2f}" for earlier, later in pairwise(times))
        text = f"up after {times[0]:.1f} s, pictures in {taken} s ({size} characters)"
        return text, size > 1000, {}

    def _generate(self) -> Found:
        """Draw by the command line, in a process of its own."""
        with tempfile.TemporaryDirectory() as there:
            command = [sys.executable, "-m", "olivelike", "generate", self.made / "demo-fp16", PROMPT, "--steps", "4"]
            done = subprocess.run(
                [*map(str, command), "--provider", self.provider, "--num-images", "2", "--seed", "5"],
                capture_output=True, text=True, cwd=there, check=False, timeout=90,
            )  # fmt: skip
            made = len(list(Path(there).rglob("*.png")))
        text = f"status {done.returncode}, {made} pictures"
        return text, done.returncode == 0 and made == 2, {"said": done.stdout[-3000:], "log": done.stderr[-3000:]}

    def _tests(self) -> Found:
        """Run tests of sessions, but those that need more packages, or a child that finds the tree."""
        names = ("devices", "options", "failures", "settings", "inspect", "interruption", "plugins")
        left = "not openvino and not library_of_operators and not without_a_gpu and not doctor"
        files = [f"tests/runtime/sessions/test_sessions_{name}.py" for name in names]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "-k", left, *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        lines = done.stdout.strip().splitlines()
        return (
            (lines or ["nothing"])[-1],
            done.returncode == 0,
            {"said": done.stdout[-12000:], "log": done.stderr[-3000:]},
        )

    def _speed(self, name: str) -> Found:
        """Time a network at real width in float16, fused in several ways, against torch."""
        with tempfile.TemporaryDirectory() as there:
            found = speed(name, self.made, Path(there), self.provider, quick=self.quick)
        first = found["torch"]["ms"]
        text = "; ".join(f"{way}: {_told(one, first)}" for way, one in found.items())
        bounds = {"weights4": 0.3}
        right = all("ms" in one and one.get("off", 0) < bounds.get(way, 0.03) for way, one in found.items())
        return text, right, found


Found = tuple[str, bool, dict[str, Any]]
Check = Callable[[], Found]


@dataclass
class Look:
    """What ONNX Runtime says of a network as it opens it."""

    seconds: float
    nodes: int
    on_cpu: dict[str, int]
    strays: dict[str, int]
    """Of those, operators that compute with more than sizes."""
    warnings: list[str]


def look(path: Path, provider: str) -> Look:
    """Open a network with ONNX Runtime alone, its warnings on."""
    import onnxruntime

    from olivelike.runtime.sessions.providers import CPU, find_provider

    name = find_provider(provider).name
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 2
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    start = time.monotonic()
    with _stderr() as said:
        session = onnxruntime.InferenceSession(path, options, providers=[name])
    seconds = time.monotonic() - start
    placed = [
        (part.ep_name, node.op_type)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]
    on_cpu = Counter(operator for place, operator in placed if place == CPU and name != CPU)
    strays = {operator: count for operator, count in on_cpu.items() if operator not in ALLOWED_ON_CPU}
    lines = [line.partition("] ")[2] or line for line in said() if line.strip()]
    return Look(seconds, len(placed), dict(on_cpu), strays, sorted(set(lines))[:20])


@contextmanager
def _stderr() -> Iterator[Callable[[], list[str]]]:
    """Catch what libraries write to the process's second stream."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        lines: list[str] = []
        try:
            yield lambda: lines
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            lines += file.read().decode(errors="replace").splitlines()


def _url_of(process: subprocess.Popen[str]) -> str:
    import re

    assert process.stdout is not None
    said = ""
    while not (found := re.search(r"http://[\w.:]+", said)):
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended: {said}")
        said += line
    return found[0]


def psnr(image: Image, wanted: Image) -> float:
    """Return how near pictures are, in decibels; 99 for equal ones."""
    import numpy as np

    if image.size != wanted.size:
        raise ValueError(f"a picture of {image.size}, not {wanted.size}")
    error = np.mean((np.asarray(image, np.float64) - np.asarray(wanted, np.float64)) ** 2)
    return 99.0 if error == 0 else float(10 * np.log10(255**2 / error))


# Networks of real width.


def _told(one: Mapping[str, Any], first: float) -> str:
    if "ms" not in one:
        return str(one["error"])
    off = f", off {one['off']:.1e}" if "off" in one else ""
    return f"{one['ms']:.2f} ms ({first / one['ms']:.2f} x torch{off})"


def _wide_config(name: str, *, quick: bool) -> dict[str, Any]:
    wide = WIDE[name]
    if "config" in wide:
        return {**wide["config"], **(wide["quick"] if quick else {})}
    from olivelike.families import FAMILIES

    return {**FAMILIES["sd1"].published.configs["unet"], **(wide["quick"] if quick else {})}


def _wide_folder(name: str, folder: Path, *, quick: bool, device: str) -> Any:
    """Write a network with random weights in float16 as a pipeline has it, and return torch's."""
    import diffusers
    import torch

    with torch.device(device):
        torch.manual_seed(0)
        network = getattr(diffusers, WIDE[name]["class"]).from_config(_wide_config(name, quick=quick)).half().eval()
    network.requires_grad_(False).save_pretrained(folder / name)
    index = {"unet": "StableDiffusionPipeline", "transformer": "Flux2KleinPipeline"}[name]
    parts = {"_class_name": index, name: ["diffusers", WIDE[name]["class"]]}
    (folder / "model_index.json").write_text(json.dumps(parts), encoding="utf-8")
    return network


def _trace(name: str, folder: Path) -> None:
    """Write the graphs of a network, without weights: of real width and of the small one."""
    import diffusers
    from accelerate import init_empty_weights

    from olivelike.model import Architecture
    from olivelike.testing.models import traced_graph

    for quick in (False, True):
        with init_empty_weights():
            config = getattr(diffusers, WIDE[name]["class"]).from_config(_wide_config(name, quick=quick)).config
        kept = {key: value for key, value in config.items() if not key.startswith("_")}
        architecture = Architecture(name, "diffusers", WIDE[name]["class"], kept)
        (folder / f"{name}-{'quick' if quick else 'wide'}.onnx").write_bytes(traced_graph(architecture).to_bytes())


def speed(name: str, made: Path, there: Path, provider: str, *, quick: bool) -> dict[str, dict[str, Any]]:
    """Return the median times in ms of a network in torch and in ONNX Runtime, by way, and how far they are apart."""
    import torch

    from olivelike.model.graph import Graph
    from olivelike.testing import load_model

    device = "cuda" if torch.cuda.is_available() and provider == TARGET else "cpu"
    network = _wide_folder(name, there, quick=quick, device=device)
    graph = Graph((made / f"{name}-{'quick' if quick else 'wide'}.onnx").read_bytes())
    model = load_model(there, name).replace(graph=graph)
    inputs = _inputs(name, network.config, quick=quick)
    found: dict[str, dict[str, Any]] = {}
    wanted = _time_torch(network, inputs, device, found)
    del network
    if device == "cuda":
        torch.cuda.empty_cache()
    for way, off in WAYS[name].items():
        try:
            found[way] = _time_ours(model, inputs, there / way, provider, off, wanted)
        except Exception as error:  # noqa: BLE001  (the other ways are timed)
            found[way] = {"error": f"{type(error).__name__}: {error}"[:300]}
        shutil.rmtree(there / way, ignore_errors=True)
    return found


WAYS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "unet": {
        "fused": (), "recorded": (), "without NHWC": ("nhwc_conv", "transposes"),
        "without packing": ("packed_qkv", "packed_kv"), "attention alone": ("*", "attention"), "nothing": ("*",),
    },
    "transformer": {"fused": (), "recorded": (), "nothing": ("*",), "bfloat16": (), "weights8": (), "weights4": ()},
}  # fmt: skip
"""Rules of `fuse` that are left out, by a name for what is left; `*` leaves out all but those behind it."""
NARROWED: Final[Mapping[str, tuple[str, ...]]] = {
    "bfloat16": ("bfloat16",), "weights8": ("float16", "weights8"), "weights4": ("float16", "weights4"),
}  # fmt: skip
"""Passes after `fuse` of ways that are not in float16."""


def _inputs(name: str, config: Any, *, quick: bool) -> dict[str, np.ndarray[Any, Any]]:
    """Return random inputs: SD 1.5 with guidance at 512 by 512, klein at 1024 by 1024."""
    import numpy as np

    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray[Any, Any]:
        return random.standard_normal(shape, np.float32).astype(np.float16)

    if name == "unet":
        side = 16 if quick else 64
        states = normal(2, 77, config.cross_attention_dim)
        return {
            "sample": normal(2, 4, side, side),
            "timestep": np.array([627], np.float16),
            "encoder_hidden_states": states,
        }
    side, text = (8, 16) if quick else (64, 512)
    rows, columns = np.divmod(np.arange(side * side), side)
    image_ids = np.stack([rows * 0, rows, columns, rows * 0], 1)
    text_ids = np.stack([np.arange(text) * 0] * 3 + [np.arange(text)], 1)
    return {
        "hidden_states": normal(1, side * side, config.in_channels),
        "encoder_hidden_states": normal(1, text, config.joint_attention_dim),
        "timestep": np.array([0.7], np.float16),
        "img_ids": image_ids.astype(np.int64),
        "txt_ids": text_ids.astype(np.int64),
    }


def _time_torch(
    network: Any, inputs: Mapping[str, np.ndarray[Any, Any]], device: str, found: dict[str, dict[str, Any]]
) -> np.ndarray[Any, Any]:
    """Time torch's own network, eagerly and replayed, and return what it computes."""
    import torch

    given = {key: torch.from_numpy(value).to(device) for key, value in inputs.items()}
    if "sample" in given:
        network = network.to(memory_format=torch.channels_last)

    def call() -> Any:
        return network(**given, return_dict=False)[0]

    def timed(run: Callable[[], Any]) -> dict[str, Any]:
        return median_ms(run, torch.cuda.synchronize if device == "cuda" else lambda: None)

    with torch.no_grad():
        found["torch"] = timed(call)
        result = call().float().cpu().numpy()
        if device == "cuda":
            try:
                recorded = torch.cuda.CUDAGraph()
                with torch.cuda.graph(recorded):
                    call()
                found["torch, recorded"] = timed(recorded.replay)
                del recorded
            except Exception as error:  # noqa: BLE001  (eager figures are there)
                found["torch, recorded"] = {"error": str(error)[:200]}
    wanted: np.ndarray[Any, Any] = result
    return wanted


def _time_ours(
    model: Any,
    inputs: Mapping[str, np.ndarray[Any, Any]],
    folder: Path,
    provider: str,
    off: tuple[str, ...],
    wanted: Any,
) -> dict[str, Any]:
    """Fuse and round a network, open it, and time a bound call."""
    import numpy as np

    from olivelike.graphs.fusion.rules import RULES
    from olivelike.runtime.sessions.open_session import open_session
    from olivelike.testing import run_pass
    from olivelike.testing.parity import materialize_model
    from olivelike.workflow.passes import Registry

    rules = [rule.name for rule in RULES]
    left = [rule for rule in rules if rule not in off[1:]] if off[:1] == ("*",) else off
    passes = Registry.built_in()
    switches: dict[str, Any] = dict.fromkeys(left, False)
    fused = narrow = run_pass(passes.get("fuse").cls, model, target=provider, **switches)
    for name in NARROWED.get(folder.name, ("float16",)):
        narrow = run_pass(passes.get(name).cls, narrow, target=provider)
    folder.mkdir()
    materialize_model(narrow, folder)
    settings = replace(_settings(provider), cuda_graph=folder.name == "recorded" and provider == TARGET)
    start = time.monotonic()
    session = open_session(folder / "model.onnx", settings)
    opened = time.monotonic() - start
    given = {name: np.ascontiguousarray(inputs[name].astype(spec.dtype)) for name, spec in session.inputs.items()}
    (output,) = session.outputs
    result = np.empty(wanted.shape, session.outputs[output].dtype)
    call = session.bind(given, {output: result})
    found = median_ms(call.run)
    off_by = float(np.linalg.norm(result.astype(np.float64) - wanted) / np.linalg.norm(wanted))
    return {**found, "off": off_by, "opened": opened, "fused": fused.facts.get("fused")}


def median_ms(run: Callable[[], Any], wait: Callable[[], Any] = lambda: None) -> dict[str, Any]:
    """Time a function until two seconds or 30 runs are over, after three that warm up."""
    for _ in range(3):
        run()
    wait()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 30 and (time.perf_counter() - began < 2 or len(times) < 3):
        start = time.perf_counter()
        run()
        wait()
        times.append((time.perf_counter() - start) * 1000)
    return {"ms": statistics.median(times), "least": min(times), "runs": len(times)}


if __name__ == "__main__":
    sys.exit(main())
