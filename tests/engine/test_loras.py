"""LoRAs in a workflow: what runs, what is stored, what comes out, what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from olivelike.engine.explanation import explain
from olivelike.engine.output.initializers import EarlierNetwork, Initializers
from olivelike.engine.output.swap import swap_loras
from olivelike.engine.preparation import plan
from olivelike.engine.prepared import Options
from olivelike.errors import PassError, SourceError, WorkflowError
from olivelike.sources.adapters.lora_file import WeightedLora
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_pipeline import little_checkpoint

from .conftest import Project, lend_graphs_of, run_project

WORKFLOW = """
name: small
source: ./checkpoint
target: cuda
components:
  text_encoder: [merge_lora, convert, fuse, float16]
  unet: [convert, fuse, merge_lora, float16]
output: models/small
"""
BOTH = ("text_encoder", "unet")


@pytest.fixture(scope="session")
def loras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two LoRAs for both networks, `one` and `two`, and `unet` for the UNet alone."""
    folder = tmp_path_factory.mktemp("loras")
    base = little_checkpoint("attending")
    for seed, name in enumerate(("one", "two")):
        make_lora(folder / f"{name}.safetensors", "kohya", base=base, seed=seed, modules="attention+ff")
    make_lora(folder / "unet.safetensors", "peft", base=base, seed=2, components=("unet",))
    return folder


