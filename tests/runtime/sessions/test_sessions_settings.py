from __future__ import annotations

import pytest

from olivelike.errors import SessionError, UsageError
from olivelike.model.targets import TARGETS
from olivelike.runtime.sessions.providers import available_providers, find_provider, require_provider
from olivelike.runtime.sessions.session_settings import (
    SessionSettings,
    choose_providers,
    parse_device,
    parse_dimensions,
    parse_optimization,
    parse_pairs,
    parse_provider,
    set_options,
)


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_each_target_names_its_provider(target):
    provider = find_provider(target.name)
    assert (provider.name, provider.target) == (target.provider, target.name)


def test_every_provider_that_onnxruntime_knows_is_known():
    import onnxruntime

    for name in onnxruntime.get_all_providers():
        assert find_provider(name).name == name


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("CUDA", "CUDAExecutionProvider"),
        ("cudaexecutionprovider", "CUDAExecutionProvider"),
        ("rocm", "MIGraphXExecutionProvider"),
        ("dml", "DmlExecutionProvider"),
        ("openvino", "OpenVINO"),
        ("OpenVINOExecutionProvider", "OpenVINOExecutionProvider"),
    ],
)
def test_names_are_taken_in_either_spelling_and_any_case(name, found):
    assert find_provider(name).name == found


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cudaa", "did you mean 'cuda'?"),
        ("CUDAExecutionProvder", "did you mean 'CUDAExecutionProvider'"),
        ("zzz", "providers: cpu, "),
    ],
)
def test_an_unknown_provider_is_refused_with_the_nearest_name(name, hint):
    with pytest.raises(UsageError, match="unknown provider") as caught:
        find_provider(name)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("name", "package"),
    [("directml", "onnxruntime-directml"), ("webgpu", r"olivelike\[webgpu\]"), ("XnnpackExecutionProvider", "build")],
)
def test_a_provider_that_is_not_installed_is_refused_with_its_package(name, package):
    with pytest.raises(SessionError, match=package) as caught:
        require_provider(find_provider(name))
    assert "CPUExecutionProvider" in str(caught.value)


def test_what_is_installed_is_listed_with_openvino():
    assert {"CPUExecutionProvider", "OpenVINO"} <= set(available_providers())
    for name in ("cpu", "openvino"):
        require_provider(find_provider(name))


def test_the_cpu_is_the_default():
    assert SessionSettings().provider.name == "CPUExecutionProvider"
    assert SessionSettings(providers=()).provider.name == "CPUExecutionProvider"


def test_a_provider_is_read_with_its_options():
    choice = parse_provider("openvino:INFERENCE_PRECISION_HINT=bf16, CACHE_DIR=a:b")
    assert choice.provider.name == "OpenVINO"
    assert choice.options == {"INFERENCE_PRECISION_HINT": "bf16", "CACHE_DIR": "a:b"}
    assert parse_provider("cuda").options == {}


@pytest.mark.parametrize("text", ["key", "=value", ""])
def test_a_text_that_is_no_pair_is_refused(text):
    with pytest.raises(UsageError, match="--session-config: .* is no key=value pair"):
        parse_pairs([text], "--session-config")


def test_a_key_with_two_values_is_refused():
    with pytest.raises(UsageError, match="a is given twice"):
        parse_pairs(["a=1", "a=2"], "--session-config")
    assert parse_pairs(["a=1", "a=1", "b=x=y"], "--session-config") == {"a": "1", "b": "x=y"}


@pytest.mark.parametrize("text", ["batch=0", "batch=-1", "batch=two", "batch="])
def test_a_dimension_needs_a_positive_size(text):
    with pytest.raises(UsageError, match="positive whole number"):
        parse_dimensions([text])
    assert parse_dimensions(["batch=2"]) == {"batch": 2}


def test_a_device_is_a_number_or_a_name():
    assert (parse_device("1"), parse_device("GPU.1"), parse_device("RTX 4090")) == (1, "GPU.1", "RTX 4090")


def test_an_unknown_optimisation_level_is_refused():
    assert parse_optimization("basic") == "basic"
    with pytest.raises(UsageError, match="known levels: none, basic, extended, layout, all"):
        parse_optimization("most")


def folder_settings():
    return SessionSettings(
        (parse_provider("cuda:a=1,b=2"),), device=1, intra_threads=3, session_config={"k": "1"}, run_config={"r": "0"}
    )


def test_without_a_choice_the_folder_decides():
    assert choose_providers(folder_settings(), []) == folder_settings()


def test_the_same_provider_keeps_device_and_options_that_are_not_set():
    found = choose_providers(folder_settings(), ["CUDAExecutionProvider:b=3", "cpu"])
    assert (found.options, found.device, found.intra_threads) == ({"a": "1", "b": "3"}, 1, 3)
    assert (found.session_config, found.run_config) == ({"k": "1"}, {"r": "0"})
    assert [choice.provider.short_name for choice in found.providers] == ["cuda", "cpu"]


def test_a_device_among_the_options_replaces_that_of_the_folder():
    for found in (
        choose_providers(folder_settings(), ["cuda:device_id=0"]),
        set_options(folder_settings(), {"device_id": "0"}),
    ):
        assert (found.options, found.device) == ({"a": "1", "b": "2", "device_id": "0"}, None)


def test_another_provider_starts_without_device_and_options():
    found = choose_providers(folder_settings(), ["cpu"])
    assert (found.options, found.device, found.intra_threads) == ({}, None, 3)
    assert (found.session_config, found.run_config) == ({}, {})


@pytest.mark.parametrize("base", [folder_settings(), SessionSettings((parse_provider("tensorrt"),))])
def test_what_tensorrt_leaves_goes_to_cuda_unless_another_is_named(base):
    def names(*texts):
        return [choice.provider.short_name for choice in choose_providers(base, texts).providers]

    assert names("tensorrt:trt_fp16_enable=1") == ["tensorrt", "cuda"]
    assert names("tensorrt", "cpu") == ["tensorrt", "cpu"]


def test_a_provider_is_not_given_twice():
    with pytest.raises(UsageError, match="CUDAExecutionProvider is given twice"):
        choose_providers(folder_settings(), ["cuda", "CUDAExecutionProvider"])
