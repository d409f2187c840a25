"""Declaration of the shared store: a backend by the kind of its URL, and what `olivelike cache` does with it."""

STORES = dict.fromkeys(
    ("s3", "gs", "az", "abfs", "http", "https", "file"), "olivelike.extras.shared_store.shared_store:open_shared_store"
)
CACHE = {
    name: f"olivelike.extras.shared_store.shared_cache:{name}" for name in ("exchange", "size", "verify", "gc", "unpin")
}
