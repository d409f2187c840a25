"""A CLIP tokenizer as transformers 5 saves it, made by the `tokenizers` library alone.

transformers' `CLIPTokenizer` wraps a `Tokenizer` of that library: it reads what a folder says of special tokens, in the
forms of all generations, and saves the `Tokenizer` and a config. Here the same is done for the forms that published
folders have, without importing transformers. The rules are those of `PreTrainedTokenizerBase._from_pretrained`,
`TokenizersBackend.__init__`, `CLIPTokenizer.__init__` and `save_pretrained` in transformers 5.23.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from olivelike._untrusted import JsonView, parse_json

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

    from olivelike.model.architecture import Config

_SPECIAL: Final[Mapping[str, str]] = {
    "bos_token": "<|startoftext|>",
    "eos_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
}
"""The special tokens in transformers' order, and what they are where a folder does not say."""
_KEPT: Final[Mapping[str, type]] = {
    "add_prefix_space": bool,
    "clean_up_tokenization_spaces": bool,
    "do_lower_case": bool,
    "errors": str,
    "model_max_length": int,
    "processor_class": str,
}
"""Keys of `tokenizer_config.json` that are saved as they were."""
_REPLACED = frozenset(
    {
        "added_tokens_decoder", "backend", "extra_special_tokens", "is_local", "local_files_only", "merges_file",
        "name_or_path", "special_tokens_map_file", "tokenizer_class", "tokenizer_file", "vocab_file",
    }
)  # fmt: skip
"""Keys that go, or come out the same for every such tokenizer."""
_VOCABULARY = frozenset({"vocab.json", "merges.txt"})
FILES: Final = _VOCABULARY | {"added_tokens.json", "special_tokens_map.json", "tokenizer_config.json", "tokenizer.json"}
"""Names of what is read."""
_FLAGS = frozenset({"lstrip", "normalized", "rstrip", "single_word", "special"})
_IDS = range(1 << 31)
_UNLIMITED = int(1e30)
"""Length that transformers gives a tokenizer that has none."""
_WORDS = r"""<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""


class UnknownFormError(Exception):
    """A folder is in a form that only transformers reads."""


class ClipTokenizer:
    """A tokenizer with its config."""

    tokenizer: Tokenizer

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Load a folder.

        Raises `UnknownFormError` if it is in another form than published ones, and `ValueError` if a file is damaged.

        Args:
            files: Content by name: `tokenizer.json`, or `vocab.json` with `merges.txt`, and what is beside them.
        """
        _require(files.keys() <= FILES)
        whole = _json(files, "tokenizer.json")
        self._config = _config(files)
        special, listed = _tokens(self._config, files, whole)
        self._special = {name: str(token) for name, token in special.items()}
        self.tokenizer = _tokenizer(*_vocabulary(files, whole), self._special["unk_token"])
        self.tokenizer.add_tokens(_to_add(special, listed))
        self._frame_texts()

    def files(self) -> dict[str, bytes]:
        """Return what transformers saves, without how this tokenizer was loaded."""
        config = {key: value for key, value in self._config.items() if key in _KEPT} | self._special
        config = {"model_max_length": _UNLIMITED, "backend": "tokenizers", "tokenizer_class": "CLIPTokenizer", **config}
        if self._config.get("extra_special_tokens") == []:
            config["extra_special_tokens"] = []
        whole = self.tokenizer.to_str(pretty=True)
        told = json.dumps(dict(sorted(config.items())), indent=2, ensure_ascii=False)
        return {"tokenizer.json": whole.encode(), "tokenizer_config.json": (told + "\n").encode()}

    def _frame_texts(self) -> None:
        """Let every text begin and end with a token."""
        from tokenizers.processors import RobertaProcessing

        start, end = (
            (token, self._number(token)) for token in (self._special["bos_token"], self._special["eos_token"])
        )
        self.tokenizer.post_processor = RobertaProcessing(end, start, trim_offsets=False, add_prefix_space=False)

    def _number(self, token: str) -> int:
        number = self.tokenizer.token_to_id(token)
        assert number is not None, f"{token!r} was not added"
        return number


def _config(files: Mapping[str, bytes]) -> JsonView:
    config = _json(files, "tokenizer_config.json")
    _require(config.keys() <= {*_KEPT, *_REPLACED, *_SPECIAL})
    _require(all(type(config[key]) is kind for key, kind in _KEPT.items() if key in config))
    _require(config.get("backend", "tokenizers") == "tokenizers")
    _require(config.get("extra_special_tokens", {}) in ({}, []))
    return config


