"""Layouts: the names, types and files by which one client knows a pipeline folder."""

from olivelike.model.client_layouts import DEFAULT, LAYOUTS, TOKENIZER_FILE, TOKENIZERS, Layout, LayoutName

__all__ = ["DEFAULT", "LAYOUTS", "TOKENIZERS", "TOKENIZER_FILE", "Layout", "LayoutName"]
