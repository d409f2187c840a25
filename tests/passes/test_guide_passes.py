"""Guides as graphs, and the UNet that they lead: against torch, for each target and precision; what is shared."""

from __future__ import annotations

import shutil
from functools import cache

import numpy as np
import onnx_ir as ir
import pytest

from olivelike.errors import PassError, SourceError, VerificationError
from olivelike.graphs import guided_graphs
from olivelike.graphs.image_attention import cross_attentions
from olivelike.model.adapter_features import given_features, taken_features
from olivelike.model.guides import (
    CONTROLNET,
    GUIDES,
    IMAGE_STRENGTH,
    IMAGE_TOKENS,
    MIDDLE,
    NO_IMAGE_TOKENS,
    T2I_ADAPTER,
    guided_file,
)
from olivelike.testing import run_pass
from olivelike.testing.models import traced_graph
from olivelike.testing.parity import compare_with_torch, materialize_model, open_on_cpu
from olivelike.workflow.passes import Registry
from tests.fixtures.little_guides import LITTLE, guide_model, guide_sets, little_guide
from tests.fixtures.little_pipeline import little_checkpoint, little_model

NAMES = (*(kind.step for kind in GUIDES.values()), "bfloat16", "deepcache", "float16", "fuse", "layout", "verify")
PASSES = {name: Registry.built_in().get(name).cls for name in NAMES}
SHAPES = {
    "sd": {"up": [(16, 1), (16, 1), (16, 2), (32, 2), (32, 2)]},
    "attending": {
        "up": [(16, 1), (16, 1), (16, 2), (32, 2), (32, 4), (32, 4), (32, 4)], "down": [(16, 1), (32, 2), (32, 4)],
    },
    "attending_xl": {
        "up": [(16, 1), (16, 1), (16, 2), (32, 2), (32, 4), (32, 4), (32, 4)],
        "down": [(16, 2), (32, 2), (32, 4), (32, 4)],
    },
}  # fmt: skip
"""Channels of what each UNet takes by where it enters, and how many latents one of them is; the middle is the last."""
SCALE = 0.7


def residuals(kind, guide):
    """Return the names of what a UNet takes of a guide."""
    enters = GUIDES[guide].enters
    places = [*range(len(SHAPES[kind][enters]) - 1), MIDDLE if enters == "up" else None]
    return [GUIDES[guide].input(number, place) for number, place in enumerate(places)]


def marked(model, guide, target="cpu", kind="attending"):
    """Return a UNet that takes what a guide gives."""
    more = {"guides": {GUIDES[guide].key: little_guide(guide, kind)}} if GUIDES[guide].is_file else {}
    return run_pass(PASSES[GUIDES[guide].step], model, target=target, **more)


@cache
def fused(kind, prompted, target, half):
    """Return a UNet as the steps before the last ones leave it, with or without attention to pictures."""
    unet = little_model(kind, "unet")
    unet = marked(unet, "ip_adapter", target, kind) if prompted else unet
    unet = run_pass(PASSES["fuse"], unet, target=target, precision="fp16" if half else "fp32")
    return run_pass(PASSES["float16"], unet, target=target) if half else unet


def led_unet(kind, guides, target="cpu", half=False, deepcache=False):
    """Return a fused UNet that guides lead, as a workflow's chain makes it."""
    unet = fused(kind, "ip_adapter" in guides, target, half)
    unet = run_pass(PASSES["deepcache"], unet) if deepcache else unet
    for guide in guides:
        unet = unet if GUIDES[guide].behind else marked(unet, guide, target, kind)
    return unet


def written(model, folder):
    folder.mkdir(parents=True)
    materialize_model(model, folder)
    return folder


def opened(folder, place, file):
    """Return a session on one of a folder's graphs, on the CPU, whatever its target."""
    place.mkdir()
    shutil.copy(folder / file, place / "model.onnx")
    shutil.copy(folder / "weights.pb", place)
    return open_on_cpu(place)


