"""LoRAs for a folder that is optimised already: its initializers change in memory, and no file does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._text import did_you_mean
from olivelike.errors import SourceError, UsageError
from olivelike.model.families import TEXT_ENCODERS

if TYPE_CHECKING:
    import numpy as np

    from olivelike.sources.adapters.lora_file import LoraFile

    Initializers = Mapping[str, Mapping[str, np.ndarray[Any, Any]]]


@dataclass(frozen=True)
class LiveLora:
    """A LoRA on top of what a folder holds."""

    path: Path
    name: str
    hash: str
    """As A1111 prints it, 12 digits."""
    text_weight: float
    unet_weight: float

    def __str__(self) -> str:
        same = self.text_weight == self.unet_weight
        weight = f"{self.unet_weight:g}" if same else f"{self.text_weight:g}:{self.unet_weight:g}"
        return f"{self.name} at {weight}"


class LiveLoras:
    """LoRAs by what names them, each file opened once.

    Args:
        folders: where `<lora:NAME>` is looked for, subfolders included; of two folders the first one counts.
        allow_pickle: read pickled files too."""

    def __init__(self, folders: Sequence[Path] = (), *, allow_pickle: bool = False) -> None:
        self._folders = folders
        self._allow_pickle = allow_pickle
        self._opened: dict[Path, tuple[LoraFile, str]] = {}

    def named(self, text: str) -> LiveLora:
        """Open what `--lora FILE` or `FILE:WEIGHT` names; a file may be a hub id.

        Raises `UsageError` if it names no file, or its weight is none, and `SourceError` if the file is no LoRA."""
        from olivelike.engine.plan.adapters import fetch
        from olivelike.workflow.long_form import parse_lora

        file, _, weight = text.rpartition(":")
        lora = parse_lora(text, Path.cwd())
        absent = lora.file.path is not None and not lora.file.path.exists()
        if absent and file and Path(file).expanduser().is_file():
            raise UsageError(f"--lora {text}: {weight or 'nothing'} is no weight; write a number such as 0.8")
        path, _ = fetch(lora.file)
        return self._open(path, lora.weight, lora.weight)

    def tagged(self, written: str, name: str, text_weight: float, unet_weight: float) -> LiveLora:
        """Open what a tag in a prompt names.

        Raises `UsageError` if two files of a folder have the name, and `SourceError` if there is none, or it is no
        LoRA.

        Args:
            written: the tag, `<lora:NAME:WEIGHT>`, for messages.
            name: of the file, without suffix; or its path below a folder."""
        return self._open(self._find(written, name), text_weight, unet_weight)

    def merge(self, loras: Sequence[LiveLora], folder: Path) -> Initializers:
        """Merge LoRAs into what a folder holds, as `olivelike run` wrote it. Raises `SourceError` if one does not fit.

        Returns:
            Per component, what sessions take in place of the file's."""
        from olivelike.engine.output.swap import swap_loras
        from olivelike.sources.adapters.lora_file import WeightedLora

        files = [self._opened[lora.path][0] for lora in loras]
        text, unet = (
            [WeightedLora(file, weight) for file, weight in zip(files, weights, strict=True)]
            for weights in ([lora.text_weight for lora in loras], [lora.unet_weight for lora in loras])
        )
        if all(lora.text_weight == lora.unet_weight for lora in loras):
            return swap_loras(folder, unet)
        return {**swap_loras(folder, text, only=TEXT_ENCODERS), **swap_loras(folder, unet, only=("unet",))}

    def _open(self, path: Path, text_weight: float, unet_weight: float) -> LiveLora:
        from olivelike.sources.adapters.open_lora import open_lora
        from olivelike.sources.files.pickled import read_pickle_table
        from olivelike.sources.identify.weight_file import hash_file

        if path not in self._opened:
            opened = open_lora(path, read_pickle=read_pickle_table if self._allow_pickle else None)
            hashes = hash_file(opened.path, _data_start(opened.path))
            self._opened[path] = opened, (hashes.auto_v3 or hashes.sha256)[:12]
        file, digest = self._opened[path]
        return LiveLora(path, file.path.stem, digest, text_weight, unet_weight)

    def _find(self, written: str, name: str) -> Path:
        from olivelike.sources.adapters.lora_settings import SUFFIXES

        # Files are listed and compared, so that no name leads out of the folders.
        known: set[str] = set()
        for folder in self._folders:
            listed = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES]
            known |= {path.stem for path in listed}
            places = {path: path.relative_to(folder).with_suffix("").as_posix() for path in listed}
            found = [path for path in listed if places[path] == name]
            found = found or [path for path in listed if path.stem == name]
            if len(found) > 1:
                raise UsageError(
                    f"{written}: {found[0]} and {found[1]} both have the name; write its path below {folder}"
                )
            if found:
                return found[0]
        where = ", ".join(str(folder) for folder in self._folders)
        raise SourceError(
            f"{written}: there is no LoRA of that name in {where or 'loras/, which is not there'}; "
            + (did_you_mean(name, sorted(known), "LoRAs") if known else "name its folder with --lora-dir")
        )


def lora_folders(named: Sequence[Path], pipeline: Path) -> list[Path]:
    """Return where `<lora:NAME>` is looked for: named folders, then `loras/` here and beside the pipeline's folder.

    Raises `SourceError` if a named one is not there."""
    for folder in named:
        if not folder.is_dir():
            raise SourceError(f"--lora-dir {folder}: no such folder")
    usual = (Path("loras"), pipeline.resolve().parent / "loras")
    there = [folder for folder in usual if folder.is_dir()]
    return list({folder.resolve(): folder for folder in (*there[::-1], *named[::-1])}.values())[::-1]


def _data_start(path: Path) -> int | None:
    """Return where the tensors of a safetensors file begin; its header's length comes first, in 8 bytes."""
    if path.suffix != ".safetensors":
        return None
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")
