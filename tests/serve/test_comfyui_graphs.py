"""ComfyUI's graphs as orders, and what is refused of them, by its node."""

from __future__ import annotations

import copy
import random

import pytest

from olivelike.serve.api.comfyui_graph import Scaling, SentMask, SentPicture, read_graph
from olivelike.serve.api.comfyui_nodes import NODES, SAMPLER_NAMES, SCHEDULER_NAMES, GraphError, object_info

LISTED = {
    "models": ("painter", "inpainter"), "loras": ("ink", "sub/wash"), "upscalers": ("R-ESRGAN 4x+",),
    "samplers": tuple(SAMPLER_NAMES), "schedulers": tuple(SCHEDULER_NAMES),
}  # fmt: skip


def node(kind, **inputs):
    return {"class_type": kind, "inputs": inputs}


def from_prompt(**sampled):
    """The graph that ComfyUI opens with."""
    return {
        "3": node(
            "KSampler", seed=42, steps=20, cfg=7, sampler_name="euler_ancestral", scheduler="normal", denoise=1,
            model=["4", 0], positive=["6", 0], negative=["7", 0], latent_image=["5", 0],
        ) | {"_meta": {"title": "KSampler"}},
        "4": node("CheckpointLoaderSimple", ckpt_name="painter.safetensors"),
        "5": node("EmptyLatentImage", width=64, height=96, batch_size=2),
        "6": node("CLIPTextEncode", text="a lighthouse", clip=["4", 1]),
        "7": node("CLIPTextEncode", text="fog", clip=["4", 1]),
        "8": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
        "9": node("SaveImage", images=["8", 0], filename_prefix="ComfyUI"),
    } | sampled  # fmt: skip


def changed(graph, **inputs):
    """Return a graph with other inputs, by `node_input`."""
    graph = copy.deepcopy(graph)
    for place, value in inputs.items():
        number, _, name = place.removeprefix("n").partition("_")
        graph[number]["inputs"][name] = value
    return graph


def from_picture(**sampled):
    return changed(from_prompt(), n3_latent_image=["11", 0], n3_denoise=0.5) | {
        "10": node("LoadImage", image="cat.png"),
        "11": node("VAEEncode", pixels=["10", 0], vae=["4", 2]),
    } | sampled  # fmt: skip


def test_a_prompt_is_an_order():
    drawing = read_graph(from_prompt(), LISTED)
    assert drawing.fields == {
        "prompt": "a lighthouse", "negative_prompt": "fog", "seed": 42, "steps": 20, "guidance_scale": 7.0,
        "clip_layer": None, "loras": None, "width": 64, "height": 96, "num_images": 2,
    }  # fmt: skip
    assert (drawing.model, drawing.sampler) == ("painter", ("Euler a", "normal"))
    assert (drawing.loader, drawing.sampling.id, drawing.decoder) == ("4", "3", "8")
    assert [one.id for one in drawing.outputs] == ["9"]


def test_loras_and_skipped_layers_are_between_loader_and_sampler():
    graph = changed(from_prompt(), n3_model=["21", 0], n6_clip=["22", 0], n7_clip=["22", 0]) | {
        "20": node("LoraLoader", model=["4", 0], clip=["4", 1], lora_name="ink", strength_model=0.8, strength_clip=0.5),
        "21": node("LoraLoaderModelOnly", model=["20", 0], lora_name="sub\\wash.safetensors", strength_model=0.3),
        "22": node("CLIPSetLastLayer", clip=["20", 1], stop_at_clip_layer=-2),
    }
    fields = read_graph(graph, LISTED).fields
    assert fields["loras"] == [
        {"name": "ink", "weight": 0.8, "text_weight": 0.5}, {"name": "sub/wash", "weight": 0.3, "text_weight": 0.0},
    ]  # fmt: skip
    assert fields["clip_layer"] == 2


def test_a_picture_is_started_from_with_as_many_steps_run_as_there():
    scaled = node("ImageScale", image=["10", 0], upscale_method="lanczos", width=64, height=0, crop="center")
    drawing = read_graph(changed(from_picture(**{"12": scaled}), n11_pixels=["12", 0]), LISTED)
    assert (drawing.fields["steps"], drawing.fields["strength"]) == (40, 0.5)
    assert drawing.init == SentPicture("file", "cat.png", (Scaling(64, 0, crop=True, nearest=False),))
    assert "width" not in drawing.fields


