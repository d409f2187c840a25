"""Published configs of each family, for checkpoints in one file.

Configs of networks are those of the repositories named below. `derive_config` replaces widths, depths and counts in
them by what a file's shapes say; what no shape tells (heads, groups, activations, scaling factor) stays. So distilled
and small networks of a family open as well as the published ones.
"""

from __future__ import annotations

import errno
import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from olivelike._untrusted import JsonView, parse_object, read_bytes
from olivelike.errors import SourceError
from olivelike.families.networks import STORED
from olivelike.families.supported import first_line

if TYPE_CHECKING:
    from olivelike.families.family import Family
    from olivelike.model.architecture import Config
    from olivelike.model.components import Prediction
    from olivelike.sources.identify.identity import Part

_MOST_BYTES: Final = 256 << 20
"""Most bytes of a file beside the networks; the largest tokenizers have 35 MB."""
_PACKED: Final = b"\xfd7zXZ\x00"
_PUBLISHED = Path(__file__).parents[2] / "data" / "published"


def network_class(family: Family, folder: str) -> tuple[str, str]:
    """Return library and class of the published network in a folder of a pipeline."""
    texts = {text.component: ("transformers", text.class_name) for text in family.texts}
    denoiser, vae = (("diffusers", name) for name in (family.denoiser_class, family.published.vae_class))
    return {family.denoiser: denoiser, "vae": vae, **texts}[folder]


_TOKENIZERS: Final = {"clip": "CLIPTokenizer", "t5": "T5TokenizerFast", "chat": "Qwen2TokenizerFast"}
"""Kind of a text → class of its tokenizer in published pipelines."""


def tokenizer_classes(family: Family) -> dict[str, list[str]]:
    """Return the entry of a pipeline's index for each of its published tokenizers."""
    kinds = {text.tokenizer: text.kind for text in family.texts}
    return {folder: ["transformers", _TOKENIZERS[kinds.get(folder, "clip")]] for folder in family.published.tokenizers}


def derive_config(
    family: Family, part: Part, tensors: Mapping[str, tuple[int, ...]], prediction: Prediction | None
) -> Config:
    """Return the `config.json` of a part of a checkpoint.

    Raises `SourceError` if a tensor that tells a width is missing, or the structure is none that diffusers builds.
    `tensors` are shapes by stored name, of this part at least.
    """
    template = family.published.configs[part.folder]
    if part.folder == family.denoiser and prediction is not None:
        template = {**template, **family.published.changes.get(prediction, {})}
    shapes = {name.removeprefix(part.prefix): shape for name, shape in tensors.items() if name.startswith(part.prefix)}
    try:
        return {**template, **STORED[part.converter].config(template, shapes, family.published.head_width)}
    except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:
        raise SourceError(
            f"{part.folder}: its structure can't be read from the tensors' names and shapes ({first_line(error)}); the "
            "file is incomplete or of another network"
        ) from error


def scheduler_file(
    family: Family, prediction: Prediction, *, zero_snr: bool, denoiser: JsonView = MappingProxyType({})
) -> tuple[str, Path]:
    """Return class and config file of the published scheduler for a prediction.

    Args:
        family: the family.
        prediction: what the UNet predicts.
        zero_snr: the network was trained with zero terminal signal-to-noise ratio, https://arxiv.org/abs/2305.08891.
        denoiser: config of a denoiser by flows, which have no prediction.
    """
    if family.published.flow is not None:
        stem = family.published.flow(denoiser)
        return family.published.scheduler, _PUBLISHED / "scheduler" / f"{stem}.json"
    euler = family.published.scheduler == "EulerDiscreteScheduler"
    if prediction != "v_prediction":
        name, stem = family.published.scheduler, "euler_epsilon" if euler else "pndm_epsilon"
    else:
        name = "EulerDiscreteScheduler" if euler else "DDIMScheduler"
        stem = ("euler" if euler else "ddim") + "_v_prediction" + ("_zero_snr" if zero_snr else "")
    return name, _PUBLISHED / "scheduler" / f"{stem}.json"


EDM_SCHEDULER: Final = ("EDMDPMSolverMultistepScheduler", _PUBLISHED / "scheduler" / "edm_epsilon.json")
"""Class and config file of playgroundai/playground-v2.5-1024px-aesthetic."""


def byte_symbols() -> list[str]:
    """Return a printable symbol for each byte, as GPT-2 assigns them: printable bytes first, as themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = 256 - len(printable)
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(others)]


def read_extra(path: Path) -> bytes:
    """Return the content of a file beside the networks.

    This package's own `tokenizer.json` is packed, and that of byte pairs has no vocabulary, which follows from them.
    Raises `OSError` as `read_bytes` does, and for what is packed otherwise.
    """
    data = read_bytes(path, _MOST_BYTES)
    if not data.startswith(_PACKED):
        return data
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_BYTES)
    try:
        whole = parse_object(unpacker.decompress(data, _MOST_BYTES))
    except (lzma.LZMAError, ValueError) as error:
        raise OSError(errno.EINVAL, f"it is packed, and no tokenizer: {error}") from error
    model = whole.get("model")
    if isinstance(model, dict) and "vocab" not in model:
        tokens = [*byte_symbols(), *(merge.replace(" ", "") for merge in model.get("merges", ()))]
        model["vocab"] = {token: number for number, token in enumerate(tokens)}
    return json.dumps(whole, ensure_ascii=False).encode()


def tokenizer_files(family: Family) -> dict[str, Path]:
    """Return the tokenizers' files: relative path in a pipeline folder → file of this package.

    There is no `vocab.json` among them: it follows from `merges.txt`. A `tokenizer.json` is packed by xz.
    """
    files: dict[str, Path] = {}
    for folder, settings in family.published.tokenizers.items():
        own = sorted((_PUBLISHED / "tokenizer" / settings).iterdir())
        files |= {f"{folder}/{path.name.removesuffix('.xz')}": path for path in own}
        if not any(path.name.startswith("tokenizer.json") for path in own):
            files[f"{folder}/merges.txt"] = _PUBLISHED / "tokenizer" / "merges.txt"
    return files
