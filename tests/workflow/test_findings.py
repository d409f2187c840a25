"""Everything that can be wrong in a workflow file is reported at once, with its position and what to do."""

from __future__ import annotations

import re

import pytest
from sample_workflow import WORKFLOW

from olivelike.errors import WorkflowError
from olivelike.workflow import load_workflow


def message_of(ref, *overrides):
    with pytest.raises(WorkflowError) as caught:
        load_workflow(ref, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_finding_has_file_line_column_the_line_a_caret_and_the_nearest_name(write, project, monkeypatch):
    write(WORKFLOW.replace("- convert", "- conver"))
    monkeypatch.chdir(project)
    assert message_of("workflows/mine.yaml") == (
        "workflows/mine.yaml:8:7: unknown pass 'conver'; did you mean 'convert'?\n      - conver\n        ^"
    )


def test_the_caret_stands_right_behind_tabs_and_accents(write):
    text = WORKFLOW.replace("{count: 2}", '{label: "é\t", count: x}')
    line, caret = message_of(write(text)).splitlines()[1:]
    assert caret[: caret.index("^")].count("\t") == 1
    assert line[caret.index("^")] == "x"


def test_every_error_is_reported_at_once_in_the_order_of_the_file(write):
    text = """\
    nmae: mine
    source: 5
    target: cdua
    plugins: [tune.py, gone.py]
    components:
      unett: [convert]
      unet: [convert, {tune: {flag: on, coutn: 3, rate: fast}}, flaot16]
      vae_decoder: convert
      vae_encoder: [unet_only]
    output: [models/mine]
    """
    found = re.findall(r"mine\.yaml:(\d+:\d+): (.*)", message_of(write(text)))
    assert [place for place, _ in found] == [
        "1:1", "2:9", "3:9", "4:20", "6:3", "7:33", "7:37", "7:53", "7:61", "8:16", "9:17", "10:9",
    ]  # fmt: skip
    messages = [message for _, message in found]
    assert messages[0] == "unknown key 'nmae'; did you mean 'name'?"
    assert messages[1] == "`source` must be a map, found 5; use a map, such as {key: value}"
    assert messages[2] == "unknown target 'cdua'; did you mean 'cuda'?"
    assert "plugin 'gone.py' does not exist" in messages[3]
    assert messages[4] == "unknown component 'unett'; did you mean 'unet'?"
    assert messages[5] == "`unet.1.tune.flag` must be a valid boolean, found 'on'; use true or false"
    assert messages[6] == "unknown key 'coutn'; did you mean 'count'?"
    assert messages[7] == "`unet.1.tune.rate` must be a valid number, found 'fast'; use a number"
    assert messages[8] == "unknown pass 'flaot16'; did you mean 'float16'?"
    assert messages[9] == "`vae_decoder` is 'convert'; use a list of steps, such as [convert, float16]"
    assert messages[10] == "pass 'unet_only' does not apply to 'vae_encoder', only to unet; remove the step"
    assert "`output` must be text, found a list" in messages[11]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("target: cpu\n", "", "1:1: missing key 'target'; add `target: …`"),
        ("source: owner/model\n", "", "1:1: missing key 'source'"),
        ("output: models/mine\n", "", "1:1: a workflow has either `output` or `outputs`"),
        ("output: models/mine\n", "output: a\noutputs: [{path: b}]\n", "10:1: a workflow has either"),
        ("output: models/mine", r'output: "a\0b"', "9:9: this is no path: it holds a character"),
        ("output: models/mine", r'outputs: [{path: a}, {path: "\ud800"}]', "9:29: this is no path"),
        ("output: models/mine\n", "outputs: []\n", "9:10: `outputs` must have at least 1 item"),
        ("output: models/mine\n", "outputs: [{path: a}, {path: a}]\n", "9:29: two outputs are 'a'"),
        ("output: models/mine", "outputs: [{path: a/b}, {path: ./a//c/../b}]", "two outputs are './a//c/../b'"),
        ("output: models/mine", "outputs: [{path: a}, {path: A}]", "the output 'A' differs from 'a' in case alone"),
        ("output: models/mine", "outputs: [{path: a}, {path: A/b}]", "the output 'A/b' lies inside another, 'a'"),
        ("output: models/mine", "outputs: [{path: a}, {path: ./a/b}]", "9:29: the output './a/b' lies inside"),
        ("output: models/mine", "outputs: [{path: a/b}, {path: a}]", "9:31: the output 'a/b' lies inside"),
        ("output: models/mine", "outputs: [{path: a, until: tuen}]", "the pass 'tuen'; did you mean 'tune'"),
        ("output: models/mine", "outputs: [{paht: a}]", "9:12: unknown key 'paht'; did you mean 'path'"),
        ("owner/model", "{hub: a/b, path: c}", "2:9: `source` has either `hub` or `path`"),
        ("owner/model", "{variant: fp16}", "2:9: `source` has either `hub` or `path`"),
        ("owner/model", "{path: c, revision: main}", "2:19: `revision` belongs to a hub id"),
        ("owner/model", "{hub: model}", "2:15: 'model' is no hub id"),
        ("owner/model", "{hub: a/b, varant: fp16}", "2:20: unknown key 'varant'; did you mean 'variant'"),
        ("target: cpu", "target: {device_id: 0}", "3:9: missing key 'provider'; add `target.provider: …`"),
        ("target: cpu", "target: {provider: cpu, precision: fp8}", "must be 'fp32', 'fp16' or 'bf16', found 'fp8'"),
        ("target: cpu", "target: {provider: cpu, precision: bf16}", "3:36: .*'cpu' runs no graphs in bfloat16"),
        ("target: cpu", "target: {provider: openvino, precision: bf16}", None),
        ("target: cpu", "target: {provider: cpu, device_id: -1}", "3:36: .* greater than or equal to 0"),
        ("target: cpu", "target: {provider: cpu, options: {x: [1]}}", "3:38: .* found a list"),
        ("target: cpu", "target: {provider: cpu, extra: 1}", "3:25: unknown key 'extra'; keys: provider"),
        ("target: cpu", "lora: []\ntarget: cpu", "3:1: unknown key 'lora'"),
        ("{count: 2}", "{count: 10}", "6:34: `unet.1.tune.count` must be less than or equal to 9, found 10"),
        ("{count: 2}", "{count: '2'}", "6:34: .* must be a valid integer, found '2'; use a whole number"),
        ("{count: 2}", "{mode: slow}", "must be 'fast' or 'small', found 'slow'"),
        ("{count: 2}", "{names: [a, 1]}", "6:38: `unet.1.tune.names.1` must be text, found 1"),
        ("{count: 2}", "{label: bad}", "6:26: `unet.1.tune` label and mode do not go together"),
        ("{count: 2}", "5", "6:26: options of 'tune' are a map"),
        ("{tune: {count: 2}}", "{tune: {}, convert: {}}", "a step is a pass name or a map with one key"),
        ("{tune: {count: 2}}", "[tune]", "6:19: a step is .* found a list"),
        ("{tune: {count: 2}}", "", None),
        ("[convert, {tune: {count: 2}}]", "[]", "6:9: `unet` is an empty list"),
        ("[convert, {tune: {count: 2}}]", "", "6:8: `unet` is nothing"),
        ("plugins: [tune.py]", "plugins: tune.py", "4:10: `plugins` must be a list"),
    ],
)  # fmt: skip
def test_each_mistake_is_placed_and_explained(write, old, new, expected):
    assert old in WORKFLOW
    ref = write(WORKFLOW.replace(old, new, 1))
    if expected is None:
        load_workflow(ref)
    else:
        assert re.search(expected, message_of(ref)), message_of(ref)


