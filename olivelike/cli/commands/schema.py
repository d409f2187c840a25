"""`olivelike schema`: the JSON schema of workflow files."""

import json

from olivelike.cli import options as shared
from olivelike.cli.stdout import write_text


def schema(plugins: shared.Plugins = None, output: shared.OutputFile = None) -> None:
    """Print the JSON schema of workflow files, for editors.

    It knows the passes of installed plugins, and of those that are named.
    """
    from olivelike.workflow import json_schema

    text = json.dumps(json_schema(shared.load_registry(plugins)), indent=2) + "\n"
    write_text(text, output)
