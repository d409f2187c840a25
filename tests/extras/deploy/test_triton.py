"""A model repository for Triton: what its server is told of each model, what is drawn with it, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from olivelike.cli.app import COMMANDS, run_command_line
from olivelike.engine.output.packages import Packaged
from olivelike.engine.output.swap import swap_loras
from olivelike.errors import SourceError, UsageError
from olivelike.extras.deploy.triton_files import network_configuration, read_specs, triton_files
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.model.low_rank_inputs import LORA_INPUTS_FILE
from olivelike.model.records.output import OutputRecord
from olivelike.model.targets import TargetChoice, find_target
from olivelike.runtime import Request, open_pipeline
from olivelike.testing.lora_files import make_lora
from tests.engine.conftest import Project, run_project
from tests.extras.deploy.triton_backend import Server, TritonModelException, configuration, dtype_of
from tests.fixtures.little_pipeline import little_checkpoint

pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="pip install tritonclient[grpc]")

WORKFLOW = """
name: served
source: {checkpoint}
target: cpu
components:
  text_encoder: [convert, fuse]
  unet: [convert, fuse]
  vae_decoder: [convert, fuse]
  vae_encoder: [convert]
  safety_checker: [convert, fuse]
outputs: [{{path: models/small, layout: triton}}, {{path: models/plain}}]
"""
NETWORKS = ("text_encoder", "unet", "vae_decoder", "safety_checker")
CPU = find_target("cpu").choice()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that has written a repository and a plain folder; tests leave it as it is."""
    folder, base = tmp_path_factory.mktemp("served"), little_checkpoint()
    return run_project(folder, WORKFLOW.format(checkpoint=base), base, *NETWORKS, "vae_encoder")


def test_each_network_is_a_model_whose_configuration_is_that_of_its_graph(served: Project) -> None:
    found = {path.name for path in served.output.iterdir()}
    assert found == {*NETWORKS, "pipeline", "olivelike.json"}
    for name in NETWORKS:
        config = configuration(served.output / name / "config.pbtxt")
        assert (config.name, config.backend, config.max_batch_size) == (name, "onnxruntime", 0)
        assert [(group.kind, group.count) for group in config.instance_group] == [
            (config.instance_group[0].KIND_CPU, 1)
        ]
        graph = onnx.load(served.output / name / "1" / "model.onnx", load_external_data=False).graph
        stored = {tensor.name for tensor in graph.initializer}
        values = [value for value in graph.input if value.name not in stored]
        for described, real in ((config.input, values), (config.output, graph.output)):
            assert [one.name for one in described] == [value.name for value in real]
            for one, value in zip(described, real, strict=True):
                tensor = value.type.tensor_type
                assert dtype_of(one) == onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
                assert list(one.dims) == [dim.dim_value or -1 for dim in tensor.shape.dim]
    loop = configuration(served.output / "pipeline" / "config.pbtxt")
    assert (loop.name, loop.backend) == ("pipeline", "python")
    assert [one.name for one in loop.input if not one.optional] == ["prompt"]


