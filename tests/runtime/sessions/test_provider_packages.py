"""Providers that come as plugins: made ones without a device here, real ones where they are installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from small_networks import PASSTHROUGH, write_network

from olivelike.errors import SessionError, UsageError
from olivelike.families.networks import interface_of
from olivelike.runtime.sessions import provider_packages
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.ort_options import add_providers
from olivelike.runtime.sessions.providers import find_provider, require_provider
from olivelike.runtime.sessions.session_settings import ProviderChoice, SessionSettings, parse_provider

OPENVINO = "OpenVINOExecutionProvider"
PACKAGE = """
import pathlib
def get_library_path(): return str(pathlib.Path(__file__).with_name({library!r}))
def get_ep_name(): return {name!r}
"""
NOTHING = """
void* CreateEpFactories(const char* name, void* api, void* logger, void** factories, unsigned long room,
                        unsigned long* count) { *count = 0; return 0; }
void* ReleaseEpFactory(void* factory) { return 0; }
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package of the given code on the path, as a distribution `onnxruntime-ep-…`, and return its module."""
    monkeypatch.setattr(provider_packages, "_REGISTERED", {})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def put(short: str, code: str) -> str:
        module = f"onnxruntime_ep_{short}"
        package, info = tmp_path / module, tmp_path / f"{module}-1.5.dist-info"
        package.mkdir()
        info.mkdir()
        (package / "__init__.py").write_text(code)
        name = module.replace("_", "-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (info / "RECORD").write_text(f"{module}/__init__.py,,\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        return module

    provider_packages.read_plugin.cache_clear()
    yield put
    for module in provider_packages._REGISTERED:
        onnxruntime.unregister_execution_provider_library(module)
    for folder in tmp_path.glob("onnxruntime_ep_*"):
        sys.modules.pop(folder.name, None)


@pytest.fixture
def nothing(install, tmp_path):
    """Install a plugin that loads and finds no device, compiled here; return its module."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc, which compiles the plugin")
    module = install("deviceless", PACKAGE.format(library="plugin.so", name="DevicelessExecutionProvider"))
    source = tmp_path / "plugin.c"
    source.write_text(NOTHING)
    library = tmp_path / module / "plugin.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    return module


def refusal(text: str, tmp_path: Path) -> str:
    path = write_network(tmp_path / "net", PASSTHROUGH.format(dtype="float"))
    with pytest.raises(SessionError) as caught:
        open_session(path, SessionSettings((parse_provider(text),)))
    assert caught.value.exit_code == 3
    return str(caught.value)


def test_a_plugin_is_found_without_importing_it(install):
    module = install("broken", "raise RuntimeError('imported')")
    assert module in provider_packages.plugin_modules()


@pytest.mark.parametrize("name", ["plugin:onnxruntime_ep_deviceless", "plugin:DevicelessExecutionProvider"])
def test_a_plugin_without_a_device_here_is_said_to_have_none(nothing, name, tmp_path):
    provider = find_provider(name)
    assert (provider.name, provider.plugin) == ("DevicelessExecutionProvider", nothing)
    message = refusal(name, tmp_path)
    assert message.startswith(f"DevicelessExecutionProvider: plugin {nothing} 1.5 is installed and loads, but finds no")
    assert "CPUExecutionProvider" in message
    assert refusal(name, tmp_path) == message, "a second try registers nothing again and says the same"


def test_doctor_lists_a_plugin_and_what_it_lacks(nothing):
    from olivelike.measure.doctor.diagnosis import check_provider, listed_providers

    assert f"plugin:{nothing}" in listed_providers()
    check = check_provider(f"plugin:{nothing}")
    assert (check.name, check.status) == ("DevicelessExecutionProvider", "unusable")
    assert "finds no device here" in check.detail


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "can't load .*plugin.so: .*cannot open shared object file"), (b"text", "file too short|invalid ELF")],
)
def test_a_library_that_is_missing_or_none_is_named(install, tmp_path, content, reason):
    module = install("lacking", PACKAGE.format(library="plugin.so", name="LackingExecutionProvider"))
    if content is not None:
        (tmp_path / module / "plugin.so").write_bytes(content)
    with pytest.raises(SessionError, match=reason) as caught:
        require_provider(find_provider("plugin:LackingExecutionProvider"))
    assert str(caught.value).startswith(f"plugin {module} 1.5: ONNX Runtime {onnxruntime.__version__} ")
    assert "install the package again" in str(caught.value)


