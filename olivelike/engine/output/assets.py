"""The files beside the networks: tokenizers, scheduler, feature extractor, as today's libraries write them.

Whatever generation of the libraries a source was saved with, its outputs are the same. What published pipelines have
is written without diffusers and transformers, to the same bytes; `fallback_assets` asks them for the rest.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from olivelike._untrusted import Json, JsonView, parse_object
from olivelike.engine.output.pipeline_files import current_name, to_json
from olivelike.engine.output.scheduler_defaults import with_defaults
from olivelike.errors import SourceError
from olivelike.families import family_of_folder
from olivelike.runtime.prompts.clip_tokenizer import ClipTokenizer, UnknownFormError
from olivelike.sources.identify.published import byte_symbols, read_extra

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tokenizers import Tokenizer

    from olivelike.engine.output.fallback_assets import LibraryTokenizer
    from olivelike.model.architecture import Config
    from olivelike.model.few_steps import FewSteps
    from olivelike.sources import PipelineSource


_SPECIAL_TOKENS = frozenset({"bos_token", "eos_token", "unk_token", "pad_token"})
_LOADING_KEYS = ("is_local", "local_files_only", "name_or_path")
_CLIP_TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast")
_WORD_END = "</w>"
_TEXT_ENDS = ("<|startoftext|>", "<|endoftext|>")


def normalise_assets(
    index: Config,
    files: Mapping[str, Path],
    added: Mapping[str, JsonView] | None = None,
    few_steps: FewSteps | None = None,
) -> dict[str, bytes]:
    """Return the content of every file that goes beside the networks, by relative path.

    Each tokenizer of byte pairs gets `vocab.json` and `merges.txt`, which clients without Python read; the family says
    which are of another kind. Raises `SourceError` when a config is no JSON, a tokenizer has neither the two files nor
    a `tokenizer.json`, it is of another kind than its family says, or tokens can't be added to it.

    Args:
        index: The source's `model_index.json`.
        files: Relative path → file of what is no network in the source.
        added: By folder of a tokenizer, the `tokens` that it gets, and the number that the `first` of them has.
        few_steps: What the networks were distilled to: decides how the scheduler is set.
    """
    added = added or {}
    kinds = {text.tokenizer: text.kind for text in family_of_folder(index, (), {}).texts}
    if absent := added.keys() - {relative.partition("/")[0] for relative in files}:
        raise SourceError(f"the source has no {min(absent)}, which `embeddings:` add tokens to; fetch it, or drop them")
    contents = {relative: read_extra(path) for relative, path in files.items()}
    for relative, data in contents.items():
        folder, _, name = relative.partition("/")
        if name == "scheduler_config.json":
            config = _parse(relative, data)
            config = config if few_steps is None else few_steps.scheduler_config(config)
            contents[relative] = to_json(_scheduler(config, index.get(folder)))
        elif name == "preprocessor_config.json":
            contents[relative] = to_json(_image_processor(_parse(relative, data)))
    for folder in sorted({relative.partition("/")[0] for relative in contents}):
        if not folder.startswith("tokenizer"):
            continue
        kind = kinds.get(folder, "clip")
        byte_pairs = kind == "clip"
        if byte_pairs:
            contents |= byte_pair_files(folder, contents)
        else:
            _check_whole(folder, contents, *_MODELS[kind])
        entry = index.get(folder)
        if byte_pairs and isinstance(entry, list) and entry[1] in _CLIP_TOKENIZERS:
            whole = _saved_today(folder, contents, added.get(folder))
            contents = {name: data for name, data in contents.items() if not name.startswith(f"{folder}/")}
            contents |= whole | byte_pair_files(folder, whole)
        elif folder in added:
            raise SourceError(f"the source's {folder} is no CLIP tokenizer, so `embeddings:` can't add tokens to it")
    return dict(sorted(contents.items()))


def check_tokenizers(source: PipelineSource) -> None:
    """Refuse tokenizers of texts that are no CLIP's as `normalise_assets` does, before anything runs.

    Those of another model are refused, too: they have tokens that the text encoder has no vector for.

    Raises `SourceError`. This package's own are not read.
    """
    for text in family_of_folder(source.index, (), {}).texts:
        beside = {name: path for name, path in source.extras.items() if name.startswith(f"{text.tokenizer}/")}
        name = f"{text.tokenizer}/tokenizer.json"
        if text.kind in _MODELS and beside and (name not in beside or beside[name].suffix == ".json"):
            contents = {name: read_extra(beside[name])} if name in beside else {}
            last = _check_whole(text.tokenizer, contents, *_MODELS[text.kind])
            encoder = source.checkpoints.get(text.component)
            config = {} if encoder is None else {**encoder.config, **(encoder.config.get("text_config") or {})}
            known = config.get("vocab_size")
            if isinstance(known, int) and last >= known:
                raise SourceError(
                    f"the source's {name} has token {last}, and its {text.component} knows those below {known}; get "
                    "both from the same pipeline"
                )


def _scheduler(config: Json, entry: Any) -> Json:
    """Fill in the defaults of the scheduler's class."""
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], str):
        return config
    filled = with_defaults(entry[1], config)
    if filled is None:
        from olivelike.engine.output.fallback_assets import scheduler_with_defaults

        return scheduler_with_defaults(entry[1], config)
    return filled


