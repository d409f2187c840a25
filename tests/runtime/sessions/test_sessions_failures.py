"""What is said of files that an engine refuses."""

from __future__ import annotations

import re
import sys

import pytest
from small_networks import CONTRIB, FOREIGN, PASSTHROUGH, write_linear, write_network

from olivelike._text import quoted
from olivelike.errors import SessionError
from olivelike.model.records.origin import Origin
from olivelike.model.records.output import ComponentRecord, StepRecord
from olivelike.model.targets import TARGETS, TargetChoice
from olivelike.runtime.pipeline.pipeline_folder import (
    check_folder_target,
    read_folder_target,
    recorded_facts,
    target_settings,
)
from olivelike.runtime.sessions import load_failure as load_failure_of
from olivelike.runtime.sessions.load_failure import load_failure, operators_without_kernel
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.providers import onnxruntime_offer
from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider
from tests.fixtures.made_folders import WHOLE
from tests.fixtures.sample_records import write_output_record

ENGINES = {"cpu": "ONNX Runtime", "openvino": "OpenVINO"}


@pytest.fixture(params=ENGINES)
def provider(request):
    return request.param


tables = pytest.mark.skipif(not WHOLE, reason="needs all of olivelike: tables of kernels")


def settings(*providers):
    return SessionSettings(tuple(parse_provider(name) for name in providers))


def refusal(path, *providers):
    with pytest.raises(SessionError) as caught:
        open_session(path, settings(*providers))
    return str(caught.value)


def test_a_model_that_is_not_there_is_named(tmp_path, provider):
    assert "there is no such model file" in refusal(tmp_path / "model.onnx", provider)


def test_a_missing_graphics_card_is_told_with_its_remedy(tmp_path):
    error = RuntimeError("x.cc:65 Init() was false. Failed to get a WebGPU adapter: No supported adapters")
    told = str(load_failure(tmp_path / "model.onnx", error, settings("webgpu")))
    assert told.startswith("webgpu: no graphics card is found (Failed to get a WebGPU adapter: No supported adapters)")
    assert "run with --provider cpu" in told


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a model", b"\xff" * 40])
def test_a_file_that_is_no_model_is_named(tmp_path, provider, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert f"{path}: is not an ONNX model" in refusal(path, provider)


def test_a_model_that_is_cut_short_is_named(tmp_path, provider):
    path = write_linear(tmp_path / "linear")
    path.write_bytes(path.read_bytes()[:-30])
    assert f"{path}: is not an ONNX model" in refusal(path, provider)


def test_a_missing_data_file_is_named_with_its_size(tmp_path, provider):
    path = write_linear(tmp_path / "linear")
    path.with_name("weights.pb").unlink()
    assert "its data file weights.pb is missing, and 48 bytes are needed" in refusal(path, provider)


def test_a_data_file_that_is_cut_short_is_named_with_both_sizes(tmp_path, provider):
    path = write_linear(tmp_path / "linear")
    path.with_name("weights.pb").write_bytes(bytes(40))
    assert "its data file weights.pb has 40 bytes, and 48 bytes are needed" in refusal(path, provider)


def test_an_opset_and_an_ir_version_that_are_too_new_are_named_with_what_is_read(tmp_path):
    offer = onnxruntime_offer()
    text = PASSTHROUGH.format(dtype="float").replace("17", "99")
    message = refusal(write_network(tmp_path / "net", text, ir_version=77), "cpu")
    reads = f"ONNX Runtime {offer.version} reads up to"
    assert f"it asks for opset 99, {reads} {offer.opset}" in message
    assert f"it asks for IR version 77, {reads} {offer.ir_version}" in message


def test_what_the_runtime_reads_is_what_it_says_itself(tmp_path):
    opset = onnxruntime_offer().opset
    text = PASSTHROUGH.format(dtype="float").replace("17", str(opset + 1))
    assert f"till opset {opset}" in refusal(write_network(tmp_path / "net", text), "cpu")


@tables
def test_operators_without_a_kernel_are_counted(tmp_path):
    message = refusal(write_network(tmp_path / "net", CONTRIB), "cpu")
    assert "nothing on cpu runs its operators com.microsoft::NhwcConv (1)" in message
    assert f"; ONNX Runtime {onnxruntime_offer().version} says: " in message


def test_the_runtime_alone_says_what_tells_of_kernels(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "olivelike.graphs.inspect.inspection", None)
    monkeypatch.setattr(load_failure_of, "lacking", lambda error: f"this needs {error.name}")
    message = refusal(write_network(tmp_path / "net", CONTRIB, ir_version=77), "cpu")
    assert "it asks for IR version 77, " in message
    assert message.endswith(
        "; to say whether its operators have kernels, this needs olivelike.graphs.inspect.inspection"
    )
    assert not operators_without_kernel(tmp_path / "net" / "model.onnx", settings("cpu"))


def test_openvino_says_itself_which_operators_it_lacks(tmp_path):
    message = refusal(write_network(tmp_path / "net", CONTRIB), "openvino")
    assert "No conversion rule found for operations: com.microsoft.NhwcConv" in message


def test_operators_of_a_foreign_domain_need_a_library(tmp_path, provider):
    message = refusal(write_network(tmp_path / "net", FOREIGN), provider)
    assert "its operators my.domain::Sharpen (1) need a library of operators, and none is given" in message


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("openvino:NONSENSE=1", "Unsupported property NONSENSE by CPU plugin"),
        ("openvino:INFERENCE_PRECISION_HINT=f13", "Supported values: bf16, f16, f32"),
    ],
)
def test_a_wrong_property_is_refused_in_openvinos_words(tmp_path, asked, message):
    assert message in refusal(write_network(tmp_path / "net", PASSTHROUGH.format(dtype="float")), asked)


