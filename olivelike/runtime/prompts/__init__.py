"""Prompts as A1111 reads them: weights, `BREAK`, `AND`, editing, and any length, encoded 75 tokens at a time."""

from olivelike.runtime.prompts.editing import PromptTerm, read_terms, texts_of_steps
from olivelike.runtime.prompts.lora_tags import LoraTag, take_lora_tags
from olivelike.runtime.prompts.prompt_encoding import (
    Chunks,
    EncodedText,
    PromptEmbeddings,
    TextEncoder,
    chunk_prompt,
    encode_prompts,
    weighted,
)
from olivelike.runtime.prompts.prompt_tokenizer import PromptTokenizer, open_tokenizer
from olivelike.runtime.prompts.syntax import BREAK, Fragment, parse_prompt, shortened
from olivelike.runtime.prompts.wildcards import Wildcards

__all__ = [
    "BREAK",
    "Chunks",
    "EncodedText",
    "Fragment",
    "LoraTag",
    "PromptEmbeddings",
    "PromptTerm",
    "PromptTokenizer",
    "TextEncoder",
    "Wildcards",
    "chunk_prompt",
    "encode_prompts",
    "open_tokenizer",
    "parse_prompt",
    "read_terms",
    "shortened",
    "take_lora_tags",
    "texts_of_steps",
    "weighted",
]
