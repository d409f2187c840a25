"""onnxruntime-web, as npm has it: the files that a page needs, from this machine or the registry.

Wherever they come from, their bytes are those of one release: a page is tried with that one.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from olivelike._files import write_whole
from olivelike._text import did_you_mean_path
from olivelike._untrusted import read_bytes
from olivelike.digest import digest_bytes
from olivelike.errors import MissingError

VERSION: Final = "1.30.0"
FILES: Final = {
    "ort.wasm.min.mjs": "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b",
    "ort-wasm-simd-threaded.mjs": "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
    "ort.webgpu.min.mjs": "3dffff71811bc13a3a3d9591c57ca5ee5735b8f5f3eaf789510b02bb040ae3a0",
    "ort-wasm-simd-threaded.asyncify.mjs": "3d1c85995364bb643302fc6fd877a0c3ba5ae72401815e0f24828a53d9191e28",
    "ort-wasm-simd-threaded.asyncify.wasm": "39f9f0894d478800487ed9f7dbe92618498db320cf55c8e3d89adff8dce658da",
}
"""SHA-256 of what a page loads: the first three for wasm, all of them for WebGPU."""
_SHA512: Final = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""Digest of the tarball, as the registry gives it under `integrity`."""
_PACKAGE: Final = "onnxruntime-web"
_TARBALL: Final = f"{_PACKAGE}/-/{_PACKAGE}-{VERSION}.tgz"
_REGISTRY: Final = "https://registry.npmjs.org"
_MOST_BYTES: Final = 64 << 20
"""Most bytes of the tarball, which has 33 MB, or of a file of it."""
_SECONDS: Final = 60
_REMEDY: Final = f"`npm pack {_PACKAGE}@{VERSION}` gives it: name that file with --onnxruntime-web"


def find_runtime(given: Path | None, near: Path, on_fetch: Callable[[str], None] | None = None) -> dict[str, bytes]:
    """Return the files that a page needs, by name.

    They are taken from `given`, else from `node_modules` in `near` or above it, from the user's cache, or from npm's
    registry (`$npm_config_registry`), after which they are in the cache. Raises `MissingError` if `given` is no such
    package, or it is nowhere and can't be fetched.

    Args:
        given: The package as a folder or tarball.
        near: A folder.
        on_fetch: Told what is fetched, before it is.
    """
    if given is not None:
        return _from_given(given)
    cache = _cache()
    for folder in (*(parent / "node_modules" / _PACKAGE / "dist" for parent in (near, *near.parents)), cache):
        if (found := _from_folder(folder)) is not None:
            return found
    files = _fetch(on_fetch)
    for name, data in files.items():
        cache.mkdir(parents=True, exist_ok=True)
        write_whole(cache / name, data, durable=False)
    return files


def _cache() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("olivelike", appauthor=False) / f"{_PACKAGE}-{VERSION}"


def _from_given(given: Path) -> dict[str, bytes]:
    if not given.exists():
        raise MissingError(f"{given}: there is no such file or folder; {did_you_mean_path(given, _REMEDY)}")
    if given.is_dir():
        for folder in (given, given / "dist", given / "package" / "dist", given / _PACKAGE / "dist"):
            if (found := _from_folder(folder)) is not None:
                return found
        raise MissingError(f"{given}: holds no {_PACKAGE} {VERSION}, or one that was changed; {_REMEDY}")
    try:
        return _unpacked(read_bytes(given, _MOST_BYTES), str(given))
    except OSError as error:
        raise MissingError(f"{given}: can't be read: {error.strerror}; {_REMEDY}") from error


def _from_folder(folder: Path) -> dict[str, bytes] | None:
    """Return the files of a folder; `None` if it lacks one, or one is of another release."""
    files: dict[str, bytes] = {}
    for name, sha256 in FILES.items():
        try:
            files[name] = read_bytes(folder / name, _MOST_BYTES)
        except OSError:
            return None
        if digest_bytes(files[name]) != sha256:
            return None
    return files


def _unpacked(tarball: bytes, what: str) -> dict[str, bytes]:
    """Return the files of the tarball; nothing of it is read if it is another one."""
    if base64.b64encode(hashlib.sha512(tarball).digest()).decode() != _SHA512:
        raise MissingError(f"{what}: is not {_PACKAGE} {VERSION} as npm has it: its SHA-512 is another; {_REMEDY}")
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(tarball), mode="r:gz") as archive:
        for name in FILES:
            member = archive.extractfile(f"package/dist/{name}")
            assert member is not None
            files[name] = member.read()
    return files


def _fetch(on_fetch: Callable[[str], None] | None) -> dict[str, bytes]:
    registry = os.environ.get("npm_config_registry") or _REGISTRY  # noqa: SIM112  (npm's own spelling)
    url = f"{registry.rstrip('/')}/{_TARBALL}"
    if on_fetch is not None:
        on_fetch(url)
    with _explained(url):
        if not url.startswith(("https://", "http://")):
            raise ValueError("it is no address of a registry")
        request = urllib.request.Request(url, headers={"User-Agent": "olivelike"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            tarball = answer.read(_MOST_BYTES)
    return _unpacked(tarball, url)


@contextmanager
def _explained(url: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        reason = error.reason if type(error) is urllib.error.URLError else error
        raise MissingError(
            f"{_PACKAGE} {VERSION} is not on this machine, and {url} can't be fetched: {reason}; where there is a "
            f"network, {_REMEDY}"
        ) from error
