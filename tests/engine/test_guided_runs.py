"""Guides of all kinds through a whole run: chains that they bring, what is shared, records, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import onnxruntime
import pytest

from olivelike.cli.app import run_command_line
from olivelike.engine.convert_request import ConvertRequest
from olivelike.errors import OlivelikeError, SourceError, UsageError, WorkflowError
from olivelike.measure.clients import check_client
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.model.guides import CONTROL_KINDS, GUIDES, IMAGE_ENCODER, guided_file
from olivelike.model.records.output import OutputRecord
from olivelike.testing.lora_files import make_lora
from tests.fixtures.guide_files import make_controlnet, make_ip_adapter
from tests.fixtures.little_guides import (
    CONTROL_NAMES,
    LITTLE,
    all_guides,
    guide_sets,
    lend_guided,
    little_guide,
    little_guided,
    section,
)  # fmt: skip
from tests.fixtures.little_pipeline import little_checkpoint

from .conftest import Project

NONE = {kind.name: f"{kind.key}={'' if kind.is_prompt else '[]'}" for kind in GUIDES.values()}
"""Overrides that take guides of a kind away."""
NETWORKS = (*CONTROL_NAMES, IMAGE_ENCODER)


def without(*guides: str) -> list[str]:
    return [NONE[guide] for guide in guides]


def only(guide: str) -> list[str]:
    return without(*(one for one in GUIDES if one != guide))


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with two ControlNets of one form, two T2I-Adapters of two, and an IP-Adapter, after its first run."""
    folder = tmp_path_factory.mktemp("guided") / "project"
    (folder / "workflows").mkdir(parents=True)
    project, source = Project(folder), little_checkpoint("attending")
    project.workflow.write_text(
        "\n".join(
            [
                "name: small", f"source: {source}", "target: cpu",
                *(section(*one) for one in all_guides().items()),
                "components:", "  unet: [merge_lora, convert, fuse, float16, deepcache]", "output: models/small",
            ]
        )
    )  # fmt: skip
    lend_guided(folder / "cache", "attending", ["unet"], all_guides())
    make_lora(folder / "style.safetensors", "kohya", base=source, components=("unet",))
    project.run("loras=[style.safetensors]")
    return project


def test_each_gets_what_of_the_unets_chain_applies_and_one_graph_serves_those_alike(guided: Project) -> None:
    record = OutputRecord.require(guided.output)
    chains = {name: [step.name for step in one.passes] for name, one in record.components.items()}
    unet = ["merge_lora", "convert", "ip_adapter", "fuse", "float16", "deepcache"]
    assert chains == {
        "unet": [*unet, *(kind.step for kind in GUIDES.values() if kind.behind is None)],
        **{name: ["convert", "fuse", "float16"] for name in NETWORKS},
    }
    facets = {name: one.facets for name, one in record.components.items()}
    assert facets["controlnet"]["graph"] == facets["controlnet_2"]["graph"]
    assert facets["controlnet"]["weights"] != facets["controlnet_2"]["weights"]
    executed = guided.executed()
    assert not {"controlnet.convert", "controlnet_2.convert"} & executed
    assert ("controlnet.fuse" in executed) != ("controlnet_2.fuse" in executed)
    led = {guided_file(some) for some in guide_sets()}
    assert {path for path in record.files if path.endswith(".onnx")} == {
        *(f"unet/{name}" for name in ("model.onnx", "shallow.onnx", *led)), *(f"{name}/model.onnx" for name in NETWORKS)
    }  # fmt: skip
    assert record.source.leading_names == CONTROL_NAMES
    assert record.source.ip_adapter is not None
    assert (record.source.ip_adapter.name, record.source.ip_adapter.kind) == ("ip-adapter.safetensors", "file")
    told = json.loads((guided.output / "olivelike.json").read_text())["source"]
    assert [list(told[kind.key]) for kind in CONTROL_KINDS] == [
        list(kind.components[: len(LITTLE[kind.name].names)]) for kind in CONTROL_KINDS
    ]
    guided.run("loras=[style.safetensors]")
    assert guided.executed() == set()


