"""The little pipeline, as tests of the runtime have it."""

from tests.runtime.conftest import little_folder, settings

__all__ = ["little_folder", "settings"]
