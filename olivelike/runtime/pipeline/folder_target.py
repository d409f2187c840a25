"""The target that a folder was optimised for: what it sets for sessions, and which providers may run it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from olivelike._untrusted import read_json
from olivelike.errors import SessionError
from olivelike.model.targets import TARGETS
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.sessions.load_failure import operators_without_kernel
from olivelike.runtime.sessions.providers import find_provider, require_provider
from olivelike.runtime.sessions.session_settings import ProviderChoice, SessionSettings, with_fallback

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_RECORD: Final = "olivelike.json"


@dataclass(frozen=True)
class FolderTarget:
    """What `olivelike.json` says of a folder's target."""

    name: str
    device: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of its provider."""
    session_options: Mapping[str, str] = field(default_factory=dict)
    run_options: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> SessionSettings:
        """Return the settings that the target asks for; what TensorRT leaves goes to CUDA."""
        return SessionSettings(
            with_fallback([ProviderChoice(find_provider(self.name), self.options)]),
            device=self.device or None,
            session_config=self.session_options,
            run_config=self.run_options,
        )


def read_folder_target(folder: Path) -> FolderTarget | None:
    """Return the target of an output folder; `None` if nothing says which, as in folders that others made."""
    try:
        content: Any = read_json(folder / _RECORD)
    except (OSError, ValueError):
        return None
    return folder_target(content.get("target")) if isinstance(content, dict) else None


def folder_target(target: Any) -> FolderTarget | None:
    """Return a target from its JSON values; `None` if they are not those of one."""
    if not isinstance(target, dict) or target.get("name") not in TARGETS:
        return None
    device = target.get("device_id")
    return FolderTarget(
        target["name"],
        device if isinstance(device, int) else 0,
        _texts(target.get("options")),
        _entries(target.get("session_options")),
        _entries(target.get("run_options")),
    )


def _texts(options: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in options.items()} if isinstance(options, dict) else {}


def _entries(options: Any) -> dict[str, str]:
    """Return configuration entries, where ONNX Runtime has 1 and 0 for true and false."""
    entries = options if isinstance(options, dict) else {}
    return _texts({key: int(value) if isinstance(value, bool) else value for key, value in entries.items()})


def check_folder(path: Path, settings: SessionSettings) -> None:
    """Check that a folder's networks can be opened as asked, before anything heavy is imported.

    Raises:
        SourceError: if it is no pipeline's folder.
        SessionError: if a provider is not installed, or nothing runs operators of a network.
    """
    models = open_folder(path).models(safety=False)
    target = read_folder_target(path)
    for choice in settings.providers:
        try:
            require_provider(choice.provider)
        except SessionError as error:
            if target is None or choice.provider.target != target.name:
                raise
            raise SessionError(f"{error}; to use the folder on this machine, {_other_way(models)}") from error
    if target is not None:
        check_folder_target(target.name, settings, models)


def check_folder_target(target: str, settings: SessionSettings, models: Mapping[str, Path]) -> None:
    """Check that the asked providers run networks that were optimised for a target.

    Another provider than the target's may do: what counts is whether every operator has a kernel on one of the asked
    providers, or on the CPU. Files are read, without weights, only if the provider is not the target's.

    Args:
        target: Name of the folder's target.
        settings: The asked providers.
        models: ONNX files by the name of their component.

    Raises:
        SessionError: if an operator has no kernel; the message says which, and what to do.
    """
    if settings.provider.target == target:
        return
    left = {component: operators_without_kernel(path, settings) for component, path in models.items()}
    if refused := "; ".join(
        f"{component}: {operators}" for component, operators in left.items() if operators
    ):
        name = settings.provider.short_name
        raise SessionError(
            f"the folder was optimised for {target}, and on {name} nothing runs operators of it ({refused}); "
            f"optimise it for {name} ({_remedy(models, name)}), or run it with --provider {target}"
        )


def _other_way(models: Mapping[str, Path]) -> str:
    """Return how the CPU runs a folder whose target is not installed: as it is, or optimised anew."""
    cpu = SessionSettings((ProviderChoice(find_provider("cpu")),))
    if any(operators_without_kernel(path, cpu) for path in models.values()):
        return f"optimise it for cpu ({_remedy(models, 'cpu')})"
    return "run it with --provider cpu"


def _remedy(models: Mapping[str, Path], target: str) -> str:
    """Return the command that makes a folder for another target: that of `convert` if it may have made this one.

    A workflow of `convert` is named after its output; one in a file may be, too.
    """
    by_workflow = f"olivelike run WORKFLOW --set target={target}"
    folder = next(path.parent.parent for path in models.values())
    try:
        record: Any = read_json(folder / _RECORD)
        made_by, source = record["workflow"], record["source"]
        named = source.get("name") or source.get("file") or source["repository"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return by_workflow
    if made_by != folder.resolve().name:
        return by_workflow
    converted = f"olivelike convert {_word(named)} -t {target} -o {_word(f'{folder}_{target}')}"
    return f"{converted}, or if a workflow file made it: {by_workflow}"


def _word(text: object) -> str:
    import shlex

    return shlex.quote(str(text))
