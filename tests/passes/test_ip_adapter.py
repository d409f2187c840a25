"""IP-Adapters in the UNet's graph: against diffusers, for each target and precision; what is shared and counted."""

from __future__ import annotations

import shutil
from functools import cache
from itertools import combinations

import numpy as np
import onnx_ir as ir
import pytest

from olivelike.errors import PassError, SourceError, VerificationError
from olivelike.graphs.image_attention import cross_attentions
from olivelike.model.guides import GUIDES, IMAGE_STRENGTH, IMAGE_TOKENS, guided_file
from olivelike.pass_api import IpAdapterInput
from olivelike.testing import run_pass
from olivelike.testing.ip_adapters import make_ip_adapter
from olivelike.testing.models import traced_graph
from olivelike.testing.parity import compare_with_torch, materialize_model, open_on_cpu
from olivelike.workflow.passes import Registry
from tests.fixtures.little_ip_adapters import image_encoder_model, little_ip_adapter
from tests.fixtures.little_pipeline import little_checkpoint, little_model

CONTROLLED_FILE = guided_file(["controlnet"])
IMAGE_PROMPT_FILE = guided_file(["ip_adapter"])

NAMES = ("ip_adapter", "controlnet_inputs", "deepcache", "float16", "fuse", "layout", "t2i_adapter_inputs", "verify")
PASSES = {name: Registry.built_in().get(name).cls for name in NAMES}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """Return an IP-Adapter for a UNet with cross-attentions on the way down, in the middle and on the way up."""
    return make_ip_adapter(tmp_path_factory.mktemp("adapter"), little_checkpoint("attending"))


@pytest.fixture(scope="module")
def unet(adapter):
    return run_pass(PASSES["ip_adapter"], little_model("attending", "unet"), ip_adapter=IpAdapterInput(adapter))


@pytest.fixture(scope="module")
def little():
    """Return a UNet with an IP-Adapter and one cross-attention."""
    adapter = IpAdapterInput(little_ip_adapter())
    return run_pass(PASSES["ip_adapter"], little_model("sd", "unet"), ip_adapter=adapter)


@cache
def expected(adapter, checkpoint, scale=0.7):
    """Return inputs with tokens, and what diffusers' UNet makes of them, whose own code placed the weights."""
    import torch
    from diffusers import UNet2DConditionModel
    from safetensors.torch import load_file

    network = UNet2DConditionModel.from_pretrained(checkpoint / "unet")
    parts = {"image_proj": {}, "ip_adapter": {}}
    for name, tensor in load_file(adapter).items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    network._load_ip_adapter_weights([parts])
    network = network.double().eval()
    for processor in network.attn_processors.values():
        if hasattr(processor, "to_k_ip"):
            processor.scale = [scale]
    random = np.random.default_rng(5)
    embeds = torch.from_numpy(random.standard_normal((2, 1, 16)))
    given = {
        "sample": random.standard_normal((2, 4, 16, 24), np.float32),
        "timestep": np.array([300.0], np.float32),
        "encoder_hidden_states": random.standard_normal((2, 7, network.config.cross_attention_dim), np.float32),
    }
    taken = [torch.from_numpy(value).double() for value in given.values()]
    with torch.no_grad():
        (tokens,) = network.encoder_hid_proj([embeds])
        made = network(*taken, added_cond_kwargs={"image_embeds": [embeds]}).sample.numpy()
    image = {IMAGE_TOKENS: tokens[:, 0].float().numpy(), IMAGE_STRENGTH: np.array([scale], np.float32)}
    return {**given, **image}, made


def written(model, folder):
    folder.mkdir()
    materialize_model(model, folder)
    return folder


def opened(folder, place, file=IMAGE_PROMPT_FILE):
    """Return a session on one of a folder's graphs, on the CPU, whatever its target."""
    place.mkdir()
    shutil.copy(folder / file, place / "model.onnx")
    shutil.copy(folder / "weights.pb", place)
    return open_on_cpu(place)


