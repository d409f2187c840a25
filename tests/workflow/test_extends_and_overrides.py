"""`extends:` and `--set` change a workflow before it is validated."""

from __future__ import annotations

import re

import pytest
from sample_workflow import WORKFLOW

from olivelike.errors import WorkflowError
from olivelike.sources import SourceSpec
from olivelike.workflow import Output, Source, Vae, load_workflow


def passes(loaded, component):
    return [step.pass_name for step in loaded.steps[component]]


def message_of(ref, *overrides):
    with pytest.raises(WorkflowError) as caught:
        load_workflow(ref, overrides)
    return str(caught.value)


def test_maps_merge_by_key_and_lists_replace(write):
    write(name="base.yaml")
    child = load_workflow(write("extends: base.yaml\ncomponents: {unet: [tune]}\ntarget: {device_id: 1}\n"))
    assert passes(child, "unet") == ["tune"]
    assert passes(child, "vae_decoder") == ["convert"]
    assert (child.workflow.target.name, child.workflow.target.device_id) == ("cpu", 1)


def test_the_name_is_not_inherited(write):
    write(name="base.yaml")
    assert load_workflow(write("extends: base.yaml\n", "child.yaml")).workflow.name == "child"


def test_another_source_replaces_the_whole_source_of_the_base(write, project):
    write(WORKFLOW.replace("owner/model", "{hub: owner/model, revision: main}"), "base.yaml")
    child = load_workflow(write("extends: base.yaml\nsource: ./here\n"))
    assert child.workflow.source == Source(path=project / "here")
    child = load_workflow(write("extends: base.yaml\nsource: {variant: fp16}\n"))
    assert child.workflow.source == Source(hub="owner/model", revision="main", variant="fp16")


def test_another_ip_adapter_replaces_the_whole_one_of_the_base(write, project):
    adapter = "ip_adapter: {file: a/b/c.safetensors, revision: main, image_encoder: d/e}\n"
    write(WORKFLOW + adapter, "base.yaml")
    child = load_workflow(write("extends: base.yaml\n")).workflow.guides["ip_adapter"][0]
    assert child.spec() == SourceSpec(hub="a/b", file="c.safetensors", revision="main", network=SourceSpec(hub="d/e"))
    child = load_workflow(write("extends: base.yaml\nip_adapter: ./f.safetensors\n")).workflow.guides["ip_adapter"][0]
    assert child.spec() == SourceSpec(path=project / "f.safetensors")
    child = load_workflow(write("extends: base.yaml\nip_adapter: {image_encoder: ./g}\n")).workflow.guides[
        "ip_adapter"
    ][0]
    assert (child.file.hub, child.image_encoder) == ("a/b", Vae(path=project / "g"))
    child = load_workflow(write("extends: base.yaml\nip_adapter: ~\n"))
    assert not child.workflow.guides
    assert "image_encoder" not in child.steps


def test_outputs_replace_the_output_of_the_base_and_nothing_removes_a_component(write, project):
    write(name="base.yaml")
    child = load_workflow(write("extends: base.yaml\noutputs: [{path: a}]\ncomponents: {vae_decoder: ~}\n"))
    assert child.workflow.outputs == (Output(project / "a"),)
    assert list(child.steps) == ["unet"]


def test_a_shipped_workflow_can_be_extended_and_its_output_is_the_projects(write, project):
    child = load_workflow(write("extends: sd15_cuda\ncomponents: {safety_checker: ~}\n"))
    assert "safety_checker" not in child.steps
    assert child.workflow.outputs == (Output(project / "models/sd15_cuda"),)


def test_plugins_of_a_base_are_relative_to_the_base(write, project):
    (project / "shared").mkdir()
    (project / "workflows" / "tune.py").rename(project / "shared" / "tune.py")
    (project / "shared" / "base.yaml").write_text(WORKFLOW)
    assert passes(load_workflow(write("extends: ../shared/base.yaml\n")), "unet") == ["convert", "tune"]


def test_an_error_from_a_base_names_the_base(write):
    write(WORKFLOW.replace("count: 2", "count: x"), "base.yaml")
    found = re.findall(r"(\w+\.yaml:\d+:\d+): (unknown|.unet)", message_of(write("extends: base.yaml\nfoo: 1\n")))
    assert found == [("base.yaml:6:34", "`unet"), ("mine.yaml:2:1", "unknown")]


def test_a_circle_is_an_error_with_its_chain(write, project, monkeypatch):
    monkeypatch.chdir(project / "workflows")
    write("extends: b.yaml\n", "a.yaml")
    write("extends: c.yaml\n", "b.yaml")
    write("extends: a.yaml\n", "c.yaml")
    assert message_of("a.yaml").startswith(
        "c.yaml:1:10: `extends` goes in a circle: a.yaml → b.yaml → c.yaml → a.yaml; remove one of the links"
    )


