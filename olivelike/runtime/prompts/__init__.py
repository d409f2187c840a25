"""Prompts as A1111 reads them: weights, `BREAK`, `AND`, editing, and any length, encoded 75 tokens at a time."""
