"""All that the operator says of a server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from olivelike._text import did_you_mean_path
from olivelike._untrusted import read_bytes
from olivelike.errors import SourceError, UsageError

_LEAST_BODY = 64 << 10
"""Bytes that an order of long prompts has."""


@dataclass(frozen=True)
class ServeOption:
    """How `olivelike serve` asks for a setting."""

    usage: str
    """As help shows it; empty for a flag that is called like the setting and may be switched off."""
    help: str
    is_size: bool = False
    """Whether it is written as a size, such as `8GB`."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """Least and most, `min` and `max`."""


OPTION: Final = "option"
"""Key of a field's `ServeOption`; what has none is declared with other commands that take it."""


def asked(usage: str, help: str, default: Any = None, *, is_size: bool = False, **bounds: float) -> Any:  # noqa: A002
    """Return the field of a setting that has an option."""
    return field(default=default, metadata={OPTION: ServeOption(usage, help, is_size, bounds)})


def asked_by_name(usage: str, help: str) -> Any:  # noqa: A002
    """Return that of one which is written as pairs."""
    return field(default_factory=dict, metadata={OPTION: ServeOption(usage, help)})


@dataclass(frozen=True)
class ServeSettings:
    """Settings for what is served, to whom, and within which bounds. Requests change none of them."""

    folders: tuple[Path, ...] = ()
    """Optimised folders."""
    models_dirs: tuple[Path, ...] = asked(
        "--models DIR", "Serve all such folders in it, later ones too; may be repeated.", ()
    )
    gallery: Path = asked("DIR", "Where pictures and jobs are kept.", Path("gallery"))
    warm: bool = asked("--warm", "Open the first folder at once.", False)
    safety: bool = True
    """Whether the safety checker looks at each picture; a request can't switch it off."""
    metadata: bool = asked("", "Write into each file what made the picture.", True)
    sign_pictures: Path | None = None
    """Certificate that pictures are signed with, as PEM."""
    sign_key: Path | None = None
    """Its private key."""
    lora_dirs: tuple[Path, ...] = asked(
        "--lora-dir DIR", "Where LoRAs are, beside loras/ here and beside FOLDER; may be repeated.", ()
    )
    wildcard_dirs: tuple[Path, ...] = asked("--wildcard-dir DIR", "Where the file of __NAME__ is; may be repeated.", ())
    upscaler_dirs: tuple[Path, ...] = asked(
        "--upscaler-dir DIR", "Where upscalers are, networks as ONNX files; may be repeated.", ()
    )
    styles: Path | None = asked("FILE", "Styles of prompts, A1111's styles.csv; by default in the gallery.")
    ignore_unsupported: bool = asked(
        "--ignore-unsupported", "Leave out what A1111's API asks for and can't be had, and say so.", False
    )
    allow_pickle: bool = False
    workflows_dir: Path | None = asked("--workflows DIR", "Workflows that the page may run.")
    checkpoints_dir: Path | None = asked("--checkpoints DIR", "Checkpoints that the page may convert.")
    cache_dir: str | Path | None = None
    """The store of such runs: a folder, or the URL of a shared one."""
    allow_plugins: bool = asked("--allow-plugins", "Run the code that workflows name under `plugins:`.", False)
    cluster: str | None = None
    """`tcp://HOST:PORT` of a Dask scheduler whose workers draw, or `local:N`; by default this machine does."""

    host: str = asked("ADDRESS", "Where to listen; other machines reach 0.0.0.0.", "127.0.0.1")
    port: int = asked("N", "0 takes a free one.", 7860, min=0, max=65535)
    api_keys: Mapping[str, str] = asked_by_name(
        "--api-key NAME=KEY", "Ask for a key, and call who has it so; may be repeated."
    )
    """Keys by the names of those who have them."""
    basic: Mapping[str, str] = asked_by_name("--basic USER:PASSWORD", "Ask for a password; may be repeated.")
    """Passwords by user."""
    no_auth: bool = asked("--no-auth", "Let everybody who reaches the address use the server.", False)
    allow_hosts: tuple[str, ...] = asked("--allow-host NAME", "Another name of this server; may be repeated.", ())
    allow_origins: tuple[str, ...] = asked(
        "--allow-origin URL", "A page elsewhere that may use it; may be repeated.", ()
    )
    proxies: tuple[str, ...] = asked("--proxy ADDRESS", "A proxy in front, with many connections; may be repeated.", ())

    memory_limit: int | None = asked(
        "SIZE",
        "What folders kept open may have together; the networks of a larger one are open in turns. By default "
        "four fifths of what is free.",
        is_size=True,
    )
    """Bytes of their files."""
    time_limit: float = asked("SECONDS", "That a job may be drawn.", 1800.0, min=1)
    max_queue: int = asked("N", "Jobs that may wait.", 200, min=1)
    max_images: int = asked("N", "Pictures of a job.", 100, min=1)
    """Cells of a plot included."""
    max_side: int = asked("--max-size PIXELS", "Of a side.", 2048, min=8)
    max_steps: int = asked("N", "Of a picture.", 500, min=1)
    max_body: int = asked("SIZE", "Of a request.", 64_000_000, is_size=True)

    providers: tuple[str, ...] = ()
    """As `--provider` has them; by default those of each folder's target."""
    provider_options: tuple[str, ...] = ()
    device: str | None = None
    session_options: tuple[str, ...] = ()
    threads: int = 0
    keep_compiled: bool = False

    @property
    def most_enlarged(self) -> int:
        """Pixels of a side that finished pictures may be enlarged to."""
        return 4 * self.max_side

    @property
    def styles_file(self) -> Path:
        """Where styles of prompts are kept."""
        return self.styles or self.gallery / "styles.csv"

    def places(self, *, whole: bool) -> dict[str, list[str]]:
        """Return folders and files by their option, those that were not given empty.

        They are told as whole paths, or in the operator's own words, which say less of the machine.
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
        told = {
            option: [*dict.fromkeys((one.absolute() if whole else one).as_posix() for one in paths)]
            for option, paths in lists.items()
        }
        # What is no UTF-8 could not be told.
        return {option: [one.encode(errors="replace").decode() for one in paths] for option, paths in told.items()}

    def check(self) -> None:
        """Check what would otherwise be found out by the first who asks.

        Raises `SourceError` for a folder that is not there, and `UsageError` for a provider of no known name,
        or bodies that may hold no order.
        """
        from olivelike.runtime.sessions.session_settings import parse_provider

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
