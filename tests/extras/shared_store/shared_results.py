"""Shared stores in buckets, and results to put into them."""

from __future__ import annotations

import datetime as dt

from olivelike.extras.shared_store.address import parse_address
from olivelike.extras.shared_store.shared_store import SharedStore
from olivelike.store import Action, Store
from tests.fixtures.faulty_bucket import FaultyBucket

KEY = "a" * 64


def shared(bucket: FaultyBucket, more: str = "?timeout=20") -> SharedStore:
    """Return the shared store in the newest bucket."""
    return shared_at(f"s3://{bucket.name}/team{more}")


def shared_at(url: str) -> SharedStore:
    return SharedStore(parse_address(url, "here"))


def made(store: Store, key: str = KEY, *contents: bytes) -> Action:
    """Record a result with some objects."""
    data = contents or (b"graph" * 400, b"tensor" * 900)
    digests = [store.put_bytes(one) for one in data]
    parts = {digest: len(one) for digest, one in zip(digests, data, strict=True)}
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    action = Action(key, {"pass": "fuse"}, {"graph": digests[0]}, parts, {}, 3.0, 0, now)
    store.put_action(action)
    return action
