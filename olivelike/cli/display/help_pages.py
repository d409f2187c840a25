"""Additions to what typer writes for `--help`: commands in groups, an example of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from olivelike._extras import commands, imported

_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Make": ("run", "convert", "adapters", "generate", "serve"),
    "Measure": ("verify", "profile"),
    "Understand": ("plan", "explain", "graph", "report"),
    "Look at files": ("info", "inspect", "check-client"),
    "Write workflows and passes": ("init", "workflows", "validate", "schema", "passes", "targets", "plugins"),
    "Look after the machine": ("cache", "shelf", "doctor"),
}
"""Titles of the groups, and the names of the core's commands."""

_EXAMPLES: Final = {
    "": "olivelike convert painter.safetensors -t directml -o models/painter",
    "run": "olivelike run sd15_cuda --set source=./my-checkpoint --output models/mine",
    "convert": "olivelike convert painter.safetensors -t directml -o models/painter",
    "generate": 'olivelike generate models/painter "a red circle" --steps 20 --seed 1',
    "serve": "olivelike serve models/painter",
    "verify": "olivelike verify models/painter --component unet",
    "profile": "olivelike profile models/painter --size 512x512",
    "plan": "olivelike plan workflows/mine.yaml --only unet",
    "explain": "olivelike explain workflows/mine.yaml unet.fuse",
    "graph": "olivelike graph workflows/mine.yaml --format svg --output plan.svg",
    "report": "olivelike report --open",
    "info": "olivelike info painter.safetensors",
    "inspect": "olivelike inspect models/painter/unet/model.onnx --target directml",
    "adapters": "olivelike adapters models/painter ink.safetensors -o adapters",
    "check-client": "olivelike check-client models/painter --client csharp",
    "init": "olivelike init my-project",
    "workflows": "olivelike workflows sd15_cpu",
    "validate": "olivelike validate workflows/mine.yaml",
    "schema": "olivelike schema --output workflow.schema.json",
    "passes": "olivelike passes list",
    "passes list": "olivelike passes list --plugin my_passes.py",
    "passes show": "olivelike passes show float16",
    "passes new": "olivelike passes new sharpen",
    "targets": "olivelike targets directml",
    "plugins": "olivelike plugins --markdown > plugins.md",
    "cache": "olivelike cache size",
    "cache ls": "olivelike cache ls --cache-dir my-project/cache",
    "cache size": "olivelike cache size",
    "cache verify": "olivelike cache verify --repair",
    "cache gc": "olivelike cache gc --max-size 10GB",
    "cache clear": "olivelike cache clear --yes",
    "cache pin": "olivelike cache pin workflows/mine.yaml",
    "cache unpin": "olivelike cache unpin mine",
    "shelf": "olivelike shelf list",
    "shelf add": "olivelike shelf add my-checkpoint --shelf /shared/shelf",
    "shelf list": "olivelike shelf list",
    "shelf verify": "olivelike shelf verify --fresh",
    "doctor": "olivelike doctor",
}
"""Examples by the words of the command."""


_OPTION_GROUPS: Final = {
    "generate": {
        "Picture": ("--width", "--height", "--fast", "--from", "--safety"),
        "Files": (
            "--output", "--overwrite", "--sheet", "--preview", "--metadata", "--sign-pictures", "--sign-key", "--json",
        ),
        "From pictures": ("--init-image", "--mask", "--reference"),
        "LoRAs and control": (
            "--lora", "--lora-dir", "--allow-pickle", "--control", "--control-start", "--control-end",
            "--control-canny", "--ip-adapter",
        ),
        "Prompts and sampling": ("--wildcard-dir",),
        "Time and memory": ("--memory-limit", "--keep-compiled"),
        "Elsewhere": ("--server", "--api-key", "--cluster"),
        "Engine": (
            "--provider", "--provider-option", "--device", "--threads", "--inter-threads", "--session-option",
            "--run-option", "--dimension", "--graph-optimization", "--custom-operators", "--cuda-graph", "--profile",
        ),
    },
}  # fmt: skip
"""Titles of groups of commands with many options, and these by the longest name; others come last.

Options that a request's fields declare come before these, see `option_groups`.
"""


