"""Every shipped workflow can be planned, over a checkpoint of the structure that it is for."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from olivelike.engine.preparation import plan
from olivelike.engine.prepared import Options
from olivelike.workflow import shipped_names
from tests.fixtures.little_transformers import little_transformer


@pytest.mark.parametrize("name", [name for name in shipped_names() if name.startswith("sd15") or name == "demo"])
def test_a_shipped_workflow_is_planned_and_nothing_is_written(
    name: str, checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, made = plan(name, Options(overrides=(f"source={{path: {checkpoints / 'one'}}}",)))
    components = made.by_component()
    assert set(components) == {
        "text_encoder", "unet", "vae_encoder", "vae_decoder", "safety_checker", "pipeline",
    }  # fmt: skip
    assert [node.node.name for node in components["unet"]][:3] == ["load", "convert", "fuse"]
    assert components["unet"][-1].write_bytes > 0
    assert made.count("hit") == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "family"), [("flux1_schnell", "flux"), ("sd35_medium", "sd3")], ids=["flux1", "sd35"])
def test_a_shipped_workflow_for_transformers_is_planned_with_eight_bits_for_the_large_networks(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, made = plan(name, Options(overrides=(f"source={{path: {little_transformer(family)}}}",)))
    steps = {one: [node.node.name for node in nodes] for one, nodes in made.by_component().items() if one != "pipeline"}
    t5 = "text_encoder_2" if name.startswith("flux") else "text_encoder_3"
    assert {one for one, names in steps.items() if "weights8" in names} == {"transformer", t5}
    assert all(names[:3] == ["load", "convert", "fuse"] for names in steps.values())
    assert list(tmp_path.iterdir()) == []


def test_the_demo_in_few_steps_differs_from_the_demo_by_a_merged_lora(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    demo, fast = (plan(name)[1].by_component() for name in ("demo", "demo_fast"))
    names = [node.node.name for node in fast["unet"]]
    assert names == ["load", "merge_lora", *(node.node.name for node in demo["unet"][1:])]
    assert [node.key for node in fast["vae_decoder"]][:3] == [node.key for node in demo["vae_decoder"]][:3]


def test_the_demo_led_by_edges_has_a_component_more_than_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    demo, led = (plan(name)[1].by_component() for name in ("demo", "demo_edges"))
    assert set(led) - set(demo) == {"controlnet"}
    assert [node.node.name for node in led["controlnet"]][:3] == ["load", "convert", "fuse"]
    assert [node.key for node in led["unet"]][:3] == [node.key for node in demo["unet"]][:3]


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        (
            "ablation_sd15_cuda",
            ["raw_fp32", "fp16", "attention", "nhwc_conv", "group_norm", "bias_split_gelu", "packed_qkv", "bias_add"],
        ),
        (
            "ablation_sd15_cpu",
            ["raw", "cleanup", "attention", "attention_projections", "image_tokens", "quick_gelu", "fast_gelu", "fp16"],
        ),
    ],
)
def test_a_shipped_ablation_verifies_each_variant_and_shares_what_they_have_in_common(
    name: str, variants: list[str], checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepared, made = plan(name, Options(overrides=(f"source={{path: {checkpoints / 'one'}}}",)))
    assert [output.variant for output in prepared.outputs] == variants
    ids = [planned.node.id for planned in made.nodes]
    assert len(ids) == len(set(ids))
    assert {"unet.load", "unet.convert"} <= set(ids)
    written = [planned.node for planned in made.nodes if planned.node.kind == "materialize"]
    assert len(written) == 3 * len(variants)
    assert all((node.parent or "").partition("@")[0].endswith(".verify") for node in written)
    # What is switched on in one variant stays on in those behind it.
    switches = [
        {option for option, on in step.instance if on is True}
        for chains in prepared.workflow.sweep.values()
        for step in chains["unet"]
        if step.pass_name == "fuse"
    ]
    cumulative = switches if name.endswith("cuda") else switches[:5]
    assert all(before < after for before, after in itertools.pairwise(cumulative))
