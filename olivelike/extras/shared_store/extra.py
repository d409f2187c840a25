"""Declaration of the shared store: a backend by the kind of its URL, and what `olivelike cache` does with it."""

from olivelike._extras import Command

STORES = dict.fromkeys(
    ("s3", "gs", "az", "abfs", "http", "https", "file"), "olivelike.extras.shared_store.shared_store:open_shared_store"
)
CACHE = {name: f"olivelike.extras.shared_store.shared_cache:{name}" for name in ("size", "verify", "gc", "unpin")}
COMMANDS = {
    f"cache {name}": Command(
        f"olivelike.extras.shared_store.shared_cache:{name}", f"olivelike cache {name} s3://our-bucket/olivelike"
    )
    for name in ("push", "pull", "sync")
}
