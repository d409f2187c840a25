"""`export_web` without a browser: what goes into a page, where onnxruntime-web comes from, and what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from olivelike._installed import own_version
from olivelike.engine.output.packages import Packaged
from olivelike.errors import MissingError, SourceError, UsageError
from olivelike.extras.deploy import web_runtime
from olivelike.extras.deploy.web_files import WebFolder, named
from olivelike.extras.deploy.web_page import PAGE_FILES, SHARED, export_web
from olivelike.families.sd1 import LATENTS
from olivelike.model.records.output import OutputRecord
from olivelike.model.targets import TargetChoice
from olivelike.runtime.pictures.ai_mark import MADE, xmp_packet
from tests.extras.deploy.web_outputs import (
    RUNTIME,
    SAMPLERS,
    TARBALL,
    files_of_an_output,
    sha256,
    take_as_release,
    write_output,
)

SERVED = Path(__file__).parents[3] / "olivelike" / "data" / "serve"


@pytest.fixture(autouse=True)
def _little_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the release, the user's cache and the network away."""
    take_as_release(monkeypatch)
    monkeypatch.setattr(web_runtime, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    (folder / "dist").mkdir(parents=True)
    for name, data in RUNTIME.items():
        (folder / "dist" / name).write_bytes(data)
    return folder


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return write_output(tmp_path / "output", files_of_an_output())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_page_has_what_a_picture_takes_and_a_record_of_all(output: Path, package: Path, tmp_path: Path) -> None:
    page = export_web(output, tmp_path / "site", onnxruntime_web=package)
    files = contents(tmp_path / "site")
    model = {path.removeprefix("model/") for path in files if path.startswith("model/")}
    left_behind = {"vae_encoder/model.onnx", "tokenizer/merges.txt", "scheduler/scheduler_config.json"}
    assert model == files_of_an_output().keys() - left_behind
    assert {f"ort/{name}": data for name, data in RUNTIME.items()}.items() <= files.items()
    own = {path.name: path.read_bytes() for path in PAGE_FILES.iterdir() if path.suffix == ".js"}
    assert own.items() <= files.items()
    assert {name: (SERVED / name).read_bytes() for name in SHARED}.items() <= files.items()
    assert files["index.html"].count(b">checkpoint<") == 2
    record = OutputRecord.require(tmp_path / "site")
    assert {path: facts.sha256 for path, facts in record.files.items()} == {
        path: sha256(data) for path, data in files.items() if path != "olivelike.json"
    }
    assert (page.files, page.bytes) == (len(files) - 1, sum(map(len, files.values())) - len(files["olivelike.json"]))
    manifest = json.loads(files["model/manifest.json"])
    assert manifest["files"].keys() == model - {"manifest.json"}
    binaries = {name: data for name, data in RUNTIME.items() if name.endswith(".wasm")}
    runtime = {name: {"size": len(data), "sha256": sha256(data)} for name, data in binaries.items()}
    assert len(runtime) == 2
    assert len(manifest["examples"]) == 3
    told = {name: manifest[name] for name in manifest.keys() - {"files", "examples"}}
    assert told == {
        "kind": "web/2", "size": None, "samplers": SAMPLERS, "fused_attention": False, "runtime": runtime,
        "device": "wasm", "colours": json.loads(json.dumps(asdict(LATENTS.colours))),
        "made": {"model": "checkpoint", "version": f"olivelike {own_version()}", "xmp": xmp_packet(MADE).decode()},
    }  # fmt: skip


def test_a_page_has_the_name_and_the_examples_that_are_given(output: Path, package: Path, tmp_path: Path) -> None:
    given = ["a cat", "a dog"]
    export_web(output, tmp_path / "site", onnxruntime_web=package, title="<Cats> & dogs", examples=given)
    document = (tmp_path / "site/index.html").read_text()
    assert "<title>&lt;Cats&gt; &amp; dogs</title>" in document
    assert json.loads((tmp_path / "site/model/manifest.json").read_bytes())["examples"] == given
    with pytest.raises(UsageError, match="9 examples are more than the page has room for; give 8 at most"):
        export_web(output, tmp_path / "other", onnxruntime_web=package, examples=["a"] * 9)


def test_attention_as_one_operator_is_in_the_manifest(package: Path, tmp_path: Path) -> None:
    output = write_output(tmp_path / "output", files_of_an_output("MultiHeadAttention"))
    export_web(output, tmp_path / "site", onnxruntime_web=package)
    assert json.loads((tmp_path / "site/model/manifest.json").read_bytes())["fused_attention"] is True


def test_the_modules_of_the_page_are_there_and_ask_for_nothing_elsewhere(output: Path, package: Path) -> None:
    import re

    names = {"words.en.js", *SHARED, *(path.name for path in PAGE_FILES.iterdir())}
    for path in (*PAGE_FILES.iterdir(), *(SERVED / name for name in SHARED if name != "icon.svg")):
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r'from "\./([\w.]+)"', text)) <= names
        addresses = set(
            re.findall(r"https?://[^\s)\"']+", "\n".join(re.sub(r"^\s*//.*", "", line) for line in text.splitlines()))
        )
        assert not addresses, path


