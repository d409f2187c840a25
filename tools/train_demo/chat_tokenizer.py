"""The transformer demo's tokenizer: Qwen's form, every byte, and one token for each word of the captions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tools.train_demo.captions.captions import WORDS
from tools.train_demo.tokenizer import word_merges
from tools.train_demo.writing import write_json

if TYPE_CHECKING:
    from pathlib import Path

PAD: Final = "<|endoftext|>"
SPECIAL: Final = (PAD, "<|im_start|>", "<|im_end|>")
TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_PIECES: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_chat_tokenizer(folder: Path) -> Tokenizer:
    """Write the files of a tokenizer of Qwen2's class, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = ("user", "assistant", *WORDS, *(f"Ġ{word}" for word in WORDS))
    merges = word_merges([list(text) for text in texts])
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + [left + right for left, right in merges]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": {
                str(tokenizer.token_to_id(token)): {
                    "content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                    "special": True,
                }
                for token in SPECIAL
            },
            "additional_special_tokens": list(SPECIAL[1:]),
            "bos_token": None,
            "chat_template": TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 512,
            "pad_token": PAD,
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
    )  # fmt: skip
    write_json(folder / "vocab.json", vocabulary)
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return tokenizer


def chat_tokens(tokenizer: Tokenizer, caption: str) -> list[int]:
    """Return the tokens of a caption as Z-Image's pipeline asks for them."""
    text = f"<|im_start|>user\n{caption}<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = tokenizer.encode(text).ids
    return ids
