"""FLUX.1 at tiny size, in what it has of its own beside other transformers."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from drawn_transformers import assert_alike

from olivelike.errors import SourceError
from olivelike.runtime import open_pipeline
from olivelike.runtime.jobs.job_plan import plan_jobs
from olivelike.runtime.jobs.prompt_lines import PromptLine

both = pytest.mark.parametrize(("variant", "usual"), [("", (4, 0.0)), ("dev", (28, 3.5))], ids=["schnell", "dev"])


def test_the_guidance_is_an_input_of_dev_and_nothing_to_schnell(drawn):
    schnell, dev = drawn("flux"), drawn("flux", "dev")
    weak, strong = (dev.pipeline.latents(dev.ask(guidance_scale=scale)) for scale in (1.0, 6.0))
    assert not np.allclose(weak, strong, atol=1e-3)
    assert_alike(dev.pipeline.generate(dev.ask(guidance_scale=1.0)), dev.painted(guidance_scale=1.0))
    same = [schnell.pipeline.latents(schnell.ask(guidance_scale=scale)) for scale in (0.0, 6.0)]
    assert np.array_equal(*same)
    for made, is_noted in ((schnell, True), (dev, False)):
        noted = plan_jobs(made.folder, [PromptLine("a red circle")], {"guidance_scale": 7.0}).notes
        assert any("guidance scale is not used" in note for note in noted) is is_noted


def test_a_folder_without_t5_says_so(drawn, tmp_path):
    made = drawn("flux")
    folder = shutil.copytree(made.folder, tmp_path / "copy")
    shutil.rmtree(folder / "text_encoder_2")
    with pytest.raises(SourceError, match="text_encoder_2, T5"):
        open_pipeline(folder).generate(made.ask())


@both
def test_an_order_has_the_usual_values_of_the_folder_and_the_page_leaves_out_what_has_no_meaning(drawn, variant, usual):
    from olivelike.runtime.pipeline.resolve_defaults import absent_fields
    from olivelike.serve.api.catalogue_routes import _fields
    from olivelike.serve.catalogue import Catalogue
    from olivelike.serve.drawing.planning import Files, plan_order
    from olivelike.serve.orders import Order
    from olivelike.serve.settings import ServeSettings

    made = drawn("flux", variant)
    settings = ServeSettings(folders=(made.folder,))
    catalogue = Catalogue(settings)
    (view,) = catalogue.models(())
    told = _fields(SimpleNamespace(settings=settings, catalogue=catalogue), view)
    assert (told["steps"]["default"], told["guidance_scale"]["default"]) == usual
    absent = {name for name, one in told.items() if one.get("absent")}
    assert absent == {*absent_fields(made.pipeline.folder)} >= {"negative_prompt", "clip_layer"}
    name = made.folder.name
    files = Files({name: made.folder}, made.folder, (), (), allow_pickle=False)
    sent = Order(model=name, prompt="a red circle", seed=5).model_dump(mode="json", exclude_unset=True)
    (job,) = plan_order(Order.model_validate(sent), files).jobs
    assert (job.request.steps, job.request.guidance_scale) == usual
    (job,) = plan_order(Order.model_validate({**sent, "steps": 3}), files).jobs
    assert job.request.steps == 3
