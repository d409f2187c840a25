"""A workflow and its plugin; the plugin's pass has one option of each kind."""

PLUGIN = '''
from typing import Literal

from pydantic import Field, model_validator

from olivelike.pass_api import Pass


class Tune(Pass):
    """Try every kind of option."""

    reads = ("graph",)
    writes = ("graph",)

    flag: bool = False
    """A switch."""
    count: int = Field(1, ge=0, le=9)
    rate: float = 1.0
    label: str | None = "x"
    mode: Literal["fast", "small"] = "fast"
    names: tuple[str, ...] = ()

    @model_validator(mode="after")
    def check(self):
        if self.label == "bad":
            raise ValueError("label and mode do not go together")
        if self.label == "crash":
            raise KeyError("crash")
        return self

    def run(self, model, context):
        return model


class UnetOnly(Tune):
    components = ("unet",)
'''

WORKFLOW = """\
name: mine
source: owner/model
target: cpu
plugins: [tune.py]
components:
  unet: [convert, {tune: {count: 2}}]
  vae_decoder:
    - convert
output: models/mine
"""
