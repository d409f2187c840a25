"""Declaration of a pipeline in one file: the node that writes it, and its job."""

KINDS = {"one_file": "olivelike.extras.one_file.one_file_node:OneFileNode"}
JOBS = {"OneFileJob": "olivelike.extras.one_file.one_file_node:OneFileJob"}