def option_groups(command: str) -> Mapping[str, tuple[str, ...]]:
    """Return the titles under which a command's options stand, and their names."""
    groups = OPTION_GROUPS.get(command, {})
    if command != "generate":
        return groups
    from olivelike.runtime.pipeline.request import asked_fields

    declared = [(asked.group, f"--{asked.name}") for _, asked in asked_fields() if asked.help]
    return {title: (*(name for group, name in declared if group == title), *names) for title, names in groups.items()}


def _grouped() -> Mapping[str, tuple[str, ...]]:
    """Return the groups with the commands of extras in their places."""
    groups = {title: list(names) for title, names in _GROUPS.items()}
    for name, command in commands().items():
        if " " in name:
            continue
        names = groups.setdefault(command.group, [])
        names.insert(names.index(command.after) + 1 if command.after in names else len(names), name)
    return {title: tuple(names) for title, names in groups.items()}


GROUPS: Final = _grouped()
"""Titles of the groups, and the names of all commands."""
EXAMPLES: Final[Mapping[str, str]] = _EXAMPLES | {name: command.example for name, command in commands().items()}
OPTION_GROUPS: Final = _OPTION_GROUPS | {name: one.options for name, one in commands().items() if one.options}


class Command(TyperCommand):
    """A command whose help ends with an example."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read arguments; `generate` takes other programs' names of its options, as lines of prompt files do."""
        if self.name == "generate":
            from olivelike.runtime.jobs.prompt_lines import as_options

            args = as_options(args, {option for one in self.params for option in one.opts})
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line's words; braces would look like a choice."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments by their names alone, without the type in Python, and options."""
        arguments: list[Any] = []
        options: dict[str, Any] = {}
        for item in self.get_params(ctx):
            record = item.get_help_record(ctx)
            if record is not None and item.param_type_name == "argument":
                arguments.append((item.metavar or item.name, record[1]))
            elif record is not None:
                options[max(item.opts, key=len)] = record
        groups = option_groups(" ".join(ctx.command_path.split()[1:]))
        grouped = [(title, [options.pop(name) for name in names if name in options]) for title, names in groups.items()]
        for title, rows in (("Arguments", arguments), *grouped, ("Options", list(options.values()))):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the example."""
        write_example(ctx, formatter)


class Group(TyperGroup):
    """Commands whose help ends with an example; those of extras are imported when they are named."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  (typer's signature)
        """Return the names, in the order of `--help`."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or `None` if there is none of that name."""
        extra = commands().get(f"{self.name} {cmd_name}")
        return super().get_command(ctx, cmd_name) if extra is None else as_command(cmd_name, imported(extra.place))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the example."""
        write_example(ctx, formatter)


def command_group(purpose: str) -> typer.Typer:
    """Return an app for the commands of a group."""
    return typer.Typer(cls=Group, help=purpose, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def as_command(name: str, found: Any) -> Any:
    """Return what typer makes of an app, or of a function that is a command."""
    app = found
    if not isinstance(app, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(cls=Command)(found)
    command: Any = typer.main.get_command(app)
    command.name = name
    if isinstance(command, Group):  # Suggestions for a mistyped name come from here.
        words = map(str.split, commands())
        extra: dict[str, Any] = {word: None for group, *rest in words for word in rest if group == name}
        command.commands.update(extra)
    return command


def write_example(ctx: Any, formatter: Any) -> None:
    """Write the example of a command, on one line, so that it can be copied."""
    example = EXAMPLES.get(" ".join(ctx.command_path.split()[1:]))
    if example is not None:
        formatter.write(f"\nExample:\n  {example}\n")