def test_a_library_that_a_plugin_lacks_is_named_with_the_remedy(install, tmp_path):
    if not shutil.which("gcc"):
        pytest.skip("no gcc, which compiles the plugin")
    module = install("bereft", PACKAGE.format(library="plugin.so", name="BereftExecutionProvider"))
    (tmp_path / "nothing.c").write_text(NOTHING)
    for output, needed in (("libdriver.so", ()), (f"{module}/plugin.so", ("-Wl,--no-as-needed", "-L.", "-ldriver"))):
        command = ["gcc", "-shared", "-fPIC", "-w", "-o", output, "nothing.c", *needed]
        subprocess.run(command, check=True, cwd=tmp_path)
    with pytest.raises(SessionError, match="libdriver.so: .*; install the driver or library that is named"):
        require_provider(find_provider(f"plugin:{module}"))


def test_a_library_that_is_no_plugin_is_named(install, tmp_path):
    module = install("other", PACKAGE.format(library="plugin.so", name="OtherExecutionProvider"))
    shutil.copy(np.linalg._umath_linalg.__file__, tmp_path / module / "plugin.so")
    with pytest.raises(SessionError, match="CreateEpFactories"):
        require_provider(find_provider(f"plugin:{module}"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plugin:json", "plugin json: is no plugin of ONNX Runtime: it has no get_library_path()"),
        ("plugin:nowhere.at_all", "plugin nowhere.at_all: can't be imported: No module named 'nowhere'; install"),
        ("plugin:MlxExecutionProvider", "plugin MlxExecutionProvider: can't be imported"),
    ],
)
def test_what_is_no_plugin_is_refused_with_those_that_are_installed(name, message):
    with pytest.raises(SessionError) as caught:
        parse_provider(name)
    assert str(caught.value).startswith(message)
    assert "installed plugins: " in str(caught.value)


@pytest.mark.parametrize("name", ["plugin:", "plugin:../evil.so", "plugin:a b"])
def test_a_name_that_is_no_module_is_refused(name):
    with pytest.raises(UsageError, match="name a provider or a module"):
        parse_provider(name)


@pytest.mark.parametrize(
    "code", ["raise ImportError('no libfoo.so.1')", "import not_there", "raise OSError('x')", "x = ("]
)
def test_a_plugin_that_can_not_be_imported_is_named_and_not_passed_over(install, code):
    module = install("broken", code)
    with pytest.raises(SessionError, match=f"plugin {module}: can't be imported") as caught:
        require_provider(find_provider("plugin:NotThereExecutionProvider"))
    assert "install the package again" in str(caught.value)


def test_a_package_whose_library_is_gone_is_named(install):
    path = "def get_library_path(): raise FileNotFoundError('no x.so')\n"
    module = install("gone", path + "def get_ep_name(): return 'GoneExecutionProvider'")
    with pytest.raises(SessionError, match=f"plugin {module}: its library is not there: no x.so; install"):
        parse_provider(f"plugin:{module}")


def test_options_follow_the_name_of_a_plugin(nothing):
    choice = parse_provider(f"plugin:{nothing}:cache=a:b, threads=2")
    assert choice.provider.name == "DevicelessExecutionProvider"
    assert choice.options == {"cache": "a:b", "threads": "2"}


def test_windows_ml_is_refused_where_it_is_not_installed():
    if sys.platform == "win32":
        pytest.skip("Windows has it")
    with pytest.raises(SessionError, match=r"windowsml: Windows ML can't be used: .*windowsml\[with-ort\]"):
        require_provider(find_provider("windowsml"))


