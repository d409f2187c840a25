"""Interfaces of libraries that are not public and are used all the same: here each is named, and seen to be there.

A version that changes one fails here, with its name, and not somewhere in a run.
"""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

import pytest

from tests.fixtures.own_code import nodes_of, own_files

PRIVATE_MODULES = {"torch._subclasses.fake_tensor", "torch.utils._python_dispatch"}
PRIVATE_NAMES = {
    "_buffers", "_parameters", "_cdata", "_checkpoint_offset",  # torch
    "_fix_state_dict_keys_on_load",  # diffusers
    "_path",  # importlib's namespace packages
    "__bases__", "__base__",  # of the hub's and of typer's errors
}  # fmt: skip
UNDOCUMENTED_MODULES = {
    "diffusers.loaders", "diffusers.models", "diffusers.models.modeling_utils",
    "diffusers.pipelines.stable_diffusion",
    "distributed.client", "distributed.protocol",
    "onnxruntime.capi", "onnxruntime.quantization.neural_compressor.weight_only", "onnxscript.rewriter.rules",
    "securesystemslib.dsse", "securesystemslib.exceptions",
    "starlette.formparsers", "typer.core", "uvicorn.protocols.http.h11_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
}  # fmt: skip
"""Modules of public names that their libraries' references leave out.

Each of these three sets has its tests below, or in an extra's folder.
"""

DOCUMENTED_MODULES = {
    "OpenSSL.crypto", "PIL.Image", "PIL.PngImagePlugin", "anyio.to_thread", "cryptography.exceptions",
    "cryptography.hazmat.primitives.asymmetric.ec", "cryptography.hazmat.primitives.hashes",
    "cryptography.hazmat.primitives.serialization", "cryptography.x509", "cryptography.x509.oid",
    "cyclonedx.contrib.license.factories", "cyclonedx.exception", "cyclonedx.exception.factory", "cyclonedx.model",
    "cyclonedx.model.bom", "cyclonedx.model.bom_ref", "cyclonedx.model.component", "cyclonedx.model.dependency",
    "cyclonedx.model.license", "cyclonedx.model.tool", "cyclonedx.output.json",
    "model_signing.hashing", "model_signing.signing", "model_signing.verifying", "diffusers.image_processor",
    "diffusers.models.attention_processor", "diffusers.pipelines", "diffusers.utils", "fastapi.exceptions",
    "fastapi.responses", "fastapi.routing", "fsspec.callbacks", "google.protobuf", "google.protobuf.message",
    "packaging.requirements",
    "packaging.specifiers",
    "huggingface_hub.errors", "numpy.typing", "onnx.reference", "onnx_ir.passes", "onnx_ir.passes.common",
    "onnx_ir.traversal", "onnxscript.optimizer", "onnxscript.rewriter", "rich.console", "rich.progress", "rich.table",
    "rich.text", "safetensors.torch", "securesystemslib.signer",
    "sigstore.dsse", "sigstore.errors", "sigstore.models", "sigstore.oidc",
    "sigstore.sign", "sigstore.verify", "sigstore.verify.policy",
    "starlette.datastructures", "starlette.exceptions", "starlette.requests",
    "starlette.responses", "starlette.types", "starlette.websockets",
    "tokenizers.models", "tokenizers.processors", "tornado.ioloop",
    "torch.nn.functional",
    "transformers.utils",
}  # fmt: skip


def imported_modules() -> set[str]:
    found = set()
    for path in own_files():
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
            elif isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
    return {name for name in found if not name.startswith(("olivelike", "__"))}


