"""Declaration of a pipeline in one file: the node that writes it, and its task."""

KINDS = {"one_file": "olivelike.extras.one_file.one_file_node:OneFileNode"}
TASKS = {"OneFileTask": "olivelike.extras.one_file.one_file_node:OneFileTask"}