def _image_processor(config: Json) -> Json:
    """Name the class as transformers does now; it reads the older key in the same way."""
    old = config.pop("feature_extractor_type", None)
    if old is not None:
        config.setdefault("image_processor_type", current_name(old))
    return dict(sorted(config.items()))


def byte_pair_files(folder: str, contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return what a byte-pair tokenizer lacks of `vocab.json` and `merges.txt`."""
    names = f"{folder}/vocab.json", f"{folder}/merges.txt"
    if all(name in contents for name in names):
        return {}
    whole = contents.get(f"{folder}/tokenizer.json")
    if whole is None and names[1] in contents:
        # A single-file checkpoint brings no tokenizer; the package holds the merges of CLIP's.
        vocabulary = _clip_vocabulary(contents[names[1]], f"the source's {names[1]}")
        return {names[0]: json.dumps(vocabulary, ensure_ascii=False).encode()}
    if whole is None:
        raise SourceError(f"the source's {folder} has neither vocab.json with merges.txt nor tokenizer.json")
    try:
        model = parse_object(whole)["model"]
        vocabulary, merges = model["vocab"], model["merges"]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"the source's {folder}/tokenizer.json is no byte-pair tokenizer: {error!r}") from error
    pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    lines = "\n".join(["#version: 0.2", *pairs]) + "\n"
    return {names[0]: json.dumps(vocabulary, ensure_ascii=False).encode(), names[1]: lines.encode()}


_MODELS: Final[Mapping[str, tuple[str, type, str]]] = {
    "t5": ("Unigram", list, "unigram tokenizer, as T5's is"),
    "chat": ("BPE", dict, "byte-pair tokenizer, as a chat model's is"),
}
"""Kind of text → type of the tokenizer's model, that of its vocabulary, and both in words."""


def _check_whole(folder: str, contents: Mapping[str, bytes], kind: str, vocabulary: type, words: str) -> int:
    """Refuse a folder without a `tokenizer.json` of one kind, which the runtime reads; its other files stay.

    Returns its last token.
    """
    name = f"{folder}/tokenizer.json"
    if name not in contents:
        raise SourceError(
            f"the source's {folder} has no tokenizer.json, and its other files alone are not read here; load the "
            "folder with transformers' AutoTokenizer and save it, which writes one"
        )
    whole = _parse(name, contents[name])
    model, added = whole.get("model"), whole.get("added_tokens") or []
    if not isinstance(model, dict) or model.get("type") != kind or not isinstance(model.get("vocab"), vocabulary):
        raise SourceError(f"the source's {name} is no {words}; fetch the file again")
    held = model["vocab"]
    try:
        last = max(held.values(), default=-1) if vocabulary is dict else len(held) - 1
        return max(last, *(int(one["id"]) for one in added), -1)
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(f"the source's {name} has tokens that are no numbers; fetch the file again") from error


def _clip_vocabulary(merges: bytes, where: str) -> dict[str, int]:
    """Return token → id for the `merges.txt` of a CLIP tokenizer; `where` names that file in messages.

    The rule is that of OpenAI's tokenizer (https://github.com/openai/CLIP, `simple_tokenizer.py`): the 256 byte
    symbols, the same at the end of a word, each pair that merges joins, start and end of a text; ids in that order.
    """
    symbols = byte_symbols()
    tokens = dict.fromkeys([*symbols, *(symbol + _WORD_END for symbol in symbols)])
    for line in merges.decode(errors="replace").splitlines():
        if not line or line.startswith("#version"):
            continue
        left, _, right = line.partition(" ")
        if left not in tokens or right not in tokens or left + right in tokens:
            raise SourceError(
                f"{where}: {line!r} is no merge of CLIP, so vocab.json can't be made from it; fetch both files again"
            )
        tokens[left + right] = None
    return {token: index for index, token in enumerate([*tokens, *_TEXT_ENDS])}


def _saved_today(folder: str, contents: Mapping[str, bytes], added: JsonView | None) -> dict[str, bytes]:
    """Return the files of a CLIP tokenizer as today's transformers saves it, `tokenizer.json` among them."""
    _check_merges(folder, contents)
    files = {name.rpartition("/")[2]: data for name, data in contents.items() if name.startswith(f"{folder}/")}
    try:
        loaded = _loaded(files)
        extra = _add_tokens(folder, loaded.tokenizer, added) if added else {}
        saved = {f"{folder}/{name}": data for name, data in loaded.files().items()}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SourceError(
            f"the source's {folder} can't be loaded as a tokenizer: {error!r}; fetch its files again"
        ) from error
    name = f"{folder}/tokenizer_config.json"
    # How it was loaded just now is no property of the tokenizer.
    config = {key: value for key, value in _parse(name, saved[name]).items() if key not in _LOADING_KEYS}
    # Clients from before transformers 5 look for the special tokens in a file of their own.
    special = {key: value for key, value in sorted(config.items()) if key in _SPECIAL_TOKENS}
    return saved | extra | {name: to_json(config), f"{folder}/special_tokens_map.json": to_json(special)}


def _loaded(files: Mapping[str, bytes]) -> ClipTokenizer | LibraryTokenizer:
    try:
        return ClipTokenizer(files)
    except UnknownFormError:
        from olivelike.engine.output.fallback_assets import LibraryTokenizer

        return LibraryTokenizer(files)


def _add_tokens(folder: str, tokenizer: Tokenizer, added: JsonView) -> dict[str, bytes]:
    """Give a tokenizer the tokens of textual inversions; return the file that clients of today's do not need."""
    tokens, first = list(added["tokens"]), added["first"]
    vocabulary = tokenizer.get_vocab()
    if known := [token for token in tokens if token in vocabulary]:
        raise SourceError(
            f"the source's {folder} has the token {known[0]!r} already; give the embedding another `token:`"
        )
    if (size := tokenizer.get_vocab_size()) != first:
        raise SourceError(
            f"the source's {folder} has {size} tokens and its text encoder {first} vectors, so no more "
            "can be added; get both from the same source"
        )
    tokenizer.add_tokens(tokens)
    # transformers before 5 kept what was added in a file of its own, and other clients look for it there.
    return {f"{folder}/added_tokens.json": to_json({token: first + i for i, token in enumerate(tokens)})}


def _check_merges(folder: str, contents: Mapping[str, bytes]) -> None:
    """Find a file that was cut off: the tokenizers library raises no error of its own that could be caught."""
    vocabulary = _parse(f"{folder}/vocab.json", contents[f"{folder}/vocab.json"])
    lines = contents[f"{folder}/merges.txt"].decode(errors="replace").split("\n")
    for line in (line.rstrip("\r") for line in lines):
        pieces = line.split(" ")
        if line.startswith("#version") or not line:
            continue
        if len(pieces) != 2 or not vocabulary.keys() >= {*pieces, "".join(pieces)}:
            raise SourceError(
                f"the source's {folder}/merges.txt does not fit its vocab.json at {line!r}; fetch both files again"
            )


def _parse(relative: str, data: bytes) -> Json:
    try:
        return parse_object(data, unbounded=relative.endswith("/scheduler_config.json"))
    except ValueError as error:
        raise SourceError(f"the source's {relative} is no JSON: {error}; fetch the file again") from error