def test_components_must_be_a_map_with_entries(write):
    head = "source: a/b\ntarget: cpu\noutput: x\n"
    assert "4:13: `components` is a list" in message_of(write(head + "components: [unet]\n"))
    assert "4:13: `components` is empty" in message_of(write(head + "components: {}\n"))
    assert "1:1: missing key 'components'" in message_of(write(head))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1: a workflow file is a map with keys such as `source:`, found nothing"),
        ("- a\n", "1:1: a workflow file is a map .*, found a list"),
        ("a: [1, 2\nb: 3\n", "1:4: YAML syntax error: `.` is not closed"),
        ("a: b: c\n", "1:5: YAML syntax error: mapping values are not allowed here"),
        ("a: *gone\n", "1:4: YAML syntax error: found undefined alias 'gone'"),
        ("a: 1\n---\nb: 2\n", "2:1: YAML syntax error: expected a single document"),
        ("a:\n\t- b\n", "2:1: YAML syntax error"),
        ("name: a\x01b\n", r"1:8: character U\+0001 is not allowed"),
        ("a: &x [*x]\n", "1:4: an anchor contains its own alias"),
        ("name: a\nname: b\n", r"2:1: key 'name' appears twice \(first on line 1\); remove one"),
        ("name: a\n1: b\n", "2:1: a key must be text; put it into quotes"),
        ("name: !!python/name:os.system x\n", "1:7: .*can't be read as .*:os.system; remove the tag"),
        ("source: !thing {a: 1}\n", "1:9: tag !thing is not supported; remove it"),
        ("name: !!int x\n", "1:7: 'x' can't be read as .*int; remove the tag"),
        ("<<: 5\n", "1:5: `<<` takes a map"),
        ('name: "\\ud800"\n', "1:1: "),
        ("[" * 3000, "1:51: nested deeper than 50 levels; flatten the file"),
    ],
)  # fmt: skip
def test_yaml_that_is_wrong_is_placed(write, text, expected):
    assert re.search("mine.yaml:" + expected, message_of(write(text))), message_of(write(text))


