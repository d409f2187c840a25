"""A1111's API, asked by the client that people use for it, webuiapi."""

from __future__ import annotations

import base64
import io
import threading

import pytest
import webuiapi
from PIL import Image, ImageDraw

from olivelike.runtime.schedulers.scheduler_names import find_scheduler
from tests.serve.conftest import LONG, wait_until

SIDES = {"width": 32, "height": 32}
FAST = {"prompt": "a red circle", "steps": 2, "seed": 7, **SIDES}


@pytest.fixture
def api(server):
    api = webuiapi.WebUIApi(baseurl=f"{server.url}/sdapi/v1", sampler="Euler a", steps=2)
    with api.session:
        yield api


def picture(color="teal", size=(32, 32), mode="RGB"):
    return Image.new(mode, size, color)


def half_mask(size=(32, 32)):
    mask = Image.new("L", size)
    ImageDraw.Draw(mask).rectangle((0, 0, (size[0] - 1) // 2, size[1] - 1), fill=255)
    return mask


def encoded(image):
    return webuiapi.raw_b64_img(image)


def decoded(text):
    return Image.open(io.BytesIO(base64.b64decode(text)))


def near(image, place, color, within=40):
    return max(abs(a - b) for a, b in zip(image.convert("RGB").getpixel(place), color, strict=True)) < within


def test_a_prompt_makes_a_picture_and_tells_all_that_a1111_tells(api, service):
    result = api.txt2img(**FAST, negative_prompt="blue", cfg_scale=5)
    assert result.image.size == (32, 32)
    assert result.parameters["prompt"] == "a red circle"
    assert result.parameters["sampler_name"] == "Euler a"
    info = result.info
    assert (info["seed"], info["all_seeds"], info["width"], info["height"]) == (7, [7], 32, 32)
    assert (info["sampler_name"], info["cfg_scale"], info["steps"]) == ("Euler a", 5, 2)
    assert info["negative_prompt"] == "blue"
    assert info["sd_model_name"] == service.current_model
    assert info["version"].startswith("olivelike ")
    assert info["infotexts"] == [result.image.text["parameters"]]
    assert "Negative prompt: blue\nSteps: 2, Sampler: Euler a" in info["infotexts"][0]
    for key in (
        "all_prompts", "all_negative_prompts", "subseed", "all_subseeds", "batch_size", "clip_skip",
        "denoising_strength",
        "extra_generation_params", "sd_model_hash", "sd_vae_name", "index_of_first_image", "styles", "job_timestamp",
    ):  # fmt: skip
        assert key in info


def test_a_picture_is_read_for_the_answer_before_the_index_and_the_end_of_its_job_are_written(
    api, service, monkeypatch
):
    wait_until(lambda: service.running() is None)  # The end of an earlier job comes behind its answer, too.
    done: list[str] = []

    def noted(owner, name):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *values: done.append(name) or real(*values))

    noted(service.library, "_encoded")
    noted(service.gallery, "_insert")
    noted(service.journal, "end")
    result = api.txt2img(**{**FAST, "seed": 1234}, save_images=True)
    wait_until(lambda: service.running() is None)
    assert done == ["_encoded", "_insert", "end"]
    (row,), _ = service.gallery.search(limit=1)
    assert (row.seed, service.journal.job(row.job).state) == (1234, "done")
    assert result.info["all_seeds"] == [1234]


def test_batches_and_rounds_make_pictures_whose_seeds_count_up(api):
    result = api.txt2img(**FAST, batch_size=2, n_iter=2)
    assert len(result.images) == 4
    assert result.info["all_seeds"] == [7, 8, 9, 10]
    assert len(result.info["infotexts"]) == 4
    single = api.txt2img(**{**FAST, "seed": 9})
    assert single.image.tobytes() == result.images[2].tobytes()


def test_a_seed_of_minus_one_is_drawn(api):
    seeds = {api.txt2img(**{**FAST, "seed": -1}).info["seed"] for _ in range(3)}
    assert len(seeds) == 3


def test_pictures_are_kept_if_they_are_to_be_and_sent_if_they_are_to_be(api, client):
    def kept(seed):
        return client.get("/api/pictures", params={"search": f"seed:{seed}"}).json()["pictures"]

    assert api.txt2img(**{**FAST, "seed": 771}, save_images=True, send_images=False).images == []
    assert len(kept(771)) == 1
    assert len(api.txt2img(**{**FAST, "seed": 772}).images) == 1
    assert kept(772) == []


@pytest.mark.parametrize(
    ("sampler", "scheduler", "drawn"),
    [
        ("Euler a", "automatic", "Euler a"),
        ("Euler", "Karras", "Euler Karras"),
        ("Euler", "karras", "Euler Karras"),
        ("Euler", "sgm_uniform", "Euler SGM Uniform"),
        ("Euler", "normal", "Euler Normal"),
        ("DPM++ 2M", "Automatic", "DPM++ 2M Karras"),
        ("DPM++ 2M", "Uniform", "DPM++ 2M"),
        ("DPM++ 2M Karras", "Automatic", "DPM++ 2M Karras"),
        ("k_euler_a", None, "Euler a"),
        ("DDIM", "automatic", "DDIM"),
    ],
)
def test_samplers_and_schedule_types_mean_what_they_do_there(client, sampler, scheduler, drawn):
    body = {**FAST, "sampler_name": sampler, "scheduler": scheduler}
    assert client.post("/sdapi/v1/txt2img", json=body).status_code == 200
    order = client.get("/api/jobs?limit=1").json()["jobs"][0]["order"]
    assert find_scheduler(order["scheduler"]) == find_scheduler(drawn)


def test_without_a_sampler_the_folder_draws_with_its_own(client):
    assert client.post("/sdapi/v1/txt2img", json={"prompt": "a", "steps": 2, **SIDES}).status_code == 200
    assert client.get("/api/jobs?limit=1").json()["jobs"][0]["order"]["scheduler"] is None


def test_the_last_layers_are_left_out_as_a1111_counts_them(api, client):
    def layer():
        return client.get("/api/jobs?limit=1").json()["jobs"][0]["order"]["clip_layer"]

    api.txt2img(**FAST, override_settings={"CLIP_stop_at_last_layers": 2})
    assert layer() == 2
    api.set_options({"CLIP_stop_at_last_layers": 2})
    assert api.txt2img(**FAST).info["clip_skip"] == 2
    api.set_options({"CLIP_stop_at_last_layers": 1})
    api.txt2img(**FAST)
    assert layer() == 1


def test_a_picture_is_drawn_anew_from_another(api):
    result = api.img2img(images=[picture()], **FAST, denoising_strength=0.6)
    assert result.info["denoising_strength"] == 0.6
    assert "Denoising strength: 0.6" in result.info["infotexts"][0]
    assert result.parameters["init_images"] is None
    assert result.image.size == (32, 32)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("invert", [0, 1])
def test_a_mask_is_painted_where_it_is_white(api, whole, invert):
    result = api.img2img(
        images=[picture()], mask_image=half_mask(), mask_blur=0, inpainting_fill=1, inpainting_mask_invert=invert,
        inpaint_full_res=not whole, inpaint_full_res_padding=4, denoising_strength=1.0, **FAST,
    )  # fmt: skip
    kept, drawn = ((28, 16), (3, 16))[:: -1 if invert else 1]
    assert near(result.image, kept, (0, 128, 128))
    assert ("Mask mode: Inpaint not masked" in result.info["infotexts"][0]) is bool(invert)
    assert not near(result.image, drawn, (0, 128, 128), within=3)


def test_what_is_masked_begins_as_inpainting_fill_says_and_the_text_tells_it(api):
    image = picture("red")
    image.paste("teal", (16, 0, 32, 32))
    fields = {"images": [image], "mask_image": half_mask(), "mask_blur": 0, "denoising_strength": 0.5, **FAST}
    results = [api.img2img(**fields, inpainting_fill=fill, inpaint_full_res=False) for fill in range(4)]
    assert len({one.image.tobytes() for one in results}) == 4
    texts = [one.info["infotexts"][0].partition("Masked content: ")[2].partition(",")[0] for one in results]
    assert texts == ["fill", "", "latent noise", "latent nothing"]


def test_several_initial_pictures_are_a_batch_whose_seeds_count_up_in_each_round(api, service):
    images = [picture(), picture("red", (64, 32))]
    fields = {**FAST, "denoising_strength": 0.6}
    before = service.jobs(limit=1)[0].id
    both = api.img2img(images=images, batch_size=4, n_iter=2, **fields)
    assert service.jobs(limit=2)[1].id == before, "it is one job"
    assert both.info["all_seeds"] == [7, 8, 9, 10]
    assert (both.info["batch_size"], len(both.info["infotexts"])) == (2, 4)
    for number, image in enumerate(both.images):
        alone = api.img2img(images=[images[number % 2]], **{**fields, "seed": 7 + number})
        assert image.tobytes() == alone.image.tobytes()
    varied = api.img2img(images=images, batch_size=2, n_iter=2, subseed=3, subseed_strength=0.4, **fields)
    assert (varied.info["all_seeds"], varied.info["all_subseeds"]) == ([7] * 4, [3, 4, 5, 6])


def test_a_batch_is_masked_where_the_mask_is_of_all(api):
    fields = {"mask_image": half_mask(), "mask_blur": 0, "inpainting_fill": 1, "denoising_strength": 1.0, **FAST}
    both = api.img2img(images=[picture(), picture("red")], batch_size=2, inpaint_full_res=True, **fields)
    assert near(both.images[0], (28, 16), (0, 128, 128))
    assert near(both.images[1], (28, 16), (255, 0, 0))


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_picture_of_another_shape_is_stretched_cropped_or_continued(api, mode):
    wide = picture("red", (64, 16))
    result = api.img2img(
        images=[wide], resize_mode=mode, denoising_strength=0.5, mask_image=half_mask((64, 16)), **FAST
    )
    assert result.image.size == (64, 16)
    assert api.img2img(images=[wide], resize_mode=mode, denoising_strength=0.5, **FAST).image.size == (32, 32)


@pytest.mark.parametrize("size", [(5000, 1), (1, 5000)])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_picture_of_one_line_is_painted_too(api, size, mode):
    fields = {"images": [picture("red", size)], "mask_image": half_mask(size), "resize_mode": mode, **FAST}
    assert api.img2img(**fields).image.size == size
    assert api.img2img(**fields, inpaint_full_res=False).image.size == (32, 32)


def test_a_second_pass_draws_the_enlarged_picture_again(api, service):
    result = api.txt2img(**FAST, enable_hr=True, hr_scale=2, hr_upscaler="Lanczos", denoising_strength=0.6)
    assert result.image.size == (64, 64)
    assert (result.info["width"], result.info["seed"], result.info["denoising_strength"]) == (64, 7, 0.6)
    both = api.txt2img(
        **FAST, enable_hr=True, hr_upscaler="Nearest", hr_resize_x=48, hr_second_pass_steps=3, denoising_strength=0.5,
        batch_size=2,
    )  # fmt: skip
    assert [image.size for image in both.images] == [(48, 48)] * 2
    assert service.jobs(limit=1)[0].steps_total == 3
    assert both.info["all_seeds"] == [7, 8]


def test_a_second_pass_that_is_larger_alone_is_one_job_whatever_enlarges(api, service):
    before = service.jobs(limit=1)[0].id
    result = api.txt2img(**FAST, enable_hr=True, hr_scale=1.5, hr_upscaler="Nearest", denoising_strength=0.6)
    assert (result.image.size, service.jobs(limit=2)[1].id) == ((48, 48), before)
    assert (
        "Denoising strength: 0.6, Hires upscale: 1.5, Hires steps: 2, Hires upscaler: Nearest"
        in (result.info["infotexts"][0])
    )


def test_a_prompt_matrix_is_answered_with_its_grid_first(api):
    asked = {**FAST, "prompt": "a circle|red|big", "n_iter": 3}
    result = api.txt2img(**asked, script_name="prompt matrix", script_args=[False, True])
    assert result.info["all_prompts"] == ["a circle", "a circle, red", "a circle, big", "a circle, red, big"]
    assert (result.info["all_seeds"], result.info["index_of_first_image"]) == ([7, 8, 9, 10], 1)
    assert len(result.images) == len(result.info["infotexts"]) == 5
    assert result.images[0].width > 2 * 128
    assert "Script: Prompt matrix" in result.info["infotexts"][0]


def test_latents_are_enlarged_between_two_passes_of_one_job(api, service):
    assert api.get_latent_upscale_modes() == [{"name": "Latent"}]
    asked = {**FAST, "enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent", "denoising_strength": 0.6}
    result = api.txt2img(**asked)
    assert result.image.size == (48, 48)
    assert result.info["denoising_strength"] == 0.6
    assert "Hires upscale: 1.5, Hires steps: 2, Hires upscaler: Latent" in result.info["infotexts"][0]
    assert "Hires steps: 5," in api.txt2img(**asked, hr_second_pass_steps=5).info["infotexts"][0]
    assert service.jobs(limit=1)[0].steps_total == 2 + 5


def test_subseeds_vary_the_pictures_of_one_seed(api):
    plain = api.txt2img(**FAST)
    varied = api.txt2img(**FAST, subseed=3, subseed_strength=0.4, batch_size=2)
    assert (varied.info["all_seeds"], varied.info["all_subseeds"]) == ([7, 7], [3, 4])
    assert varied.info["subseed_strength"] == 0.4
    assert len({image.tobytes() for image in [plain.image, *varied.images]}) == 3
    assert "Variation seed: 4, Variation seed strength: 0.4" in varied.info["infotexts"][1]


def test_pictures_are_enlarged_by_what_is_listed(api):
    names = [one["name"] for one in api.get_upscalers()]
    assert names == ["None", "Lanczos", "Nearest"]
    assert api.extra_single_image(picture(), upscaler_1="Lanczos", upscaling_resize=3).image.size == (96, 96)
    nearest = api.extra_single_image(
        picture(), upscaler_1="Nearest", resize_mode=1, upscaling_resize_w=40, upscaling_resize_h=20
    )
    assert nearest.image.size == (40, 20)
    whole = api.extra_single_image(
        picture(),
        upscaler_1="Nearest",
        resize_mode=1,
        upscaling_resize_w=40,
        upscaling_resize_h=20,
        upscaling_crop=False,
    )
    assert whole.image.size == (40, 40)
    many = api.extra_batch_images([picture(), picture("red")], upscaler_1="Lanczos", upscaler_2="Nearest",
                                  extras_upscaler_2_visibility=0.5)  # fmt: skip
    assert [image.size for image in many.images] == [(64, 64)] * 2


def test_a_picture_tells_what_made_it(api):
    image = api.txt2img(**FAST, negative_prompt="blue").image
    answer = api.png_info(image)
    assert answer.info.startswith("a red circle\nNegative prompt: blue\nSteps: 2")
    assert answer.json["items"]["parameters"] == answer.info
    found = answer.parameters
    assert (found["Prompt"], found["Negative prompt"], found["Steps"], found["Seed"]) == (
        "a red circle",
        "blue",
        "2",
        "7",
    )
    assert (found["Size-1"], found["Size-2"], found["Sampler"]) == ("32", "32", "Euler a")
    assert api.png_info(picture()).json == {"info": "", "items": {}, "parameters": {}}


def test_everything_that_the_client_lists_can_be_listed(api, service):
    assert [one["model_name"] for one in api.get_sd_models()] == [service.current_model]
    assert set(api.get_sd_models()[0]) == {"title", "model_name", "hash", "sha256", "filename", "config"}
    assert {one["name"] for one in api.get_samplers()} >= {"Euler a", "Euler", "DPM++ 2M", "DDIM", "UniPC"}
    assert {one["name"]: one["label"] for one in api.get_schedulers()}["karras"] == "Karras"
    assert set(api.get_embeddings()) == {"loaded", "skipped"}
    assert api.get_memory()["ram"]["total"] > api.get_memory()["ram"]["free"] > 0
    assert api.get_scripts() == {"txt2img": ["controlnet"], "img2img": ["controlnet"]}
    assert isinstance(api.get_cmd_flags(), dict)
    for lists in (
        api.get_sd_vae, api.get_hypernetworks, api.get_face_restorers,
        api.get_realesrgan_models, api.get_prompt_styles,
    ):  # fmt: skip
        assert lists() == []
    assert api.refresh_checkpoints() is None
    assert isinstance(api.get_loras(), list)
    for name in api.get_samplers():
        find_scheduler(name["name"])


def test_options_are_read_and_the_whole_of_them_posted_back(api, service):
    options = api.get_options()
    assert options["sd_model_checkpoint"].startswith(service.current_model)
    assert "forge_preset" not in options
    assert api.set_options({**options, "sd_vae": "Automatic"}) is None
    assert api.set_options({**options, "an_option_of_later": [1, {"a": None}]}) == {
        "warnings": ["without effect here: an_option_of_later"]
    }
    assert api.get_options() == options
    api.set_options({"samples_format": "webp"})
    assert api.txt2img(**FAST).image.format == "WEBP"
    api.set_options({"samples_format": "png"})
    assert api.txt2img(**FAST, override_settings={"samples_format": "jpg"}).image.format == "JPEG"


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"sd_model_checkpoint": "nowhere"}, 404),
        ({"sd_model_checkpoint": "../../etc/passwd"}, 404),
        ({"samples_format": "exe"}, 422),
        ({"CLIP_stop_at_last_layers": "two"}, 422),
        ({"CLIP_stop_at_last_layers": -1}, 422),
    ],
)
def test_options_that_cant_be_are_refused(client, options, status):
    assert client.post("/sdapi/v1/options", json=options).status_code == status