def test_nothing_changes_for_who_has_none(guided: Project) -> None:
    folder, before = guided.folder / "plain", guided.files()
    guided.run("loras=[style.safetensors]", *without(*GUIDES), output=folder)
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"unet"} | {
        path.name for path in guided.output.iterdir() if path.is_dir() and path.name not in NETWORKS
    }
    files = {path.name: path.read_bytes() for path in (folder / "unet").iterdir()}
    assert set(files) == {"model.onnx", "shallow.onnx", "weights.pb", "config.json"}
    assert before["unet/weights.pb"].startswith(files.pop("weights.pb"))
    assert {name: before[f"unet/{name}"] for name in files} == files
    told = json.loads((folder / "olivelike.json").read_text())["source"]
    assert not told.keys() & {kind.key for kind in GUIDES.values()}


def test_a_chain_of_its_own_an_only_one_and_one_less(guided: Project) -> None:
    chains, others = "components={unet: [convert], controlnet: [convert, fuse]}", only("controlnet")
    guided.run(chains, *others, output=guided.folder / "own")
    record = OutputRecord.require(guided.folder / "own")
    assert [[step.name for step in record.components[name].passes] for name in ("controlnet", "controlnet_2")] == [
        ["convert", "fuse"], ["convert"],
    ]  # fmt: skip
    guided.run(chains, *others, f"controlnets=[{little_guide('controlnet')}]", output=guided.folder / "own")
    record = OutputRecord.require(guided.folder / "own")
    assert set(record.components) == {"unet", "controlnet"}
    assert not (guided.folder / "own" / "controlnet_2").exists()
    guided.run(chains, *without(*GUIDES), "components.controlnet=", output=guided.folder / "own")
    assert not (guided.folder / "own" / "unet" / "controlnet.onnx").exists()
    guided.run(only=("controlnet_2",), output=guided.folder / "only")
    assert set(OutputRecord.require(guided.folder / "only").components) == {"controlnet_2"}


def test_onnxstack_finds_what_it_looks_for(guided: Project) -> None:
    folder = guided.folder / "onnxstack"
    guided.run("layout=onnxstack", "components={unet: [convert]}", *only("controlnet"), output=folder)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.onnx*")}
    assert files == {
        f"{name}/model.onnx{data}" for name in ("unet", "controlnet", "controlnet_2") for data in ("", ".data")
    } | {"unet/controlnet.onnx"}
    strength = onnx.load(folder / "controlnet" / "model.onnx", load_external_data=False).graph.input[4]
    assert (strength.name, strength.type.tensor_type.elem_type) == ("conditioning_scale", onnx.TensorProto.DOUBLE)
    verdicts = check_client(folder, "onnxstack").verdicts
    assert [one.status for one in verdicts if "conditioning_scale" in one.requirement] == ["ok"]
    unet = onnxruntime.InferenceSession(folder / "unet" / "controlnet.onnx")
    assert [value.name for value in unet.get_inputs()][:4] == [
        "sample", "timestep", "encoder_hidden_states", "down_block_0_additional_residual",
    ]  # fmt: skip


@pytest.mark.slow  # The pass of layouts and several outputs have tests of their own.
def test_other_clients_have_the_plain_graph(guided: Project) -> None:
    outputs = [f"{{path: models/{name}, layout: {name}}}" for name in ("diffusers", "csharp")]
    guided.run("output=", f"outputs=[{', '.join(outputs)}]", "components={unet: [convert]}")
    ours, theirs = (guided.folder / "models" / name for name in ("diffusers", "csharp"))
    assert all((ours / "unet" / guided_file([guide])).is_file() for guide in GUIDES)
    assert {path.name for path in theirs.rglob("*.onnx")} == {"model.onnx"}


