"""Work of `generate --server`."""