def test_progress_says_which_model_is_loaded(server, client, monkeypatch):
    job = server.service.job(server.draw()["id"]).model_copy(update={"state": "drawing", "opening": "little"})
    monkeypatch.setattr(server.service, "job_of", lambda _: job)
    assert client.get("/sdapi/v1/progress").json()["textinfo"] == "Loading model little"


def test_progress_shows_the_picture_that_grows_and_interrupt_ends_it(api, client):
    idle = api.get_progress()
    assert (idle["progress"], idle["state"]["job_count"], idle["current_image"]) == (0.0, 0, None)
    results = []
    thread = threading.Thread(target=lambda: results.append(api.txt2img(**LONG, n_iter=3)))
    thread.start()
    seen = []

    def shown():
        seen.append(api.get_progress())
        return seen[-1]["current_image"] is not None

    wait_until(shown)
    state = seen[-1]["state"]
    assert 0 < seen[-1]["progress"] < 1
    assert seen[-1]["eta_relative"] > 0
    assert (state["job_count"], state["job_no"], state["sampling_steps"]) == (3, 0, 500)
    assert 0 < state["sampling_step"] < 500
    assert decoded(seen[-1]["current_image"]).format == "PNG"
    assert client.get("/sdapi/v1/progress?skip_current_image=true").json()["current_image"] is None
    assert api.interrupt() == {}
    thread.join(60)
    assert results[0].images == []
    assert results[0].info["prompt"] == "long"
    assert api.get_progress()["state"]["job_count"] == 0
    assert api.interrupt() == {}


