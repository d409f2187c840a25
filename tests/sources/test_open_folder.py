from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from olivelike.errors import SourceError
from olivelike.model.records.origin import Origin
from olivelike.sources import PipelineSource, SourceSpec, open_source

if TYPE_CHECKING:
    from pathlib import Path

COMPONENTS = ("text_encoder", "unet", "vae_encoder", "vae_decoder", "safety_checker")
UNET = "diffusion_pytorch_model"


def opened(folder: Path, *components: str, variant: str | None = None, **options: bool) -> PipelineSource:
    return open_source(SourceSpec(path=folder, variant=variant), components, **options)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_opening_reads_tables_and_lists_what_is_no_network(saved_checkpoint: Path) -> None:
    source = opened(saved_checkpoint, *COMPONENTS)
    assert source.origin == Origin.local("folder", saved_checkpoint)
    assert source.index["_class_name"] == "StableDiffusionPipeline"
    assert set(source.extras) == {
        "feature_extractor/preprocessor_config.json",
        "scheduler/scheduler_config.json",
        "tokenizer/merges.txt",
        "tokenizer/special_tokens_map.json",
        "tokenizer/tokenizer_config.json",
        "tokenizer/vocab.json",
    }
    unet = source.checkpoint("unet")
    assert (unet.library, unet.class_name) == ("diffusers", "UNet2DConditionModel")
    assert unet.files == (saved_checkpoint / f"unet/{UNET}.safetensors",)
    assert source.checkpoint("vae_encoder").tensors == source.checkpoint("vae_decoder").tensors


def test_opening_imports_no_heavy_library(saved_checkpoint: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from olivelike.sources import SourceSpec, open_source;"
        f"s = open_source(SourceSpec(path=Path({str(saved_checkpoint)!r})), {COMPONENTS!r});"
        "[s.checkpoint(c).layout_digest for c in s.checkpoints];"
        "heavy = {'torch', 'numpy', 'diffusers', 'transformers', 'huggingface_hub', 'onnx', 'pydantic'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


def test_components_that_are_not_asked_for_may_be_damaged_or_absent(saved_copy: Path) -> None:
    (saved_copy / "unet/config.json").unlink()
    (saved_copy / f"vae/{UNET}.safetensors").write_bytes(b"")
    assert set(opened(saved_copy, "text_encoder").checkpoints) == {"text_encoder"}


def test_shards_give_the_same_tensors_as_one_file(saved_checkpoint: Path, hub_checkpoint: Path) -> None:
    single = opened(saved_checkpoint, "unet").checkpoint("unet")
    sharded = opened(hub_checkpoint, "unet").checkpoint("unet")
    assert len(sharded.files) == 2
    assert sharded.shapes == single.shapes


def test_a_variant_has_its_own_files_and_dtype_but_the_same_layout(hub_checkpoint: Path) -> None:
    for component in ("unet", "vae_decoder", "text_encoder"):
        plain = opened(hub_checkpoint, component).checkpoint(component)
        half = opened(hub_checkpoint, component, variant="fp16").checkpoint(component)
        assert all(".fp16" in path.name for path in half.files)
        assert {tensor.dtype for tensor, _ in half.tensors.values()} <= {"F16", "I64"}
        assert half.layout_digest == plain.layout_digest


def test_an_older_spelling_of_a_sharded_variant_is_found(hub_copy: Path) -> None:
    new = hub_copy / f"unet/{UNET}.safetensors.index.fp16.json"
    new.rename(new.with_name(f"{UNET}.safetensors.fp16.index.json"))
    assert len(opened(hub_copy, "unet", variant="fp16").checkpoint("unet").files) == 2


@pytest.mark.parametrize(("component", "stem", "sharded"), [("unet", UNET, True), ("text_encoder", "model", False)])
def test_each_library_s_preference_between_shards_and_one_file_is_kept(
    saved_copy: Path, component: str, stem: str, sharded: bool
) -> None:
    folder = saved_copy / component
    shard = folder / f"{stem}-00001-of-00001.safetensors"
    shard.write_bytes((folder / f"{stem}.safetensors").read_bytes())
    names = list(opened(saved_copy, component).checkpoint(component).tensors)
    index = {"weight_map": dict.fromkeys(names, shard.name)}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index))
    (file,) = opened(saved_copy, component).checkpoint(component).files
    assert (file == shard) is sharded