def run(session, values):
    half = {value.name for value in session.get_inputs() if value.type == "tensor(float16)"}
    taken = [value.name for value in session.get_inputs()]
    given = {name: values[name].astype(np.float16) if name in half else values[name] for name in taken}
    return session.run(["out_sample"], given)[0].astype(np.float64)


@pytest.mark.parametrize("target", ["cpu", "cuda", "directml", "webgpu", "openvino"])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
def test_a_unet_with_an_ip_adapter_is_that_of_diffusers(tmp_path, little, target, half):
    model = run_pass(PASSES["fuse"], little, target=target, precision="fp16" if half else "fp32")
    if half:
        model = run_pass(PASSES["float16"], model, target=target)
    folder = written(model, tmp_path / "unet")
    session, plain = opened(folder, tmp_path / "shown"), open_on_cpu(folder)
    values, wanted = expected(little_ip_adapter(), little_checkpoint())
    error = np.linalg.norm(run(session, values) - wanted) / np.linalg.norm(wanted)
    assert error < (2e-2 if half else 1e-4)
    nothing = {**values, IMAGE_STRENGTH: np.zeros(1, np.float32)}
    assert (run(session, nothing) == run(plain, values)).all()
    assert np.linalg.norm(run(plain, values) - wanted) / np.linalg.norm(wanted) > 5e-2


def test_nothing_is_written_twice_and_the_plain_graph_stays_as_it_is(tmp_path, little):
    def finished(model, name):
        model = run_pass(PASSES["fuse"], model, target="cuda", precision="fp16")
        return written(run_pass(PASSES["float16"], model, target="cuda"), tmp_path / name)

    plain, folder = finished(little_model("sd", "unet"), "plain"), finished(little, "unet")
    assert {path.name for path in folder.iterdir()} - {path.name for path in plain.iterdir()} == {IMAGE_PROMPT_FILE}
    assert (folder / "model.onnx").read_bytes() == (plain / "model.onnx").read_bytes()
    weights, before = ((one / "weights.pb").read_bytes() for one in (folder, plain))
    assert weights.startswith(before)
    own = sum(tensor.nbytes for name, tensor in little.weights.items() if "_ip." in name) // 2
    assert len(weights) - len(before) in range(own, own + 4096 * 32)
    counts = [len([node for node in ir.load(one).graph if node.op_type == "MultiHeadAttention"])
              for one in (plain / "model.onnx", folder / IMAGE_PROMPT_FILE)]  # fmt: skip
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


