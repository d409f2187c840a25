"""Prompts as A1111 reads them: weights, `BREAK`, and any length, encoded 75 tokens at a time."""

from olivelike.runtime.prompts.chunks import Chunks, chunk_prompt
from olivelike.runtime.prompts.emphasis import weighted
from olivelike.runtime.prompts.encoding import EncodedText, PromptEmbeddings, TextEncoder, encode_prompts
from olivelike.runtime.prompts.syntax import BREAK, Fragment, parse_prompt
from olivelike.runtime.prompts.tokenizer import PromptTokenizer, open_tokenizer

__all__ = [
    "BREAK",
    "Chunks",
    "EncodedText",
    "Fragment",
    "PromptEmbeddings",
    "PromptTokenizer",
    "TextEncoder",
    "chunk_prompt",
    "encode_prompts",
    "open_tokenizer",
    "parse_prompt",
    "weighted",
]
