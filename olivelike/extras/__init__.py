"""Features that the core does without; each folder is one extra."""
