"""One weight file of a repository on the Hugging Face hub, such as a LoRA."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from olivelike.errors import SourceError
from olivelike.sources.hub.hub import open_hub

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.model.records.origin import Origin
    from olivelike.sources.source_files import SourceFiles

_USUAL_NAMES = (
    "pytorch_lora_weights.safetensors",
    "adapter_model.safetensors",
    "learned_embeds.safetensors",
)
_ADAPTER_CONFIG = "adapter_config.json"


def fetch_hub_file(
    repository: str, name: str | None = None, revision: str | None = None
) -> tuple[Path, Origin]:
    """Return the local path of a weight file, after a download where one is needed, and its origin.

    Args:
        repository: `ORGANISATION/NAME`.
        name: The file's path in the repository; `None` takes one of the usual names, or the only `.safetensors` file.
        revision: Branch, tag or commit; `None` is the main branch.

    Raises:
        SourceError: if the repository can't be had, lacks the file, or leaves open which one is meant.
    """

    def read(files: SourceFiles) -> tuple[Path, Origin]:
        relative = name if name is not None else _only_file(files)
        folder, _, file = relative.rpartition("/")
        if file not in files.names(folder):
            there = ", ".join(sorted(_weights(files.names(folder)))) or "no weights"
            raise SourceError(
                f"{files.where}: {relative} is missing; that folder has {there}; {files.remedy}"
            )
        if _ADAPTER_CONFIG in files.names(folder):
            files.path("/".join(filter(None, (folder, _ADAPTER_CONFIG))))
        return files.path(relative), replace(files.origin, file=relative)

    return open_hub(repository, revision, read)


def _only_file(files: SourceFiles) -> str:
    names = files.names("")
    usual = [name for name in _USUAL_NAMES if name in names]
    candidates = usual or _weights(names)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise SourceError(
            f"{files.where}: has no .safetensors file; name one as `OWNER/NAME/FILE`; {files.remedy}"
        )
    raise SourceError(
        f"{files.where}: has {len(candidates)} weight files: {', '.join(candidates)}; "
        "name one, as `OWNER/NAME/FILE`"
    )


def _weights(names: frozenset[str]) -> list[str]:
    return sorted(name for name in names if name.endswith(".safetensors"))
