"""Output folders: components streamed to disk, what clients need beside them, and their provenance."""
