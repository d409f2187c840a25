"""The examples in `docs/verification.md` are true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from olivelike.families import FAMILIES
from olivelike.families.networks import classes_of, network_of
from olivelike.measure.network_sizes import CASES
from olivelike.measure.verify.original import LIMITS
from olivelike.model.components import SAFETY_CHECKER, torch_folder
from olivelike.sources.identify.published import network_class
from olivelike.workflow import load_workflow
from olivelike.workflow.passes import Registry

GUIDE = (Path(__file__).parents[3] / "docs" / "verification.md").read_text(encoding="utf-8")


def test_its_workflows_are_valid(tmp_path):
    examples = re.findall(r"```yaml\n(components:.*?)```", GUIDE, re.DOTALL)
    assert len(examples) == 2
    for text in examples:
        (tmp_path / "mine.yaml").write_text(f"extends: sd15_cuda\n{text}", encoding="utf-8")
        load_workflow(str(tmp_path / "mine.yaml"))


def test_its_options_and_their_defaults_are_those_of_the_pass():
    cls = Registry.built_in().get("verify").cls
    table = GUIDE[GUIDE.index("| option |") : GUIDE.index("| figure |")]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.MULTILINE)
    assert [name for name, _ in rows] == list(cls.model_fields)
    assert dict(rows)["samples"].strip() == str(cls().samples)
    assert dict(rows)["seed"].strip() == str(cls().seed)
    assert LIMITS == {"fp32": 1e-4, "fp16": 2e-2, "bf16": 0.16, "w8": 5e-2, "w4": 0.6, "int8": 0.3, "fp8": 0.3}


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.published.configs])
def test_no_sample_is_square_or_of_a_size_that_convert_traces_with(family):
    configs = {**FAMILIES[family].published.configs, SAFETY_CHECKER: {"vision_config": {"image_size": 224}}}
    vae = configs.pop("vae")
    for component, config in {**configs, "vae_encoder": vae, "vae_decoder": vae}.items():
        folder = torch_folder(component)
        (first, *_) = classes_of(component)
        class_name = first if component == SAFETY_CHECKER else network_class(FAMILIES[family], folder)[1]
        for value in network_of(component, class_name).interface(config).inputs:
            names = {dim.rpartition("_")[2]: size for dim, size in zip(value.dims, value.example, strict=True) if dim}
            for case in CASES:
                assert (case.height, case.width) != (names.get("height"), names.get("width"))
                assert case.sequence != names.get("sequence")
    assert all(case.height != case.width for case in CASES)


def test_its_blocks_are_an_option_of_float16():
    (text,) = re.findall(r"```yaml\n(float16:.*?)```", GUIDE, re.DOTALL)
    Registry.built_in().get("float16").cls(**yaml.safe_load(text)["float16"])


def test_its_commands_have_their_options(cli_help):
    for line in re.findall(r"^olivelike .*$", GUIDE, re.MULTILINE):
        command, *words = shlex.split(line, comments=True)[1:]
        assert [word for word in words if word.startswith("--") and word not in cli_help(command)] == []
