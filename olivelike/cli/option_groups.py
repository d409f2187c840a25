"""Options as values: a command takes frozen dataclasses, and typer sees each of their fields as an option."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options.

    A field is written as a command's parameter is, in a module without `from __future__ import annotations`:
    `steps: Annotated[int, typer.Option(help="How many.")] = 50`.

    Args:
        command: the parameters whose type is a dataclass are groups.
    """
    groups: dict[str, Any] = {}
    shown: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if not is_dataclass(parameter.annotation):
            shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = parameter.annotation
        shown += [
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type
            )
            for option in fields(parameter.annotation)
        ]

    @wraps(command)
    def run(**values: Any) -> None:
        made = {
            name: group(**{option.name: values.pop(option.name) for option in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **made)

    run.__dict__["__signature__"] = inspect.Signature(shown)  # Where `inspect` looks first.
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run
