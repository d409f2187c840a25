"""What the demo can be asked for, and whether a picture shows it: a check of pictures without another network.

| module | what it does |
| --- | --- |
| `scenes`, `captions` | what a picture may show, and the texts that ask for it |
| `drawing` | draws it, as the demo's training data |
| `caption_reading` | reads from a picture's pixels what it shows |
| `evaluation` | counts the captions that are drawn right |
| `__main__` | counts them for pipelines, beside time and likeness |
"""
