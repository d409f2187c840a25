"""What has to stay the same while code moves: outputs of eight workflows, and pictures drawn through four doors.

    python -m tools.pins make before.json       # in the tree as it was
    python -m tools.pins compare before.json    # in the tree as it is: names what differs, status 1 if anything does

Workflows are of the demo and of little networks with seeded weights: ControlNet, T2I-Adapter and IP-Adapter at once,
SDXL with a LoRA, `w8`, `int8`, `float16` with `auto`, `deepcache` and one file. Doors are `generate`, the server's own
API, A1111's and OpenAI's; each draws the same requests as far as it can say them. Of a file its digest is kept, of a
picture that of its pixels, and what is written in it as text; the JSON schema and the public names are digested, too.
Digests of pictures are those of one machine: another processor rounds otherwise, so both commands run on the same one.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
from PIL import Image

from olivelike.cli.app import run_command_line
from olivelike.serve import ServeSettings
from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_guides import little_guide
from tests.fixtures.little_pipeline import little_checkpoint
from tests.serve.conftest import running

Fields = Mapping[str, Any]
Pins = dict[str, Any]

ROOT: Final = Path(__file__).parents[1]
_HEAD: Final = "name: pinned\nsource: {sd}\ntarget: cpu\n"
_SMALL: Final = "text_encoder: [convert, fuse{more}]\n  vae_decoder: [convert, fuse{more}]\n"
WORKFLOWS: Final[Mapping[str, str]] = {
    "demo": "extends: {root}/workflows/demo.yaml\n",
    "guided": "name: pinned\nsource: {attending}\ntarget: cpu\ncontrolnets: [{edges}]\nt2i_adapters: [{sketch}]\n"
    "ip_adapter: {shown}\ncomponents:\n  text_encoder: [convert, fuse]\n  unet: [convert, fuse]\n"
    "  vae_encoder: [convert, fuse]\n  vae_decoder: [convert, fuse]\n",
    "xl_lora": "name: pinned\nsource: {xl}\ntarget: cuda\nloras: [{lora}]\ncomponents:\n"
    "  text_encoder: [merge_lora, convert, fuse, float16]\n  text_encoder_2: [merge_lora, convert, fuse, float16]\n"
    "  unet: [merge_lora, convert, fuse, float16]\n  vae_decoder: [convert, fuse]\n",
    "w8": f"{_HEAD}components:\n  unet: [convert, fuse, weights8]\n  {_SMALL}".replace("{more}", ", weights8"),
    "int8": f"{_HEAD}components:\n  unet: [convert, fuse, int8]\n  {_SMALL}".replace("{more}", ""),
    "auto": f"{_HEAD}components:\n  unet: [convert, fuse, float16: {{auto: true}}]\n  {_SMALL}".replace("{more}", ""),
    "deepcache": f"{_HEAD}components:\n  unet: [convert, fuse, deepcache]\n  {_SMALL}".replace("{more}", ""),
    "one_file": f"{_HEAD}layout: single-ids\ncomponents:\n  unet: [convert, fuse]\n  {_SMALL}".replace("{more}", ""),
}  # fmt: skip
"""Texts of workflow files, by the name of their output."""

PROMPT: Final = "a red circle"
REQUESTS: Final[Mapping[str, Fields]] = {
    "plain": {},
    "negative": {"negative_prompt": "blue", "guidance_scale": 4.0},
    "unguided": {"guidance_scale": 1.0},
    "rescaled": {"guidance_rescale": 0.6, "guidance_scale": 9.0},
    "interval": {"guidance_interval": [0.0, 0.6]},
    "euler a": {"scheduler": "Euler a"},
    "karras": {"scheduler": "DPM++ 2M Karras"},
    "ddim": {"scheduler": "DDIM", "eta": 0.5},
    "two": {"num_images": 2},
    "batch": {"num_images": 2, "batch_size": 2},
    "wide": {"width": 128, "height": 64},
    "weighted": {"prompt": "a (red:1.3) [circle] BREAK on blue"},
    "literal": {"prompt": "a (red:1.3) circle", "prompt_weights": False},
    "alternatives": {"prompt": "a {red|blue|green} circle"},
    "skipped": {"clip_layer": 2},
    "varied": {"variation_strength": 0.3, "variation_seed": 9},
    "large seed": {"seed": 2**40 + 3},
    "hires": {"hires": 1.5, "hires_strength": 0.6},
    "from a picture": {"init_image": "drawing", "strength": 0.6},
    "fitted": {"init_image": "drawing", "strength": 0.6, "fit": True, "width": 64, "height": 96},
    "masked": {"init_image": "drawing", "mask": "mask", "mask_blur": 4},
    "masked area": {"init_image": "drawing", "mask": "mask", "inpaint_area": "masked", "inpaint_padding": 8},
    "two calls": {"guidance_calls": "two"},
    "tiled": {"tiled_vae": True, "width": 128, "height": 128},
}
"""What the demo draws, as fields of a `Request`."""
GUIDED: Final[Mapping[str, Fields]] = {
    "edges": {"controls": [{"image": "drawing", "net": "edges"}]},
    "edges, in part": {
        "controls": [{"image": "drawing", "net": "edges", "strength": 0.7, "start": 0.2, "end": 0.8}],
    },
    "canny": {"controls": [{"image": "drawing", "net": "edges", "preprocessor": "canny"}]},
    "guess": {"controls": [{"image": "drawing", "net": "edges"}], "control_guess": True, "prompt": ""},
    "sketch": {"controls": [{"image": "drawing", "net": "sketch"}]},
    "both": {"controls": [{"image": "drawing", "net": "edges"}, {"image": "mask", "net": "sketch", "strength": 0.5}]},
    "shown": {"ip_adapter_images": ["drawing"], "ip_adapter_scale": 0.7},
    "all": {"controls": [{"image": "drawing", "net": "edges"}], "ip_adapter_images": ["drawing", "mask"]},
}  # fmt: skip
"""What the pipeline draws that has a ControlNet, a T2I-Adapter and an IP-Adapter."""
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.+Z-]+")
_MADE_UP: Final = re.compile(r"(olivelike-little-[a-z_-]+)-\w{8}\b")
"""Names of folders in which little checkpoints are."""
_COMMON: Final = {"prompt": PROMPT, "steps": 4, "seed": 7}


class RefusedError(Exception):
    """What a server says of a request that it does not draw; that is pinned, too."""


def drawing() -> Image.Image:
    """Return a picture to begin with."""
    image = Image.new("RGB", (64, 64), "navy")
    image.paste("orange", (16, 10, 50, 40))
    return image


def mask() -> Image.Image:
    """Return where to paint."""
    image = Image.new("RGB", (64, 64))
    image.paste("white", (20, 20, 44, 44))
    return image


IMAGES: Final = {"drawing": drawing, "mask": mask}


def encoded(name: str) -> bytes:
    """Return one of the pictures as PNG."""
    data = io.BytesIO()
    IMAGES[name]().save(data, "PNG")
    return data.getvalue()


def transparent() -> bytes:
    """Return the mask as OpenAI has it: transparent where to paint."""
    image, data = mask(), io.BytesIO()
    image.putalpha(image.convert("L").point(lambda value: 255 - value))
    image.save(data, "PNG")
    return data.getvalue()


def pin_picture(content: bytes) -> Pins:
    """Return the digest of a PNG's pixels, and its texts without what tells the time."""
    with Image.open(io.BytesIO(content)) as image:
        image.load()
        texts = {key: _TIME.sub("TIME", str(value)) for key, value in image.info.items() if isinstance(value, str)}
        return {"pixels": hashlib.sha256(image.convert("RGB").tobytes()).hexdigest(), "size": image.size, **texts}