def test_the_loop_draws_what_generate_draws(served: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(served.output)
    model = server.load(monkeypatch)
    pipeline = open_pipeline(served.folder / "models" / "plain")
    for scheduler, guidance, size in ((None, 7.5, None), ("Euler a", 3.0, (64, 128)), ("DPM++ 2M Karras", 1.0, None)):
        prompts = [f"a (red:1.3) circle of {guidance}", "a square"]  # Texts of a batch before are not encoded again.
        request = Request(
            tuple(prompts), negative_prompt="blue", steps=3, guidance_scale=guidance, scheduler=scheduler, seed=9,
            size=size, batch_size=2,
        )  # fmt: skip
        (batch,) = pipeline.batches(request)
        sizes = {} if size is None else {"width": size[0], "height": size[1]}
        named = {} if scheduler is None else {"scheduler": scheduler}
        server.calls.clear()
        drawn = server.ask(
            model, prompt=prompts, negative_prompt="blue", seed=9, steps=3, guidance=guidance, **sizes, **named
        )
        wanted = np.stack([np.asarray(picture.image) for picture in batch.pictures])
        assert np.array_equal(drawn["images"], wanted)
        assert drawn["seeds"].tolist() == [picture.seed for picture in batch.pictures]
        assert drawn["has_nsfw_concepts"].tolist() == [bool(picture.flagged) for picture in batch.pictures]
        assert server.calls.count("unet") == (4 if scheduler is None else 3)  # PNDM's first step is two calls.
        assert {*server.calls} == {*NETWORKS}
    drawn = server.ask(model, prompt="a circle", steps=1)
    assert 0 <= drawn["seeds"][0] < 2**32


def test_a_request_that_cannot_be_had_is_answered_with_the_reason(
    served: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(served.output)
    model = server.load(monkeypatch)
    for values, said in (
        ({"prompt": []}, "prompt: has 0 texts; give 1 to 64"),
        ({"prompt": "a", "steps": 0}, "steps"),
        ({"prompt": "a", "seed": -1}, "seed: -1 is none"),
        ({"prompt": "a", "scheduler": "Eulr"}, "Euler"),
        ({"prompt": "a", "width": 63}, "63"),
        ({"prompt": "a", "guidance": float("nan")}, "nan is not between -100 and 1000"),
        ({"prompt": "a", "negative_prompt": ["b", "c"]}, "negative_prompt: has 2 values"),
        ({"prompt": [b"\xff"]}, "prompt: is no UTF-8"),
    ):
        with pytest.raises(TritonModelException, match=said) as found:
            server.ask(model, **values)  # type: ignore[arg-type]
        assert found.value.args[1] == 4
    with pytest.raises(TritonModelException) as found:
        server.ask(model, prompt="a", cancelled=True)
    assert found.value.args[1] == 8
    server.broken = "unet"
    with pytest.raises(TritonModelException, match="unet: Triton: out of memory") as found:
        server.ask(model, prompt="a", steps=2)
    assert found.value.args[1] == 2


@pytest.mark.slow
def test_sdxl_in_half_precision_is_served_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, networks = little_checkpoint("xl"), ("text_encoder", "text_encoder_2", "unet", "vae_decoder")
    chains = WORKFLOW.replace(
        "  vae_encoder: [convert]\n  safety_checker: [convert, fuse]", "  text_encoder_2: [convert]"
    )
    chains = chains.replace("unet: [convert, fuse]", "unet: [convert, fuse, float16]")
    project = run_project(tmp_path, chains.format(checkpoint=checkpoint), checkpoint, *networks)
    assert {one.data_type for one in configuration(project.output / "unet" / "config.pbtxt").output} == {10}  # FP16
    server = Server(project.output)
    drawn = server.ask(server.load(monkeypatch), prompt="a circle", seed=3, steps=2)
    assert drawn.keys() == {"images", "seeds"}
    plain = open_pipeline(project.folder / "models" / "plain").generate(Request(("a circle",), seed=3, steps=2))
    assert np.array_equal(drawn["images"][0], np.asarray(plain.pictures[0].image))


def test_networks_that_the_loop_or_triton_cannot_take_are_refused(tmp_path: Path) -> None:
    def network(name: str, element: int, channels: int) -> Path:
        value = onnx.helper.make_tensor_value_info("sample", element, ["batch", channels, "height", "width"])
        node = onnx.helper.make_node("Identity", ["sample"], ["out"])
        out = onnx.helper.make_tensor_value_info("out", element, None)
        path = tmp_path / f"{name}.onnx"
        onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], name, [value], [out])), path)
        return path

    def packaged(element: int, channels: int) -> Packaged:
        models = {"unet": network("unet", element, channels), "vae_decoder": network("decoder", element, 4)}
        return Packaged("small", CPU, models, {})

    assert triton_files(packaged(onnx.TensorProto.FLOAT, 4))
    with pytest.raises(SourceError, match="the UNet takes 9 channels, and latents have 4: it is for inpainting"):
        triton_files(packaged(onnx.TensorProto.FLOAT, 9))
    with pytest.raises(SourceError, match=r"unet\.onnx: sample is bfloat16, which Triton does not take"):
        triton_files(packaged(onnx.TensorProto.BFLOAT16, 4))


