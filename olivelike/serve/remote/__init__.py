"""What `generate --server` does."""
