"""Opening a LoRA: from a file or folder to a checked `LoraFile`, by its header alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from olivelike._untrusted import open_file
from olivelike.errors import SourceError
from olivelike.sources.adapters.layer_names import families_with, flat_name
from olivelike.sources.adapters.lora_file import (
    LoraFile,
    LoraModule,
    cross_attention_dim_of,
    difference_of,
    family_of,
    is_second_encoder,
)
from olivelike.sources.adapters.lora_keys import (
    LoraKey,
    parse_key,
    refuse_other_files,
    refuse_other_networks,
    refuse_unknown,
)
from olivelike.sources.adapters.lora_settings import (
    CONFIG_NAME,
    Place,
    Settings,
    find_files,
    settings_from_file,
    settings_from_header,
)
from olivelike.sources.files.weight_header import Header, read_numbers
from olivelike.sources.files.weight_table import ReadPickle, read_weight_table

_LISTED = 5
_WHOLE = frozenset({"lokr_w1", "lokr_w2"})
_FLOATING = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})


def open_lora(path: str | Path, *, adapter: str | None = None, read_pickle: ReadPickle | None = None) -> LoraFile:
    """Read a LoRA's header and check all that it tells; of its tensors only the alphas are read.

    Args:
        path: a `.safetensors` file, or a folder as diffusers or PEFT writes it.
        adapter: which adapter, of a file or folder with several.
        read_pickle: reads the table of a pickled file; `None` refuses such files.

    Raises:
        SourceError: if the file is missing, damaged, incomplete, no LoRA, or of a format that can't be merged.
    """
    path = Path(path)
    place = find_files(path, adapter)
    header = read_weight_table(place.weights, read_pickle)
    grouped = _group(place.weights, header, place.adapter)
    by_component = settings_from_header(place.weights, header.metadata)
    native = _native_settings(place, grouped, by_component)
    alphas = _read_alphas(place.weights, header, grouped)
    members: defaultdict[str, list[LoraKey]] = defaultdict(list)
    for name in sorted(grouped):
        first = grouped[name][0]
        members["" if first.bare else str(first.component)].append(first)
    modules: list[LoraModule] = []
    for owner, firsts in members.items():
        settings = (by_component.get(owner) if owner else native) or Settings()
        stated = settings.of_modules({key.path for key in firsts})
        for key in firsts:
            rank, alpha = stated[key.path]
            alpha = alphas.get(key.module, alpha)
            modules.append(_module(place.weights, header, grouped[key.module], rank, alpha, rslora=settings.rslora))
    modules.sort(key=lambda module: module.name)
    modules = _with_second_encoder(modules, native.base_class if native else None)
    return LoraFile(
        path=place.weights,
        config_path=place.config if native is not None and "" not in by_component else None,
        format="+".join(sorted({module.spelling for module in modules})),
        kinds=frozenset(kind for module in modules for kind in _kinds(module)),
        modules={module.name: module for module in modules},
        tensors={stored: header.tensors[stored] for module in modules for stored in module.roles.values()},
        components=frozenset(module.component for module in modules),
        family=family_of(modules),
        cross_attention_dim=cross_attention_dim_of(modules),
        ranks=frozenset(module.rank for module in modules if module.rank is not None),
        metadata=header.metadata,
    )


def _native_settings(
    place: Place, grouped: Mapping[str, list[LoraKey]], by_component: Mapping[str, Settings]
) -> Settings | None:
    """Return the settings of a network that was saved on its own: of its header, else of the config beside it."""
    bare = [keys for keys in grouped.values() if keys[0].bare]
    if "" in by_component or not bare:
        return by_component.get("")
    if place.config is not None:
        return settings_from_file(place.config)
    # Files of transformers in these names have the rank for alpha, as diffusers takes them.
    asked = [keys for keys in bare if not families_with({flat_name(keys[0].path)})]
    if any(keys[0].spelling == "peft_native" and "alpha" not in {key.role for key in keys} for keys in asked):
        raise SourceError(
            f"{place.weights}: its names are PEFT's own, and {CONFIG_NAME} with their alpha is not beside it; "
            "put that file into the same folder"
        )
    return None


def _group(path: Path, header: Header, adapter: str | None) -> dict[str, list[LoraKey]]:
    """Return the keys of each module, after all that can be said about names alone."""
    parsed = {name: parse_key(name) for name in header.tensors}
    keys = [key for key in parsed.values() if key is not None]
    if not keys:
        refuse_other_files(path, header.tensors)
    refuse_other_networks(path, header.tensors)
    refuse_unknown(path, [name for name, key in parsed.items() if key is None])
    strange = sorted(key.stored for key in keys if key.component is None)
    if strange:
        more = f", and {len(strange) - _LISTED} more" if len(strange) > _LISTED else ""
        raise SourceError(
            f"{path}: {len(strange)} of {len(parsed)} keys belong to no known network: {', '.join(strange[:_LISTED])}"
            f"{more}; a LoRA changes a denoiser and text encoders"
        )
    grouped: dict[str, list[LoraKey]] = defaultdict(list)
    for key in _of_adapter(path, keys, adapter):
        grouped[key.module].append(key)
    for name, members in grouped.items():
        members.sort(key=lambda key: (not key.spelling, key.role, key.stored))
        roles = [key.role for key in members]
        twice = next((role for role in roles if roles.count(role) > 1), None)
        if twice is not None:
            both = ", ".join(key.stored for key in members if key.role == twice)
            raise SourceError(f"{path}: module {name} is stored twice ({both}); get the file again")
    return grouped


def _of_adapter(path: Path, keys: list[LoraKey], adapter: str | None) -> list[LoraKey]:
    """Return the keys of one adapter; keys that name none, such as alphas, belong to all."""
    names = sorted({key.adapter for key in keys if key.adapter is not None})
    if adapter is None and len(names) <= 1:
        return keys
    if adapter is None:
        raise SourceError(
            f"{path}: it holds several adapters: {', '.join(names)}; choose one, such as `adapter: {names[0]}`"
        )
    if adapter not in names:
        there = f"it has {', '.join(names)}" if names else "its keys name none; leave `adapter:` out"
        raise SourceError(f"{path}: there is no adapter {adapter!r}; {there}")
    modules = {key.module for key in keys if key.adapter == adapter}
    return [key for key in keys if key.adapter == adapter or (key.adapter is None and key.module in modules)]


def _read_alphas(path: Path, header: Header, grouped: Mapping[str, list[LoraKey]]) -> dict[str, float]:
    stored = {
        name: key.stored
        for name, keys in grouped.items()
        for key in keys
        # The difference of two whole factors is not scaled; LyCORIS writes an alpha beside them all the same.
        if key.role == "alpha" and not _WHOLE.issubset(key.role for key in keys)
    }
    if not stored:
        return {}
    try:
        with open_file(path) as file:
            return {
                name: read_numbers(file, path, key, header.tensors[key], finite=False)[0]
                for name, key in stored.items()
            }
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}; get the file again") from error


def _module(
    path: Path, header: Header, keys: list[LoraKey], rank: int | None, alpha: float | None, *, rslora: bool
) -> LoraModule:
    first = keys[0]
    roles = {key.role: key.stored for key in keys}
    for stored in (name for role, name in roles.items() if role != "alpha"):
        if header.tensors[stored].dtype not in _FLOATING:
            raise SourceError(
                f"{path}: {stored} is stored as {header.tensors[stored].dtype}, so the file is quantised; "
                "use its version in float16, bfloat16 or float32"
            )
    form = difference_of(path, first.module, {role: header.tensors[name].shape for role, name in roles.items()})
    if form.rank is not None and rank is not None and form.rank != rank:
        raise SourceError(
            f"{path}: the config says rank {rank} for {first.module}, and its factors have rank {form.rank}; "
            "config and weights belong to different files"
        )
    return LoraModule(
        **{**vars(form), "rank": form.rank if form.rank is not None else rank},
        name=first.module,
        component=str(first.component),
        spelling=first.spelling or "diffusers",
        path=first.path,
        bare=first.bare,
        roles=roles,
        alpha=alpha,
        rslora=rslora,
    )


def _with_second_encoder(modules: list[LoraModule], base_class: str | None) -> list[LoraModule]:
    """Give names that say nothing about the network to the second text encoder, if they are its own."""
    bare = [module for module in modules if module.component == "text_encoder" and module.bare]
    if not is_second_encoder(bare, base_class):
        return modules
    return [replace(m, component="text_encoder_2") if m in bare else m for m in modules]


def _kinds(module: LoraModule) -> set[str]:
    kernel = module.kernel is not None and module.kernel != (1, 1)
    kind = "locon" if module.kind == "lora" and kernel else module.kind
    return {kind, "dora"} if module.decomposed else {kind}
