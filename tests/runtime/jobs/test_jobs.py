"""Planning and drawing pictures from Python, as a script does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from olivelike.engine.output.swap import LiveLoras
from olivelike.errors import SourceError, UsageError
from olivelike.model.records.origin import Origin
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.jobs import PromptLine, draw, plan_jobs, read_prompts
from olivelike.runtime.jobs.job_drawing import (
    BatchDone,
    MergedLora,
    Opened,
    Opening,
    PictureWritten,
    SheetWritten,
    StepDone,
    read_event,
)
from olivelike.runtime.jobs.job_notes import record_notes, recorded_fields, size_notes
from olivelike.runtime.jobs.job_plan import open_pictures
from olivelike.runtime.pictures import PictureRecord, PictureWriter, UsedFile, read_picture_record
from olivelike.runtime.pictures.picture_record import a1111_text, record_from_json
from olivelike.runtime.pictures.recipe_text import parse_a1111
from olivelike.runtime.pipeline import pipeline as module_of_pipeline
from olivelike.runtime.pipeline.cheap_steps import cache_notes
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.pipeline.request import Pictures
from tests.fixtures.little_pipeline import little_checkpoint, little_pipeline
from tests.fixtures.sample_records import write_output_record
from tests.runtime.small_networks import TWICE, write_network

FEW: dict = {"steps": 2, "seed": 7}


@pytest.fixture(scope="module")
def little(one_torch_thread):
    return little_pipeline()


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    from olivelike.testing.lora_files import make_lora

    path = tmp_path_factory.mktemp("loras") / "style.safetensors"
    return make_lora(path, "kohya", base=little_checkpoint(), alpha=64.0)


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image)


def test_choices_and_loras_are_read_without_emphasis(little, lora):
    line = PromptLine(r"({red|red}:1.2) \{a|b\} \(c\) <lora:style:0.5>BREAK")
    files = LiveLoras([lora.parent])
    (job,) = plan_jobs(little, [line], {**FEW, "prompt_weights": False}, lora_files=files).jobs
    assert job.request.prompts == (r"(red:1.2) {a|b} \(c\) BREAK",)
    assert job.loras[0].name == "style"
    assert job.record.prompt_weights is False
    assert [*job.written.values()] == [r"(red:1.2) \{a|b\} \(c\) <lora:style:0.5>BREAK"]
    with_emphasis, _ = plan_jobs(little, [line] * 2, {**FEW, "num_images": 1}, lora_files=files).jobs[0].request.prompts
    assert with_emphasis == r"(red:1.2) \{a|b\} \(c\) BREAK"


def test_loras_of_a_plan_are_looked_for_once(little, lora, monkeypatch):
    files, looked_for = LiveLoras([lora.parent]), []
    find = files._find
    monkeypatch.setattr(files, "_find", lambda written, name: looked_for.append(written) or find(written, name))
    lines = [PromptLine("a <lora:style:0.5>"), PromptLine("b <lora:style:0.25>"), PromptLine("c <lora:style:0.5>")]
    jobs = plan_jobs(little, lines, {**FEW, "num_images": 3}, lora_files=files).jobs
    assert [[one.unet_weight for one in job.loras] for job in jobs] == [[0.5], [0.25], [0.5]]
    assert looked_for == ["<lora:style:0.5>", "<lora:style:0.25>"]


def test_a_script_draws_what_the_pipeline_gives_and_makes_it_again(little, tmp_path):
    plan = plan_jobs(little, read_prompts(["a red circle"]), {**FEW, "num_images": 2})
    paths = draw(plan, PictureWriter(tmp_path / "pictures"))
    assert [path.name for path in paths] == ["00001-7.png", "00002-8.png"]
    made = open_pipeline(little).generate(Request(("a red circle",), num_images=2, steps=2, seed=7))
    for path, picture in zip(paths, made.pictures, strict=True):
        assert (pixels(path) == np.asarray(picture.image)).all()
    again = plan_jobs(little, made_before=paths[1])
    (path,) = draw(again, PictureWriter(tmp_path / "again.png"))
    assert path.read_bytes() == paths[1].read_bytes()
    other = plan_jobs(little, fields={"seed": 9}, made_before=paths[1])
    assert other.jobs[0].request.seeded_prompts == [("a red circle", 9)]
    assert other.jobs[0].request.steps == 2


def test_pictures_that_were_varied_enlarged_or_painted_in_part_are_made_again(little, tmp_path):
    upscaler = write_network(tmp_path, TWICE)
    photo, hole = tmp_path / "photo.png", tmp_path / "hole.png"
    few = np.random.default_rng(1).integers(0, 255, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(few).resize((96, 80)).save(photo)
    Image.fromarray(np.pad(np.full((20, 20), 255, np.uint8), ((8, 52), (8, 68)))).save(hole)
    area = {"inpaint_area": "masked", "mask_blur": 2, "inpaint_padding": 4}
    for number, (fields, files, given) in enumerate(
        (
            ({"variation_strength": 0.3, "num_images": 2}, {}, {}),
            ({"hires": 1.5, "hires_strength": 0.5, "size": (32, 32)}, {}, {}),
            ({"upscaler": upscaler}, {}, {"upscaler": upscaler}),
            ({"hires": 1.5, "upscaler": Path("Nearest"), "size": (32, 32)}, {}, {}),
            (area, {"init_image": photo, "mask": hole}, {}),
        )
    ):
        plan = plan_jobs(little, read_prompts(["a red circle"]), {**FEW, **fields}, pictures=Pictures(**files))
        *_, made = draw(plan, PictureWriter(str(tmp_path / f"made{number}-{{index}}.png")))
        (again,) = draw(plan_jobs(little, fields=given, made_before=made), PictureWriter(tmp_path / f"{number}.png"))
        assert again.read_bytes() == made.read_bytes()
        assert replace(plan.jobs[0].request, prompts=()) != Request((), **FEW)
    with pytest.raises(UsageError, match=r"enlarged by model\.onnx.*--upscaler"):
        plan_jobs(little, made_before=tmp_path / "2.png")
    plain = (
        plan_jobs(little, read_prompts(["a red circle"]), {**FEW, "hires_strength": 0.4, "hires_steps": 6})
        .jobs[0]
        .record.to_json()
    )
    assert not any(word in plain for word in ("variation", "hires", "upscaler", "inpaint", "mask_blur"))


def test_a_second_pass_that_is_not_quite_as_large_as_asked_is_noted(little):
    plan = plan_jobs(little, read_prompts(["a", "b"]), {**FEW, "size": (32, 32), "hires": 1.3})
    assert [note for note in plan.notes if "hires" in note] == [
        "hires 1.3 of 32x32 is drawn at 40x40, the nearest that this pipeline makes"
    ]


def test_options_of_a_line_may_vary_and_enlarge(tmp_path):
    (tmp_path / "jobs.txt").write_text("--prompt a --subseed 3 --subseed_strength 0.5 --hires 1.5:0.6")
    (line,) = read_prompts([f"@{tmp_path / 'jobs.txt'}"])
    assert line.fields == {"variation_seed": 3, "variation_strength": 0.5, "hires": 1.5, "hires_strength": 0.6}


def test_what_happens_is_told_in_order(little, tmp_path):
    lines = [PromptLine("a"), PromptLine("b", {"steps": 1})]
    plan = plan_jobs(little, lines, {**FEW, "scheduler": "DDIM"})
    events: list = []
    draw(plan, PictureWriter(tmp_path), sheet=True, safety=False, on_event=events.append)
    kinds = [Opening, Opened, StepDone, StepDone, PictureWritten, BatchDone, StepDone, PictureWritten, BatchDone]
    assert list(map(type, events)) == [*kinds, SheetWritten]
    assert (events[1].pictures, events[1].checked, events[1].safety) == (2, False, False)
    steps = [event for event in events if isinstance(event, StepDone)]
    placed = [(event.batch, event.batches, event.step, event.prompts) for event in steps]
    assert placed == [(1, 2, 1, ("a",)), (1, 2, 2, ("a",)), (2, 2, 1, ("b",))]
    assert [event.batch for event in events if isinstance(event, BatchDone)] == [1, 2]


def test_what_other_processes_are_told_is_read_again():
    loras = (MergedLora("style", "style:0.5"),)
    opened = Opened(
        provider="CPU", width=32, height=48, checked=False, safety=True, seed=2**63, pictures=3, model="m", loras=loras
    )
    step = StepDone(step=1, steps=2, batch=1, batches=1, attempt=2, timestep=999.0, done=1, steps_total=2, eta=0.5)
    events = (
        Opening(model="m", loras=loras),
        opened,
        step,
        replace(step, prompts=("a", "b"), preview="data:,"),
        BatchDone(batch=1, batches=2, pictures=3, passed=2, seconds=0.25),
    )
    for event in events:
        told = json.loads(json.dumps({"type": event.kind, "job": "a", **event.to_json()}))
        assert read_event(told) == event
    told = replace(step, size=(1, 2), images=list).to_json()
    assert list(told) == [
        "step", "steps", "batch", "batches", "attempt", "timestep", "done", "steps_total", "eta",
    ]  # fmt: skip
    assert opened.to_json()["loras"] == [{"name": "style", "text": "style:0.5"}]
    assert read_event({"type": "queue", "job": "a", "position": 1}) is None
    for broken in (
        {"type": "step"},
        {"type": "step", **step.to_json(), "step": "many"},
        {"type": "batch", "batch": []},
    ):
        with pytest.raises(ValueError, match="validation error"):
            read_event(broken)


def test_a_request_is_resolved_once_for_a_folder_as_it_is(little, monkeypatch):
    (job,) = plan_jobs(little, [PromptLine("a"), PromptLine("b")], {**FEW, "size": (32, 32)}).jobs
    pipeline = open_pipeline(little)
    times = []
    monkeypatch.setattr(module_of_pipeline, "resolve_defaults", lambda request, _: times.append(request) or request)
    rest = job.request.without(1)
    assert (rest.prompts, rest.seeds, rest.resolved_for) == (("b",), (7,), pipeline.folder)
    assert pipeline.resolve_defaults(rest) is rest
    changed = replace(rest, steps=-1)
    assert (changed.resolved_for, times) == (None, [])
    pipeline.resolve_defaults(changed)
    assert times == [changed]


def test_loras_are_opened_once_merged_and_recorded(little, lora, tmp_path):
    loras = LiveLoras([lora.parent])
    lines = read_prompts(["a<lora:style:0.5>", "a", "a<lora:style:0:0.5>"])
    plan = plan_jobs(little, lines, {**FEW}, lora_files=loras)
    tagged, plain, split = draw(plan, PictureWriter(tmp_path))
    named = plan_jobs(little, [PromptLine("a")], {**FEW}, lora_files=loras, loras=[loras.named(f"{lora}:0.5")])
    (always,) = draw(named, PictureWriter(tmp_path))
    assert (pixels(tagged) == pixels(always)).all()
    assert len({pixels(path).tobytes() for path in (tagged, plain, split)}) == 3
    assert [str(one) for one in plan.jobs[2].loras] == ["style at 0:0.5"]
    (used,) = read_picture_record(tagged).loras
    assert (used.name, used.weight, len(used.hash)) == ("style", 0.5, 12)


def test_a_lora_that_is_written_anew_is_opened_anew(little, lora, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    mine = tmp_path / "loras" / "style.safetensors"
    mine.parent.mkdir()
    shutil.copy(lora, mine)
    loras = LiveLoras([mine.parent])
    lines = [PromptLine("a<lora:style:0.5>")]
    before = plan_jobs(little, lines, {**FEW}, lora_files=loras)
    save_file({name: values * 2 for name, values in load_file(mine).items()}, mine)
    with pytest.raises(SourceError, match=r"style.safetensors: was written anew since"):
        loras.merge(before.jobs[0].loras, little)
    after = plan_jobs(little, lines, {**FEW}, lora_files=loras)
    assert after.jobs[0].loras[0].hash != before.jobs[0].loras[0].hash
    loras.merge(after.jobs[0].loras, little)
    mine.unlink()
    with pytest.raises(SourceError, match="can't be read: No such file"):
        loras.merge(after.jobs[0].loras, little)


def test_a_tag_needs_what_opens_loras(little):
    with pytest.raises(UsageError, match="<lora:style>: nothing opens LoRAs here; give `lora_files`"):
        plan_jobs(little, [PromptLine("a<lora:style>")], {**FEW})
    with pytest.raises(SourceError, match="there is no LoRA of that name"):
        plan_jobs(little, [PromptLine("a<lora:style>")], {**FEW}, lora_files=LiveLoras())


def test_a_pipeline_with_other_initializers_shares_what_they_leave(little, lora):
    plain = open_pipeline(little)
    plain.generate(Request(("a",), steps=2, seed=7))
    loras = LiveLoras()
    merged = loras.merge([loras.named(f"{lora}:0.5")], little)
    styled = plain.with_initializers(merged)
    request = Request(("a",), steps=2, seed=7)
    opened = open_pipeline(little, initializers=merged).generate(request).pictures[0].image
    assert styled.generate(request).pictures[0].image.tobytes() == opened.tobytes()
    back = styled.with_initializers({})
    images = [one.generate(request).pictures[0].image.tobytes() for one in (plain, back)]
    assert images[0] == images[1] != opened.tobytes()
    assert styled.denoiser is not plain.denoiser
    assert styled._decoder() is plain._decoder()


def test_a_size_far_beyond_the_unet_s_own_is_written_without_exponents(little):
    (note,) = size_notes([Request(("a",), seed=1, size=(8192, 8192))], open_folder(little))
    assert "is 65,536 times the area" in note
    assert "a step takes 65,536 to 4,294,967,296 times as long" in note


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"negative_prompt": "a dog"}, "the negative prompt: not used: at guidance 1 nothing leads away"),
        ({"guidance_calls": "two", "guidance_rescale": 0.5}, "guidance_rescale, guidance_calls: not used"),
        ({"guidance_calls": "faster", "negative_prompt": "b"}, "the negative prompt, guidance_calls: not used"),
    ],
    ids=str,
)
def test_what_is_asked_of_guidance_that_is_off_is_noted(little, asked, said):
    lines = read_prompts(["a"])
    (note,) = plan_jobs(little, lines, {**FEW, **asked, "guidance_scale": 1.0}).notes
    assert note.startswith(said)
    assert plan_jobs(little, lines, {**FEW, **asked, "guidance_scale": 1.5}).notes == ()
    assert plan_jobs(little, read_prompts(["a AND b"]), {**FEW, **asked, "guidance_scale": 1.0}).notes == ()
    assert plan_jobs(little, lines, {**FEW, "negative_prompt": "", "guidance_scale": 1.0}).notes == ()


def test_a_cache_interval_that_leaves_few_whole_steps_is_noted():
    few, enough, none = (Request(("a",), seed=1, steps=n, cache_interval=i) for n, i in ((4, 2), (30, 3), (4, 1)))
    (note,) = cache_notes([few, enough, none, few])
    assert "leaves 2 whole steps of 4" in note
    assert "or at least 20" in note


def test_a_size_is_refused_with_its_line(little):
    lines = [PromptLine("a"), PromptLine("b", {"size": (33, 32)}, "p.txt:2")]
    with pytest.raises(UsageError, match=r"^p.txt:2: size 33x32"):
        plan_jobs(little, lines, {**FEW})


def test_what_a_picture_was_not_made_of_is_noted(tmp_path):
    init, mask, a, b = (UsedFile(name, name * 64) for name in "12ab")
    before = PictureRecord("a", init_image=init, mask=mask, loras=(replace(a, weight=0.5),), strength=0.7)

    def notes(record, used, loras):
        return record_notes(record, tmp_path, Pictures(init_image=used[0], mask=used[1]), loras)

    assert notes(before, (init, mask), before.loras) == []
    assert notes(before, (mask, init), (replace(a, weight=1.0),)) == [
        "the picture was made from 1; 2 (--init-image) has other content",
        "the picture was made from 2; 1 (--mask) has other content",
        "the picture was made with the LoRA a:0.5, now its weight is 1",
    ]
    assert notes(before, (init, mask), (replace(b, weight=1.0),)) == [
        "the picture was made with the LoRA a, which is not among those of --lora",
        "the picture was made without the LoRA b",
    ]
    assert notes(PictureRecord("a", strength=0.7), (None, None), ()) == [
        "not taken over, so that the picture may be another: Denoising strength 0.7 of a picture that is not named",
        "the picture is made from the prompt alone; --init-image starts from a picture",
    ]
    assert notes(PictureRecord("a", strength=0.7), (init, None), ()) == []


def test_another_checkpoint_is_noted_by_its_hash(tmp_path):
    write_output_record(tmp_path, source=Origin("file", "a.safetensors", sha256="0123456789abcdef"))

    def notes(made):
        record = PictureRecord("a", model_hash=made)
        return record_notes(record, tmp_path, Pictures(), ())

    assert notes("0123456789") == notes("81761151") == notes(None) == []
    (note,) = notes("fedcba9876")
    assert note.startswith("the picture was made with a checkpoint of hash fedcba9876, ")
    assert note.endswith("with one of 0123456789")


def test_cheap_steps_are_in_the_record_and_come_back(little):
    fields = {"guidance_interval": (0.0, 0.5), "steps": 4, "seed": 3}
    lines = [PromptLine("a red circle", fields)]
    record = plan_jobs(little, lines).jobs[0].record
    assert 'Guidance interval: "0:0.5"' in a1111_text(record)
    assert parse_a1111(a1111_text(record)).guidance_interval == (0.0, 0.5)
    again = recorded_fields(record_from_json(record.to_json(), "it"), ())
    assert (again["guidance_interval"], again["cache_interval"]) == ((0.0, 0.5), 1)


def test_references_are_kept_as_large_as_they_are_shown_and_no_more_are_opened_than_a_family_takes():
    opened = []

    def open_one(name):
        opened.append(name)
        return Image.new("RGB", (4096, 1024)), UsedFile(name, "0" * 64)

    found = open_pictures(Pictures(init_image="a", references=("b", "c")), open_one)
    assert [image.size for image, _ in found] == [(4096, 1024), (2048, 512), (2048, 512)]
    assert [used.name for _, used in found] == opened == ["a", "b", "c"]
    with pytest.raises(UsageError, match="1000000 references are given; at most 10 are taken"):
        open_pictures(Pictures(references=("b",) * 1_000_000), open_one)
    assert len(opened) == 3
