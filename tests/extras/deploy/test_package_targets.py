"""Targets as readers of packages know them."""

from __future__ import annotations

from olivelike.extras.deploy.package_targets import VARIANT_PROVIDERS
from olivelike.model.targets import TARGETS


def test_packages_have_a_variant_for_every_target_but_the_one_that_leaves_it_to_the_machine():
    providers = {name: target.provider for name, target in TARGETS.items() if name != "windowsml"}
    assert {**providers, "openvino": "OpenVINOExecutionProvider"} == VARIANT_PROVIDERS
