"""Files of transformers as makers and ComfyUI name their tensors, against the same weights as a folder."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from network_values import check_same, networks_of, spec_of, values

from olivelike.engine.convert_request import ConvertRequest, draft
from olivelike.engine.preparation import plan
from olivelike.engine.prepared import Options
from olivelike.errors import SourceError, UsageError, WorkflowError
from olivelike.families import FAMILIES as FACTS, family_of_folder
from olivelike.families.networks.clip import PROJECTION
from olivelike.sources import SourceSpec, open_source
from olivelike.sources.fit import check_fit, lacking
from olivelike.sources.identify.published import read_extra, tokenizer_files
from olivelike.sources.identify.weight_file import describe_weight_file
from olivelike.workflow import load_workflow
from olivelike.workflow.long_form import parse_parts, text_source
from tests.fixtures.chat_tokenizer import write_chat_tokenizer
from tests.fixtures.maker_files import SMALL, in_8_bits, in_makers_names, maker_folder, states, write_parts

FAMILIES = tuple(SMALL)


@cache
def of_folder(family: str):
    opened = open_source(SourceSpec(path=maker_folder(family)), networks_of(family))
    return opened, {name: values(opened.checkpoint(name)) for name in networks_of(family)}


@pytest.mark.parametrize("spelling", ["makers", "library"])
@pytest.mark.parametrize("family", FAMILIES)
def test_files_of_either_spelling_are_the_networks_of_the_folder(family, spelling, tmp_path) -> None:
    folder, expected = of_folder(family)
    held = states(maker_folder(family))
    if spelling == "makers":
        held = {name: in_makers_names(family, name, state) for name, state in held.items()}
    opened = open_source(spec_of(write_parts(tmp_path, held)), networks_of(family))
    for name in networks_of(family):
        check_same(values(opened.checkpoint(name)), expected[name])
    assert {name: entry for name, entry in opened.index.items() if "tokenizer" not in name} == folder.index
    assert opened.left_out == ()
    (path,) = opened.checkpoint("transformer").files
    parts = [f"--part {name}=FILE" for name in ("vae", *sorted({*held} - {"transformer", "vae", "text_encoder_3"}))]
    then = f"olivelike convert {path} {' '.join(parts)} -t TARGET -o models/transformer"
    assert describe_weight_file(path).then == then
    assert opened.origin.identified.family == family
    assert {*opened.origin.parts} == {*held} - {"transformer"}


@pytest.mark.parametrize("form", [{}, {"per_row": True}, {"old": True}])
def test_values_of_8_bits_are_read_as_what_they_are_scaled_to(form, tmp_path) -> None:
    held = {name: in_makers_names("flux2", name, state) for name, state in states(maker_folder("flux2")).items()}
    narrow, meant = in_8_bits(held["transformer"], **form)
    written = write_parts(tmp_path, {"transformer": narrow, "wide": meant})
    found = open_source(SourceSpec(path=written["transformer"]), ["transformer"]).checkpoint("transformer")
    wide = open_source(SourceSpec(path=written["wide"]), ["transformer"]).checkpoint("transformer")
    check_same(values(found), values(wide))
    # What names mean is known of the one if it is of the other.
    assert found.layout_digest == wide.layout_digest


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_every_type_of_numbers_is_read_as_it_is(dtype, tmp_path) -> None:
    held = {name: in_makers_names("z_image", name, state) for name, state in states(maker_folder("z_image")).items()}
    narrow = {name: value.to(dtype) for name, value in held["transformer"].items()}
    path = write_parts(tmp_path, {"transformer": narrow})["transformer"]
    _, found = values(open_source(SourceSpec(path=path), ["transformer"]).checkpoint("transformer"))
    _, expected = of_folder("z_image")[1]["transformer"]
    rounded = {name: torch.from_numpy(value).to(dtype).float().numpy() for name, value in expected.items()}
    assert all(np.array_equal(found[name], rounded[name]) for name in rounded)


PREFIXES = {
    "flux": {"text_encoder": "text_encoders.clip_l.transformer.", "text_encoder_2": "text_encoders.t5xxl.transformer."},
    "sd3": {
        "text_encoder": "text_encoders.clip_l.transformer.", "text_encoder_2": "text_encoders.clip_g.transformer.",
        "text_encoder_3": "text_encoders.t5xxl.transformer.",
    },
    "z_image": {"text_encoder": "text_encoders.qwen3_4b.transformer."},
}  # fmt: skip


@pytest.mark.parametrize("family", PREFIXES)
def test_one_file_with_all_networks_is_a_pipeline(family, tmp_path) -> None:
    prefixes = {**PREFIXES[family], "transformer": "model.diffusion_model.", "vae": "vae."}
    held = {name: in_makers_names(family, name, state) for name, state in states(maker_folder(family)).items()}
    whole = {prefixes[name] + key: value for name, state in held.items() for key, value in state.items()}
    path = write_parts(tmp_path, {"all": whole})["all"]
    opened = open_source(SourceSpec(path=path), networks_of(family))
    assert opened.left_out == ()
    for name in networks_of(family):
        check_same(values(opened.checkpoint(name)), of_folder(family)[1][name])


def test_the_pooled_text_of_sd3s_first_encoder_is_taken_as_it_is_whatever_projection_a_file_has(tmp_path) -> None:
    held = {name: in_makers_names("sd3", name, state) for name, state in states(maker_folder("sd3")).items()}
    held["text_encoder"]["text_projection.weight"] = torch.ones(32, 64)
    opened = open_source(spec_of(write_parts(tmp_path, held)), ["text_encoder"])
    check_same(values(opened.checkpoint("text_encoder")), of_folder("sd3")[1]["text_encoder"])


def test_sd3_may_lack_its_third_text_encoder(tmp_path) -> None:
    held = {name: in_makers_names("sd3", name, state) for name, state in states(maker_folder("sd3")).items()}
    del held["text_encoder_3"]
    source = open_source(
        spec_of(write_parts(tmp_path, held)), [name for name in networks_of("sd3") if "_3" not in name]
    )
    assert source.index["tokenizer_3"] == source.index["text_encoder_3"] == [None, None]
    assert not any(name.startswith("tokenizer_3") for name in source.extras)
    assert lacking(source) == ()
    check_fit(source)


def test_a_folder_of_a_tokenizer_stands_in_place_of_the_published_one(tmp_path) -> None:
    write_chat_tokenizer(tmp_path / "own")
    held = {"transformer": in_makers_names("flux2", "transformer", states(maker_folder("flux2"))["transformer"])}
    parts = {**write_parts(tmp_path, held), "tokenizer": tmp_path / "own"}
    extras = open_source(spec_of(parts), []).extras
    assert extras["tokenizer/tokenizer.json"] == tmp_path / "own" / "tokenizer.json"
    with pytest.raises(SourceError, match="this is no tokenizer"):
        open_source(spec_of({**parts, "tokenizer": tmp_path}), [])
    (tmp_path / "loop").symlink_to("loop")
    for other in ("nowhere", "loop", "transformer.safetensors"):
        with pytest.raises(SourceError, match=rf"{other}: as tokenizer, this is no folder"):
            open_source(spec_of({**parts, "tokenizer": tmp_path / other}), [])


def test_a_layers_number_that_is_none_is_refused(tmp_path) -> None:
    held = dict(states(maker_folder("flux2")))
    held["text_encoder"] = {**held["text_encoder"], "model.layers.².mlp.weight": torch.ones(2)}
    text = open_source(spec_of(write_parts(tmp_path, held)), ["text_encoder"]).checkpoint("text_encoder")
    with pytest.raises(SourceError, match="².*is of a layer whose number is none"):
        values(text)


@pytest.mark.parametrize(
    ("family", "text", "ids"),
    [
        # As Qwen's own tokenizer numbers them, and T5's.
        ("flux2", "<|im_start|>user\na cat, café<|im_end|>", [151644, 872, 198, 64, 8251, 11, 51950, 151645]),
        ("flux", "a photo of a cat", [3, 9, 1202, 13, 3, 9, 1712, 1]),
    ],
)
def test_published_tokenizers_are_whole(family, text, ids) -> None:
    from tokenizers import Tokenizer

    packed = next(path for path in tokenizer_files(FACTS[family]).values() if path.suffix == ".xz")
    assert Tokenizer.from_str(read_extra(packed).decode()).encode(text).ids == ids


@pytest.mark.parametrize(
    ("family", "part", "other", "message"),
    [
        (
            "flux2",
            "text_encoder",
            ("flux", "text_encoder_2"),
            r"as text_encoder FLUX\.2-klein takes a Qwen3ForCausalLM, and this is a text encoder of T5",
        ),
        (
            "flux",
            "text_encoder_2",
            ("z_image", "text_encoder"),
            r"as text_encoder_2 FLUX\.1 takes a T5EncoderModel, and this is a text encoder of Qwen3",
        ),
        (
            "flux2",
            "vae",
            ("flux", "vae"),
            r"takes an AutoencoderKLFlux2, and this is a VAE of .*FLUX\.1.* \(16 latent channels\)",
        ),
        ("flux", "vae", ("flux2", "vae"), "the transformer makes latents of 16 channels, and the VAE's have 4"),
        ("z_image", "text_encoder", ("z_image", "transformer"), "and this is a transformer alone of Z-Image"),
        (
            "z_image",
            "text_encoder_2",
            ("flux", "text_encoder_2"),
            "Z-Image has no text_encoder_2; beside its transformer it has vae, text_encoder",
        ),
    ],
)
def test_files_of_another_family_are_refused_before_anything_runs(family, part, other, message, tmp_path) -> None:
    held = {name: in_makers_names(family, name, state) for name, state in states(maker_folder(family)).items()}
    source, name = other
    held[part] = in_makers_names(source, name, states(maker_folder(source))[name])
    with pytest.raises(SourceError, match=message):
        check_fit(open_source(spec_of(write_parts(tmp_path, held)), networks_of(family)))


def test_text_encoders_of_another_width_are_refused_with_both(tmp_path) -> None:
    held = {name: in_makers_names("sd3", name, state) for name, state in states(maker_folder("sd3")).items()}
    held["text_encoder_2"] = {**held["text_encoder"], PROJECTION: torch.eye(64)}
    with pytest.raises(
        SourceError, match=r"takes a pooled text of 112 numbers, and text_encoder makes 64 and text_encoder_2 makes 64"
    ):
        check_fit(open_source(spec_of(write_parts(tmp_path, held)), networks_of("sd3")))


def test_one_file_of_three_that_is_missing_is_named(tmp_path) -> None:
    held = {name: in_makers_names("flux2", name, state) for name, state in states(maker_folder("flux2")).items()}
    parts = write_parts(tmp_path, held)
    spec = spec_of({name: path for name, path in parts.items() if name != "vae"})
    told = r"no vae_encoder \(it holds: text_encoder, transformer\); name its file, an AutoencoderKLFlux2, as `vae:`"
    with pytest.raises(SourceError, match=told):
        open_source(spec, networks_of("flux2"))
    with pytest.raises(SourceError, match="can't be read: No such file"):
        open_source(spec_of({**parts, "vae": tmp_path / "gone.safetensors"}), networks_of("flux2"))
    request = ConvertRequest(str(parts["transformer"]), "cpu", tmp_path / "out", parts=(f"vae={parts['vae']}",))
    told = "1 of the files that make pictures with it is missing; name --part text_encoder=FILE .of Qwen3ForCausalLM"
    with pytest.raises(SourceError, match=told):
        draft(request)


def test_a_source_of_several_files_is_one_text_or_a_map(tmp_path) -> None:
    said = text_source("transformer=a.safetensors,vae=b.safetensors,tokenizer=own", tmp_path)
    assert (said.path, said.parts) == (
        tmp_path / "a.safetensors", {"vae": tmp_path / "b.safetensors", "tokenizer": tmp_path / "own"},
    )  # fmt: skip
    assert text_source("./a=b,c.safetensors", tmp_path).path == tmp_path / "a=b,c.safetensors"
    with pytest.raises(UsageError, match="--part 'unet=a': NAME=PATH names one of text_encoder"):
        parse_parts(["unet=a"], tmp_path)
    with pytest.raises(UsageError, match="vae is named twice"):
        parse_parts(["vae=a", "vae=b"], tmp_path)
    with pytest.raises(UsageError, match="a network is named twice"):
        text_source("transformer=a,vae=b,vae=c", tmp_path)
    workflow = "name: w\nsource: {transformer: a.safetensors, vae: b.safetensors}\ntarget: cpu\n"
    (tmp_path / "w.yaml").write_text(workflow + "components: {transformer: [convert]}\noutput: out\n")
    spec = load_workflow(tmp_path / "w.yaml").workflow.source.spec()
    assert (spec.path, spec.parts) == (tmp_path / "a.safetensors", {"vae": tmp_path / "b.safetensors"})
    (tmp_path / "w.yaml").write_text(workflow.replace("transformer", "hub: a/b, transformer"))
    with pytest.raises(WorkflowError, match="`transformer` stands in place of `path`"):
        load_workflow(tmp_path / "w.yaml")


def test_another_vae_in_place_of_flux2s_is_refused_where_it_would_lose_its_statistics(tmp_path) -> None:
    held = {"vae": in_makers_names("flux2", "vae", states(maker_folder("flux2"))["vae"])}
    vae = SourceSpec(path=write_parts(tmp_path, held)["vae"])
    with pytest.raises(SourceError, match="statistics of squares of latents"):
        open_source(SourceSpec(path=maker_folder("flux2"), vae=vae), ["vae_decoder"])


def test_kleins_base_is_told_by_its_files_name_alone(tmp_path) -> None:
    held = in_makers_names("flux2", "transformer", states(maker_folder("flux2"))["transformer"])
    paths = write_parts(tmp_path, {"flux-2-klein-4b": held, "flux-2-klein-base-4b": held}).values()
    assert [open_source(SourceSpec(path=path), []).index["is_distilled"] for path in paths] == [True, False]


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("z_image_turbo_bf16", False), ("z_image_bf16", True), ("z-image-Q4_K_M", True), ("Z-Image-Base-fp8", True),
        ("zimageTurbo_v2", False), ("zimagefinetune", None), ("painter", None),
    ],
)  # fmt: skip
def test_z_images_base_is_told_by_its_files_name_or_by_the_user(name, base, tmp_path) -> None:
    held = in_makers_names("z_image", "transformer", states(maker_folder("z_image"))["transformer"])
    (path,) = write_parts(tmp_path, {name: held}).values()
    opened = open_source(SourceSpec(path=path), [])
    assert opened.index.get("is_distilled", True) is not bool(base)
    assert (opened.guess is None) is (base is not None)
    for said in (True, False):
        told = open_source(SourceSpec(path=path, distilled=said), [])
        assert (told.index.get("is_distilled", True), told.guess) == (said, None)
        settings = json.loads(told.extras["scheduler/scheduler_config.json"].read_bytes())
        assert settings["shift"] == (3 if said else 6)


def test_a_folder_of_z_images_base_is_told_by_its_scheduler(tmp_path) -> None:
    folder = Path(shutil.copytree(maker_folder("z_image"), tmp_path / "base"))
    settings = folder / "scheduler" / "scheduler_config.json"
    assert "is_distilled" not in open_source(SourceSpec(path=folder), []).index
    settings.write_text(settings.read_text().replace("3.0", "6.0"))
    index = open_source(SourceSpec(path=folder), []).index
    assert family_of_folder(index, (), {}).usual == {"steps": 28, "guidance_scale": 4.0}
    with pytest.raises(SourceError, match="can be told for a single file only"):
        open_source(SourceSpec(path=folder, distilled=False), [])


def changed(state, change):
    state = dict(state)
    change(state)
    return state


EIGHT = r"img_in\.weight is held as F8_E4M3 of shape \[128, 16\] with"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: state.pop("img_in.weight_scale"),
            r"img_in\.weight has values of 8 bits and no scale .*, and \d+ others have one; 1 matrices lack",
        ),
        (
            lambda state: state.update({"img_in.weight_scale": torch.ones(3)}),
            rf"{EIGHT} 3 scales of F32, which is not supported",
        ),
        (
            lambda state: state.update({"img_in.weight": torch.ones(128, 8, dtype=torch.uint8)}),
            "img_in.weight is held as U8 ",
        ),
        (lambda state: state.update({"img_in.weight_scale_2": torch.ones(())}), rf"{EIGHT} 1 scales"),
        (lambda state: state.update({"img_in.scale_weight": torch.ones(())}), r"img_in\.weight has two scales"),
        (
            lambda state: state.update({"lost.weight_scale": torch.ones(())}),
            r"lost\.weight_scale is a scale of lost\.weight, which is not there",
        ),
        (lambda state: state.pop("txt_in.weight"), "transformer: its structure can't be read"),
        (lambda state: state.update({"img_in.weight": torch.ones(0, 16)}), "transformer: "),
    ],
)
def test_files_that_lack_scales_or_hold_numbers_otherwise_are_refused(change, message, tmp_path) -> None:
    state = in_makers_names("flux2", "transformer", states(maker_folder("flux2"))["transformer"])
    path = write_parts(tmp_path, {"transformer": changed(in_8_bits(state)[0], change)})["transformer"]
    with pytest.raises(SourceError, match=message):
        open_source(SourceSpec(path=path), ["transformer"])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("bn.running_var", -1.0, r"has bn.running_var of -1, and no variance is below 0"),
        ("bn.running_mean", float("nan"), r"vae.safetensors: bn.running_mean is nan"),
        ("bn.running_mean", None, r"the VAE's config has `latents_std: \[1, 0\]`, where .* 4 channels, above 0"),
    ],
)
def test_statistics_of_latents_that_are_none_are_told_before_anything_is_made(name, value, said, tmp_path) -> None:
    held = states(maker_folder("flux2"))
    if value is not None:
        held["vae"][name][2] = value
    opened = open_source(spec_of(write_parts(tmp_path, held)), networks_of("flux2"))
    if value is None:
        opened.checkpoints["vae_decoder"].config["latents_std"] = [1, 0]
    with pytest.raises(SourceError, match=said):
        check_fit(opened)


def bytepairs(tokens, added=()):
    added = [{"id": number, "content": f"<{number}>"} for number in added]
    return json.dumps({"model": {"type": "BPE", "vocab": tokens, "merges": []}, "added_tokens": added})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "tokenizer/tokenizer.json"),
        ('{"model": {"type": "WordPiece"}}', "no byte-pair"),
        (bytepairs({"a": 0, "b": 900_000}), "has token 900000, and its text_encoder knows those below [0-9]+; get"),
        (bytepairs({"a": 0}, [700_000]), "has token 700000, and"),
        (bytepairs({"a": "b"}), "tokens that are no numbers"),
        (bytepairs({"a": 0}, ["b"]), "tokens that are no numbers"),
    ],
)
def test_a_damaged_tokenizer_is_told_by_a_plan(content, said, tmp_path) -> None:
    shutil.copytree(maker_folder("z_image"), folder := tmp_path / "folder")
    index = json.loads((folder / "model_index.json").read_bytes())
    index["tokenizer"] = ["transformers", "Qwen2Tokenizer"]
    (folder / "model_index.json").write_text(json.dumps(index))
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer_config.json").write_text("{}")
    (folder / "tokenizer" / "tokenizer.json").write_text(content)
    place, options = draft(ConvertRequest(str(folder), "cpu", tmp_path / "x"), Options(cache_dir=tmp_path / "cache"))
    with pytest.raises(SourceError, match=said):
        plan(place, options)