@pytest.fixture(scope="session")
def merged(loras: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project after a run without a LoRA, then one with the first; not to be changed."""
    folder = tmp_path_factory.mktemp("merged") / "project"
    shutil.copytree(little_checkpoint("attending"), folder / "checkpoint")
    shutil.copytree(loras, folder / "loras")
    project = run_project(folder, WORKFLOW, folder / "checkpoint", *BOTH)
    shutil.copytree(project.output, folder / "base")
    project.run("loras=[loras/one.safetensors]")
    return project


@pytest.fixture
def project(merged: Project, tmp_path: Path) -> Project:
    shutil.copytree(merged.folder, tmp_path / "project")
    return Project(tmp_path / "project")


def objects(project: Project) -> set[str]:
    return {path.name for path in (project.folder / "cache" / "objects").rglob("*") if path.is_file()}


def table(folder: Path, component: str) -> dict[str, np.ndarray]:
    stored = Initializers(folder / component / "model.onnx")
    record = json.loads((folder / "olivelike.json").read_bytes())
    return {name: stored.read(name) for name in record["components"][component]["derivations"]}


def test_another_lora_only_merges_and_materialises(project: Project) -> None:
    result = project.run("loras=[loras/two.safetensors]")
    assert project.executed() == {f"{name}.{step}" for name in BOTH for step in ("merge_lora", "materialize")}
    other = "LoRA one.safetensors is gone (weight 1.0); LoRA two.safetensors is new (weight 1.0)"
    assert set(project.reasons().values()) == {other, "the weights changed"}
    assert result.status == "ok"


def test_the_plan_of_another_lora_waits_for_nothing_that_the_merge_leaves_as_it_was(project: Project) -> None:
    other = Options(overrides=("loras=[loras/two.safetensors]",))
    planned = {one.node.id: one for one in plan(project.workflow, other)[1].nodes if one.status != "hit"}
    assert planned.keys() == {f"{name}.{step}" for name in BOTH for step in ("merge_lora", "materialize")}
    waiting = planned["unet.materialize"]
    assert (waiting.status, waiting.reason) == ("pending", "decided when unet.merge_lora has run")
    told = [one.planned.node.id for one in explain(project.workflow, other, "text_encoder.materialize")]
    assert told == ["text_encoder.materialize", "text_encoder.merge_lora"]


def test_what_changed_of_a_lora_is_named_in_a_copy_of_the_workflow_too(project: Project) -> None:
    lighter = Options(overrides=("loras=[loras/one.safetensors:0.6]",))
    copy = project.workflow.with_name("copy.yaml")
    copy.write_text(project.workflow.read_text(encoding="utf-8").replace("name: small\n", ""), encoding="utf-8")
    for workflow in (project.workflow, copy):
        (found,) = explain(workflow, lighter, "unet.merge_lora")
        assert found.changes == ("LoRA one.safetensors: weight changed from 1.0 to 0.6",), workflow


def test_the_store_grows_by_tables_alone(project: Project) -> None:
    before = objects(project)
    project.run("loras=[loras/two.safetensors]")
    assert len(objects(project) - before) == len(BOTH)


def test_the_store_keeps_tensors_that_are_not_products_of_two_factors(project: Project) -> None:
    before = objects(project)
    path = make_lora(project.folder / "dora.safetensors", "dora", base=project.folder / "checkpoint", seed=4)
    project.run("loras=[dora.safetensors]")
    assert len(objects(project) - before) == len(open_lora(path).modules) + len(BOTH)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Initializers that are taken from the output that is replaced."""
    names: list[str] = []
    read = EarlierNetwork.read
    monkeypatch.setattr(EarlierNetwork, "read", lambda self, name: names.append(name) or read(self, name))
    return names


def test_another_lora_copies_what_neither_touches(project: Project, copied: list[str]) -> None:
    before = {name: table(project.output, name) for name in BOTH}
    project.run("loras=[loras/two.safetensors]")
    after = {name: table(project.output, name) for name in BOTH}
    same = [key for name in BOTH for key in after[name] if np.array_equal(before[name][key], after[name][key])]
    assert sorted(copied) == sorted(same)
    assert len(copied) > len(after["unet"]) // 2
    fresh = project.folder / "models" / "fresh"
    copied.clear()
    project.run("loras=[loras/two.safetensors]", "output=models/fresh")
    assert not copied
    for path in ("unet/model.onnx", "unet/weights.pb", "text_encoder/model.onnx", "text_encoder/weights.pb"):
        assert (project.output / path).read_bytes() == (fresh / path).read_bytes()
    records = [json.loads((folder / "olivelike.json").read_bytes()) for folder in (fresh, project.output)]
    assert records[0]["components"] == records[1]["components"]


def test_the_first_lora_copies_what_it_does_not_touch(project: Project, copied: list[str]) -> None:
    project.run()
    copied.clear()
    project.run("loras=[loras/one.safetensors]")
    assert copied


@pytest.mark.parametrize("spoil", ["clean", "changed", "lost table", "other code"])
def test_nothing_is_copied_of_what_can_not_be_trusted(
    project: Project, copied: list[str], spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"clean_cache": True} if spoil == "clean" else {}
    if spoil == "changed":
        for name in BOTH:
            with (project.output / name / "weights.pb").open("ab") as file:
                file.write(b"more")
        options["overwrite"] = True
    if spoil == "lost table":
        record = json.loads((project.output / "olivelike.json").read_bytes())
        for name in BOTH:
            digest = record["components"][name]["facets"]["weights"]
            next((project.folder / "cache" / "objects").rglob(f"*{digest[2:]}*")).unlink()
    if spoil == "other code":
        monkeypatch.setattr("olivelike.engine.kinds.materialize_node.MaterializeNode.libraries", ("numpy",))
    project.run("loras=[loras/two.safetensors]", **options)
    assert not copied


def test_a_lora_for_the_unet_leaves_the_text_encoder_alone(project: Project) -> None:
    project.run()
    project.run("loras=[loras/unet.safetensors]")
    assert project.executed() == {"unet.merge_lora", "unet.materialize"}


def test_without_a_lora_the_step_is_left_out(project: Project) -> None:
    project.run()
    _, found = plan(str(project.workflow), Options())
    assert not [node for node in found.nodes if "merge_lora" in node.node.id]


def test_weight_0_is_the_base_to_the_bit(project: Project) -> None:
    project.run("loras=[loras/one.safetensors:0]")
    base = Project(project.folder)
    assert base.files() == {
        path.relative_to(project.folder / "base").as_posix(): path.read_bytes()
        for path in (project.folder / "base").rglob("*")
        if path.is_file() and path.name != "olivelike.json"
    }


def test_what_has_no_change_is_bit_identical(merged: Project) -> None:
    names = open_lora(merged.folder / "loras" / "one.safetensors").modules
    for component in BOTH:
        before, after = table(merged.folder / "base", component), table(merged.output, component)
        same = [name for name in before if np.array_equal(before[name], after[name])]
        changed = sum(module.component == component for module in names.values())
        assert 0 < len(before) - len(same) <= changed
        assert len(same) > len(before) / 2


def test_the_order_of_loras_does_not_matter(project: Project) -> None:
    project.run("loras=[loras/one.safetensors, loras/two.safetensors:0.5]")
    assert project.run("loras=[loras/two.safetensors:0.5, loras/one.safetensors]").executed == 0


def test_where_the_step_stands_does_not_matter(project: Project) -> None:
    assert project.run("loras=[loras/one.safetensors]").executed == 0
    project.edit("unet: [convert, fuse, merge_lora, float16]", "unet: [merge_lora, convert, fuse, float16]")
    assert project.run("loras=[loras/one.safetensors]").executed == 0


def test_a_lora_of_the_command_line_comes_on_top(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    assert project.run(loras=("loras/one.safetensors:1",)).executed == 0


def test_components_may_have_weights_of_their_own(project: Project) -> None:
    project.run()
    project.run("loras=[{file: loras/two.safetensors, weights: {text_encoder: 0}}]")
    assert project.executed() == {"unet.merge_lora", "unet.materialize"}


def test_the_record_names_what_was_merged_and_no_path(project: Project) -> None:
    project.run("loras=[loras/two.safetensors:0.5]")
    record = json.loads((project.output / "olivelike.json").read_bytes())
    (lora,) = record["loras"]
    assert (lora["origin"]["name"], lora["weight"], len(lora["sha256"])) == ("two.safetensors", 0.5, 64)
    assert str(project.folder) not in (project.output / "olivelike.json").read_text()


def test_swapping_without_files_gives_what_a_run_gives(project: Project) -> None:
    swapped = swap_loras(
        project.folder / "base", [WeightedLora(open_lora(project.folder / "loras" / "one.safetensors"), 1.0)]
    )
    for component in BOTH:
        before, after = table(project.folder / "base", component), table(project.output, component)
        changed = {name for name in before if not np.array_equal(before[name], after[name])}
        assert changed <= swapped[component].keys()
        for name, array in swapped[component].items():
            wanted = after[name]
            assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
            # The folder's own weights are rounded to float16 already: two roundings, each of half a unit.
            unit = np.spacing(np.maximum(np.abs(wanted), np.abs(before[name]))).astype(np.float32)
            assert (np.abs(array.astype(np.float32) - wanted.astype(np.float32)) <= unit).all()


WITH_LITTLE = """
import hashlib, sys
from pathlib import Path

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"accelerate", "diffusers", "onnx", "onnx_ir", "peft", "torch", "transformers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from olivelike.engine.output.swap import LiveLoras

loras = LiveLoras()
swapped = loras.merge([loras.named(f"{sys.argv[1]}:0.5")], Path(sys.argv[2]))
for component, arrays in swapped.items():
    for name, array in arrays.items():
        print(component, name, hashlib.sha256(array.tobytes()).hexdigest())
"""


def test_swapping_takes_neither_onnx_nor_torch(project: Project) -> None:
    file, base = project.folder / "loras" / "one.safetensors", project.folder / "base"
    done = subprocess.run([sys.executable, "-c", WITH_LITTLE, file, base], capture_output=True, text=True, check=True)
    swapped = swap_loras(base, [WeightedLora(open_lora(file), 0.5)])
    assert done.stdout.splitlines() == [
        f"{component} {name} {hashlib.sha256(array.tobytes()).hexdigest()}"
        for component, arrays in swapped.items()
        for name, array in arrays.items()
    ]


def test_swapping_says_which_loras_half_precision_has_no_room_for(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    lora = open_lora(project.folder / "loras" / "one.safetensors")
    swap_loras(project.folder / "base", [WeightedLora(lora, 1.0)], only=("text_encoder",))
    assert caplog.messages == []
    swapped = swap_loras(project.folder / "base", [WeightedLora(lora, 1e8)], only=("text_encoder",))["text_encoder"]
    clamped = sum(int((np.abs(array.astype(np.float32)) == 65504).sum()) for array in swapped.values())
    (message,) = caplog.messages
    assert message.startswith(f"text_encoder: {clamped} values of its weights are too large for half precision with ")
    assert "one.safetensors at 1e+08, and became" in message


def run_and_swap(project: Project, target: str, chain: str) -> tuple[Path, Path, dict[str, np.ndarray]]:
    """Return the text encoder's folders with and without the first LoRA, and what swapping it into the second gives."""
    project.edit("target: cuda", f"target: {target}")
    project.edit("[merge_lora, convert, fuse, float16]", chain)
    wanted, base = project.folder / "wanted", project.folder / "plain"
    project.run("loras=[loras/one.safetensors]", only=("text_encoder",), output=wanted)
    project.run(only=("text_encoder",), output=base)
    lora = WeightedLora(open_lora(project.folder / "loras" / "one.safetensors"), 1.0)
    return wanted, base, swap_loras(base, [lora], only=("text_encoder",))["text_encoder"]


def test_swapping_in_bfloat16_gives_what_a_run_gives(project: Project) -> None:
    wanted, _, swapped = run_and_swap(project, "openvino", "[merge_lora, convert, fuse, bfloat16]")
    after = table(wanted, "text_encoder")
    assert swapped
    for name, array in swapped.items():
        assert array.dtype == after[name].dtype == ml_dtypes.bfloat16
        found, asked = array.astype(np.float32), after[name].astype(np.float32)
        assert np.abs(found - asked).max() <= np.abs(asked).max() * 2**-7


def test_a_session_takes_swapped_initializers(project: Project) -> None:
    ort = pytest.importorskip("onnxruntime")
    wanted, base, lora_te = run_and_swap(project, "cpu", "[merge_lora, convert, fuse]")
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in lora_te.items()}
    options = ort.SessionOptions()
    for name, value in values.items():
        options.add_initializer(name, value)
    ids = {"input_ids": np.random.default_rng(0).integers(0, 1000, (2, 77), np.int32)}

    def run(folder: Path, options: object = None) -> np.ndarray:
        path = str(folder / "text_encoder" / "model.onnx")
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return session.run(["last_hidden_state"], ids)[0]

    np.testing.assert_array_equal(run(base, options), run(wanted))
    assert np.abs(run(base) - run(wanted)).max() > 1e-3


# What is refused, before anything is written


def spoiled(project: Project, name: str, change) -> Path:
    tensors = load_file(project.folder / "loras" / "one.safetensors")
    change(tensors)
    path = project.folder / "loras" / name
    save_file(tensors, path)
    return path


def first(tensors: dict[str, np.ndarray], end: str) -> str:
    return next(name for name in sorted(tensors) if name.endswith(end))


def lose_a_half(tensors):
    del tensors[first(tensors, "lora_up.weight")]


def break_a_value(tensors):
    tensors[first(tensors, "lora_up.weight")][0, 0] = np.nan


def name_a_foreign_layer(tensors):
    module = first(tensors, "lora_up.weight").removesuffix("lora_up.weight")
    foreign = module.replace("_layers_0_", "_layers_99_")
    for name in [name for name in tensors if name.startswith(module)]:
        tensors[name.replace(module, foreign)] = tensors.pop(name)


def use_an_unknown_format(tensors):
    name = first(tensors, "lora_up.weight")
    tensors[name.replace("lora_up.weight", "oft_diag")] = tensors[name]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lose_a_half, "lora_te_text_model_encoder_layers_0"),
        (break_a_value, "NaN"),
        (name_a_foreign_layer, "layers_99"),
        (use_an_unknown_format, "oft"),
    ],
)
def test_a_damaged_lora_is_refused_by_name(project: Project, change, reason: str) -> None:
    path = spoiled(project, "damaged.safetensors", change)
    before, stored = project.files(), objects(project)
    with pytest.raises(SourceError, match=reason) as caught:
        project.run(f"loras=[{path}]")
    assert "damaged.safetensors" in str(caught.value)
    assert project.files() == before
    assert len(objects(project) - stored) <= 1  # the UNet's table, which is right
    assert project.leftovers() == []