def test_the_runtime_leaves_the_message_to_the_error(tmp_path, capfd):
    refusal(write_network(tmp_path / "net", CONTRIB), "cpu")
    assert capfd.readouterr() == ("", "")


def test_a_folder_runs_on_its_own_provider_without_being_read(tmp_path):
    check_folder_target("cuda", settings("cuda"), {"unet": tmp_path / "absent.onnx"})


def test_a_folder_of_another_target_runs_if_every_operator_has_a_kernel(tmp_path, provider):
    models = {"unet": write_linear(tmp_path / "unet")}
    check_folder_target("cuda", settings(provider), models)
    check_folder_target("cpu", settings("cuda"), models)
    check_folder_target("cuda", settings("directml"), {"unet": write_network(tmp_path / "net", CONTRIB)})


@tables
def test_a_folder_with_operators_that_nothing_runs_is_refused_with_what_to_do(tmp_path, provider):
    models = {"text_encoder": write_linear(tmp_path / "a"), "unet": write_network(tmp_path / "b", CONTRIB)}
    with pytest.raises(SessionError) as caught:
        check_folder_target("cuda", settings(provider), models)
    message = str(caught.value)
    assert f"the folder was optimised for cuda, and on {provider} nothing runs operators of it (unet: com.m" in message
    assert f"--set target={provider}" in message
    assert "--provider cuda" in message


@tables
def test_the_remedy_names_a_source_that_lies_near_by_its_path(tmp_path):
    folder, source = tmp_path / "models" / "painter", tmp_path / "checkpoints" / "painter"
    source.mkdir(parents=True)
    models = {"unet": write_network(folder / "unet", CONTRIB)}
    origin = Origin("folder", "painter", near="../../checkpoints/painter")
    write_output_record(folder, workflow="painter", source=origin)
    with pytest.raises(SessionError, match=re.escape(f"(olivelike convert {quoted(source)} -t cpu -o ")):
        check_folder_target("cuda", settings("cpu"), models)