def test_masks_are_those_of_the_picture_or_of_another():
    inpainted = {"11": node("VAEEncodeForInpaint", pixels=["10", 0], vae=["4", 2], mask=["10", 1], grow_mask_by=6)}
    drawing = read_graph(changed(from_picture(**inpainted), n3_denoise=1), LISTED)
    assert drawing.mask == SentMask(SentPicture("file", "cat.png"), "alpha", grown=6, emptied=True)
    assert "strength" not in drawing.fields
    masked = changed(from_picture(), n3_latent_image=["13", 0]) | {
        "12": node("LoadImageMask", image="mask.png [input]", channel="red"),
        "13": node("SetLatentNoiseMask", samples=["11", 0], mask=["14", 0]),
        "14": node("InvertMask", mask=["12", 0]),
    }
    drawing = read_graph(masked, LISTED)
    assert drawing.mask == SentMask(SentPicture("file", "mask.png [input]"), "red", inverted=True)
    assert drawing.fields["strength"] == 0.5


def test_latents_that_are_enlarged_are_hires_fix_and_so_are_pictures_by_an_upscaler():
    again = node(
        "KSampler", seed=1, steps=14, cfg=7, sampler_name="euler_ancestral", scheduler="normal", denoise=0.5,
        model=["4", 0], positive=["6", 0], negative=["7", 0], latent_image=["30", 0],
    )  # fmt: skip
    latent = changed(from_prompt(), n8_samples=["31", 0]) | {
        "30": node(
            "LatentUpscale", samples=["3", 0], upscale_method="bilinear", width=128, height=192, crop="disabled"
        ),
        "31": again,
    }
    fields = read_graph(latent, LISTED).fields
    assert (fields["hires"], fields["hires_strength"], fields["steps"], fields["hires_steps"]) == (2.0, 0.5, 20, 14)
    assert "upscaler" not in fields
    pixels = changed(latent, n31_latent_image=["36", 0]) | {
        "32": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
        "33": node("UpscaleModelLoader", model_name="R-ESRGAN 4x+"),
        "34": node("ImageUpscaleWithModel", upscale_model=["33", 0], image=["32", 0]),
        "35": node("ImageScale", image=["34", 0], upscale_method="lanczos", width=96, height=144, crop="disabled"),
        "36": node("VAEEncode", pixels=["35", 0], vae=["4", 2]),
    }
    fields = read_graph(pixels, LISTED).fields
    assert (fields["hires"], fields["upscaler"]) == (1.5, "R-ESRGAN 4x+")
    with pytest.raises(GraphError, match="its cfg are to be those of the first pass"):
        read_graph(changed(pixels, n31_cfg=5), LISTED)
    finished = changed(from_prompt(), n9_images=["34", 0]) | {"33": pixels["33"], "34": pixels["34"]}
    assert read_graph(changed(finished, n34_image=["8", 0]), LISTED).fields["upscaler"] == "R-ESRGAN 4x+"


def custom(**more):
    """The sampler in parts, as the plugin for Krita sends it."""
    return changed(from_prompt(), n8_samples=["40", 1]) | {
        "40": node(
            "SamplerCustomAdvanced", noise=["41", 0], guider=["42", 0], sampler=["43", 0], sigmas=["44", 0],
            latent_image=["5", 0],
        ),
        "41": node("RandomNoise", noise_seed=7),
        "42": node("CFGGuider", model=["4", 0], positive=["6", 0], negative=["7", 0], cfg=5.5),
        "43": node("KSamplerSelect", sampler_name="dpmpp_2m_sde_gpu"),
        "44": node("BasicScheduler", model=["4", 0], scheduler="karras", steps=12, denoise=1.0),
    } | more  # fmt: skip