def test_a_lora_for_another_family_is_refused_by_its_header(project: Project) -> None:
    widths = {"down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight": (16, 2048)}
    path = make_lora(project.folder / "xl.safetensors", "peft", base={"unet": widths}, components=("unet",))
    with pytest.raises(SourceError, match=r"xl\.safetensors.*2048|xl\.safetensors.*SDXL|xl\.safetensors.*XL"):
        project.run(f"loras=[{path}]")
    assert project.executed() == set()


def test_a_checkpoint_given_as_lora_is_refused(project: Project) -> None:
    path = project.folder / "checkpoint" / "vae" / "diffusion_pytorch_model.safetensors"
    with pytest.raises(SourceError, match="VAE"):
        project.run(f"loras=[{path}]")


def test_a_missing_lora_is_refused(project: Project) -> None:
    with pytest.raises(SourceError, match=r"none\.safetensors: no such file"):
        project.run("loras=[loras/none.safetensors]")


def test_a_chain_without_the_step_is_refused(project: Project) -> None:
    with pytest.raises(WorkflowError, match=r"one\.safetensors changes unet.*`merge_lora`"):
        project.run("loras=[loras/one.safetensors]", "components.unet=[convert, fuse, float16]")


def test_a_lora_with_keys_for_a_component_that_is_left_out_is_refused(project: Project) -> None:
    with pytest.raises(SourceError, match=r"one\.safetensors: it also changes text_encoder"):
        project.run("loras=[loras/one.safetensors]", "components.text_encoder=")


