"""`sweep`: variants of a workflow's chains."""

from __future__ import annotations

import pytest

from olivelike.errors import WorkflowError
from olivelike.workflow import load_workflow

WORKFLOW = """\
source: owner/model
target: cuda
components:
  text_encoder: &whole [convert, fuse, float16]
  unet: *whole
output: models/mine
sweep:
  - name: raw
    components: {text_encoder: ~, unet: [convert]}
  - name: attention
    components:
      unet: [convert, fuse: &off {nhwc_conv: false}, float16]
  - name: more
    components:
      unet: [convert, fuse: {<<: *off, bias_add: false}, float16]
  - name: all
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "mine.yaml") -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return name

    return write


def refused(path: str, *overrides: str) -> str:
    with pytest.raises(WorkflowError) as caught:
        load_workflow(path, overrides)
    return str(caught.value)


def test_each_variant_has_its_chains_laid_over_those_of_the_workflow(write):
    loaded = load_workflow(write(WORKFLOW))
    assert list(loaded.sweep) == ["raw", "attention", "more", "all"]
    chains = {name: {c: [s.pass_name for s in chain] for c, chain in v.items()} for name, v in loaded.sweep.items()}
    assert chains["raw"] == {"unet": ["convert"]}
    whole = ["convert", "fuse", "float16"]
    assert chains["attention"] == chains["all"] == {"text_encoder": whole, "unet": whole}
    fuse = loaded.sweep["more"]["unet"][1].instance
    assert (fuse.nhwc_conv, fuse.bias_add, fuse.attention) == (False, False, True)
    assert loaded.sweep["attention"]["unet"][1].instance.bias_add


def test_each_variant_is_written_to_a_folder_of_its_name(write, tmp_path):
    outputs = load_workflow(write(WORKFLOW)).workflow.outputs
    assert [(output.variant, output.path) for output in outputs] == [
        (name, tmp_path / "models" / "mine" / name) for name in ("raw", "attention", "more", "all")
    ]


def test_a_workflow_without_a_sweep_is_its_own_only_variant(write):
    loaded = load_workflow(write(WORKFLOW), ["sweep="])
    assert loaded.variants == {None: loaded}
    assert [output.variant for output in loaded.workflow.outputs] == [None]


def test_overrides_reach_into_a_variant(write):
    loaded = load_workflow(write(WORKFLOW), ["sweep.1.components.unet.1.fuse.attention=false"])
    assert not loaded.sweep["attention"]["unet"][1].instance.attention
    assert loaded.sweep["all"]["unet"][1].instance.attention


def test_a_file_that_extends_another_replaces_the_sweep_or_drops_it(write):
    write(WORKFLOW, "base.yaml")
    replaced = load_workflow(write("extends: base.yaml\nsweep: [{name: one}]\n"))
    assert list(replaced.sweep) == ["one"]
    assert not load_workflow(write("extends: base.yaml\nsweep: ~\n")).sweep


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("unet: [convert]}", "unett: [convert]}", "mine.yaml:9:35: unknown component 'unett'; did you mean 'unet'?"),
        ("unet: [convert]}", "unet: [convetr]}", "mine.yaml:9:42: unknown pass 'convetr'"),
        ("{nhwc_conv: false}", "{nhwc_cnv: false}", "mine.yaml:12:35: unknown key 'nhwc_cnv'"),
        ("{nhwc_conv: false}", "{nhwc_conv: off}", "mine.yaml:12:"),
        ("name: more", "name: raw", "mine.yaml:13:11: two variants are 'raw'; give each a name of its own"),
        ("name: more", "name: RAW", "mine.yaml:13:11: 'RAW' differs from 'raw' in case alone"),
        ("name: more", "name: Con", "mine.yaml:13:11: 'Con' can't be a folder's name on Windows"),
        ("name: more", "name: ../more", "mine.yaml:13:11: `sweep.2.name` "),
        ("name: more", "nam: more", "mine.yaml:13:5: unknown key 'nam'; did you mean 'name'?"),
        ("name: more", "name: 5", "mine.yaml:13:11: `sweep.2.name` must be text"),
        ("output: models/mine", "outputs: [{path: a}]", "mine.yaml:7:1: `sweep` writes each variant to a folder in"),
    ],
)
def test_mistakes_are_found_where_they_are(write, old, new, message):
    assert old in WORKFLOW
    assert message in refused(write(WORKFLOW.replace(old, new)))


@pytest.mark.parametrize("value", ["[]", "raw", "{raw: [convert]}", "[raw]", "[{}]", "[{name: a, components: []}]"])
def test_what_is_no_list_of_variants_is_refused(write, value):
    text = WORKFLOW[: WORKFLOW.index("sweep:")]
    assert "mine.yaml:7:" in refused(write(f"{text}sweep: {value}\n"))