def private_names() -> set[str]:
    """Return the private names that are asked of a thing made elsewhere, as attributes or as texts."""
    asked: set[str] = set()
    for path in own_files():
        ours, here = {"_exit", "_asdict", "_replace"}, set()  # These three are documented.
        for node in nodes_of(path):
            match node:
                case ast.Attribute(attr=name, value=ast.Name(id="self" | "cls")):
                    ours.add(name)
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    ours.add(name)
                case ast.Attribute(attr="__bases__" | "__base__" | "__mro__" as name):
                    here.add(name)
                case ast.Attribute(attr=name, value=value) if is_private(name) and not is_super(value):
                    here.add(name)
                case ast.Call(
                    func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]
                ) if is_private(name):
                    here.add(name)
        asked |= here - ours
    return asked


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_super(value: ast.expr) -> bool:
    """Tell whether a name is asked of a base; what a library's class has is tested below."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super"


def test_no_other_module_of_a_library_is_imported_than_documented_ones_and_those_named_here():
    found = imported_modules()
    private = {name for name in found if any(part.startswith("_") for part in name.split("."))}
    assert private == PRIVATE_MODULES
    inner = {name for name in found - private if "." in name}
    libraries = {name for name in inner if name.partition(".")[0] not in sys.stdlib_module_names}
    used = {name.partition(".")[0] for name in found}  # Not that of an extra that is gone.
    named = {name for name in UNDOCUMENTED_MODULES if name.partition(".")[0] in used}
    assert libraries - DOCUMENTED_MODULES == named, "documented? else it needs a test here"


def test_no_other_private_name_of_a_library_is_used():
    assert private_names() == PRIVATE_NAMES


def test_onnxruntime_quantises_blocks_by_k_quants():
    from onnxruntime.quantization.neural_compressor.weight_only import quant_tensor_k_quant_cpu

    assert [*inspect.signature(quant_tensor_k_quant_cpu).parameters] == ["data", "num_bits", "group_size"]


def test_starlette_reads_forms_within_bounds():
    from starlette.formparsers import MultiPartException, MultiPartParser

    assert issubclass(MultiPartException, Exception)
    assert {"max_files", "max_fields", "max_part_size"} <= inspect.signature(MultiPartParser).parameters.keys()


def test_uvicorn_s_protocol_knows_its_connection_and_all_others():
    """That they do what is asked of them is tested in `serve/test_connections.py`."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    asked = {"conn", "connections", "loop", "transport"}
    assert asked <= set(H11Protocol.__init__.__code__.co_names)
    assert {"connection_made", "data_received", "connection_lost"} <= vars(H11Protocol).keys()


