"""Additions to networks: LoRAs, which are merged into weights, and embeddings (textual inversions)."""
