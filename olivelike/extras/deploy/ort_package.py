"""ONNX Runtime's model package: a component for each network, with a variant for each target.

```
manifest.json
unet/component.json  unet/cpu/model.onnx  unet/cpu/weights.pb  unet/cuda/model.onnx  …
shared_assets/sha256-…/model_index.json  shared_assets/sha256-…/tokenizer/vocab.json  …
```

The format is that of `model_package/README.md` and, for what `executor_info` has under `ort`,
`onnxruntime/core/session/model_package/README.md` of microsoft/onnxruntime (pull requests 27786 and 28271), in which
`schema_version` is 1.0. ONNX Runtime refuses fields that it does not know, paths that lead out of the package, and
options of sessions that write files. A shared asset is a folder, named after the SHA-256 of the digests and names of
its files; `manifest.json` need not list it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike._text import size
from olivelike._untrusted import Json, JsonView, read_json
from olivelike.digest import digest_bytes
from olivelike.engine.output.packages import Package, Packaged
from olivelike.engine.output.pipeline_files import to_json
from olivelike.extras.deploy.package_checks import check_whole
from olivelike.extras.deploy.package_targets import VARIANT_PROVIDERS
from olivelike.families import denoiser_among
from olivelike.model.client_layouts import PACKAGE
from olivelike.model.components import MODEL_FILE

if TYPE_CHECKING:
    from olivelike.model.records.output import OutputRecord
    from olivelike.model.targets import TargetChoice
    from olivelike.workflow import LoadedWorkflow, Output

MANIFEST: Final = "manifest.json"
COMPONENT_FILE: Final = "component.json"
SHARED: Final = "shared_assets"
DATA_FOLDER: Final = "session.model_external_initializers_file_folder_path"
"""ONNX Runtime's entry for the folder of a model's data files; a package may name a shared asset there."""
_SCHEMA: Final = "1.0"
_DESCRIPTIONS: Final = {
    "unet": "Stable Diffusion: text encoders, UNet and VAE",
    "transformer": "Pictures from text: text encoders, transformer and VAE",
}
"""By denoiser."""


class OrtPackage(Package):
    """The layout `ortpackage`, and packages that were put together of several outputs."""

    def check(self, output: Output, workflow: LoadedWorkflow, only: Collection[str]) -> None:
        """Refuse targets that are no execution provider, and parts of a pipeline."""
        check_whole(output, workflow, only, tuple(VARIANT_PROVIDERS))

    def files(self, package: Packaged) -> dict[str, bytes]:
        """Return what a package of one target has beside its networks, by relative path."""
        one = package.target
        own = {f"{name}/{COMPONENT_FILE}": component_file({one.name: variant(one)}) for name in package.models}
        return {**own, **package_root(package.name, package.models, package.pipeline)}

    def facts(self, path: Path, record: OutputRecord) -> dict[str, str]:
        """Return the targets of a package of several outputs, which its components name, and what those share."""
        if record.layout != PACKAGE:
            return {}
        found, names = dict[str, str](), dict[str, None]()
        for component in record.components:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                names |= dict.fromkeys(map(str, read_json(path / component / COMPONENT_FILE)["variants"]))
        if names:
            found["target"] = ", ".join(names)
        if shared := [file.size for name, file in record.files.items() if name.startswith(f"{SHARED}/")]:
            found["shared"] = f"{size(sum(shared))} in {SHARED}, which the networks' sizes leave out"
        return found


def package_root(name: str, components: Mapping[str, object], pipeline: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the manifest of a package, and what of its pipeline is no network as a shared asset.

    Args:
        name: Of the package.
        components: Names of its networks, each of which is a component.
        pipeline: Index, tokenizers, scheduler and feature extractor, by their path in a pipeline's folder.
    """
    asset = asset_uri({path: digest_bytes(content) for path, content in pipeline.items()})
    manifest = {
        "schema_version": _SCHEMA,
        "package_name": name,
        "description": _DESCRIPTIONS[denoiser_among(components) or "unet"],
        "components": {component: component for component in sorted(components)},
        "additional_metadata": {"olivelike": {"pipeline": asset}},
    }
    folder = asset_folder(asset)
    return {MANIFEST: to_json(manifest), **{f"{folder}/{path}": content for path, content in pipeline.items()}}


def component_file(variants: Mapping[str, JsonView]) -> bytes:
    """Return `component.json` with these variants, whose folders have their names."""
    return to_json({"variants": variants})


def variant(target: TargetChoice, data_asset: str | None = None) -> Json:
    """Return what a package says of a network for one target.

    Options are texts. No device is named: ONNX Runtime 1.31 knows those of plugins alone, and passes over the variants
    of other providers that name one, the CPU's too.

    Args:
        target: With the options of its sessions.
        data_asset: The shared asset that has the weights, if they do not lie beside the model.
    """
    session = _texts(target.session_options)
    if data_asset is not None:
        session[DATA_FOLDER] = data_asset
    options = {"session_options": session, "provider_options": _texts(target.options)}
    return {
        "ep": VARIANT_PROVIDERS[target.name],
        "executor_info": {"ort": {"model_file": MODEL_FILE, **{key: value for key, value in options.items() if value}}},
    }


def asset_uri(files: Mapping[str, str]) -> str:
    """Return what a shared asset is called: `sha256:` and the digest of its files' digests and names.

    Args:
        files: SHA-256 by path, which parts with slashes.
    """
    listed = "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(files.items()))
    return f"sha256:{hashlib.sha256(listed.encode()).hexdigest()}"


def asset_folder(uri: str) -> str:
    """Return where in a package an asset lies."""
    return f"{SHARED}/{uri.replace(':', '-')}"


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    return {key: str(int(value)) if isinstance(value, bool) else str(value) for key, value in options.items()}
