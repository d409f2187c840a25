"""What diffusers is imported without, and the names by which it asks for it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

from olivelike import _light_diffusers
from olivelike._light_diffusers import light_diffusers


def test_distributions_are_looked_for_when_one_is_asked_for(monkeypatch):
    assert _light_diffusers._look_for_distributions is importlib.metadata.packages_distributions
    there, looked = {"diffusers": ["diffusers"], "torch": ["torch"]}, []
    monkeypatch.setattr(_light_diffusers, "_look_for_distributions", lambda: looked.append(1) or there)
    with light_diffusers():
        found = importlib.metadata.packages_distributions()
        assert not looked
        assert found["diffusers"] == ["diffusers"]
        assert found.get("no_such_package") is None
        assert dict(found) == there
    assert looked == [1]


def test_the_function_is_the_librarys_own_again():
    before = importlib.metadata.packages_distributions
    with light_diffusers():
        assert importlib.metadata.packages_distributions is not before
    assert importlib.metadata.packages_distributions is before


def test_schedulers_and_networks_are_found_without_what_they_do_not_use():
    code = (
        "import sys\n"
        "from olivelike._light_diffusers import light_diffusers\n"
        "with light_diffusers():\n"
        "    from diffusers import DDIMScheduler, DPMSolverMultistepScheduler\n"
        "print(*({'scipy.stats', 'torch._dynamo', 'requests'} & set(sys.modules)))\n"
        "from olivelike.sources.names.adapt import _find_class\n"
        "_find_class('unet', 'diffusers', 'UNet2DConditionModel')\n"
        "_find_class('text_encoder', 'transformers', 'CLIPTextModel')\n"
        "print(*({'scipy.stats', 'requests'} & set(sys.modules)))\n"
        "from diffusers.schedulers import scheduling_ddim, scheduling_euler_discrete as euler\n"
        "print(euler.scipy.stats.beta.ppf(0.5, 2, 2), 'scipy.stats' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n\n0.5 True\n"