@tables
@pytest.mark.parametrize(
    ("workflow", "remedy"),
    [
        (
            "painter",
            ("olivelike convert 'my painter.safetensors' -t cpu -o {folder}_cpu, or if a workflow file made it: "
            "olivelike run WORKFLOW --set target=cpu"),
        ),
        ("sd15_directml", "olivelike run WORKFLOW --set target=cpu"),
    ],
)  # fmt: skip
def test_the_remedy_for_another_target_is_the_command_that_made_the_folder(tmp_path, workflow, remedy):
    folder = tmp_path / "painter"
    models = {"unet": write_network(folder / "unet", CONTRIB)}
    write_output_record(folder, workflow=workflow, source=Origin("file", "my painter.safetensors"))
    with pytest.raises(SessionError) as caught:
        check_folder_target("cuda", settings("cpu"), models)
    assert f"; optimise it for cpu ({remedy.format(folder=folder)}), or run it with --provider cuda" in str(
        caught.value
    )


@tables
def test_what_a_later_provider_runs_counts(tmp_path):
    models = {"unet": write_network(tmp_path / "net", CONTRIB)}
    with pytest.raises(SessionError, match="on tensorrt nothing runs"):
        check_folder_target("directml", settings("tensorrt"), models)
    check_folder_target("directml", settings("tensorrt", "cuda"), models)


def test_of_a_provider_without_tables_nothing_is_said(tmp_path):
    models = {"unet": write_network(tmp_path / "net", CONTRIB)}
    known = {target.provider for target in TARGETS.values()}
    other = next(name for name in ("CoreMLExecutionProvider", "QNNExecutionProvider") if name not in known)
    check_folder_target("cuda", settings(other), models)


def record(folder, **target):
    write_output_record(folder, target=TargetChoice(**target))
    return read_folder_target(folder)


def test_the_record_of_a_folder_gives_provider_device_and_options(tmp_path):
    target = record(tmp_path, name="cuda", device_id=1, precision="fp16", options={"cudnn_conv_use_max_workspace": 1})
    assert (target.name, target.device_id) == ("cuda", 1)
    found = target_settings(target)
    assert (found.provider.name, found.device) == ("CUDAExecutionProvider", 1)
    assert found.options == {"cudnn_conv_use_max_workspace": "1"}


def test_the_record_of_a_folder_gives_configuration_entries_as_onnxruntime_reads_them(tmp_path):
    entries = {"session_options": {"session.set_denormal_as_zero": True}, "run_options": {"gpu_graph_id": -1}}
    found = target_settings(record(tmp_path, name="cpu", device_id=0, options={}, **entries))
    assert found.session_config == {"session.set_denormal_as_zero": "1"}
    assert found.run_config == {"gpu_graph_id": "-1"}


def test_the_first_device_of_a_record_leaves_the_choice_open(tmp_path):
    assert target_settings(record(tmp_path, name="openvino", device_id=0, options={})).device is None


def test_what_tensorrt_leaves_goes_to_cuda(tmp_path):
    choices = target_settings(record(tmp_path, name="tensorrt", device_id=0, options={})).providers
    assert [choice.provider.short_name for choice in choices] == ["tensorrt", "cuda"]


def test_a_record_is_read_again_as_soon_as_it_is_another(tmp_path):
    adapter = Origin("file", "face.safetensors")
    write_output_record(tmp_path, source=Origin("folder", "one", sha256="1" * 64, ip_adapter=adapter))
    before = recorded_facts(tmp_path)
    assert (before.sha256, before.prompt_guide) == ("1" * 64, "face")
    assert recorded_facts(tmp_path) is before
    converted = ComponentRecord("", passes=(StepRecord("convert", options={"any_size": True}),))
    write_output_record(
        tmp_path, target=TargetChoice("cuda"), components={"unet": converted, "vae_decoder": ComponentRecord("")}
    )
    after = recorded_facts(tmp_path)
    assert (after.sha256, after.prompt_guide, after.any_size) == ("", None, {"unet"})
    assert after.target == TargetChoice("cuda")


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"target": 1}', '{"target": {"name": "abacus"}}'])
def test_a_folder_without_a_usable_record_has_no_target(tmp_path, content):
    if content is not None:
        (tmp_path / "olivelike.json").write_text(content)
    assert read_folder_target(tmp_path) is None


def test_a_folder_for_a_target_that_nobody_knows_has_none(tmp_path):
    assert record(tmp_path, name="abacus") is None
