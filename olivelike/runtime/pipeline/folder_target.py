"""The target that a folder was optimised for: what it sets for sessions, and which providers may run it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from olivelike.errors import SessionError
from olivelike.model.records.output import OutputRecord
from olivelike.model.targets import TARGETS, TargetChoice
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.sessions.load_failure import operators_without_kernel
from olivelike.runtime.sessions.providers import find_provider, require_provider
from olivelike.runtime.sessions.session_settings import ProviderChoice, SessionSettings, with_fallback


def read_folder_target(folder: Path) -> TargetChoice | None:
    """Return the target of an output folder; `None` if nothing says which, as in folders that others made.

    Raises `SourceError` if a later version of olivelike made the folder."""
    record = OutputRecord.read(folder)
    return record.target if record is not None and record.target.name in TARGETS else None


def target_settings(target: TargetChoice | None) -> SessionSettings:
    """Return the settings that a target asks for; what TensorRT leaves goes to CUDA."""
    if target is None:
        return SessionSettings()
    return SessionSettings(
        with_fallback([ProviderChoice(find_provider(target.name), _texts(target.options))]),
        device=target.device_id or None,
        session_config=_entries(target.session_options),
        run_config=_entries(target.run_options),
    )


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in options.items()}


def _entries(options: Mapping[str, object]) -> dict[str, str]:
    """Return configuration entries, where ONNX Runtime has 1 and 0 for true and false."""
    return _texts({key: int(value) if isinstance(value, bool) else value for key, value in options.items()})


def check_folder(path: Path, settings: SessionSettings) -> None:
    """Check that a folder's networks can be opened as asked, before anything heavy is imported.

    Raises `SourceError` if it is no pipeline's folder, and `SessionError` if a provider is not installed, or nothing
    runs operators of a network."""
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
        models: ONNX files by the name of their component.

    Raises:
        SessionError: if an operator has no kernel; the message says which, and what to do."""
    if settings.provider.target == target:
        return
    left = {component: operators_without_kernel(path, settings) for component, path in models.items()}
    if refused := "; ".join(f"{component}: {operators}" for component, operators in left.items() if operators):
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

    A workflow of `convert` is named after its output; one in a file may be, too."""
    by_workflow = f"olivelike run WORKFLOW --set target={target}"
    folder = next(path.parent.parent for path in models.values())
    record = OutputRecord.read(folder)
    if record is None or record.workflow != folder.resolve().name:
        return by_workflow
    converted = f"olivelike convert {quote(str(record.source.name))} -t {target} -o {quote(f'{folder}_{target}')}"
    return f"{converted}, or if a workflow file made it: {by_workflow}"