def test_the_same_page_is_written_again_and_a_new_one_replaces_it(output: Path, package: Path, tmp_path: Path) -> None:
    export_web(output, tmp_path / "site", onnxruntime_web=package)
    before = contents(tmp_path / "site")
    export_web(output, tmp_path / "site", onnxruntime_web=package)
    assert contents(tmp_path / "site") == before
    files = files_of_an_output()
    del files["unet/weights.1.pb"]
    (output / "unet/weights.1.pb").unlink()
    write_output(output, files | {"unet/weights.pb": b"others"})
    export_web(output, tmp_path / "site", onnxruntime_web=package)
    after = contents(tmp_path / "site")
    assert after["model/unet/weights.pb"] == b"others"
    assert "model/unet/weights.1.pb" not in after
    assert not list(tmp_path.glob(".site*"))


def test_what_others_wrote_is_not_touched(output: Path, package: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("mine")
    with pytest.raises(UsageError, match="did not write"):
        export_web(output, site, onnxruntime_web=package)
    assert contents(site) == {"index.html": b"mine"}
    (site / "index.html").unlink()
    export_web(output, site, onnxruntime_web=package)
    (site / "notes.txt").write_text("mine")
    (site / "style.css").write_text("changed")
    with pytest.raises(UsageError, match=r"changed since olivelike wrote them: style\.css"):
        export_web(output, site, onnxruntime_web=package)
    assert (site / "style.css").read_text() == "changed"
    export_web(output, site, onnxruntime_web=package, overwrite=True)
    assert (site / "style.css").read_bytes() == (SERVED / "style.css").read_bytes()
    assert (site / "notes.txt").read_text() == "mine"
    with pytest.raises(UsageError, match="is a file"):
        export_web(output, site / "notes.txt", onnxruntime_web=package)


def test_a_page_or_pipeline_of_something_else_is_replaced_on_request_alone(
    output: Path, package: Path, tmp_path: Path
) -> None:
    export_web(output, tmp_path / "site", onnxruntime_web=package)
    other = write_output(tmp_path / "other", files_of_an_output(), source="other")
    with pytest.raises(UsageError, match="holds the page of checkpoint"):
        export_web(other, tmp_path / "site", onnxruntime_web=package)
    with pytest.raises(UsageError, match="holds a pipeline made from other"):
        export_web(output, other, onnxruntime_web=package)
    export_web(other, tmp_path / "site", onnxruntime_web=package, overwrite=True)
    assert OutputRecord.require(tmp_path / "site").source.name == "other"


@pytest.mark.parametrize("place", ["output", "output/site", "."])
def test_a_page_in_or_around_its_pipeline_is_refused(output: Path, package: Path, tmp_path: Path, place: str) -> None:
    with pytest.raises(UsageError, match="overlaps"):
        export_web(output, tmp_path / place, onnxruntime_web=package)


def test_another_layout_is_refused_with_the_command_that_makes_this_one(package: Path, tmp_path: Path) -> None:
    output = write_output(tmp_path / "my output", files_of_an_output(), "diffusers")
    with pytest.raises(SourceError, match="olivelike convert checkpoint -t cpu --layout web -o '.*my output_web'"):
        export_web(output, tmp_path / "site", onnxruntime_web=package)
    assert not (tmp_path / "site").exists()


def _manifest(**change: object) -> dict[str, bytes | None]:
    whole = {"kind": "web/2", "size": None, "samplers": SAMPLERS, "files": {}} | change
    return {"manifest.json": json.dumps(whole).encode()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unet/weights.pb": b"damaged"}, r"unet/weights\.pb: is damaged"),
        ({"unet/weights.pb": None}, r"unet/weights\.pb: can't be read"),
        ({"manifest.json": b"[]"}, r"manifest\.json: can't be read"),
        (_manifest(size=["a", 1]), r"manifest\.json: is no manifest"),
        (_manifest(samplers=SAMPLERS | {"own": None}), "is no manifest"),
        (_manifest(samplers=SAMPLERS | {"own": 1}), "is no manifest"),
        (_manifest(samplers=SAMPLERS | {"list": [{"name": "Euler"}]}), "is no manifest"),
        (_manifest(samplers=SAMPLERS | {"list": "ab"}), "can't be read"),
        (_manifest(samplers={"names": [""]}), r"manifest\.json: can't be read"),
        (_manifest(kind="web/3"), "is no manifest"),
        ({"manifest.json": b'{"kind": "web/1", "size": null}'}, r"manifest\.json: can't be read: 'samplers'"),
        ({"unet/model.onnx": b"\x08\x0a"}, r"unet/model\.onnx"),
    ],
)
def test_a_damaged_folder_is_named_and_nothing_written(
    output: Path, package: Path, tmp_path: Path, change: dict[str, bytes | None], message: str
) -> None:
    for path, data in change.items():
        (output / path).unlink()
        if data is not None:
            (output / path).write_bytes(data)
    with pytest.raises(SourceError, match=message):
        export_web(output, tmp_path / "site", onnxruntime_web=package)
    assert not (tmp_path / "site").exists()
    assert not list(tmp_path.glob(".site*"))


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("unet/", "has no unet"), ("text_encoder/", "has no text_encoder"), ("vae_decoder/", "has no vae_decoder"),
        ("tokenizer/tokenizer.json", r"has no tokenizer/tokenizer\.json"),
        ("scheduler/", r"has no scheduler/model\.onnx"),
    ],
)  # fmt: skip
def test_a_folder_without_a_part_is_refused(package: Path, tmp_path: Path, missing: str, message: str) -> None:
    files = {path: data for path, data in files_of_an_output().items() if not path.startswith(missing)}
    with pytest.raises(SourceError, match=message):
        export_web(write_output(tmp_path / "output", files), tmp_path / "site", onnxruntime_web=package)