def test_a_lora_that_changes_during_the_run_is_not_stored(project: Project, monkeypatch) -> None:
    path = project.folder / "loras" / "two.safetensors"
    from olivelike.engine.plan.inputs import FileDigests

    compute = FileDigests._compute

    def compute_then_change(self, asked: Path) -> None:
        compute(self, asked)
        if asked == path:
            tensors = load_file(path)
            save_file({name: array * 2 for name, array in tensors.items()}, path)

    monkeypatch.setattr(FileDigests, "_compute", compute_then_change)
    with pytest.raises((SourceError, PassError), match="changed while it was read"):
        project.run("loras=[loras/two.safetensors]")


def test_a_lora_that_distils_decides_the_scheduler_and_stands_in_the_record(project: Project) -> None:
    title = {"modelspec.title": "Sketches, TCD, 4 steps"}
    path = project.folder / "loras" / "fast.safetensors"
    make_lora(path, "peft", base=project.folder / "checkpoint", seed=3, components=("unet",), metadata=title)

    def scheduler_and_lora() -> tuple[dict, dict, list]:
        config = json.loads((project.output / "scheduler" / "scheduler_config.json").read_bytes())
        record = json.loads((project.output / "olivelike.json").read_bytes())
        return config, record["loras"][0]["origin"], json.loads((project.output / "model_index.json").read_bytes())

    own, _, _ = scheduler_and_lora()
    project.run("loras=[loras/fast.safetensors]")
    config, origin, index = scheduler_and_lora()
    assert config["_class_name"] == index["scheduler"][1] == "TCDScheduler"
    assert config["beta_start"] == own["beta_start"]
    reason = "modelspec.title is 'Sketches, TCD, 4 steps'"
    assert origin["few_steps"] == {"kind": "tcd", "steps": 4, "guided": False, "reason": reason}
    project.run("loras=[{file: loras/fast.safetensors, weight: 0.3}]")
    assert scheduler_and_lora()[0] == own