def test_a_run_is_up_to_date_and_makes_again_what_is_damaged(served: Project) -> None:
    assert served.run().executed == 0
    record = OutputRecord.require(served.output)
    assert record.layout == "triton"
    assert record.components.keys() == {*NETWORKS}
    assert record.model_file("unet") == "unet/1/model.onnx"
    copy = served.folder / "damaged"
    served.run("outputs=[{path: damaged, layout: triton}]")
    (copy / "unet" / "config.pbtxt").unlink()
    (copy / "pipeline" / "1" / "networks.json").write_text("{}")
    with pytest.raises(UsageError, match=r"networks\.json"):
        served.run("outputs=[{path: damaged, layout: triton}]")
    served.run("outputs=[{path: damaged, layout: triton}]", overwrite=True)
    before = {
        path.relative_to(served.output): path.read_bytes()
        for path in served.output.rglob("*.*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    del before[Path("olivelike.json")]
    assert all((copy / path).read_bytes() == content for path, content in before.items())


def test_commands_say_what_it_is(served: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["info", str(served.output)]) == 0
    told = capsys.readouterr().out
    assert "triton" in told
    assert "tritonserver --model-repository" in told
    found = verify_folder(served.output, against=str(little_checkpoint()))
    assert [one.name for one in found.components] == list(OutputRecord.require(served.output).components)
    assert found.passed
    assert found.pictures_skipped == "the folder is laid out for triton, whose reader draws"
    assert run_command_line(["profile", str(served.output), "--runs", "1", "--json"]) == 0
    names = {network["name"] for network in json.loads(capsys.readouterr().out)["networks"]}
    assert names == {*NETWORKS}
    with pytest.raises(SourceError, match="is laid out for triton, .*; this command takes"):
        open_pipeline(served.output)
    if "bench" in COMMANDS:
        assert run_command_line(["bench", str(served.output)]) == 3
        assert "is laid out for triton" in capsys.readouterr().err
    with pytest.raises(SourceError, match="is laid out for triton"):
        swap_loras(served.output, [])


def test_adapters_are_for_the_graph_beside_a_version_of_the_network(served: Project, tmp_path: Path) -> None:
    served.run(
        "components.unet=[convert, fuse, lora_inputs]", "outputs=[{path: models/taking, layout: triton}]"
    )  # fmt: skip
    lora = make_lora(tmp_path / "ink.safetensors", "kohya", base=little_checkpoint(), components=("unet",))
    folder = served.folder / "models" / "taking"
    assert run_command_line(["adapters", str(folder), str(lora), "-o", str(tmp_path)]) == 0
    session = onnxruntime.InferenceSession(folder / "unet" / "1" / LORA_INPUTS_FILE, providers=["CPUExecutionProvider"])
    adapter = onnxruntime.LoraAdapter()
    adapter.Load(str(tmp_path / "unet" / "ink.onnx_adapter"))
    run = onnxruntime.RunOptions()
    run.add_active_adapter(adapter)
    feeds = {
        "sample": np.ones((1, 4, 8, 8), np.float32),
        "timestep": np.array([500], np.float32),
        "encoder_hidden_states": np.ones((1, 7, 32), np.float32),
    }
    assert (session.run(None, feeds)[0] != session.run(None, feeds, run)[0]).any()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("target=directml", "layout triton: directml names no execution provider .* cpu, cuda, tensorrt, openvino"),
        ("target={provider: openvino, options: {CACHE_DIR: c}}", "does not know CACHE_DIR"),
        ("target={provider: tensorrt, options: {trt_fast: 1}}", "does not know trt_fast"),
        ("components={unet: [convert]}", "the loop needs vae_decoder, text_encoder"),
    ],
)
def test_what_triton_does_not_run_is_refused_before_anything_is_made(served: Project, override: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        served.run(override, "outputs=[{path: refused, layout: triton}]")
    assert not (served.folder / "refused").exists()


def test_a_part_of_a_package_cannot_be_made_alone(served: Project) -> None:
    with pytest.raises(UsageError, match="--only: the layout triton describes all components together"):
        served.run(only=("unet",))


def test_a_target_decides_where_instances_run(served: Project, tmp_path: Path) -> None:
    inputs, outputs = read_specs(served.output / "unet" / "1" / "model.onnx")

    def config(**choice: object) -> object:
        path = tmp_path / "config.pbtxt"
        path.write_bytes(network_configuration("unet", inputs, outputs, TargetChoice(**choice)))  # type: ignore[arg-type]
        return configuration(path)

    cuda = config(
        name="cuda", precision="fp16", device_id=1, options={"cudnn_conv_use_max_workspace": True},
        session_options={"session.use_device_allocator_for_initializers": True},
    )  # fmt: skip
    assert list(cuda.instance_group[0].gpus) == [1]
    assert cuda.instance_group[0].kind == cuda.instance_group[0].KIND_GPU
    (used,) = cuda.optimization.execution_accelerators.gpu_execution_accelerator
    assert (used.name, dict(used.parameters)) == ("cuda", {"cudnn_conv_use_max_workspace": "1"})
    assert cuda.parameters["session.use_device_allocator_for_initializers"].string_value == "1"
    rt = config(name="tensorrt", precision="fp16", options={"trt_engine_cache_path": 'a "b"\\c'})
    (used,) = rt.optimization.execution_accelerators.gpu_execution_accelerator
    assert dict(used.parameters) == {"precision_mode": "FP16", "trt_engine_cache_path": 'a "b"\\c'}
    (used,) = config(name="openvino").optimization.execution_accelerators.cpu_execution_accelerator
    assert used.name == "openvino"


def test_a_damaged_repository_is_named(served: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "repository"
    shutil.copytree(served.output, copy)
    (copy / "pipeline" / "1" / "unet" / "config.json").unlink()
    with pytest.raises(SourceError, match=r"unet/config\.json: no such file"):
        Server(copy).load(monkeypatch)