def test_the_layout_ignores_bookkeeping_and_sees_config_and_class(saved_copy: Path) -> None:
    config = saved_copy / "unet/config.json"
    first = opened(saved_copy, "unet").checkpoint("unet").layout_digest
    edit(config, _name_or_path="/elsewhere", _diffusers_version="9.9", dtype="float16")
    assert opened(saved_copy, "unet").checkpoint("unet").layout_digest == first
    edit(config, norm_eps=1e-6)
    assert opened(saved_copy, "unet").checkpoint("unet").layout_digest != first


def test_a_missing_folder_and_a_damaged_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no such folder.*hf download REPO --local-dir"):
        opened(tmp_path / "gone", "unet")
    (tmp_path / "a.safetensors").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"a\.safetensors: truncated"):
        opened(tmp_path / "a.safetensors", "unet")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("model_index.json", "model_index.json is missing: this is no diffusers pipeline"),
        ("unet/config.json", "unet/config.json is missing.*hf download"),
        (f"unet/{UNET}.safetensors", "unet/, the weights .* is missing.*hf download"),
    ],
)
def test_a_missing_file_is_named_with_how_to_get_it(saved_copy: Path, missing: str, message: str) -> None:
    (saved_copy / missing).unlink()
    with pytest.raises(SourceError, match=message):
        opened(saved_copy, "unet")


def test_a_missing_shard_is_named_and_an_unfinished_download_is_recognised(hub_copy: Path) -> None:
    shard = f"unet/{UNET}-00002-of-00002.safetensors"
    (hub_copy / shard).unlink()
    with pytest.raises(SourceError, match=f"{shard} is missing; "):
        opened(hub_copy, "unet")
    leftover = hub_copy / ".cache/huggingface/download/unet/abc.incomplete"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    with pytest.raises(SourceError, match=f"{shard} is missing, and a download into this folder did not finish"):
        opened(hub_copy, "unet")