def _tokens(
    config: Config, files: Mapping[str, bytes], whole: JsonView
) -> tuple[dict[str, str | AddedToken], dict[int, AddedToken]]:
    """Return the special tokens, by what they are for, and the tokens that a folder lists by number.

    Since transformers 4.34 the list is in the config; before, it was in files of its own.
    """
    told = {name: config[name] for name in _SPECIAL if name in config}
    listed: dict[int, AddedToken] = {}
    if "added_tokens_decoder" in config:
        for number, token in _mapping(config["added_tokens_decoder"]).items():
            _require(number.isdecimal())
            listed[int(number)] = _added(token)
    else:
        named = _json(files, "special_tokens_map.json")
        _require(named.keys() <= _SPECIAL.keys())
        told |= {
            name: _added({**token, "special": True}) if isinstance(token, dict) else token
            for name, token in named.items()
        }
        texts = {str(token) for token in told.values()}
        for text, number in _json(files, "added_tokens.json").items():
            special = text in texts
            _list(listed, number, _added({"content": text, "normalized": not special, "special": special}))
        _require(isinstance(whole.get("added_tokens"), list) or "tokenizer.json" not in files)
        for token in whole.get("added_tokens", ()):
            fields = dict(_mapping(token))
            _list(listed, fields.pop("id", None), _added(fields))
    by_text = {str(token): token for token in listed.values()}
    found = {name: _special(token) for name, token in told.items()}
    return {**_SPECIAL, **{name: by_text.get(str(token), token) for name, token in found.items()}}, listed


def _list(listed: dict[int, AddedToken], number: Any, token: AddedToken) -> None:
    _require(type(number) is int and str(listed.get(number, token)) == str(token))
    listed[number] = token


def _special(value: Any) -> str | AddedToken:
    """Return a special token of a config: a text, or a dict that says of which class it is."""
    from tokenizers import AddedToken

    if isinstance(value, dict):
        _require(value.get("__type") == "AddedToken")
        return _added({key: said for key, said in value.items() if key != "__type"})
    _require(isinstance(value, str | AddedToken) and str(value) != "")
    token: str | AddedToken = value
    return token


def _added(fields: Any) -> AddedToken:
    from tokenizers import AddedToken

    _require(isinstance(fields, dict) and fields.keys() <= {"content", *_FLAGS})
    _require(isinstance(fields.get("content"), str) and fields["content"] != "")
    _require(all(type(fields[flag]) is bool for flag in _FLAGS & fields.keys()))
    return AddedToken(**fields)


def _to_add(special: Mapping[str, str | AddedToken], listed: Mapping[int, AddedToken]) -> list[AddedToken]:
    """Return listed tokens by number, then the special ones that are not among them, all of these marked as such."""
    from tokenizers import AddedToken

    tokens: list[str | AddedToken] = [listed[number] for number in sorted(listed)]
    texts = {str(token) for token in tokens}
    for token in special.values():
        if str(token) not in texts and token not in tokens:
            tokens.append(token)
    names = {str(token) for token in special.values()}
    added = [AddedToken(token, special=True) if isinstance(token, str) else token for token in tokens]
    for marked in added:
        if str(marked) in names and not marked.special:
            marked.special = True
    return added


def _vocabulary(files: Mapping[str, bytes], whole: JsonView) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return token → id, and the pairs that merge; `tokenizer.json` counts before the two files.

    Raises `ValueError` for merges that no library takes.
    """
    merges: Iterable[Any]
    if "tokenizer.json" in files:
        model = _mapping(whole.get("model"))
        _require(model.get("type") == "BPE" and isinstance(model.get("merges"), list))
        _require(whole.get("padding") is None and whole.get("truncation") is None)
        vocabulary, merges = _mapping(model.get("vocab")), model["merges"]
    else:
        _require(files.keys() >= _VOCABULARY)
        vocabulary = _json(files, "vocab.json")
        lines = files["merges.txt"].decode().removesuffix("\n").split("\n")
        merges = [line.removesuffix("\r") for line in lines if not line.startswith("#version")]
    _require(all(type(number) is int and number in _IDS for number in vocabulary.values()))
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    if alone := next((pair[0] for pair in pairs if isinstance(pair, list) and len(pair) == 1 and pair != [""]), None):
        raise ValueError(f"{alone!r} is no pair of merges")
    _require(
        all(isinstance(pair, list) and len(pair) == 2 and all(type(half) is str for half in pair) for pair in pairs)
    )
    if lacking := next((token for pair in pairs for token in (*pair, "".join(pair)) if token not in vocabulary), None):
        name = "tokenizer.json" if "tokenizer.json" in files else "merges.txt"
        raise ValueError(f"{name} has merges of {lacking!r}, which the vocabulary lacks")
    return dict(vocabulary), [(left, right) for left, right in pairs]


def _tokenizer(vocabulary: dict[str, int], merges: list[tuple[str, str]], unknown: str) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE

    tokenizer = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=merges,
            dropout=None,
            continuing_subword_prefix="",
            end_of_word_suffix="</w>",
            fuse_unk=False,
            unk_token=unknown,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _json(files: Mapping[str, bytes], name: str) -> JsonView:
    return _mapping(parse_json(files.get(name, b"{}")))


def _mapping(value: Any) -> JsonView:
    _require(isinstance(value, dict))
    mapping: JsonView = value
    return mapping


def _require(known: bool) -> None:
    if not known:
        raise UnknownFormError
