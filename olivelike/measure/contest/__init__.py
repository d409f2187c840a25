"""Pipelines and networks measured side by side, each in a process of its own, which take turns.

| module | what it does |
| --- | --- |
| `contest` | processes that take turns, and the parent's end of each |
| `engine` | what goes to a child, what it opens, a turn of it, and what that took |
| `contest_worker` | the child, which runs an engine when told to |
| `runtime_engine` | our runtime, as a child opens it |
| `memory` | what is measured, on what, and what speaks against it |
"""
