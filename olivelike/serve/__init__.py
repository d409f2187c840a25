"""`olivelike serve`: pictures over HTTP, drawn one after another by pipelines that stay warm.

```python
from pathlib import Path

from olivelike.serve import ServeSettings, serve

serve(ServeSettings(folders=(Path("models/painter"),)))
```

`create_app` gives the same as an ASGI application, for servers of one's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.serve.application import create_app
    from olivelike.serve.listen import serve
    from olivelike.serve.settings import ServeSettings

__all__ = ["ServeSettings", "create_app", "serve"]

__getattr__ = names_from(__name__, __file__)