def test_a_shard_of_another_checkpoint_is_refused(hub_copy: Path) -> None:
    first, second = sorted((hub_copy / "unet").glob(f"{UNET}-*.safetensors"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(SourceError, match="index and shards belong to different checkpoints"):
        opened(hub_copy, "unet")


@pytest.mark.parametrize("content", ['{"metadata": {}}', '{"weight_map": 3}'])
def test_an_index_without_a_map_is_refused(hub_copy: Path, content: str) -> None:
    (hub_copy / f"unet/{UNET}.safetensors.index.json").write_text(content)
    with pytest.raises(SourceError, match="has no weight_map"):
        opened(hub_copy, "unet")


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_a_config_that_is_no_json_object_is_named(saved_copy: Path, content: str) -> None:
    (saved_copy / "unet/config.json").write_text(content)
    with pytest.raises(SourceError, match=r"config\.json: can't be read as JSON"):
        opened(saved_copy, "unet")


def test_a_truncated_weight_file_is_named_with_its_sizes(saved_copy: Path) -> None:
    path = saved_copy / f"unet/{UNET}.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2])
    with pytest.raises(SourceError, match=f"{UNET}.safetensors: truncated: {size} bytes expected, {size // 2} found"):
        opened(saved_copy, "unet")


def test_a_variant_that_is_absent_is_answered_with_what_there_is(saved_checkpoint: Path) -> None:
    with pytest.raises(SourceError, match=f"no weights of variant 'fp16'; it has {UNET}.safetensors; change"):
        opened(saved_checkpoint, "unet", variant="fp16")


def test_a_folder_with_variants_only_says_so(hub_copy: Path) -> None:
    (hub_copy / "text_encoder/model.safetensors").unlink()
    with pytest.raises(SourceError, match=r"no weights without a variant; it has model\.fp16\.safetensors"):
        opened(hub_copy, "text_encoder")


@pytest.mark.parametrize("entry", [None, [None, None]])
def test_a_component_that_is_null_in_the_index_can_be_dropped(saved_copy: Path, entry: object) -> None:
    edit(saved_copy / "model_index.json", safety_checker=entry)
    assert set(opened(saved_copy, "unet").checkpoints) == {"unet"}
    with pytest.raises(SourceError, match=r"has no safety_checker.*drop safety_checker from `components:`"):
        opened(saved_copy, "unet", "safety_checker")


def test_a_component_that_the_index_lacks_is_answered_with_those_it_has(saved_checkpoint: Path) -> None:
    with pytest.raises(SourceError, match=r"no text_encoder_2 .*has: feature_extractor, safety_checker"):
        opened(saved_checkpoint, "text_encoder_2")


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("tokenizer", r"tokenizer/vocab\.json \(or tokenizer\.json\)"),
        ("tokenizer/vocab.json", r"tokenizer/vocab\.json \(or tokenizer\.json\)"),
        ("tokenizer/merges.txt", r"tokenizer/merges\.txt"),
        ("scheduler", r"scheduler/scheduler_config\.json"),
        ("scheduler/scheduler_config.json", r"scheduler/scheduler_config\.json"),
        ("feature_extractor", r"feature_extractor/preprocessor_config\.json"),
    ],
)
@pytest.mark.parametrize("layout", ["saved_copy", "hub_copy"])
def test_a_half_downloaded_folder_without_a_main_file_is_refused(
    request: pytest.FixtureRequest, layout: str, gone: str, named: str
) -> None:
    folder: Path = request.getfixturevalue(layout)
    path = folder / gone
    for file in path.iterdir() if path.is_dir() else [path]:
        file.unlink()
    with pytest.raises(SourceError, match=named + r" is missing; download it again.*hf download"):
        opened(folder, "unet")


def test_an_absent_folder_of_a_scheduler_is_refused(saved_copy: Path) -> None:
    (saved_copy / "scheduler/scheduler_config.json").unlink()
    (saved_copy / "scheduler").rmdir()
    with pytest.raises(SourceError, match=r"scheduler/scheduler_config\.json is missing"):
        opened(saved_copy, "unet")


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model"])
def test_a_tokenizer_in_one_file_is_whole(saved_copy: Path, name: str) -> None:
    (saved_copy / "tokenizer/vocab.json").rename(saved_copy / "tokenizer" / name)
    (saved_copy / "tokenizer/merges.txt").unlink()
    assert f"tokenizer/{name}" in opened(saved_copy, "unet").extras


def test_a_network_that_is_not_supported_is_refused_before_its_weights_are_looked_at(saved_copy: Path) -> None:
    edit(saved_copy / "unet/config.json", num_class_embeds=256)
    (saved_copy / f"unet/{UNET}.safetensors").unlink()
    with pytest.raises(SourceError, match="unet: UNet2DConditionModel with `num_class_embeds: 256` is not supp"):
        opened(saved_copy, "text_encoder", "unet")
    assert set(opened(saved_copy, "text_encoder").checkpoints) == {"text_encoder"}


def test_a_config_of_absurd_size_is_refused_at_once(saved_copy: Path) -> None:
    edit(saved_copy / "unet/config.json", layers_per_block=10**9)
    with pytest.raises(SourceError, match="`layers_per_block: 1000000000`, where whole numbers from 0 to 100"):
        opened(saved_copy, "unet")


def test_an_absent_weight_file_is_no_folder_to_download_into(tmp_path):
    with pytest.raises(SourceError, match=r"painter\.safetensors: no such folder or file; check its name$"):
        opened(tmp_path / "painter.safetensors")
    with pytest.raises(SourceError, match=r"painter: no such folder or file; check its name, or download the pipeline"):
        opened(tmp_path / "painter")