def test_uvicorn_s_sockets_know_their_client_and_that_a_handshake_is_done():
    """That they do what is asked of them is tested in `serve/test_comfyui.py`."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    assert {"client", "handshake_complete"} <= set(WebSocketsSansIOProtocol.__init__.__code__.co_names)
    assert {"connection_lost", "send"} <= vars(WebSocketsSansIOProtocol).keys()


def test_torch_has_fake_tensors_that_mix_with_real_ones():
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    assert "allow_non_fake_inputs" in inspect.signature(FakeTensorMode).parameters
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(torch.empty(2), FakeTensor)


def test_torch_modules_keep_parameters_in_a_dict():
    import torch

    linear = torch.nn.Linear(2, 2)
    other = torch.nn.Parameter(torch.empty(2, 2, device="meta"))
    linear._parameters["weight"] = other
    assert linear.weight is other


def test_torch_modules_keep_buffers_in_a_dict():
    import torch

    norm = torch.nn.BatchNorm1d(2)
    other = torch.empty(2, device="meta")
    norm._buffers["running_mean"] = other
    assert norm.running_mean is other


def test_torch_storages_have_an_identity_that_views_share():
    import torch

    tensor = torch.empty(4, device="meta")
    assert tensor.untyped_storage()._cdata == tensor[1:].untyped_storage()._cdata
    assert tensor.untyped_storage()._cdata != torch.empty(4, device="meta").untyped_storage()._cdata


def test_torch_tells_where_the_tensors_of_a_pickle_lie(tmp_path):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    file = tmp_path / "tensor.pt"
    tensor = torch.tensor([1.0, 2.0, 3.0])
    torch.save({"x": tensor}, file)
    with FakeTensorMode():
        start = torch.load(file)["x"].untyped_storage()._checkpoint_offset
    assert file.read_bytes()[start : start + 12] == tensor.numpy().tobytes()


def test_torch_dispatch_modes_see_copies():
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    tensor = torch.empty(2, device="meta")
    with Watch():
        tensor.clone()
    assert torch.ops.aten.clone.default in seen


def test_diffusers_networks_rename_keys_of_older_files_by_one_method():
    from diffusers import AutoencoderKL, UNet2DConditionModel

    for network in (AutoencoderKL, UNet2DConditionModel):
        parameters = list(inspect.signature(network._fix_state_dict_keys_on_load).parameters)
        assert len(parameters) == 2, parameters


def test_diffusers_can_leave_out_the_random_values_of_new_networks():
    import torch
    from diffusers.models.modeling_utils import no_init_weights

    usual = torch.nn.init.kaiming_uniform_
    with no_init_weights():
        assert torch.nn.init.kaiming_uniform_ is not usual
    assert torch.nn.init.kaiming_uniform_ is usual


@pytest.mark.parametrize(
    "name",
    [
        "convert_ldm_unet_checkpoint", "convert_ldm_vae_checkpoint", "convert_ldm_clip_checkpoint",
        "convert_open_clip_checkpoint",
    ],
)  # fmt: skip
def test_diffusers_has_converters_for_original_names(name):
    from diffusers.loaders import single_file_utils

    assert "checkpoint" in inspect.signature(getattr(single_file_utils, name)).parameters


def test_the_hubs_errors_have_the_http_librarys_root():
    from huggingface_hub.errors import HfHubHTTPError

    root = HfHubHTTPError.__bases__[0]
    library = sys.modules[root.__module__.partition(".")[0]]
    no_connection = getattr(library, "ConnectError", None) or library.ConnectionError
    assert issubclass(no_connection, root)


def test_onnxruntime_raises_exceptions_of_its_own_by_these_names():
    from olivelike.runtime.sessions.engine_errors import onnxruntime_errors

    assert all(issubclass(error, Exception) for error in onnxruntime_errors())


def test_onnxruntimes_libraries_lie_in_the_folder_capi():
    import onnxruntime

    names = {path.name for path in (Path(onnxruntime.__file__).parent / "capi").iterdir()}
    assert any(name.startswith("onnxruntime_pybind11_state") for name in names)
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        prefix, suffix = ("", ".dll") if sys.platform == "win32" else ("lib", ".so")
        assert {f"{prefix}onnxruntime_providers_{kind}{suffix}" for kind in ("shared", "cuda", "tensorrt")} <= names


def test_namespace_packages_tell_their_folders_without_being_imported(tmp_path, monkeypatch):
    from importlib.machinery import PathFinder

    (tmp_path / "spaced").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    search = PathFinder.find_spec("spaced").submodule_search_locations
    assert search._path == [str(tmp_path / "spaced")]


def test_typers_groups_keep_commands_in_a_dict():
    import typer
    from typer.core import TyperGroup

    group = TyperGroup(name="x", commands={"one": typer.main.get_command(_app())})
    assert list(group.commands) == ["one"]
    assert {"ctx", "cmd_name"} <= set(inspect.signature(TyperGroup.get_command).parameters)


def _app():
    import typer

    app = typer.Typer()
    app.command()(lambda: None)
    return app


def test_typers_commands_tell_what_help_is_written_from():
    import typer
    from typer.core import TyperCommand

    app = typer.Typer()

    @app.command()
    def one(word: str, flag: bool = False) -> None:
        """Do it."""

    command = typer.main.get_command(app)
    assert isinstance(command, TyperCommand)
    context = command.make_context("one", ["x"])
    assert command.collect_usage_pieces(context)
    kinds = {item.param_type_name: item.get_help_record(context) for item in command.get_params(context)}
    assert set(kinds) == {"argument", "option"}
    assert all(len(record) == 2 for record in kinds.values())
    formatter = context.make_formatter()
    with formatter.section("Title"):
        formatter.write_dl([("a", "b")])
    assert "Title" in formatter.getvalue()


def test_typers_errors_have_one_root_that_tells_what_was_wrong():
    import typer

    root = typer.BadParameter.__base__
    with pytest.raises(root) as raised:
        typer.main.get_command(_app())(["--unknown"], standalone_mode=False)
    assert raised.value.format_message()
    assert raised.value.exit_code == 2


def test_yamls_loader_resolves_scalars_by_a_table_and_composes_by_a_method():
    import yaml

    assert "index" in inspect.signature(yaml.SafeLoader.compose_node).parameters

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {}  # noqa: RUF012  (the name and shape are PyYAML's)

        def compose_node(self, parent, index):
            assert self.peek_event().start_mark.line == 0
            return super().compose_node(parent, index)

    assert yaml.load("yes", Loader) == "yes"


def test_diffusers_has_the_projections_of_ip_adapters_with_these_arguments():
    """That they are what its pipelines have is tested in `sources/test_guide_sources.py`."""
    from diffusers.models import embeddings

    for name, wanted in {
        "ImageProjection": {"image_embed_dim", "cross_attention_dim", "num_image_text_embeds"},
        "IPAdapterFullImageProjection": {"image_embed_dim", "cross_attention_dim"},
        "IPAdapterPlusImageProjection": {
            "embed_dims", "output_dims", "hidden_dims", "depth", "heads", "num_queries",
        },
    }.items():  # fmt: skip
        assert wanted <= inspect.signature(getattr(embeddings, name)).parameters.keys()


def test_diffusers_has_the_classes_that_its_reference_leaves_out():
    from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker, safety_checker

    assert safety_checker.StableDiffusionSafetyChecker is StableDiffusionSafetyChecker


def test_onnxscript_has_the_rules_that_graphs_are_simplified_by():
    from olivelike.graphs.export import exporter

    assert len(exporter._find_rules()) >= len(exporter._RULES) - len(exporter._NEWER)


def test_diskcache_reads_rows_and_removes_files_through_these_methods_of_its_disk_alone():
    """Each is narrowed, so that a forged row is never unpickled: another public one would be a way past."""
    from diskcache import Cache, Disk

    from olivelike.store.index import TextDisk

    public = {name for name in vars(Disk) if not name.startswith("_")}
    assert public == {"hash", "put", "get", "store", "fetch", "filename", "remove"}
    assert public - set(vars(TextDisk)) == {"hash"}, "which asks `put`"
    assert {"directory", "timeout", "disk"} <= set(inspect.signature(Cache).parameters)
    assert isinstance(Cache.directory, property)