def test_aliases_that_explode_are_refused(write):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more than 20000 values" in message_of(write("\n".join(lines)))


def test_a_file_in_another_encoding_is_refused_at_the_first_wrong_byte(project):
    path = project / "latin.yaml"
    path.write_bytes(b"name: a\nsource: caf\xe9\n")
    assert "latin.yaml:2:12: not UTF-8; save the file in that encoding" in message_of(str(path))


def test_a_crash_in_the_validation_of_a_pass_is_the_plugins_fault(write):
    from olivelike.errors import PluginError

    with pytest.raises(PluginError, match=r"tune\.py:\d+: KeyError: 'crash'; fix the validation of its options"):
        load_workflow(write(WORKFLOW.replace("{count: 2}", "{label: crash}")))


@pytest.mark.parametrize("text", ["~nobody-of-this-name/x", "x" * 5000 + "/", "a\\0b/"])
@pytest.mark.parametrize("key", ["extends", "plugins"])
def test_text_that_can_be_no_path_is_only_not_found(write, key, text):
    value = f'["{text}"]' if key == "plugins" else f'"{text}"'
    ref = write(re.sub("plugins: .*", "", WORKFLOW) + f"{key}: {value}\n")
    assert re.search("there is no workflow file|does not exist", message_of(ref))


def test_an_odd_source_is_a_folder_that_the_source_reader_will_not_find(write):
    loaded = load_workflow(write(WORKFLOW.replace("owner/model", "x" * 5000)))
    assert loaded.workflow.source.path.name == "x" * 5000


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "target: cpu",
            'target: cpu\nvae: "C:\\models"',
            "behind double quotes a backslash begins an escape; use single",
        ),
        ("target: cpu", 'target: cpu\nvae: "C:\\x"', "behind double quotes a backslash begins an escape; use single"),
        ("target: cpu", "target:\n\tprovider: cpu", "indent with spaces, not with tabs"),
        ("target: cpu", "target: @cpu", "correct it, or quote the text"),
        (
            "target: cpu",
            "target: cpu\nloras:\n  - style.safetensors: 0.8",
            (
                "a space behind the colon makes a map of this; write style.safetensors:0.8 without it, or "
                "{file: style.safetensors, weight: 0.8}"
            ),
        ),
    ],
)
def test_a_remedy_is_that_of_the_cause_and_there_is_one(write, old, new, message):
    told = message_of(write(WORKFLOW.replace(old, new)))
    assert message in told
    assert told.count("mine.yaml:") == 1


def test_what_is_wrong_in_several_places_is_told_once_with_all_of_them(write):
    text = WORKFLOW.replace("- convert", "- conver").replace("output:", "  vae_encoder: [conver]\noutput:")
    told = message_of(write(text))
    assert told.count("unknown pass 'conver'") == 1
    assert re.search(r"mine\.yaml:8:7: unknown pass 'conver'; did you mean 'convert'\? \(also at \d+:17\)\n", told), (
        told
    )