def run(session, values):
    taken = {value.name: value.type for value in session.get_inputs()}
    half = {name for name, kind in taken.items() if kind == "tensor(float16)"}
    given = {name: values[name].astype(np.float16) if name in half else values[name] for name in taken}
    return session.run(["out_sample"], given)[0].astype(np.float64)


@cache
def torch_unet(kind, prompted):
    """Return diffusers' UNet in float64, with an IP-Adapter that its own code placed."""
    from diffusers import UNet2DConditionModel
    from safetensors.torch import load_file

    network = UNet2DConditionModel.from_pretrained(little_checkpoint(kind) / "unet")
    if prompted:
        parts = {"image_proj": {}, "ip_adapter": {}}
        for name, tensor in load_file(little_guide("ip_adapter", kind)).items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        network._load_ip_adapter_weights([parts])
        for processor in network.attn_processors.values():
            if hasattr(processor, "to_k_ip"):
                processor.scale = [SCALE]
    return network.double().eval()


@cache
def feeds(kind):
    """Return what a UNet takes, with what each guide gives, and what the image encoder made of a picture."""
    import torch

    random = np.random.default_rng(5)

    def normal(*shape):
        return random.standard_normal(shape, np.float32)

    xl = kind == "attending_xl"
    given = {
        "sample": normal(2, 4, 16, 24),
        "timestep": np.array([300.0], np.float32),
        "encoder_hidden_states": normal(2, 7, 64 if xl else 32),
        **({"text_embeds": normal(2, 16), "time_ids": normal(2, 6)} if xl else {}),
    }
    more = {
        guide: {
            name: normal(2, channels, 16 // scale, 24 // scale)
            for name, (channels, scale) in zip(residuals(kind, guide), SHAPES[kind][one.enters], strict=True)
        }
        for guide, one in GUIDES.items() if one.enters in SHAPES[kind]
    }  # fmt: skip
    embeds = normal(2, 1, 16)
    with torch.no_grad():
        (tokens,) = torch_unet(kind, True).encoder_hid_proj([torch.from_numpy(embeds).double()])
    more["ip_adapter"] = {IMAGE_TOKENS: tokens[:, 0].float().numpy(), IMAGE_STRENGTH: np.array([SCALE], np.float32)}
    return given, more, embeds


@cache
def expected(kind, guides):
    """Return what diffusers' UNet predicts in float64; it adds features in place."""
    import torch

    given, more, embeds = feeds(kind)
    taken = {name: torch.from_numpy(value).double() for name, value in given.items()}
    led = {"up": None, "down": None}
    for guide in guides:
        values, enters = [torch.from_numpy(one).double() for one in more[guide].values()], GUIDES[guide].enters
        if enters in led:
            led[enters] = [sum(some) for some in zip(*filter(None, (led[enters], values)), strict=True)]
    conditions = {name: taken[name] for name in ("text_embeds", "time_ids") if name in taken}
    if "ip_adapter" in guides:
        conditions["image_embeds"] = [torch.from_numpy(embeds).double()]
    down = led["up"]
    with torch.no_grad():
        return torch_unet(kind, "ip_adapter" in guides)(
            *list(taken.values())[:3],
            down_intrablock_additional_residuals=led["down"],
            added_cond_kwargs=conditions or None,
            down_block_additional_residuals=tuple(down[:-1]) if down else None,
            mid_block_additional_residual=down[-1] if down else None,
        ).sample.numpy()


def error(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


ALL, SD, T2I = tuple(GUIDES), ("controlnet", "ip_adapter"), ("t2i_adapter",)


@pytest.mark.parametrize(
    ("kind", "guides", "target", "half"),
    [
        ("sd", SD, "cuda", True), ("sd", SD, "openvino", False), ("attending", ALL, "cpu", False),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (
            ("sd", SD, "directml", False),
            ("sd", SD, "webgpu", True), ("attending_xl", T2I, "directml", True),
            ("sd", SD, "cuda", False), ("sd", SD, "directml", True), ("sd", SD, "webgpu", False),
            ("sd", SD, "openvino", True), ("sd", SD, "cpu", True), ("attending", T2I, "cuda", True),
            ("attending_xl", T2I, "webgpu", False),
            ("attending", ALL, "cuda", False), ("attending_xl", ALL, "cpu", False),
            ("attending", T2I, "openvino", True), ("attending_xl", ALL, "cuda", False),
            ("attending_xl", ALL, "directml", True),
        )),
    ],
    ids=str,
)  # fmt: skip
def test_guides_do_what_they_do_in_torch_alone_and_together(tmp_path, kind, guides, target, half):
    folder = written(led_unet(kind, guides, target, half), tmp_path / "unet")
    given, more, _ = feeds(kind)
    plain = run(open_on_cpu(folder), given)
    for some in (*((guide,) for guide in guides), *([ALL] if guides == ALL else [])):
        session = opened(folder, tmp_path / "_".join(some), guided_file(some))
        values = given | {name: value for guide in some for name, value in more[guide].items()}
        assert {value.name for value in session.get_inputs()} == values.keys()
        wanted = expected(kind, some)
        assert error(run(session, values), wanted) < (2e-2 if half else 1e-4), some
        if target == "cpu" or "t2i_adapter" not in some:  # An IP-Adapter's tokens stay, and count for nothing.
            nothing = {name: value if name in (*given, IMAGE_TOKENS) else value * 0 for name, value in values.items()}
            assert (run(session, nothing) == plain).all(), some
        if not half:
            assert error(plain, wanted) > 1e-2, some


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a function that writes a UNet with its cheap steps and guides, each set once."""
    root = tmp_path_factory.mktemp("unets")
    return cache(lambda guides: written(led_unet("attending", guides, deepcache=True), root / "_".join(guides)))


@pytest.mark.parametrize(
    "guide", [pytest.param(one, marks=[pytest.mark.slow] * (one == "t2i_adapter")) for one in GUIDES]
)
def test_nothing_is_written_twice_and_other_graphs_stay_as_they_are(folders, guide):
    before, after = folders(tuple(one for one in GUIDES if one != guide)), folders(tuple(GUIDES))
    led = {guided_file(some) for some in guide_sets() if guide in some}
    known = {path.name for path in before.iterdir()}
    assert {path.name for path in after.iterdir()} - known == led
    assert {"model.onnx", "shallow.onnx", "weights.pb"} < known
    for name in known:
        old, new = ((folder / name).read_bytes() for folder in (before, after))
        assert new == old or (GUIDES[guide].behind and name == "weights.pb" and new.startswith(old)), name
    for name in led:
        assert [value.name for value in ir.load(after / name).graph.outputs] == ["out_sample"]


def test_inputs_have_the_order_of_guides_and_sizes_of_the_latents(folders):
    graph = ir.load(folders(tuple(GUIDES)) / guided_file(GUIDES)).graph
    shapes = {value.name: str(value.shape) for value in graph.inputs}
    given, more, _ = feeds("attending")
    early, late = ([guide for guide in GUIDES if bool(GUIDES[guide].behind) is there] for there in (True, False))
    order = [*early, *sorted(late, key=lambda guide: GUIDES[guide].enters == "up")]
    assert list(shapes) == [*given, *(name for guide in order for name in more[guide])]
    for name in (CONTROLNET.gives_middle, T2I_ADAPTER.gives.format(2)):
        assert shapes[name] == "[unet_sample_batch,32,unet_sample_height/4,unet_sample_width/4]"


def test_guides_enter_alike_whatever_their_order_in_the_table(monkeypatch):
    unet = led_unet("attending", ("controlnet", "t2i_adapter"))

    def made():
        written = guided_graphs.guided_graphs(unet.graph.to_ir())
        return {name: ir.to_proto(one).SerializeToString(deterministic=True) for name, one in written}

    before = made()
    monkeypatch.setattr(guided_graphs, "GUIDES", dict(reversed(GUIDES.items())))
    assert made() == before


def test_weights_of_an_ip_adapter_are_behind_those_of_the_unet_and_fused_alike(tmp_path):
    plain, folder = (
        written(led_unet("sd", guides, "cuda", True), tmp_path / name)
        for guides, name in (((), "plain"), (("ip_adapter",), "shown"))
    )
    weights, before = ((one / "weights.pb").read_bytes() for one in (folder, plain))
    assert weights.startswith(before)
    little = marked(little_model("sd", "unet"), "ip_adapter", kind="sd")
    own = sum(tensor.nbytes for name, tensor in little.weights.items() if "_ip." in name) // 2
    assert len(weights) - len(before) in range(own, own + 4096 * 32)
    counts = [len([node for node in ir.load(one).graph if node.op_type == "MultiHeadAttention"])
              for one in (plain / "model.onnx", folder / guided_file(["ip_adapter"]))]  # fmt: skip
    assert counts == [2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("about", "plain"), [("Stable Diffusion 1.4 and 1.5", 32), ("Stable Diffusion XL base, SDXL-Turbo", 140)]
)
def test_at_real_sizes_each_cross_attention_is_fused_twice(about, plain):
    from olivelike.graphs.image_attention import KINDS, add_image_prompt, image_parameter
    from olivelike.graphs.shelf import BUILT_IN
    from olivelike.graphs.shelf.shelf_folder import ShelfFolder
    from olivelike.model import Graph, Model

    shelf = ShelfFolder(BUILT_IN)
    (entry,) = [one for _, one in shelf.entries() if (one.kind, one.component, one.about) == ("graph", "unet", about)]
    graph = Graph(shelf.read("graph", entry.question)).to_ir()
    shapes = {value.name: tuple(value.shape.numpy()) for value in graph.graph.inputs if value.metadata_props}
    blocks = cross_attentions(shapes)
    added = {image_parameter(block, kind): shapes[f"{block}.to_{kind}.weight"] for block in blocks for kind in KINDS}
    assert add_image_prompt(graph, added) == len(blocks) == plain // 2
    model = Model("unet", graph=Graph.from_ir(graph))
    facts = run_pass(PASSES["fuse"], model, target="cuda", precision="fp16")
    operators = [node.op_type for node in facts.graph.to_ir().graph]
    assert operators.count("MultiHeadAttention") == plain + len(blocks)
    assert facts.facts["fused"]["packed_kv"] == {"MultiHeadAttention, packed KV": 2 * len(blocks)}


def test_verify_compares_a_unet_that_attends_to_pictures_with_torch():
    little = marked(little_model("sd", "unet"), "ip_adapter", kind="sd")
    facts = run_pass(PASSES["verify"], little, samples=1).facts["verification"]
    assert facts["passed"]
    assert facts["relative_error"] < 1e-5
    (values,) = (name for name in little.weights if "to_v_ip" in name)
    changed = little.weights.replace({values: little.weights[values.replace("to_v", "to_k")]})
    with pytest.raises(VerificationError, match="further from torch"):
        run_pass(PASSES["verify"], little.replace(weights=changed))


@cache
def network(guide, kind="attending", **more):
    model = guide_model(guide, little_guide(guide, kind, **more), kind)
    return model.replace(graph=traced_graph(model.architecture))


def interface(model, layout):
    """Return real inputs and the names of outputs as a layout has them."""
    graph = run_pass(PASSES["layout"], model, profile=layout).graph.to_ir().graph
    real = [value for value in graph.inputs if not value.metadata_props]
    return real, [value.name for value in graph.outputs]


@pytest.mark.parametrize(
    ("guide", "kind", "more"),
    [(guide, kind, more) for guide, one in LITTLE.items() for kind, more in one.variants],
    ids=str,
)
def test_a_guides_network_is_that_of_torch_in_each_precision(guide, kind, more):
    model = network(guide, kind, **more)
    fused = run_pass(PASSES["fuse"], model, target="cuda", precision="fp16")
    compare_with_torch(model).require(1e-4)
    compare_with_torch(run_pass(PASSES["float16"], fused, target="cuda")).require(2e-2)
    real, outputs = interface(model, "diffusers")
    assert GUIDES[guide].picture in {value.name for value in real}
    if GUIDES[guide].is_prompt:
        assert outputs == [IMAGE_TOKENS, *([NO_IMAGE_TOKENS] if more["form"] == "classic" else [])]
    else:
        assert outputs == residuals(kind, guide)
    assert GUIDES[guide].in_each_step or len(real) == 1


def test_layouts_name_and_type_what_their_clients_feed_a_controlnet():
    model = network("controlnet", "sd")
    half = run_pass(PASSES["float16"], model, target="cuda")
    inputs = ["sample", "timestep", "encoder_hidden_states", "controlnet_cond", "conditioning_scale"]
    for layout, scale in (("diffusers", ir.DataType.FLOAT), ("onnxstack", ir.DataType.DOUBLE)):
        for one in (model, half):
            real, outputs = interface(one, layout)
            assert [value.name for value in real] == inputs
            assert (real[-1].dtype, str(real[-1].shape)) == (scale, "[1]")
            assert outputs == residuals("sd", "controlnet")


@pytest.mark.parametrize(
    "guide", [pytest.param(one, marks=[pytest.mark.slow] * (one == "t2i_adapter")) for one in GUIDES]
)
def test_clients_that_feed_no_guide_get_the_plain_graph(guide):
    unet = marked(little_model("attending", "unet"), guide)
    for layout in ("diffusers", "onnxstack", "csharp", "web"):
        model = run_pass(PASSES["layout"], unet, profile=layout).graph.to_ir()
        kept = layout in GUIDES[guide].clients
        if GUIDES[guide].is_prompt:
            assert (IMAGE_TOKENS in {value.name for value in model.graph.inputs}) == kept
            assert any("_ip." in str(value.name) for value in model.graph.inputs) == kept
        else:
            assert (f"olivelike.{GUIDES[guide].step}" in model.metadata_props) == kept


def test_where_features_go_follows_from_published_configs():
    sd = {
        "block_out_channels": (320, 640, 1280, 1280),
        "down_block_types": (*("CrossAttnDownBlock2D",) * 3, "DownBlock2D"),
    }
    xl = {"block_out_channels": (320, 640, 1280), "down_block_types": ("DownBlock2D", *("CrossAttnDownBlock2D",) * 2)}
    assert [one.connection for one in taken_features(sd)] == [2, 5, 8, 11]
    assert [one.connection for one in taken_features(xl)] == [3, 5, 8, MIDDLE]
    light = {"channels": [320, 640, 1280], "adapter_type": "light_adapter"}
    extra = {"adapter_type": "full_adapter_xl", "downscale_factor": 16}
    for unet, adapters in ((sd, ({}, light)), (xl, (extra,))):
        for adapter in adapters:
            given = [(one.channels, one.scale) for one in given_features(adapter)]
            assert given == [(one.channels, 8 * one.scale) for one in taken_features(unet)]


def test_layers_are_numbered_as_diffusers_has_its_modules():
    blocks = ["mid_block.attentions.0", "up_blocks.1.attentions.10", "down_blocks.0.attentions.1",
              "up_blocks.1.attentions.2"]  # fmt: skip
    names = [f"{block}.transformer_blocks.0.attn2.to_k.weight" for block in blocks]
    found = [name.partition(".transformer")[0] for name in cross_attentions(names)]
    assert found == [blocks[2], blocks[3], blocks[1], blocks[0]]


def test_what_does_not_fit_is_refused():
    unet, decoder = (little_model("attending", name) for name in ("unet", "vae_decoder"))
    with pytest.raises(PassError, match="it is no UNet"):
        marked(decoder.replace(component="unet"), "controlnet")
    with pytest.raises(PassError, match="has 0 connections from its way down"):
        marked(decoder.replace(component="unet", architecture=unet.architecture), "t2i_adapter")
    with pytest.raises(SourceError, match="for a UNet of 7 cross-attentions, and the pipeline's has 1"):
        marked(little_model("sd", "unet"), "ip_adapter", kind="attending")
    with pytest.raises(PassError, match="has 0 cross-attentions as `convert` makes them, and the UNet has 7"):
        marked(fused("attending", False, "cpu", False), "ip_adapter")
    with pytest.raises(PassError, match="the context has no ip_adapter; name one as `ip_adapter:`"):
        run_pass(PASSES["ip_adapter"], unet)
