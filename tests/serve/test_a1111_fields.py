"""A1111's fields and options: each is on the list, and what the list says of it is so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from olivelike.serve.api.a1111_fields import BODIES, OPTIONS, SITUATIONS, asked_for, idle
from olivelike.serve.api.a1111_models import Extras, ImageToImage, ManyExtras, Options, PngInfo, TextToImage
from olivelike.serve.api.refusals import RequestRefusedError
from tests.serve.test_a1111 import FAST, decoded, encoded, picture

THEIRS = json.loads((Path(__file__).parents[1] / "fixtures" / "a1111_fields.json").read_text(encoding="utf-8"))
"""Names and defaults of A1111 1.10.1, taken from its sources by a program."""
FORMS = {
    "txt2img": TextToImage, "img2img": ImageToImage, "extra-single-image": Extras, "extra-batch-images": ManyExtras,
    "png-info": PngInfo, "options": Options,
}  # fmt: skip
REFUSED = [(route, name) for route in FORMS for name, field in BODIES[route].items() if field.state == "refused"]
IDLE = [(route, name) for route in FORMS for name, field in BODIES[route].items() if field.state == "no effect"]


def another(default):
    """Return a value that is not a default."""
    match default:
        case bool():
            return not default
        case int() | float():
            return default + 0.25
        case None | list() | dict():
            return "something"
    return default + "something"


def told(answer):
    assert answer.status_code == 200, answer.text
    return json.loads(answer.json()["info"])["warnings"]


@pytest.mark.parametrize("route", list(THEIRS))
def test_every_field_of_a1111_is_on_the_list_with_its_default(route):
    assert set(THEIRS[route]) <= set(BODIES[route])
    assert {name: BODIES[route][name].default for name in THEIRS[route]} == THEIRS[route]
    assert set(BODIES[route]) - set(THEIRS[route]) <= {
        "k_sched_type", "enable_emphasis", "dont_fix_second_order_samplers_schedule",
    }  # fmt: skip


@pytest.mark.parametrize("route", list(FORMS))
def test_forms_have_the_fields_that_are_done_and_no_others(route):
    done = {name for name, field in BODIES[route].items() if field.state == "done"}
    own = {"clip_skip"} if route.endswith("2img") else {"image"} if route == "extra-batch-images" else set()
    assert set(FORMS[route].model_fields) == done | own


def test_what_is_refused_is_so_with_other_values_than_the_default():
    everywhere = set(SITUATIONS)
    for route, name in REFUSED:
        field, told = BODIES[route][name], f"{route}: {name}"
        for plain in (field.default, None, *field.also):
            assert not list(asked_for({name: plain}, BODIES[route], everywhere)), told
        assert list(asked_for({name: another(field.default)}, BODIES[route], everywhere)) == [name], told
        assert bool(list(asked_for({name: another(field.default)}, BODIES[route], set()))) == (not field.acts), told


def test_what_has_no_effect_is_named_with_other_values_than_the_default():
    for route, name in IDLE:
        default = BODIES[route][name].default
        assert not list(idle({name: default}, BODIES[route])), f"{route}: {name}"
        assert list(idle({name: another(default)}, BODIES[route])) == [name], route


def test_what_a_controlnet_unit_has_beside_what_is_done_is_named_or_refused():
    def settled(more, **fields):
        unit = {"image": encoded(picture()), **more}
        asked = TextToImage(alwayson_scripts={"ControlNet": {"args": [unit, unit]}}, **fields)
        return asked.settled(lenient=False)[1]

    assert settled({"resize_mode": 1, "processor_res": -1, "hr_option": "Both", "low_vram": False, "mask": None}) == []
    sent = {"resize_mode": "Resize and Fill", "processor_res": 512, "hr_option": "Low res only", "colour": "red"}
    names = ("resize_mode", "processor_res", "colour")
    assert settled(sent) == ["without effect here: " + ", ".join(f"alwayson_scripts.ControlNet.{one}" for one in names)]
    for more, fields in ((sent, {"enable_hr": True}), ({"effective_region_mask": "AAAA"}, {})):
        name = next(reversed(more)) if not fields else "hr_option"
        with pytest.raises(RequestRefusedError, match=f"alwayson_scripts.ControlNet.{name} '"):
            settled(more, **fields)


@pytest.mark.parametrize(
    ("value", "default", "is_plain"),
    [
        ("False", False, True), (0, False, True), (0.0, False, True), ("0", False, True), (1, True, True),
        ("true", True, True), ("yes", False, False), ("0.0", 0.0, True), (0, 0.0, True), ("1e3", 0, False),
        ("automatic", "Automatic", True), (" Automatic ", "Automatic", True), ([], None, True), ("None", None, True),
        ({}, [], False), ("x", 0, False), ([1], 0, False), (10**400, 0, False), ([], False, True), ([0], False, False),
    ],
)  # fmt: skip
def test_values_are_compared_by_what_they_mean(value, default, is_plain):
    name = next(name for name, field in OPTIONS.items() if field.state == "no effect" and field.default == default
                and type(field.default) is type(default))  # fmt: skip
    assert OPTIONS[name].is_plain(value) == is_plain


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"sampler_name": "Euler a", "eta": 0.67}, "eta 0.67"),
        ({"sampler_name": "DPM++ 2M SDE Karras", "eta": 0}, "eta 0"),
        ({"s_min_uncond": 1}, "s_min_uncond 1"),
        ({"sampler_name": "Euler a", "override_settings": {"eta_noise_seed_delta": 31337}}, "eta_noise_seed_delta 3"),
        ({"override_settings": {"sd_vae": "a.safetensors"}}, "override_settings.sd_vae 'a.safetensors'"),
        ({"override_settings": {"emphasis": "None"}}, "override_settings.emphasis"),
        ({"override_settings": {"randn_source": "NV"}}, "override_settings.randn_source"),
        ({"sampler_name": "UniPC", "override_settings": {"uni_pc_order": "2"}}, "uni_pc_order"),
        ({"enable_hr": True, "hr_sampler_name": "Euler a", "eta": 0.5}, "eta 0.5"),
        ({"cfg_scale": 0.5}, "cfg_scale 0.5"),
        ({"cfg_scale": "0"}, "cfg_scale 0"),
        ({"cfg_scale": -1}, "cfg_scale -1"),
        ({"restore_faces": 1, "tiling": "true"}, "restore_faces 1 (faces are not restored), tiling 'true'"),
    ],
)
def test_what_would_make_another_picture_there_is_refused_by_its_name(client, fields, name):
    answer = client.post("/sdapi/v1/txt2img", json={**FAST, **fields})
    assert answer.status_code == 422
    assert name in answer.json()["detail"]
    assert "--ignore-unsupported" in answer.json()["detail"]


@pytest.mark.parametrize(
    "fields",
    [
        {"sampler_name": "Euler a", "eta": 1.0},
        {"sampler_name": "Euler", "eta": 0.3, "override_settings": {"eta_noise_seed_delta": 31337}},
        {"override_settings": {"img2img_color_correction": True, "uni_pc_order": 2, "randn_source": "CPU"}},
        {"restore_faces": 0, "tiling": "false", "styles": [], "s_noise": "1.0", "seed_resize_from_w": 0},
        {"do_not_save_samples": True, "do_not_save_grid": 1, "override_settings": {"sd_vae": "None", "emphasis": None}},
    ],
)
def test_what_changes_no_picture_there_either_is_taken_without_a_word(client, fields):
    assert told(client.post("/sdapi/v1/txt2img", json={**FAST, **fields})) == []


def test_what_does_nothing_here_is_named_in_the_answer(client):
    settings = {"jpeg_quality": 95, "samples_save": True, "an_extension": {"a": 1}}
    body = {**FAST, "force_task_id": "x", "url": None, "hr_cfg": 3, "n" * 900: 1, "override_settings": settings}
    (said,) = told(client.post("/sdapi/v1/txt2img", json=body))
    names = f"force_task_id, hr_cfg, {'n' * 60}…, override_settings.jpeg_quality, override_settings.an_extension"
    assert said == f"without effect here: {names}"
    many = {f"x{number}": 1 for number in range(3000)}
    (said,) = told(client.post("/sdapi/v1/txt2img", json={**FAST, **many}))
    assert said.endswith("x19 and 2980 more")
    (said,) = told(client.post("/sdapi/v1/txt2img", json={**FAST, "eta": 0.5}))
    assert said == "without effect here: eta"


def test_notes_on_a_job_are_among_the_warnings(client):
    (said,) = told(client.post("/sdapi/v1/txt2img", json={**FAST, "width": 128, "height": 64}))
    assert said.startswith("128x64 is 8 times the area")


def test_the_answer_has_all_fields_that_a1111_answers_with(client):
    answer = client.post(
        "/sdapi/v1/txt2img", json={**FAST, "cfg_scale": "5", "x": 1, "override_settings": {"font": ""}}
    )
    fields = answer.json()["parameters"]
    assert set(THEIRS["txt2img"]) <= set(fields)
    assert (fields["cfg_scale"], fields["restore_faces"], fields["override_settings"]) == (5, None, {"font": ""})
    assert "x" not in fields


def test_a_server_may_leave_out_what_is_not_done(serve):
    with serve(ignore_unsupported=True).client() as client:
        body = {
            **FAST, "restore_faces": True, "cfg_scale": 0.5, "alwayson_scripts": {"ADetailer": {"args": [True]}},
            "override_settings": {"sd_vae": "a.safetensors"},
        }  # fmt: skip
        answer = client.post("/sdapi/v1/txt2img", json=body)
        (said,) = told(answer)
        for name in ("restore_faces True", "cfg_scale 0.5", "alwayson_scripts.ADetailer", "override_settings.sd_vae"):
            assert name in said
        assert "CFG scale: 1," in json.loads(answer.json()["info"])["infotexts"][0]
        plain = client.post("/sdapi/v1/txt2img", json={**FAST, "cfg_scale": 1})
        first, second = (decoded(one.json()["images"][0]).tobytes() for one in (answer, plain))
        assert first == second
        extras = {"image": encoded(picture()), "upscaler_1": "Lanczos", "gfpgan_visibility": 0.5, "<b>": 1}
        answer = client.post("/sdapi/v1/extra-single-image", json=extras).json()
        assert "gfpgan_visibility 0.5" in answer["html_info"]
        assert "&lt;b&gt;" in answer["html_info"]
        assert client.post("/sdapi/v1/options", json={"sd_vae": "a", "font": "b"}).json() == {
            "warnings": [
                "left out, since it is not done here: sd_vae 'a' (the folder's own; `convert --vae` takes another)",
                "without effect here: font",
            ]
        }


@pytest.mark.parametrize(
    ("fields", "order"),
    [
        ({"seed": "7"}, {"seed": 7}),
        ({"seed": 7.0}, {"seed": 7}),
        ({"seed": "7.0"}, {"seed": 7}),
        ({"steps": "3", "cfg_scale": "5.5"}, {"steps": 3, "guidance_scale": 5.5}),
        ({"width": "64.0", "height": 64.0}, {"width": 64, "height": 64}),
        ({"n_iter": True, "save_images": 1}, {"num_images": 1, "save": True}),
        ({"save_images": "0", "enable_hr": 0.0}, {"save": False}),
        ({"steps": None, "seed": 3}, {"steps": 50, "seed": 3}),
        ({"override_settings": {"CLIP_stop_at_last_layers": "1"}}, {"clip_layer": 1}),
        ({"override_settings": {"CLIP_stop_at_last_layers": 2.0}}, {"clip_layer": 2}),
        ({"sampler_name": "DDIM", "override_settings": {"eta_ddim": "0.5"}}, {"eta": 0.5}),
        ({"sampler_name": "DDIM", "eta": 0.2, "override_settings": {"eta_ddim": 0.5}}, {"eta": 0.2}),
    ],
)
def test_numbers_may_be_text_and_truth_0_or_1(client, fields, order):
    answer = client.post("/sdapi/v1/txt2img", json={**FAST, **fields})
    assert answer.status_code == 200, answer.text
    drawn = client.get("/api/jobs?limit=1").json()["jobs"][0]["order"]
    assert {name: drawn[name] for name in order} == order


@pytest.mark.parametrize("seed", [-1, "-1", -1.0, None, -7])
def test_seeds_below_zero_are_drawn(client, seed):
    answer = client.post("/sdapi/v1/txt2img", json={**FAST, "seed": seed})
    assert json.loads(answer.json()["info"])["seed"] >= 0


@pytest.mark.parametrize("strength", [0, "0", 0.0, 1e-9])
@pytest.mark.parametrize("steps", [2, 49])
def test_a_strength_of_nothing_runs_one_step_as_there(client, strength, steps):
    body = {**FAST, "steps": steps, "init_images": [encoded(picture())], "denoising_strength": strength}
    answer = client.post("/sdapi/v1/img2img", json=body)
    assert answer.status_code == 200, answer.text
    assert client.get("/api/jobs?limit=1").json()["jobs"][0]["steps_total"] == 1


def test_a_second_pass_of_no_strength_runs_one_step(client):
    for upscaler in ("Latent", "Lanczos"):
        body = {**FAST, "enable_hr": True, "hr_upscaler": upscaler, "denoising_strength": 0}
        assert client.post("/sdapi/v1/txt2img", json=body).status_code == 200
        assert client.get("/api/jobs?limit=1").json()["jobs"][0]["steps_total"] <= 2 + 1


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"cfg_scale": 1e9}, "cfg_scale: "),
        ({"cfg_scale": "much"}, "cfg_scale: "),
        ({"denoising_strength": 1.5}, "denoising_strength: "),
        ({"denoising_strength": "x"}, "denoising_strength: "),
        ({"sampler_name": "Eular"}, "sampler_name: "),
        ({"sampler_name": "LCM", "scheduler": "Karras"}, "scheduler: LCM is not drawn with 'Karras' here"),
        ({"enable_hr": True, "hr_sampler_name": "Eular"}, "hr_sampler_name: "),
        ({"subseed": 2**70, "subseed_strength": 0.1}, "subseed: "),
        ({"subseed_strength": 2}, "subseed_strength: "),
        ({"batch_size": 64, "n_iter": 2}, "n_iter times batch_size: "),
        ({"sampler_name": "DDIM", "eta": 2}, "eta: "),
        ({"override_settings": {"CLIP_stop_at_last_layers": "two"}}, "override_settings.CLIP_stop_at_last_layers: "),
        ({"override_settings": {"CLIP_stop_at_last_layers": 90}}, "CLIP_stop_at_last_layers leaves no layer"),
        ({"override_settings": {"samples_format": "exe"}}, "override_settings.samples_format is one of png"),
        ({"override_settings": [1]}, "override_settings: "),
        ({"alwayson_scripts": {"controlnet": {"args": [{"image": "x", "weight": "much"}]}}}, "args.0.weight: "),
    ],
)
def test_errors_name_a1111s_fields(client, fields, name):
    answer = client.post("/sdapi/v1/txt2img", json={**FAST, **fields})
    assert answer.status_code == 422
    assert set(answer.json()) == {"error", "detail", "body", "errors"}
    assert name in answer.json()["detail"]
    assert not any(
        ours in answer.json()["detail"] for ours in ("guidance_scale", "clip_layer", "num_images", "variation")
    )


def test_options_that_make_another_picture_are_refused_and_others_named(client):
    answer = client.post("/sdapi/v1/options", json={"eta_noise_seed_delta": 31337, "clip": 1})
    assert answer.status_code == 422
    assert "eta_noise_seed_delta 31337" in answer.json()["detail"]
    answer = client.post("/sdapi/v1/options", json={"font": "x", "later": 1, "n_rows": -1})
    assert answer.json() == {"warnings": ["without effect here: font, later"]}
    assert client.post("/sdapi/v1/options", json={"sd_vae": "Automatic"}).json() is None