EITHER = "has either `hub` or `path`"
REFUSALS: list[tuple[str, str, type[OlivelikeError], str]] = [
    ("controlnet", "layout=csharp", UsageError, "ControlNets, and no client of its layouts feeds any .csharp.; ch"),
    ("t2i_adapter", "layout=onnxstack", UsageError, "T2I-Adapters, and no client of its layouts feeds any .onnxstack."),
    ("ip_adapter", "layout=csharp", UsageError, "no client of its layouts feeds any .csharp.; choose the layout di"),
    *((kind.name, "components={vae_decoder: [convert]}", WorkflowError,
       f"nothing says which passes run on {kind.title}s; add `{kind.name}:") for kind in CONTROL_KINDS),
    ("ip_adapter", "components={vae_decoder: [convert]}", WorkflowError, "changes the UNet; add `unet` to `comp"),
    *((kind.name, f"{kind.key}=[{{path: a, hub: b/c}}]", WorkflowError, f"`{kind.key}.0` {EITHER}")
      for kind in CONTROL_KINDS),
    ("ip_adapter", "ip_adapter={file: a.safetensors, image_encoder: {path: a, hub: b/c}}", WorkflowError,
     f"`ip_adapter.image_encoder` {EITHER}"),
    *((kind.name, f"components.{kind.name}=[merge_lora, convert]", WorkflowError,
       f"'merge_lora' does not apply to '{kind.name}'") for kind in CONTROL_KINDS),
    *((kind.name, f"{kind.key}=[{{tmp}}/none]", SourceError, "no such folder or file") for kind in CONTROL_KINDS),
    ("ip_adapter", "ip_adapter={tmp}/none.safetensors", SourceError, "no such file"),
    ("ip_adapter", "components={unet: [fuse]}", WorkflowError, "and the chain of unet has no such step"),
]  # fmt: skip


@pytest.mark.parametrize("guide", GUIDES)
def test_what_can_not_be_is_refused_before_anything_is_made(guided: Project, tmp_path: Path, guide: str) -> None:
    for _, override, error, words in (one for one in REFUSALS if one[0] == guide):
        with pytest.raises(error, match=words):
            guided.run(*only(guide), override.replace("{tmp}", str(tmp_path)))
    assert not guided.leftovers()


def test_guides_of_others_and_parts_of_none_are_refused(guided: Project, tmp_path: Path) -> None:
    source = little_checkpoint("attending")
    net = make_controlnet(tmp_path / "net", source, changes={"cross_attention_dim": 2048})
    with pytest.raises(SourceError, match=r"this ControlNet is for Stable Diffusion XL: it takes text of width 2048"):
        guided.run(f"controlnets=[{net}]")
    other = make_ip_adapter(tmp_path / "other", little_checkpoint("attending_xl"))
    with pytest.raises(SourceError, match="its tokens have width 64, and the UNet of"):
        guided.run(f"ip_adapter={other}")
    with pytest.raises(SourceError, match="this pipeline has no controlnet"):
        guided.run(NONE["controlnet"], "components.controlnet=[convert]")
    with pytest.raises(WorkflowError, match="`image_encoder` is part of an IP-Adapter; name one as `ip_adapter:`"):
        guided.run(NONE["ip_adapter"], "components.image_encoder=[convert]")
    with pytest.raises(SourceError, match="its UNet is a graph that somebody else exported, and an IP-Adapter changes"):
        guided.run(f"source={little_guided()}", "components={unet: [convert, fuse]}", *only("ip_adapter"))
    assert not guided.leftovers()