def pin_output(folder: Path) -> Pins:
    """Return the digest of each file of an output, and its record but for what one run alone knows."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    found: Pins = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.suffix in (".onnx", ".pb", ".json", ".txt") and path.name != "olivelike.json"
    }
    record = json.loads((folder / "olivelike.json").read_text())
    return {**found, "olivelike.json": _lasting(record)}


def _lasting(value: Any) -> Any:
    """Leave keys of nodes, times and places out of a record: moving code changes the first, each run the others."""
    if isinstance(value, dict):
        left_out = {"key", "run", "created", "at", "seconds", "made", "workflow", "source_path", "version", "versions"}
        return {key: _lasting(one) for key, one in value.items() if key not in left_out}
    if isinstance(value, list):
        return [_lasting(one) for one in value]
    if isinstance(value, str):
        return _MADE_UP.sub(r"\1", Path(value).name if value.startswith("/") else value)
    return value


def make_outputs(work: Path) -> None:
    """Run each workflow."""
    guides = {
        "edges": little_guide("controlnet"),
        "sketch": little_guide("t2i_adapter"),
        "shown": little_guide("ip_adapter"),
    }
    checkpoints = {kind: little_checkpoint(kind) for kind in ("sd", "attending", "xl")}
    lora = make_lora(work / "style.safetensors", "kohya", base=checkpoints["xl"], components=("unet",))
    places = {"root": ROOT, "lora": lora, **guides, **checkpoints}
    for name, text in WORKFLOWS.items():
        filled = re.sub(r"\{(\w+)\}", lambda found: str(places[found[1]]), text)
        (work / f"{name}.yaml").write_text(f"{filled}output: {work}/{name}\n")
        _run(["run", str(work / f"{name}.yaml"), "--cache-dir", str(work / "cache")])


def _run(words: Sequence[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        status = run_command_line(list(words))
    if status:
        raise RefusedError(f"{' '.join(words)} ended with status {status}")


def on_the_command_line(folder: Path, work: Path) -> Callable[[Fields], list[bytes]]:
    """Return what draws with `generate`."""
    for name in IMAGES:
        (work / f"{name}.png").write_bytes(encoded(name))

    def draw(fields: Fields) -> list[bytes]:
        target = Path(tempfile.mkdtemp(dir=work))
        _run(["generate", str(folder), *_words(fields, work), "-o", str(target)])
        return [path.read_bytes() for path in sorted(target.iterdir())]

    return draw


def _words(fields: Fields, work: Path) -> Iterator[str]:
    """Yield a request as words of the command line."""
    left = dict(fields)
    yield left.pop("prompt")
    if "width" in left:
        yield from ("--size", f"{left.pop('width')}x{left.pop('height')}")
    if interval := left.pop("guidance_interval", None):
        yield from ("--guidance-interval", ":".join(map(str, interval)))
    if hires := left.pop("hires", None):
        yield from ("--hires", f"{hires}:{left.pop('hires_strength')}")
    for control in left.pop("controls", ()):
        canny = ":canny" if control.get("preprocessor") == "canny" else ""
        yield from ("--control", f"{control['net']}={work}/{control['image']}.png:{control.get('strength', 1)}{canny}")
        for edge in ("start", "end"):
            if edge in control:
                yield from (f"--control-{edge}", str(control[edge]))
    scale = left.pop("ip_adapter_scale", 1)
    for image in left.pop("ip_adapter_images", ()):
        yield from ("--ip-adapter", f"{work}/{image}.png:{scale}")
    if not left.pop("prompt_weights", True):
        yield "--plain-prompts"
    for name, value in left.items():
        option = "--clip-skip" if name == "clip_layer" else "--" + name.replace("_", "-")
        if value is True:
            yield option
        else:
            yield from (option, f"{work}/{value}.png" if value in IMAGES else str(value))


def at_our_api(client: httpx.Client, finished: Callable[[str], Fields]) -> Callable[[Fields], list[bytes]]:
    """Return what draws by orders of the server's own API."""

    def upload(name: str) -> str:
        identity: str = client.post("/api/uploads", content=encoded(name)).json()["id"]
        return identity

    def draw(fields: Fields) -> list[bytes]:
        order = dict(fields)
        order |= {name: upload(order[name]) for name in ("init_image", "mask") if name in order}
        if "controls" in order:
            order["controls"] = [{**one, "image": upload(one["image"])} for one in order["controls"]]
        if "ip_adapter_images" in order:
            order["ip_adapter_images"] = [upload(one) for one in order["ip_adapter_images"]]
        job = finished(_posted(client, "/api/jobs", order)["id"])
        if job["error"]:
            raise RefusedError(job["error"])
        return [client.get(one["url"]).content for one in job["pictures"]]

    return draw