def test_a_base_that_does_not_exist_is_an_error_at_its_place(write):
    assert "mine.yaml:1:10: there is no workflow file" in message_of(write("extends: gone.yaml\n"))
    assert "mine.yaml:1:10: `extends` must be text" in message_of(write("extends: [a]\n"))


@pytest.mark.parametrize(
    ("override", "read", "expected"),
    [
        ("target=cuda", lambda w: w.workflow.target.name, "cuda"),
        ("target.device_id=3", lambda w: w.workflow.target.device_id, 3),
        ("target.options.fast=true", lambda w: w.workflow.target.options["fast"], True),
        ("name=on", lambda w: w.workflow.name, "on"),
        ("name=null", lambda w: w.workflow.name, "mine"),
        ("source.variant=fp16", lambda w: w.workflow.source.variant, "fp16"),
        ("source=a/b", lambda w: w.workflow.source.hub, "a/b"),
        ("source.hub=a/b", lambda w: w.workflow.source, Source(hub="a/b")),
        ("components.unet.1.tune.rate=1e-3", lambda w: w.steps["unet"][1].instance.rate, 1e-3),
        ("components.unet.1.tune.names=[a.b, c]", lambda w: w.steps["unet"][1].instance.names, ("a.b", "c")),
        ("components.unet.1.tune.label=null", lambda w: w.steps["unet"][1].instance.label, None),
        ("components.unet.1.tune.label=a=b", lambda w: w.steps["unet"][1].instance.label, "a=b"),
        ("components.unet.0=tune", lambda w: passes(w, "unet"), ["tune", "tune"]),
        ("components.unet=[convert]", lambda w: passes(w, "unet"), ["convert"]),
        ("components.vae_decoder=", lambda w: list(w.steps), ["unet"]),
        ("components.vae_encoder=[convert]", lambda w: passes(w, "vae_encoder"), ["convert"]),
        ("outputs=[{path: a, until: convert}]", lambda w: w.workflow.outputs[0].until, "convert"),
        ("plugins.0=./tune.py", lambda w: passes(w, "unet"), ["convert", "tune"]),
    ],
)  # fmt: skip
def test_set_changes_one_value(write, override, read, expected):
    assert read(load_workflow(write(), [override])) == expected


def test_set_reaches_the_options_of_a_step_that_is_a_bare_name(write):
    text = WORKFLOW.replace("- convert", "- tune")
    loaded = load_workflow(write(text), ["components.vae_decoder.0.tune.flag=true"])
    assert loaded.steps["vae_decoder"][0].instance.flag is True


def test_later_overrides_win_and_see_earlier_ones(write):
    overrides = ["target=cuda", "target.device_id=1", "components.unet=[tune]", "components.unet.0.tune.count=5"]
    loaded = load_workflow(write(), overrides)
    assert (loaded.workflow.target.name, loaded.workflow.target.device_id) == ("cuda", 1)
    assert loaded.steps["unet"][0].instance.count == 5


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("target", "expected KEY.PATH=VALUE"),
        ("=x", "expected KEY.PATH=VALUE"),
        ("a..b=x", "expected KEY.PATH=VALUE"),
        ("target=cdua", "unknown target 'cdua'; did you mean 'cuda'?"),
        ("foo=1", "unknown key 'foo'"),
        ("components.unet.2=tune", "`components.unet` is a list of 2; use a number from 0 to 1"),
        ("components.unet.tune.flag=1", "`components.unet` is a list of 2; use a number from 0 to 1"),
        ("components.unet.0.tune.flag=true", "step `components.unet.0` is 'convert', not 'tune'"),
        ("components.unet.0.tune=", "step `components.unet.0` is 'convert', not 'tune'"),
        ("components.unet.1.tune.count=x", "`unet.1.tune.count` must be a valid integer, found 'x'"),
        ("components.unet.1.tune.flag=on", "must be a valid boolean, found 'on'; use true or false"),
        ("name.x=1", "`name` is 'mine', not a map; set it whole"),
        ("name.x.y=1", "`name` is 'mine', not a map; set it whole"),
        ("target={", "YAML syntax error"),
        ("target={a: 1, a: 2}", "key 'a' appears twice"),
    ],
)  # fmt: skip
def test_a_wrong_set_is_quoted_in_the_error(write, override, expected):
    message = message_of(write(), override)
    assert f"--set {override}: " in message
    assert expected in message


def test_set_on_an_empty_list_says_so(write):
    assert "`components.unet` is an empty list" in message_of(write(), "components.unet=[]", "components.unet.0=tune")
