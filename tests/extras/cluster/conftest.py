"""Projects and servers as the core's tests have them."""

from tests.engine.conftest import checkpoints, project, template  # noqa: F401
from tests.serve.conftest import base_settings, forks, little, server  # noqa: F401