def test_no_folder_of_ours_is_refused(package: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such folder"):
        export_web(tmp_path / "nowhere", tmp_path / "site", onnxruntime_web=package)


def test_onnxruntime_web_is_taken_from_wherever_it_is(
    output: Path, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package.tgz").write_bytes(TARBALL)
    for number, place in enumerate((package, package / "dist", package.parent, tmp_path / "package.tgz")):
        export_web(output, tmp_path / f"site{number}", onnxruntime_web=place)
    with pytest.raises(MissingError):
        export_web(output, tmp_path / "site")
    (tmp_path / "node_modules").mkdir()
    package.rename(tmp_path / "node_modules" / "onnxruntime-web")
    export_web(output, tmp_path / "site")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"no tarball", "its SHA-512 is another"), (TARBALL[:-1], "its SHA-512 is another"), (None, "no such file")],
    ids=["no tarball", "cut off", "absent"],
)
def test_another_package_is_refused_with_the_remedy(
    output: Path, tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "package.tgz").write_bytes(content)
    with pytest.raises(MissingError, match=message) as caught:
        export_web(output, tmp_path / "site", onnxruntime_web=tmp_path / "package.tgz")
    assert content is None or "npm pack onnxruntime-web@1.30.0" in str(caught.value)
    assert not (tmp_path / "site").exists()