@pytest.mark.parametrize("guide", GUIDES)
def test_convert_writes_such_a_workflow(guide: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind, paths = GUIDES[guide], all_guides()[guide]
    asked = ["convert", str(little_checkpoint("attending")), "-t", "cpu", "-o", str(tmp_path / "out"), "--dry-run"]
    given = [word for path in paths for word in (kind.option, str(path))]
    assert run_command_line([*asked, *given, "--cache-dir", str(tmp_path / "cache")]) == 0
    told = capsys.readouterr().out
    values = [str(path) for path in paths]
    request = ConvertRequest(asked[1], "cpu", tmp_path, guides={kind.key: values})
    assert " ".join(given) in request.command()
    if kind.is_prompt:
        assert f"ip_adapter: {paths[0]}\n" in told
        assert "unet.ip_adapter" in told
    else:
        assert f"{kind.key}:\n" + "".join(f"  - {path}\n" for path in paths) in told
    last = kind.components[len(paths) - 1]
    assert f"  {last}: [convert, fuse]\n".split() in [line.split() for line in told.splitlines()]


def test_convert_is_told_where_an_image_encoder_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = shutil.copy(little_guide("ip_adapter"), tmp_path)
    encoder = little_guide("ip_adapter").with_name("image_encoder")
    asked = ["convert", str(little_checkpoint("attending")), "-t", "cuda", "-o", str(tmp_path / "made"), "--dry-run"]
    asked += ["--ip-adapter", str(adapter), "--cache-dir", str(tmp_path / "cache")]
    assert run_command_line(asked) == 3
    assert "has no image encoder, which ip-adapter.safetensors can't do without" in capsys.readouterr().err
    assert run_command_line([*asked, "--image-encoder", str(encoder)]) == 0
    assert f"ip_adapter: {{file: {adapter}, image_encoder: {encoder}}}" in capsys.readouterr().out
    assert run_command_line([*asked[:7], "--image-encoder", str(encoder)]) == 2
    assert "--image-encoder is that of an IP-Adapter; name one with --ip-adapter" in capsys.readouterr().err


@pytest.mark.parametrize("kind", CONTROL_KINDS, ids=lambda kind: kind.name)
def test_control_networks_are_verified(kind, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(path) for path in all_guides()[kind.name]]
    given, one = ([word for value in values for word in (option, value)]
                  for option, values in ((kind.option, paths), ("--component", kind.components[:2])))  # fmt: skip
    verify = ["verify", str(little_guided()), "--against", str(little_checkpoint("attending")), "--samples", "1"]
    assert run_command_line([*verify, *given, *one, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(part["relative_error"] < 1e-5 for part in found["components"].values()), found
    assert len(found["components"]) == 2
    assert run_command_line([*verify, kind.option, paths[1], "--component", kind.name]) != 0


def test_a_unet_that_attends_to_pictures_is_verified(tmp_path: Path) -> None:
    folder, adapter = little_guided(), little_guide("ip_adapter")
    more = {"against": str(little_checkpoint("attending")), "pictures": 0, "samples": 1}
    found = verify_folder(folder, **more, guides={"ip_adapter": [str(adapter)]}, components=["unet", "image_encoder"])
    assert found.passed
    figures = {one.name: one.verification for one in found.components}
    assert set(figures) == {"unet", "image_encoder"}
    outputs = {name for sample in figures["unet"].samples for name in sample.outputs}
    assert outputs == {"out_sample", *(f"out_sample of {guided_file(some)}" for some in guide_sets())}
    with pytest.raises(UsageError, match="the folder has no such network"):
        verify_folder(folder, **more, components=["image_encoder"])
    other = make_ip_adapter(tmp_path / "other", little_checkpoint("attending"), seed=1)
    assert not verify_folder(folder, **more, guides={"ip_adapter": [str(other)]}, components=["unet"]).passed


@pytest.mark.slow  # Its graphs for residuals are verified above, where another IP-Adapter is found out.
@pytest.mark.parametrize("kind", CONTROL_KINDS, ids=lambda kind: kind.name)
def test_a_unets_graphs_for_residuals_are_verified_without_a_word_on_their_networks(tmp_path: Path, kind) -> None:
    folder = shutil.copytree(little_guided(), tmp_path / "folder")
    more = {"against": str(little_checkpoint("attending")), "pictures": 0, "samples": 1, "components": ["unet"]}
    (unet,) = verify_folder(folder, **more).components
    names = {name for sample in unet.verification.samples for name in sample.outputs}
    files = [guided_file(some) for some in guide_sets([one.name for one in CONTROL_KINDS])]
    assert names == {"out_sample", *(f"out_sample of {file}" for file in files)}
    assert unet.passed
    file = folder / "unet" / guided_file([kind.name])
    graph = onnx.load(file, load_external_data=False)
    given = tuple(value.name for value in graph.graph.input if kind.is_given(value.name))
    node = next(node for node in graph.graph.node if node.op_type == "Add" and node.input[1].startswith(given))
    node.op_type = "Sub"
    file.unlink()
    onnx.save(graph, file)
    (unet,) = verify_folder(folder, **more).components
    off = {name for one in unet.verification.samples for name, each in one.outputs.items() if not each.within(1e-4)}
    assert off == {f"out_sample of {file.name}"}


def test_guides_that_are_not_named_are_said_not_to_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    folder = little_guided()
    against = ["--against", str(little_checkpoint("attending"))]
    assert run_command_line(["verify", str(folder), *against, "--pictures", "0", "--samples", "1"]) == 0
    told = capsys.readouterr().out
    (line,) = (line for line in told.splitlines() if "not compared: " in line)
    assert all(name in line for name in NETWORKS)
    _, found, options = told.partition("; name what they were made of with ")
    assert found
    assert all(kind.option in options for kind in GUIDES.values())
    for guide in GUIDES:
        assert run_command_line(["inspect", str(folder / "unet" / guided_file([guide])), "--json"]) == 0