def _posted(client: httpx.Client, path: str, body: Fields) -> Any:
    return _answered(client.post(path, json=body))


def _answered(answer: httpx.Response) -> Any:
    if answer.is_error:
        raise RefusedError(answer.text)
    return answer.json()


_A1111: Final = {
    "prompt": "prompt", "negative_prompt": "negative_prompt", "steps": "steps", "seed": "seed", "width": "width",
    "height": "height", "guidance_scale": "cfg_scale", "scheduler": "sampler_name", "eta": "eta",
    "num_images": "n_iter", "variation_strength": "subseed_strength", "variation_seed": "subseed", "hires": "hr_scale",
    "hires_strength": "denoising_strength", "strength": "denoising_strength", "mask_blur": "mask_blur",
    "inpaint_padding": "inpaint_full_res_padding",
}  # fmt: skip
"""Fields of a request, and A1111's names of those that differ in nothing else."""


def at_a1111s_api(client: httpx.Client) -> Callable[[Fields], list[bytes] | None]:
    """Return what draws by A1111's API; nothing, where that has no word for a field."""

    def draw(fields: Fields) -> list[bytes] | None:
        left = {"width": 64, "height": 64, **fields}
        if "num_images" in left and "batch_size" in left:
            left["num_images"] //= left["batch_size"]
        batch = left.pop("batch_size", 1)
        layer = left.pop("clip_layer", None)
        area = left.pop("inpaint_area", "whole")
        images = {name: left.pop(name) for name in ("init_image", "mask") if name in left}
        units = [_unit(one, left) for one in left.pop("controls", ())]
        shown = {"module": "ip-adapter-auto", "model": "ip-adapter", "weight": left.get("ip_adapter_scale", 1)}
        units += [{**shown, "image": _text(one)} for one in left.pop("ip_adapter_images", ())]
        for name in ("control_guess", "ip_adapter_scale"):
            left.pop(name, None)
        if left.keys() - _A1111.keys():
            return None
        body: dict[str, Any] = {_A1111[name]: value for name, value in left.items()}
        body |= {"batch_size": batch, "override_settings": {"CLIP_stop_at_last_layers": layer} if layer else {}}
        if "hires" in left:
            body |= {"enable_hr": True, "hr_upscaler": "Latent"}
        if units:
            body["alwayson_scripts"] = {"controlnet": {"args": units}}
        if images:
            body |= {"init_images": [_text(images["init_image"])], "inpaint_full_res": area == "masked"}
            if "mask" in images:
                body |= {"mask": _text(images["mask"]), "inpainting_fill": 1}
        found = _posted(client, f"/sdapi/v1/{'img' if images else 'txt'}2img", body)
        return [base64.b64decode(one) for one in found["images"]]

    return draw