def test_a_folder_of_another_release_is_refused(output: Path, package: Path, tmp_path: Path) -> None:
    (package / "dist" / "ort.wasm.min.mjs").write_bytes(b"another")
    with pytest.raises(MissingError, match=r"holds no onnxruntime-web 1\.30\.0"):
        export_web(output, tmp_path / "site", onnxruntime_web=package)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Return what a registry answers, by path."""
    answers: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in answers else 404)
            self.end_headers()
            self.wfile.write(answers.get(self.path, b""))

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{server.server_address[1]}/")
    yield answers
    server.shutdown()
    server.server_close()


def test_it_is_fetched_once_checked_and_kept(output: Path, registry: dict[str, bytes], tmp_path: Path) -> None:
    told: list[str] = []
    path = "/onnxruntime-web/-/onnxruntime-web-1.30.0.tgz"
    with pytest.raises(MissingError, match="can't be fetched: HTTP Error 404"):
        export_web(output, tmp_path / "site", on_fetch=told.append)
    registry[path] = TARBALL + b"more"
    with pytest.raises(MissingError, match="its SHA-512 is another"):
        export_web(output, tmp_path / "site", on_fetch=told.append)
    registry[path] = TARBALL
    export_web(output, tmp_path / "site", on_fetch=told.append)
    assert [address.endswith(path) for address in told] == [True] * 3
    registry.clear()
    export_web(output, tmp_path / "site", on_fetch=told.append)
    assert len(told) == 3
    (tmp_path / "cache" / "ort.wasm.min.mjs").write_bytes(b"damaged")
    registry[path] = TARBALL
    export_web(output, tmp_path / "site")
    assert contents(tmp_path / "cache") == RUNTIME


@pytest.mark.parametrize("registry_", ["http://127.0.0.1:9", "file:///etc", "nonsense"])
def test_without_a_network_the_remedy_is_told(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry_: str
) -> None:
    monkeypatch.setenv("npm_config_registry", registry_)
    with pytest.raises(
        MissingError, match=r"is not on this machine.*npm pack onnxruntime-web@1\.30\.0.*--onnxruntime-web"
    ):
        export_web(output, tmp_path / "site")
    assert not (tmp_path / "site").exists()


CONFIG = {
    "_class_name": "DDIMScheduler", "beta_start": 0.1, "beta_end": 0.2, "beta_schedule": "scaled_linear",
    "num_train_timesteps": 10,
}  # fmt: skip


def files_for(scheduler: bytes | None) -> dict[str, bytes]:
    """Return what the layout writes for a `scheduler_config.json`, or for none."""
    assets = {} if scheduler is None else {"scheduler/scheduler_config.json": scheduler}
    return WebFolder().files(Packaged("demo", TargetChoice("cpu"), {}, assets))


@pytest.mark.parametrize(
    "change",
    [
        {"num_train_timesteps": 10**15}, {"num_train_timesteps": 0}, {"num_train_timesteps": "many"},
        {"beta_schedule": "cosine"}, {"beta_end": 1e300}, {"beta_start": None}, {"trained_betas": []},
        {"trained_betas": [1, "a"]}, {"trained_betas": {"a": 1}}, {"beta_start": -1.0},
    ],
)  # fmt: skip
def test_a_scheduler_that_can_not_draw_is_refused(change: dict[str, object]) -> None:
    for content in (json.dumps(CONFIG | change), "[]", "{", "null"):
        with pytest.raises(SourceError, match=r"scheduler_config\.json"):
            files_for(content.encode())
    with pytest.raises(SourceError, match=r"scheduler_config\.json: can't be read for a graph of schedules: KeyError"):
        files_for(None)


def test_samplers_are_there_once_and_the_own_one_by_the_name_that_people_know() -> None:
    told = json.loads(files_for(json.dumps(CONFIG).encode())["manifest.json"])["samplers"]
    assert (told["own"], told["class"]) == ("DDIM", "DDIMScheduler")
    listed = [named(one, kind) for one in told["list"] for kind in one["schedules"]]
    assert {"Euler a", "DPM++ 2M Karras", "UniPC", "PLMS"} <= set(listed)
    assert len(set(listed)) == len(listed)
    # The plain one, and one for each schedule type that draws another way.
    (of_sde,) = (one for one in told["list"] if one["name"] == "DPM++ SDE")
    assert len(of_sde["schedules"]) > 5
    assert told["other_noise"] == [named(of_sde, kind) for kind in of_sde["schedules"]]


def test_a_pipeline_whose_own_scheduler_can_not_draw_has_the_others() -> None:
    unknown = CONFIG | {"_class_name": "IPNDMScheduler"}
    told = json.loads(files_for(json.dumps(unknown).encode())["manifest.json"])["samplers"]
    assert (told["own"], told["class"]) == (None, "IPNDMScheduler")
    assert "DPM++ 2M" in [one["name"] for one in told["list"]]
