"""Projects as the engine's tests have them, and servers' fixtures for pages."""

from tests.engine.conftest import checkpoints, project, template  # noqa: F401
from tests.serve.page.conftest import axe  # noqa: F401