def test_windows_ml_takes_a_policy_of_devices(tmp_path):
    options = onnxruntime.SessionOptions()
    assert add_providers(options, [("WindowsML", {"policy": "PREFER_CPU"}), ("CPUExecutionProvider", {})], None)
    path = write_network(tmp_path / "net", PASSTHROUGH.format(dtype="float"))
    session = onnxruntime.InferenceSession(path, options)
    assert session.get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(UsageError, match="policy=PREFER_GPUS: did you mean 'PREFER_GPU'"):
        add_providers(options, [("WindowsML", {"policy": "PREFER_GPUS"})], None)
    with pytest.raises(UsageError, match="cache: options of a provider need its device"):
        add_providers(options, [("WindowsML", {"cache": "x"})], None)
    assert not add_providers(options, [("CPUExecutionProvider", {})], None)


# The real plugin of OpenVINO


@pytest.fixture(scope="module")
def openvino_plugin():
    if find_spec("onnxruntime_ep_openvino") is None:
        pytest.skip("onnxruntime-ep-openvino is not installed: pip install 'olivelike[openvino-ep]'")
    try:
        require_provider(find_provider(OPENVINO))
    except SessionError as error:
        pytest.skip(f"it takes processors of Intel alone: {error}")
    return find_provider(OPENVINO)


LINEAR = """<ir_version: 10, opset_import: ["": 20]>
g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> { y = MatMul(x, w) }"""


@pytest.mark.slow
@pytest.mark.parametrize("text", [OPENVINO, "openvino_ep", "plugin:onnxruntime_ep_openvino", f"plugin:{OPENVINO}.AUTO"])
def test_the_openvino_plugin_computes_what_the_cpu_does(openvino_plugin, text, tmp_path):
    path = write_network(tmp_path / "net", LINEAR)
    outputs = []
    for settings in (SessionSettings((parse_provider(text),)), SessionSettings()):
        session = open_session(path, settings)
        inputs, output = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}, np.empty((2, 4), np.float32)
        session.bind(inputs, {"y": output}).run()
        outputs.append(output)
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-2)


@pytest.mark.slow
def test_options_reach_the_openvino_plugin(openvino_plugin, tmp_path):
    path = write_network(tmp_path / "net", LINEAR)
    nonsense = {"load_config": json.dumps({"CPU": {"NONSENSE": "1"}})}
    with pytest.raises(SessionError, match="Unsupported property NONSENSE"):
        open_session(path, SessionSettings((ProviderChoice(openvino_plugin, nonsense),)))
    with pytest.raises(SessionError, match=r"openvino_ep has no device 9; devices: 0 \("):
        open_session(path, SessionSettings((ProviderChoice(openvino_plugin),), device=9))


@pytest.mark.slow
@pytest.mark.parametrize("component", ["text_encoder", "unet", "vae_encoder", "vae_decoder", "safety_checker"])
def test_each_network_runs_whole_on_the_openvino_plugin(openvino_plugin, tiny, component, tmp_path):
    """With fallback to the CPU disabled, and in float32 against torch."""
    from olivelike.passes.fuse import Fuse

    from olivelike.measure.network_sizes import CASES, random_inputs
    from olivelike.measure.verify.original import relative_error, run_torch
    from olivelike.testing import run_pass
    from olivelike.testing.parity import materialize_model, torch_network

    original = tiny(component)
    materialize_model(run_pass(Fuse, original, target="openvino_ep"), tmp_path)
    path = tmp_path / "model.onnx"
    hint = {"load_config": json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": "f32"}})}
    settings = SessionSettings(
        (ProviderChoice(openvino_plugin, hint),), session_config={"session.disable_cpu_ep_fallback": "1"}
    )
    session = open_session(path, settings)
    interface = interface_of(original.architecture)
    values = random_inputs(interface.inputs, CASES[0], original.architecture.config, 0)
    expected = run_torch(torch_network(original), values)
    outputs = {
        name: np.empty(tuple(value.shape), session.outputs[name].dtype)
        for name, value in zip(session.outputs, expected, strict=True)
    }
    session.bind({name: np.asarray(value) for name, value in values.items()}, outputs).run()
    for output, wanted in zip(outputs.values(), expected, strict=True):
        if output.dtype.kind == "f":
            assert relative_error(output, np.asarray(wanted)) < 1e-4
