"""`olivelike serve`: a page and APIs that draw."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from olivelike._text import byte_count
from olivelike.cli import options as shared
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_line
from olivelike.serve.settings import OPTION, ServeSettings, read_keys, read_passwords


def _own_options() -> Iterator[tuple[str, Any, Any]]:
    """Yield name, type and default of an option for each setting that says how it is asked for."""
    kinds = get_type_hints(ServeSettings)
    for one in fields(ServeSettings):
        if (asked := one.metadata.get(OPTION)) is None:
            continue
        kind: Any = kinds[one.name]
        default: Any = one.default
        if get_origin(kind) is tuple:
            kind, default = list[get_args(kind)[0]] | None, None  # type: ignore[misc]
        elif one.name in ("api_keys", "basic"):  # Pairs, which are read later.
            kind, default = list[str] | None, None
        elif asked.is_size:
            kind, default = str | None, None if default is None else f"{default // 10**6}MB"
        said = option(asked.usage, asked.help, **asked.bounds)
        yield one.name, Annotated[kind, said], field(default=default)
        if one.name == "api_keys":
            file = option("--api-keys FILE", "Such keys, one on each line.")
            yield "api_key_file", Annotated[Path | None, file], field(default=None)


@dataclass(frozen=True)
class ServerOptions(make_dataclass("OwnOptions", _own_options(), frozen=True)):  # type: ignore[misc]
    """Settings of a server, but for those of sessions."""

    safety: shared.Safety = True
    sign_pictures: shared.SignPictures = None
    sign_key: shared.SignKey = None
    cache_dir: shared.WorkflowStore = None
    cluster: shared.DrawingCluster = None
    allow_pickle: shared.AllowPickle = False


@shared.with_groups
def serve(
    folders: Annotated[list[Path] | None, argument("FOLDER", "Folders that `olivelike run` wrote.")] = None,
    *,
    server: ServerOptions,
    session: shared.ProviderOptions,
) -> None:
    """Serve a page that paints, and the APIs of OpenAI and A1111.

    Pipelines stay open; jobs and pictures survive a restart.
    """
    from olivelike.serve import serve as run

    said = shared.given(server, session, folders=folders)
    said["api_keys"] = read_keys(said.get("api_keys", ()), said.pop("api_key_file", None))
    said["basic"] = read_passwords(said.get("basic", ()))
    for name in {"memory_limit", "max_body"} & said.keys():
        said[name] = byte_count(said[name], f"--{name.replace('_', '-')}")
    run(ServeSettings(**said), lambda url: write_line(f"{url} is ready; Ctrl-C ends it"))
