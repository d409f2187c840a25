"""The files beside the networks of published pipelines are made without the libraries that they are for."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from olivelike.data import demo_folder
from olivelike.engine.execute.worker import do
from olivelike.engine.kinds.asset_nodes import AssetsTask
from olivelike.engine.kinds.kind import Workplace
from olivelike.engine.output import fallback_assets
from olivelike.families import FAMILIES
from olivelike.sources import SourceSpec, open_source
from olivelike.sources.identify.published import scheduler_file, tokenizer_classes, tokenizer_files
from olivelike.store import Store
from olivelike.testing.checkpoint_configs import write_tokenizer
from tests.fixtures.published_schedulers import PUBLISHED_SCHEDULERS

CLIP = ["transformers", "CLIPTokenizer"]
HEAVY = {"accelerate", "diffusers", "numpy", "onnx", "onnxscript", "peft", "scipy", "sympy", "torch", "transformers"}
END, EXCLAMATION = {"tokenizer": "pad_end"}, {"tokenizer": "pad_exclamation"}
BOTH = {"tokenizer": "pad_end", "tokenizer_2": "pad_exclamation"}
FOLDERS = {
    "sd 1.1": END, "sd 1.4": END, "sd 1.5": END, "tiny-sd": END, "lcm": END, "sd 2.1": EXCLAMATION,
    "sd 2.1 base": EXCLAMATION, "sd turbo": EXCLAMATION, "sdxl": BOTH, "sdxl turbo": BOTH, "ssd-1b": BOTH, "vega": BOTH,
    "tcd": {"tokenizer_2": "pad_exclamation"},
}  # fmt: skip
"""Published folders: scheduler, and by folder how tokenizers fill short prompts."""
FEW = (
    "demo",
    "folder of sd 1.5",
    "folder of sd 2.1 base",
    "folder of sdxl turbo",
    "file of sd3, e",
    "file of z_image, e",
)
"""Beginnings of names of sources that between them have each kind of tokenizer."""
ADDED = {"tokenizer": {"tokens": ["<cat>", "<cat>_1"], "first": 1000}}
WORKER = """
import json, sys
from olivelike.engine.execute.worker import do
answers = []
for line in sys.stdin:
    name, message = json.loads(line)
    do(message, answers.append)
    loaded = sorted({module.partition(".")[0] for module in sys.modules})
    print(json.dumps([name, answers[-1], loaded]))
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Index, files, and added tokens of each kind of source."""
    folder = tmp_path_factory.mktemp("published")
    write_tokenizer(folder / "pad_end", 1000)
    shutil.copytree(folder / "pad_end", folder / "pad_exclamation")
    for name, file in tokenizer_files(FAMILIES["sdxl_refiner"]).items():
        if name != "tokenizer_2/merges.txt":
            shutil.copy(file, folder / "pad_exclamation")
    image_processor = open_source(SourceSpec(path=demo_folder()), []).extras
    found = {"demo": (open_source(SourceSpec(path=demo_folder()), []).index, image_processor, {})}
    for kind, tokenizers in FOLDERS.items():
        class_name, config = PUBLISHED_SCHEDULERS[kind]
        path = folder / f"{kind}.json"
        path.write_text(json.dumps(config))
        files = {"scheduler/scheduler_config.json": path}
        for name, settings in tokenizers.items():
            files |= {f"{name}/{file.name}": file for file in (folder / settings).iterdir()}
        files |= {name: file for name, file in image_processor.items() if name.startswith("feature_extractor/")}
        index = {"scheduler": ["diffusers", class_name], **dict.fromkeys(tokenizers, CLIP)}
        found[f"folder of {kind}"] = index, files, ADDED if tokenizers == END else {}
    for name, family in FAMILIES.items():
        if family.published.networks is None:
            continue  # No file of it is read.
        tokenizers = tokenizer_files(family)
        for prediction, zero_snr in (("epsilon", False), ("v_prediction", False), ("v_prediction", True)):
            class_name, path = scheduler_file(family, prediction, zero_snr=zero_snr)
            index = {"_class_name": family.pipelines[0], "scheduler": ["diffusers", class_name]}
            index |= tokenizer_classes(family)
            files = {"scheduler/scheduler_config.json": path, **tokenizers}
            found[f"file of {name}, {prediction}, {zero_snr}"] = index, files, {}
            tokenizers = {}
    return found


def work(tasks):
    """Do named tasks in one fresh process; return name, answer, and the libraries that it has loaded by then."""
    lines = "\n".join(map(json.dumps, tasks))
    done = subprocess.run([sys.executable, "-c", WORKER], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("chosen", [FEW, pytest.param(None, marks=pytest.mark.slow, id="all")])
def test_no_published_pipeline_needs_diffusers_or_transformers_for_its_assets(sources, tmp_path, chosen):
    sources = {name: one for name, one in sources.items() if chosen is None or name.startswith(chosen)}
    store = Store.open(tmp_path / "store")
    place = Workplace("pipeline.assets", "pipeline", str(store.root), str(tmp_path / "log"))
    tasks = [
        [name, AssetsTask(place, dict(index), {file: str(path) for file, path in files.items()}, added).to_json()]
        for name, (index, files, added) in sources.items()
    ]
    answers = work(tasks)
    assert [name for name, _, _ in answers] == list(sources)
    for name, answer, loaded in answers:
        assert answer["answer"] == "done", (name, answer)
        assert not HEAVY & set(loaded), name


def test_a_scheduler_that_is_not_known_still_comes_from_diffusers(tmp_path, monkeypatch):
    asked, answer = [], fallback_assets.scheduler_with_defaults
    monkeypatch.setattr(
        fallback_assets, "scheduler_with_defaults", lambda name, config: asked.append(name) or answer(name, config)
    )
    config = tmp_path / "scheduler_config.json"
    config.write_text(json.dumps({"trained_betas": [0.1, 0.2]}))
    store = Store.open(tmp_path / "store")
    place = Workplace("pipeline.assets", "pipeline", str(store.root), str(tmp_path / "log"))
    index = {"scheduler": ["diffusers", "DDIMScheduler"]}
    task = AssetsTask(place, index, {"scheduler/scheduler_config.json": str(config)}, {})
    answers = []
    do(task.to_json(), answers.append)
    assert asked == ["DDIMScheduler"]
    table = json.loads(store.require_bytes(answers[-1]["outputs"]["assets"], ""))
    saved = json.loads(store.require_bytes(table["scheduler/scheduler_config.json"], ""))
    assert saved["trained_betas"] == [0.1, 0.2]
    assert saved["timestep_spacing"] == "leading"
