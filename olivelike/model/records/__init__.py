"""Records of outputs and runs, as values: written and read here alone.

| module | what it has |
| --- | --- |
| `origin` | where weights come from: a folder, a file, a repository on the hub |
| `output` | `olivelike.json`, the record of an output folder |
| `run_record` | the record of one run in the store |
| `reading` | JSON to values and back, by the types of fields; what earlier versions wrote is brought up to date |
"""