def test_a_first_pass_that_is_interrupted_has_no_second(api):
    results = []
    thread = threading.Thread(target=lambda: results.append(api.txt2img(**LONG, enable_hr=True, hr_upscaler="Lanczos")))
    thread.start()
    wait_until(lambda: api.get_progress()["progress"] > 0)
    api.interrupt()
    thread.join(60)
    assert results[0].images == []


def test_skip_goes_on_with_the_next_batch(api):
    results = []
    thread = threading.Thread(target=lambda: results.append(api.txt2img(**LONG, n_iter=2)))
    thread.start()
    wait_until(lambda: api.get_progress()["state"]["sampling_step"] > 0)
    assert api.skip() is None
    wait_until(lambda: api.get_progress()["state"]["job_no"] == 1)
    api.interrupt()
    thread.join(60)
    assert results[0].images == []


@pytest.mark.parametrize(
    ("path", "fields", "status", "detail"),
    [
        ("txt2img", {"override_settings": {"sd_model_checkpoint": "nowhere"}}, 404, "Model not found"),
        ("img2img", {}, 404, "Init image not found"),
        ("img2img", {"init_images": []}, 404, "Init image not found"),
        ("img2img", {"init_images": ["no base64!"]}, 422, "init_images"),
        ("img2img", {"init_images": ["http://127.0.0.1/a.png"]}, 422, "not fetched"),
        ("img2img", {"init_images": ["/etc/passwd"]}, 422, "init_images"),
        ("img2img", {"init_images": [encoded(picture())] * 3, "batch_size": 2}, 422, "3 pictures are a batch"),
        ("img2img", {"init_images": [encoded(picture()), "no base64!"], "batch_size": 2}, 422, "init_images"),
        (
            "img2img",
            {
                "init_images": [encoded(picture()), encoded(picture(size=(64, 32)))],
                "batch_size": 2,
                "mask": encoded(half_mask()),
            },
            422,
            "of one size",
        ),
        ("img2img", {"init_images": [encoded(picture())], "resize_mode": 3}, 422, "latents"),
        ("img2img", {"init_images": [encoded(picture())], "denoising_strength": -0.1}, 422, "denoising_strength"),
        ("txt2img", {"alwayson_scripts": {"ADetailer": {"args": [True]}}}, 422, "ADetailer"),
        ("txt2img", {"script_name": "X/Y/Z plot"}, 422, "X/Y/Z plot"),
        ("txt2img", {"script_name": "Prompt matrix", "script_args": [0, 0, "both"]}, 422, "script_args"),
        ("txt2img", {"sampler_name": "Eular"}, 422, "Euler"),
        ("txt2img", {"sampler_name": "DDIM", "scheduler": "Polyexponential"}, 422, "Polyexponential"),
        ("txt2img", {"restore_faces": True}, 422, "restore_faces"),
        ("txt2img", {"tiling": True}, 422, "tiling"),
        ("txt2img", {"enable_hr": True, "hr_upscaler": "ESRGAN"}, 422, "Lanczos"),
        ("txt2img", {"enable_hr": True, "hr_upscaler": "Latent", "hr_prompt": "a tower"}, 422, "hr_prompt"),
        (
            "txt2img",
            {"enable_hr": True, "hr_upscaler": "Latent", "hr_scale": 8, "width": 512, "height": 512},
            422,
            "side",
        ),
        ("txt2img", {"styles": ["nope"]}, 422, "styles"),
        ("txt2img", {"refiner_checkpoint": "nope", "refiner_switch_at": 0.8}, 422, "refiner_checkpoint"),
        ("txt2img", {"seed_resize_from_w": 64}, 422, "seed_resize_from_w"),
        ("txt2img", {"s_churn": 4}, 422, "s_churn"),
        ("txt2img", {"override_settings": {"CLIP_stop_at_last_layers": "two"}}, 422, "CLIP_stop"),
        *(
            ("txt2img", {"enable_hr": True, "prompt": "is not drawn", **fields}, status, detail)
            for fields, status, detail in (
                ({"hr_checkpoint_name": "zz"}, 404, "Model not found"),
                ({"hr_sampler_name": "zz"}, 422, "zz"),
                ({"hr_second_pass_steps": 10**9}, 422, "steps"),
                ({"hr_second_pass_steps": 5000}, 422, "steps"),
                ({"hr_resize_x": 65536}, 422, "side"),
                ({"hr_resize_x": 4096}, 422, "side"),
            )
        ),
        ("txt2img", {"width": 100_000, "height": 100_000}, 422, "width"),
        ("txt2img", {"width": 4096, "height": 64}, 422, "pixels"),
        ("txt2img", {"steps": 100_000}, 422, "steps"),
        ("txt2img", {"n_iter": 60, "batch_size": 2}, 422, "n_iter"),
        ("txt2img", {"seed": 2**64}, 422, "seed"),
        ("txt2img", {"prompt": "<lora:nowhere:1>"}, 404, "nowhere"),
        ("txt2img", {"prompt": f"<lora:{'x' * 15_000}:1>"}, 404, "xxx"),
        ("txt2img", {"prompt": ["a"]}, 422, "prompt"),
        ("extra-single-image", {"image": encoded(picture()), "upscaler_1": "ESRGAN"}, 422, "Lanczos"),
        ("extra-single-image", {"image": encoded(picture()), "gfpgan_visibility": 1}, 422, "faces"),
        ("extra-single-image", {"image": encoded(picture(size=(1100, 8))), "upscaling_resize": 8}, 422, "8192"),
        ("extra-single-image", {"image": "AAAA", "upscaler_1": "Lanczos"}, 422, "no picture"),
        ("png-info", {"image": "AAAA"}, 422, "image can't be read as a picture: it is no PNG, JPEG or WebP"),
        ("txt2img", {"sampler_name": "x" * 100_000}, 422, "sampler_name"),
        ("txt2img", {"styles": ["x"] * 1000}, 422, "styles"),
        ("txt2img", {"alwayson_scripts": {"controlnet": {"args": [{}] * 1000}}}, 422, "1000 args; take at most 100"),
        ("txt2img", {"seed": 10**4000}, 422, "seed"),
        ("png-info", {}, 422, "image"),
    ],
)
def test_what_cant_be_had_is_refused_in_a1111s_words(client, path, fields, status, detail):
    body = {"steps": 2, **SIDES, **fields} if path.endswith("2img") else fields
    answer = client.post(f"/sdapi/v1/{path}", json=body)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "detail", "body", "errors"}
    assert detail in answer.json()["detail"]
    assert len(answer.content) < 9000
    assert not client.get("/api/pictures?search=is+not+drawn").json()["pictures"]
    assert all(job["order"]["prompt"] != "is not drawn" for job in client.get("/api/jobs?limit=5").json()["jobs"])


def test_unknown_fields_and_nulls_are_ignored(client):
    body = {
        **FAST,
        "firstphase_width": 0,
        "s_tmax": None,
        "styles": None,
        "override_settings": None,
        "url": "x",
        "a": {"b": 1},
    }
    assert client.post("/sdapi/v1/txt2img", json=body).status_code == 200
