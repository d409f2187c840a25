"""Prompts as A1111 reads them: weights, `BREAK`, `AND`, editing, and any length, encoded 75 tokens at a time."""

from olivelike.runtime.prompts.chunks import Chunks, chunk_prompt
from olivelike.runtime.prompts.composition import PromptTerm, read_terms
from olivelike.runtime.prompts.editing import texts_of_steps
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
    "PromptTerm",
    "PromptTokenizer",
    "TextEncoder",
    "chunk_prompt",
    "encode_prompts",
    "open_tokenizer",
    "parse_prompt",
    "read_terms",
    "texts_of_steps",
    "weighted",
]