def test_a_sampler_in_parts_is_read_and_its_later_steps_alone():
    drawing = read_graph(custom(), LISTED)
    found = {name: drawing.fields[name] for name in ("seed", "steps", "guidance_scale", "negative_prompt")}
    assert found == {"seed": 7, "steps": 12, "guidance_scale": 5.5, "negative_prompt": "fog"}
    assert drawing.sampler == ("DPM++ 2M SDE", "karras")
    later = custom(**from_picture()) | custom(**{
        "10": node("ETN_LoadImageCache", id="abc"), "11": node("VAEEncode", pixels=["10", 0], vae=["4", 2]),
        "45": node("SplitSigmas", sigmas=["44", 0], step=3),
    })  # fmt: skip
    drawing = read_graph(changed(later, n40_latent_image=["11", 0], n40_sigmas=["45", 1]), LISTED)
    assert (drawing.fields["strength"], drawing.init) == (0.75, SentPicture("cache", "abc"))
    plain = custom(**{"42": node("BasicGuider", model=["4", 0], conditioning=["50", 0])}) | {
        "50": node("FluxGuidance", conditioning=["6", 0], guidance=3.5)
    }
    fields = read_graph(plain, LISTED).fields
    assert (fields["guidance_scale"], fields["negative_prompt"]) == (3.5, None)


def test_texts_for_two_encoders_are_one():
    sides = dict.fromkeys(("width", "height", "target_width", "target_height"), 64)
    graph = from_prompt() | {
        "6": node("CLIPTextEncodeSDXL", clip=["4", 1], text_g="a cat", text_l="a cat", crop_w=0, crop_h=0, **sides),
        "7": node("SwarmClipTextEncodeAdvanced", clip=["4", 1], steps=20, prompt="fog", **sides),
    }
    fields = read_graph(graph, LISTED).fields
    assert (fields["prompt"], fields["negative_prompt"]) == ("a cat", "fog")
    with pytest.raises(GraphError, match="text_g and text_l are to be the same"):
        read_graph(changed(graph, n6_text_l="a dog"), LISTED)


def test_swarm_s_sampler_has_a_variation():
    graph = changed(from_prompt()) | {
        "3": node(
            "SwarmKSampler", noise_seed=5, steps=10, cfg=4, sampler_name="euler", scheduler="normal", model=["4", 0],
            positive=["6", 0], negative=["7", 0], latent_image=["5", 0], start_at_step=0, end_at_step=10000,
            var_seed=9, var_seed_strength=0.2, add_noise="enable", return_with_leftover_noise="disable",
            sigma_max=-1, sigma_min=-1, rho=7, previews="default", tile_sample=False, tile_size=1024,
        )
    }  # fmt: skip
    fields = read_graph(graph, LISTED).fields
    assert (fields["seed"], fields["variation_seed"], fields["variation_strength"]) == (5, 9, 0.2)


@pytest.mark.parametrize(
    ("graph", "where", "kind", "said"),
    [
        ({}, "", "no_prompt", "No prompt provided"),
        ([], "", "no_prompt", "No prompt provided"),
        (from_prompt() | {"20": node("IPAdapter")}, "20", "missing_node_type", "'IPAdapter' is not here"),
        (from_prompt() | {"20": {"inputs": {}}}, "20", "invalid_prompt", "has no class_type"),
        (changed(from_prompt(), n4_ckpt_name="dreams.ckpt"), "4", "value_not_in_list", "'dreams.ckpt' not in list"),
        (changed(from_prompt(), n3_steps="many"), "3", "invalid_input_type", "steps, many"),
        (changed(from_prompt(), n3_cfg=float("nan")), "3", "value_smaller_than_min", "cfg"),
        (changed(from_prompt(), n3_steps=10**9), "3", "value_bigger_than_max", "bigger than max of 10000"),
        (changed(from_prompt(), n3_seed=-1), "3", "value_smaller_than_min", "seed"),
        (changed(from_prompt(), n3_model=["6", 0]), "3", "return_type_mismatch", "model, MODEL"),
        (changed(from_prompt(), n3_model=["99", 0]), "3", "bad_linked_input", "model"),
        (changed(from_prompt(), n3_model=["4", True]), "3", "bad_linked_input", "model"),
        (changed(from_prompt(), n3_denoise=0.5), "3", "not_drawn_here", "on nothing"),
        (changed(from_picture(), n3_denoise=0), "3", "not_drawn_here", "denoise 0"),
        (changed(from_prompt(), n6_text=["4", 0]), "6", "invalid_input_type", "text"),
        ({"1": node("SaveImage", images=["1", 0])}, "1", "required_input_missing", "filename_prefix"),
        ({name: one for name, one in from_prompt().items() if name != "9"}, "", "prompt_no_outputs", "no outputs"),
        (
            from_picture(**{"12": node("PreviewImage", images=["10", 0])}), "12", "not_drawn_here",
            "other pictures than node 9",
        ),
        (changed(from_prompt(), n9_images=["10", 0]) | {"10": node("LoadImage", image="a")}, "10", "not_drawn_here",
         "no picture is drawn for it"),
        (changed(from_prompt(), n6_clip=["20", 0]) | {"20": node("CLIPSetLastLayer", clip=["20", 0],
         stop_at_clip_layer=-1)}, "", "dependency_cycle", "loop"),
        ({str(number): node("LoadImage", image="a") for number in range(501)}, "", "invalid_prompt", "500 nodes"),
    ],
)  # fmt: skip
def test_what_is_not_drawn_is_refused_by_its_node(graph, where, kind, said):
    with pytest.raises(GraphError) as refused:
        read_graph(graph, LISTED)
    answer = refused.value.answer()
    assert refused.value.kind == kind
    if not where:
        assert answer["node_errors"] == {}
        assert said in answer["error"]["message"]
        return
    assert said in answer["error"]["message"]
    assert answer["error"]["type"] == "prompt_outputs_failed_validation"
    (told,) = answer["node_errors"][where]["errors"]
    assert told["type"] == kind
    assert f"node {where} " in answer["error"]["message"]