def _unit(control: Fields, fields: Fields) -> Pins:
    return {
        "image": _text(control["image"]), "module": control.get("preprocessor", "none"), "model": control["net"],
        "weight": control.get("strength", 1), "guidance_start": control.get("start", 0),
        "guidance_end": control.get("end", 1),
        "control_mode": "ControlNet is more important" if fields.get("control_guess") else "Balanced",
    }  # fmt: skip


def _text(name: str) -> str:
    return base64.b64encode(encoded(name)).decode()


def at_openais_api(client: httpx.Client) -> Callable[[Fields], list[bytes] | None]:
    """Return what draws by OpenAI's API; nothing, where that has no word for a field."""

    def draw(fields: Fields) -> list[bytes] | None:
        left = {"width": 64, "height": 64, **fields}
        if left.keys() & {"controls", "ip_adapter_images", "hires", "fit"}:
            return None
        size = f"{left.pop('width')}x{left.pop('height')}"
        body = {"size": size, "n": left.pop("num_images", 1), "num_inference_steps": left.pop("steps"), **left}
        images = {name: body.pop(name) for name in ("init_image", "mask") if name in body}
        if not images:
            found = _posted(client, "/v1/images/generations", body)
        else:
            files = {"image": ("image.png", encoded(images["init_image"]))}
            if "mask" in images:
                files["mask"] = ("mask.png", transparent())
            data = {key: str(one) for key, one in body.items()}
            found = _answered(client.post("/v1/images/edits", data=data, files=files))
        return [base64.b64decode(one["b64_json"]) for one in found["data"]]

    return draw


def pin_pictures(folder: Path, requests: Mapping[str, Fields], work: Path) -> Pins:
    """Draw each request through each door."""
    settings = ServeSettings(folders=(folder,), port=0, gallery=work / f"gallery of {folder.name}")
    found: Pins = {}
    with running(settings) as server, server.client() as client:
        client.timeout = httpx.Timeout(600)
        doors = {
            "command line": on_the_command_line(folder, work), "own API": at_our_api(client, server.wait),
            "A1111": at_a1111s_api(client), "OpenAI": at_openais_api(client),
        }  # fmt: skip
        for name, fields in requests.items():
            for door, draw in doors.items():
                place = f"{folder.name} · {name} · {door}"
                try:
                    pictures = draw({**_COMMON, **fields})
                except RefusedError as error:
                    found[place] = str(error)
                    continue
                if pictures is not None:
                    found[place] = [pin_picture(one) for one in pictures]
    return found


def make() -> Pins:
    """Make everything, and return what is pinned of it."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_outputs(work)
        return {
            **{f"output {name}": pin_output(work / name) for name in WORKFLOWS},
            **pin_pictures(work / "demo", REQUESTS, work),
            **pin_pictures(work / "guided", GUIDED, work),
            **{name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in (
                "workflows/workflow.schema.json", "tests/public_names.txt",
            )},
        }  # fmt: skip


def differences(before: Any, now: Any, place: str = "") -> Iterator[str]:
    """Yield where two values differ, and how."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            yield from differences(before.get(key), now.get(key), f"{place} / {key}" if place else key)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, pair in enumerate(zip(before, now, strict=True)):
            yield from differences(*pair, f"{place} / {number}")
    elif before != now:
        yield f"{place}: {before!r} is now {now!r}"


def main() -> None:
    """Make pins, or compare with them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "compare"])
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    found = json.loads(json.dumps(make()))
    if options.what == "make":
        options.file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        print(f"{len(found)} pins in {options.file}")
        return
    wrong = list(differences(json.loads(options.file.read_text()), found))
    print(*wrong, f"{len(found)} pins, {len(wrong)} differences", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