@pytest.mark.parametrize("precision", ["weights8", "weights4"])
def test_a_lora_is_swapped_into_quantised_weights(project: Project, checkpoints: Path, precision: str) -> None:
    base = project.folder / "checkpoint"
    shutil.rmtree(base)  # The little networks are too narrow to be quantised.
    shutil.copytree(checkpoints / "one", base)
    make_lora(project.folder / "loras" / "one.safetensors", "kohya", base=base, modules="attention+ff")
    lend_graphs_of(base, project.folder, "text_encoder")
    wanted, base, swapped = run_and_swap(project, "cpu", f"[merge_lora, convert, fuse, {precision}]")
    before, after = table(base, "text_encoder"), table(wanted, "text_encoder")
    assert {array.dtype for array in swapped.values()} >= {np.dtype(np.uint8), np.dtype(np.float32)}

    def numbers(arrays: dict, name: str) -> np.ndarray:
        if f"{name}.lower" not in arrays:
            return arrays[name].astype(int)
        lower = arrays[f"{name}.lower"]  # Of 12 bits.
        return 16 * arrays[name].astype(int) + np.concatenate([lower & 15, lower >> 4])

    for name, array in swapped.items():
        assert (array.dtype, array.shape) == (after[name].dtype, after[name].shape)
        if array.dtype != np.float32 and precision == "weights8":
            assert not np.array_equal(array, before[name])
            # What is changed was rounded before: two roundings, and another scale.
            assert name.endswith(".lower") or np.abs(numbers(swapped, name) - numbers(after, name)).max() <= 2
    assert any(name.endswith(".lower") for name in swapped) == (precision == "weights8")