def test_what_is_told_of_nodes_has_lists_where_programs_look():
    told = object_info(LISTED)
    assert told["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"][0] == ["painter", "inpainter"]
    assert told["KSampler"]["input"]["required"]["sampler_name"][0] == list(SAMPLER_NAMES)
    assert told["LoraLoader"]["input"]["required"]["lora_name"][0] == ["ink", "sub/wash"]
    assert told["KSampler"]["input"]["required"]["steps"] == ["INT", {"default": 20, "min": 1, "max": 10_000}]
    assert told.keys() == NODES.keys()
    assert object_info(LISTED, "KSampler").keys() == {"KSampler"}
    assert object_info(LISTED, "Nothing") == {}


def test_damaged_graphs_are_refused_and_nothing_else_happens():
    rng, junk = random.Random(3), [
        None, True, -1, 10**30, float("inf"), "", "x" * 30_000, [], {}, ["3", 0], ["4", 2], [["3"], 0], ["3", "0"],
        ["3", 10**9], {"a": 1}, "euler", "\ud800",
    ]  # fmt: skip
    drawn = 0
    for _ in range(600):
        graph = copy.deepcopy(rng.choice([from_prompt(), from_picture(), custom()]))
        for _ in range(rng.randint(1, 3)):
            one = graph[rng.choice(list(graph))]
            where = rng.choice([one["inputs"], one["inputs"], one, graph])
            where[rng.choice(list(where))] = rng.choice(junk)
            if not all(isinstance(one, dict) and isinstance(one.get("inputs"), dict) for one in graph.values()):
                break
        try:
            read_graph(graph, LISTED)
            drawn += 1
        except GraphError as error:
            assert error.answer()["error"]["message"]
    assert drawn < 100


def test_an_outline_has_nothing_of_the_graph_but_what_is_told():
    drawing = read_graph(from_picture(**{"99": node("ETN_LoadImageBase64", image="x" * 1000)}), LISTED)
    outline = drawing.outline()
    assert "xxx" not in repr(outline)
    assert (outline.sampling.id, outline.loader, outline.decoder) == ("3", "4", "8")
    assert [(one.id, one.kind) for one in outline.outputs] == [("9", "SaveImage")]


def test_ids_and_shares_of_steps_have_bounds():
    with pytest.raises(GraphError, match="id has more than the 300"):
        read_graph({**from_prompt(), "9" * 301: node("SaveImage", images=["8", 0])}, LISTED)
    with pytest.raises(GraphError, match="draws nothing"):
        read_graph(changed(from_picture(), n3_denoise=1e-308), LISTED)