def test_it_goes_with_controlnets_and_deepcache(tmp_path, little):
    both = run_pass(PASSES["controlnet_inputs"], run_pass(PASSES["deepcache"], little))
    folder = written(both, tmp_path / "unet")
    alone = run_pass(PASSES["controlnet_inputs"], run_pass(PASSES["deepcache"], little_model("sd", "unet")))
    other = written(alone, tmp_path / "alone")
    for name in ("model.onnx", "shallow.onnx", CONTROLLED_FILE):
        assert (folder / name).read_bytes() == (other / name).read_bytes()
    graph = ir.load(folder / "controlnet_ip_adapter.onnx").graph
    names = [value.name for value in graph.inputs]
    assert names[3:5] == [IMAGE_TOKENS, IMAGE_STRENGTH]
    assert names[-1] == "mid_block_additional_residual"
    assert [value.name for value in graph.outputs] == ["out_sample"]
    values, wanted = expected(little_ip_adapter(), little_checkpoint())
    shapes = {value.name: value.shape for value in graph.inputs}
    sizes = {"unet_sample_batch": 2, "unet_sample_height": 16, "unet_sample_width": 24}

    def size(dim):
        name, _, share = str(dim).partition("/")
        return int(name) if name.isdigit() else -(-sizes[name] // int(share or 1))

    zeros = {name: np.zeros([size(dim) for dim in shapes[name]], np.float32) for name in names[5:]}
    found = run(opened(folder, tmp_path / "led", "controlnet_ip_adapter.onnx"), {**values, **zeros})
    assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < 1e-4


def test_verify_compares_it_with_torch(little):
    facts = run_pass(PASSES["verify"], little, samples=1).facts["verification"]
    assert facts["passed"]
    assert facts["relative_error"] < 1e-5
    (values,) = (name for name in little.weights if "to_v_ip" in name)
    changed = little.weights.replace({values: little.weights[values.replace("to_v", "to_k")]})
    with pytest.raises(VerificationError, match="further from torch"):
        run_pass(PASSES["verify"], little.replace(weights=changed))


@pytest.mark.parametrize("form", ["classic", "plus", "full"])
def test_an_image_encoder_is_that_of_torch(form):
    model = image_encoder_model(little_ip_adapter("sd", form))
    model = model.replace(graph=traced_graph(model.architecture))
    fused = run_pass(PASSES["fuse"], model, target="cuda", precision="fp16")
    compare_with_torch(model).require(1e-4)
    compare_with_torch(run_pass(PASSES["float16"], fused, target="cuda")).require(2e-2)
    outputs = [value.name for value in model.graph.to_ir().graph.outputs]
    assert outputs == [IMAGE_TOKENS, *(["negative_ip_hidden_states"] if form == "classic" else [])]


def test_other_clients_get_the_plain_graph(unet):
    for layout, kept in (("diffusers", True), ("csharp", False), ("web", False), ("onnxstack", False)):
        graph = run_pass(PASSES["layout"], unet, profile=layout).graph.to_ir().graph
        assert (IMAGE_TOKENS in {value.name for value in graph.inputs}) == kept
        assert any("_ip." in str(value.name) for value in graph.inputs) == kept


def test_layers_are_numbered_as_diffusers_has_its_modules():
    blocks = [
        "mid_block.attentions.0",
        "up_blocks.1.attentions.10",
        "down_blocks.0.attentions.1",
        "up_blocks.1.attentions.2",
    ]
    names = [f"{block}.transformer_blocks.0.attn2.to_k.weight" for block in blocks]
    found = [name.partition(".transformer")[0] for name in cross_attentions(names)]
    assert found == [blocks[2], blocks[3], blocks[1], blocks[0]]


def test_what_does_not_fit_is_refused(adapter):
    with pytest.raises(SourceError, match="for a UNet of 7 cross-attentions, and the pipeline's has 1"):
        run_pass(PASSES["ip_adapter"], little_model("sd", "unet"), ip_adapter=IpAdapterInput(adapter))
    fused = run_pass(PASSES["fuse"], little_model("attending", "unet"), target="cpu")
    with pytest.raises(PassError, match="has 0 cross-attentions as `convert` makes them, and the UNet has 7"):
        run_pass(PASSES["ip_adapter"], fused, ip_adapter=IpAdapterInput(adapter))
    with pytest.raises(PassError, match="the context has no ip_adapter; name one as `ip_adapter:`"):
        run_pass(PASSES["ip_adapter"], little_model("attending", "unet"))


def test_all_that_leads_a_unet_leads_it_together(tmp_path, adapter, unet):
    model = run_pass(PASSES["t2i_adapter_inputs"], run_pass(PASSES["controlnet_inputs"], unet), target="cpu")
    folder = written(model, tmp_path / "unet")
    led = {guided_file(some) for count in (1, 2, 3) for some in combinations(GUIDES, count)}
    assert {path.name for path in folder.glob("*.onnx")} == {"model.onnx", *led}
    session = opened(folder, tmp_path / "led", guided_file(GUIDES))
    values, wanted = expected(adapter, little_checkpoint("attending"))
    sizes = {"batch": 2, "height": 16, "width": 24}
    for value in session.get_inputs():
        if value.name.endswith("_residual"):
            dims = [dim.removeprefix("unet_sample_").split("/") if isinstance(dim, str) else dim for dim in value.shape]
            shape = [dim if isinstance(dim, int) else sizes[dim[0]] // int((*dim, 1)[1]) for dim in dims]
            values = {**values, value.name: np.zeros(shape, np.float32)}
    found = run(session, values)
    assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < 1e-4
    assert (found == run(opened(folder, tmp_path / "shown"), values)).all()
