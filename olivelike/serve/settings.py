"""All that the operator says of a server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from olivelike._text import did_you_mean_path
from olivelike._untrusted import read_bytes
from olivelike.errors import SourceError, UsageError
from olivelike.runtime.sessions.session_settings import parse_provider

_LEAST_BODY = 64 << 10
"""Bytes that an order of long prompts has."""


@dataclass(frozen=True)
class ServeSettings:
    """Settings for what is served, to whom, and within which bounds. Requests change none of them."""

    folders: tuple[Path, ...] = ()
    """Optimised folders."""
    models_dirs: tuple[Path, ...] = ()
    """Folders of optimised folders; what appears in one is served at once."""
    gallery: Path = Path("gallery")
    """Folder of pictures, uploads and the journal."""
    host: str = "127.0.0.1"
    port: int = 7860
    """0 takes a free one."""

    lora_dirs: tuple[Path, ...] = ()
    """Beside `loras/` here and beside the folders."""
    wildcard_dirs: tuple[Path, ...] = ()
    upscaler_dirs: tuple[Path, ...] = ()
    """Folders of ONNX files of networks that enlarge pictures, for A1111's API."""
    styles: Path | None = None
    """A1111's `styles.csv`; by default in the gallery."""
    ignore_unsupported: bool = False
    """Whether what A1111's API can't do here is left out and told of in the answer, in place of being refused."""
    allow_pickle: bool = False
    safety: bool = True
    """Whether the safety checker looks at each picture; a request can't switch it off."""
    metadata: bool = True
    """Whether what made a picture is in its file."""
    sign_pictures: Path | None = None
    """Certificate that pictures are signed with, as PEM."""
    sign_key: Path | None = None
    """Its private key."""

    providers: tuple[str, ...] = ()
    """As `--provider` has them; by default those of each folder's target."""
    provider_options: tuple[str, ...] = ()
    device: str | None = None
    session_options: tuple[str, ...] = ()
    threads: int = 0
    keep_compiled: bool = False

    cluster: str | None = None
    """`tcp://HOST:PORT` of a Dask scheduler whose workers draw, or `local:N`; by default this machine does."""
    warm: bool = False
    """Open the first folder at the start."""
    memory_limit: int | None = None
    """Bytes of files that folders kept open may have together; by default four fifths of what is free at the start."""
    time_limit: float = 1800.0
    """Seconds that a job may be drawn."""
    max_queue: int = 200
    max_images: int = 100
    """Pictures of a job, cells of a plot included."""
    max_side: int = 2048
    max_steps: int = 500
    max_body: int = 64 << 20
    """Bytes of a request."""

    api_keys: Mapping[str, str] = field(default_factory=dict)
    """Keys by the names of those who have them."""
    basic: Mapping[str, str] = field(default_factory=dict)
    """Passwords by user."""
    no_auth: bool = False
    """Whether anybody may use a server that other machines reach."""
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    """Addresses whose connections are those of many."""

    workflows_dir: Path | None = None
    """Workflows that the page may run."""
    checkpoints_dir: Path | None = None
    """Checkpoints that the page may convert."""
    cache_dir: str | Path | None = None
    """The store of such runs: a folder, or the URL of a shared one."""
    allow_plugins: bool = False
    """Whether code that a workflow's file names under `plugins:` runs."""

    @property
    def most_enlarged(self) -> int:
        """Pixels of a side that finished pictures may be enlarged to."""
        return 4 * self.max_side

    @property
    def styles_file(self) -> Path:
        """Where styles of prompts are kept."""
        return self.styles or self.gallery / "styles.csv"

    def places(self) -> dict[str, list[str]]:
        """Return folders and files by their option, in the operator's own words, those that were not given empty.

        `loras/` here is looked at too, and `wildcards/` where no other is named.
        """
        usual = {name: [folder] if (folder := Path(name)).is_dir() else [] for name in ("loras", "wildcards")}
        given: dict[str, Path | Sequence[Path] | None] = {
            "--gallery": self.gallery, "--models": (*self.folders, *self.models_dirs),
            "--lora-dir": (*self.lora_dirs, *usual["loras"]), "--styles": self.styles_file,
            "--wildcard-dir": self.wildcard_dirs or usual["wildcards"], "--upscaler-dir": self.upscaler_dirs,
            "--workflows": self.workflows_dir, "--checkpoints": self.checkpoints_dir,
        }  # fmt: skip
        lists = {option: [one] if isinstance(one, Path) else one or () for option, one in given.items()}
        told = {option: [one.as_posix() for one in paths] for option, paths in lists.items()}
        # What is no UTF-8 could not be told.
        return {option: [one.encode(errors="replace").decode() for one in paths] for option, paths in told.items()}

    def check(self) -> None:
        """Check what would otherwise be found out by the first who asks.

        Raises `SourceError` for a folder that is not there, and `UsageError` for a provider of no known name,
        or bodies that may hold no order.
        """
        if self.max_body < _LEAST_BODY:
            raise UsageError(f"--max-body {self.max_body}: an order alone may have more; take at least {_LEAST_BODY}")
        for text in self.providers:
            parse_provider(text)
        if self.cluster is not None and self.sign_pictures is not None:
            raise UsageError("--sign-pictures: workers of a cluster have no key; serve without --cluster, or unsigned")
        places = [
            ("--lora-dir", self.lora_dirs), ("--wildcard-dir", self.wildcard_dirs),
            ("--upscaler-dir", self.upscaler_dirs),
        ]  # fmt: skip
        if self.workflows_dir is None and self.checkpoints_dir is None:  # A run makes the first.
            places.append(("--models", self.models_dirs))
        for option, folders in places:
            for folder in folders:
                if not folder.is_dir():
                    raise SourceError(
                        f"{option} {folder}: no such folder; {did_you_mean_path(folder, 'make it, or drop the option')}"
                    )


def read_keys(texts: Sequence[str], file: Path | None) -> dict[str, str]:
    """Return keys by name: `NAME=KEY` texts, such lines of a file, and `$OLIVELIKE_API_KEY`, which is called `default`.

    Raises `UsageError` for what is no such pair or is given twice, and `SourceError` if the file can't be read.
    """
    lines = [("--api-key", text) for text in texts]
    if file is not None:
        try:
            content = read_bytes(file).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{file}: can't be read as a file of keys: {error}") from error
        lines += [(f"{file}:{number}", line) for number, line in enumerate(content.splitlines(), 1)]
    if key := os.environ.get("OLIVELIKE_API_KEY"):
        lines.append(("$OLIVELIKE_API_KEY", f"default={key}"))
    return _pairs(
        [(where, text) for where, text in lines if text.strip() and not text.startswith("#")], "=", "NAME=KEY"
    )


def read_passwords(texts: Sequence[str]) -> dict[str, str]:
    """Return passwords by user, of `USER:PASSWORD` texts. Raises `UsageError` for what is none, or given twice."""
    return _pairs([("--basic", text) for text in texts], ":", "USER:PASSWORD")


def _pairs(lines: Sequence[tuple[str, str]], mark: str, form: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for where, text in lines:
        name, _, secret = text.strip().partition(mark)
        if not name or not secret:
            raise UsageError(f"{where}: is no {form}")
        if name in found:
            raise UsageError(f"{where}: {name!r} is given twice")
        found[name] = secret
    return found
