"""Hub sources, with the real client, its real cache, and a server on the loopback in place of the hub."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants

from olivelike.digest import digest_file
from olivelike.errors import SourceError
from olivelike.model.records.origin import Origin
from olivelike.sources import PipelineSource, SourceSpec, known_digest, open_source

if TYPE_CHECKING:
    from collections.abc import Iterator


REPOSITORY = "artist/painter"


@dataclass
class Hub:
    """What the server serves, and what it was asked for."""

    root: Path
    commit: str = "1" * 40
    refusal: tuple[int, str] | None = None
    """Status and error code (`GatedRepo`, `RepoNotFound`, `RevisionNotFound`) of every answer."""
    requests: list[str] = field(default_factory=list)
    downloads: list[str] = field(default_factory=list)
    url: str = ""
    missing: str | None = None
    """Paths below this one are answered with 403."""
    stranger: bool = False
    """Files come without the hub's headers."""


@contextmanager
def serve(root: Path) -> Iterator[Hub]:
    """Serve the files below `root` as the repository's main branch."""
    hub = Hub(root)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            hub.requests.append(self.path)
            if hub.refusal is not None:
                status, code = hub.refusal
                self.reply(status, b"{}", {"X-Error-Code": code}, body=body)
            elif hub.missing is not None and self.path.startswith(hub.missing):
                self.reply(403, b"{}", {}, body=body)
            elif self.path.startswith(f"/api/models/{REPOSITORY}"):
                names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
                info = {"id": REPOSITORY, "sha": hub.commit, "siblings": [{"rfilename": name} for name in names]}
                self.reply(200, json.dumps(info).encode(), {}, body=body)
            else:
                self.reply_with_file(body=body)

        def reply_with_file(self, *, body: bool) -> None:
            relative = self.path.split("/resolve/")[1].partition("/")[2].partition("?")[0]
            content = (root / relative).read_bytes()
            if body:
                hub.downloads.append(relative)
            large = relative.endswith(".safetensors")
            digest = (hashlib.sha256 if large else hashlib.sha1)(content).hexdigest()
            headers = {"X-Repo-Commit": hub.commit, "ETag": f'"{digest}"'}
            self.reply(200, content, {} if hub.stranger else headers, body=body)

        def reply(self, status: int, content: bytes, headers: dict[str, str], *, body: bool) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    return tmp_path / "cache"


@pytest.fixture
def hub(hub_checkpoint: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve(hub_checkpoint) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield server


@pytest.fixture
def unplug(monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the client at a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


def opened(*components: str, revision: str | None = None, variant: str | None = None) -> PipelineSource:
    return open_source(SourceSpec(hub=REPOSITORY, revision=revision, variant=variant), components)


def test_only_the_files_of_the_chosen_components_and_variant_are_downloaded(hub: Hub) -> None:
    source = opened("unet", "text_encoder", variant="fp16")
    weights = {name for name in hub.downloads if name.endswith(".safetensors")}
    assert weights == {
        "text_encoder/model.fp16.safetensors",
        "unet/diffusion_pytorch_model.fp16-00001-of-00002.safetensors",
        "unet/diffusion_pytorch_model.fp16-00002-of-00002.safetensors",
    }
    assert len(hub.downloads) == len(set(hub.downloads))
    assert source.extras["tokenizer/vocab.json"].is_file()
    assert not any(name.startswith(("vae", "safety_checker")) for name in hub.downloads)


def test_the_origin_names_the_commit_that_the_branch_was_at(hub: Hub) -> None:
    assert opened("vae_decoder").origin == Origin("hub", REPOSITORY, commit="1" * 40)


def test_a_hub_source_equals_the_same_folder(hub: Hub, hub_checkpoint: Path) -> None:
    here = open_source(SourceSpec(path=hub_checkpoint), ["unet"]).checkpoint("unet")
    there = opened("unet").checkpoint("unet")
    assert there.layout_digest == here.layout_digest
    assert [digest_file(path) for path in there.files] == [digest_file(path) for path in here.files]


def test_a_cached_commit_is_read_without_a_single_request(hub: Hub) -> None:
    opened("unet", revision=hub.commit)
    asked = len(hub.requests)
    source = opened("unet", revision=hub.commit)
    assert len(hub.requests) == asked
    assert source.origin.commit == hub.commit
    assert source.origin.warning is None


def test_a_cached_commit_is_read_without_importing_the_client(hub: Hub, cache: Path) -> None:
    opened("unet", revision=hub.commit)
    script = (
        "import sys; from olivelike.sources import SourceSpec, open_source;"
        f"open_source(SourceSpec(hub={REPOSITORY!r}, revision={hub.commit!r}), ['unet']);"
        "print([m for m in ('httpx', 'httpx2', 'huggingface_hub.hf_api', 'torch') if m in sys.modules])"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(cache)}
    command = [sys.executable, "-c", script]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


def test_a_cached_commit_that_lacks_a_component_gets_it_from_the_hub(hub: Hub) -> None:
    opened("unet", revision=hub.commit)
    hub.downloads.clear()
    opened("unet", "vae_decoder", revision=hub.commit)
    assert hub.downloads == ["vae/config.json", "vae/diffusion_pytorch_model.safetensors"]


def test_a_branch_is_looked_up_and_follows_the_hub(hub: Hub) -> None:
    opened("vae_decoder")
    hub.commit = "2" * 40
    assert opened("vae_decoder").origin.commit == "2" * 40


def test_without_a_network_a_branch_is_what_the_cache_knows_with_a_warning(
    hub: Hub, request: pytest.FixtureRequest
) -> None:
    opened("unet")
    request.getfixturevalue("unplug")
    origin = opened("unet").origin
    assert origin.commit == hub.commit
    assert "can't be reached; main may have moved on" in origin.warning


def test_offline_mode_reads_the_cache(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    opened("unet")
    asked = len(hub.requests)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert opened("unet").origin.commit == hub.commit
    assert len(hub.requests) == asked


def test_no_network_and_no_cache_says_what_to_do(cache: Path, unplug: None) -> None:
    with pytest.raises(SourceError, match=r"artist/painter: not in the local cache.*copy the pipeline here"):
        opened("unet")


def test_no_network_and_half_a_cache_names_the_missing_file(hub: Hub, request: pytest.FixtureRequest) -> None:
    opened("unet", revision=hub.commit)
    request.getfixturevalue("unplug")
    with pytest.raises(
        SourceError, match=r"as cached: vae/config.json is missing; connect.*hf download artist/painter"
    ):
        opened("vae_decoder", revision=hub.commit)


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "GatedRepo", "access is restricted; accept its terms at .*hf auth login"),
        (404, "RepoNotFound", "no such repository on the hub, or it is private"),
        (404, "RevisionNotFound", "no revision 'v9'"),
    ],
)
def test_a_refusal_of_the_hub_is_told_with_its_remedy(hub: Hub, status: int, code: str, message: str) -> None:
    hub.refusal = (status, code)
    with pytest.raises(SourceError, match=message):
        opened("unet", revision="v9")


def test_a_name_that_is_no_hub_id_is_refused(cache: Path) -> None:
    with pytest.raises(SourceError, match="neither a folder here nor a valid hub id"):
        open_source(SourceSpec(hub="not/a/hub/id"), ["unet"])


def test_the_hub_s_own_digest_is_known_for_large_files_only(hub: Hub, saved_checkpoint: Path) -> None:
    source = opened("unet")
    for path in source.checkpoint("unet").files:
        assert known_digest(path) == digest_file(path)
    assert known_digest(source.extras["tokenizer/vocab.json"]) is None
    assert known_digest(saved_checkpoint / "model_index.json") is None


def test_a_cached_download_that_was_cut_off_is_named(hub: Hub, cache: Path) -> None:
    source = opened("text_encoder", revision=hub.commit)
    weights = source.checkpoint("text_encoder").files[0]
    size = weights.stat().st_size
    blob = weights.resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    with pytest.raises(SourceError, match=rf"truncated: {size} bytes expected, {size - 1} found.*--force-download"):
        opened("text_encoder", revision=hub.commit)


def test_a_missing_file_of_the_repository_points_at_its_page(hub: Hub, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(hub.root, tmp_path / "repository"))
    index = copy / "unet/diffusion_pytorch_model.safetensors.index.json"
    weights = {**json.loads(index.read_text())["weight_map"], "extra": "gone.safetensors"}
    index.write_text(json.dumps({"weight_map": weights}))
    with serve(copy) as incomplete, pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", incomplete.url)
        template = incomplete.url + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        with pytest.raises(SourceError, match=r"gone\.safetensors is missing; the repository itself lacks it"):
            opened("unet")


def test_a_cached_commit_that_lacks_a_tokenizer_file_gets_it_from_the_hub(hub: Hub) -> None:
    source = opened("unet", revision=hub.commit)
    source.extras["tokenizer/merges.txt"].unlink()
    hub.downloads.clear()
    assert opened("unet", revision=hub.commit).extras["tokenizer/merges.txt"].is_file()


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, r"this machine's token \(401\); run `hf auth login`"),
        (403, r"forbids access \(403\).*hf auth login"),
        (404, r"no such page \(404\); check the name"),
        (418, "the hub refuses: .*418"),
        (429, r"\(429\); wait some minutes"),
        (500, r"the hub has a fault \(500\); try again later"),
        (503, r"the hub has a fault \(503\).*HF_HUB_OFFLINE=1 to take what the cache has"),
    ],
)
def test_an_answer_without_success_is_no_missing_network_even_with_a_cache(hub: Hub, status: int, message: str) -> None:
    opened("unet")
    hub.refusal = (status, "")
    with pytest.raises(SourceError, match=f"(?s)artist/painter: .*{message}") as caught:
        opened("unet")
    assert "can't be reached" not in str(caught.value)


def test_a_refused_download_names_the_file_and_the_remedy(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/api/nothing/{filename}")
    hub.missing = "/api/nothing/"
    with pytest.raises(SourceError, match=r"can't be downloaded: artist/painter: .*\(403\).*finished files are"):
        opened("unet", revision=hub.commit)


def test_a_cache_that_can_t_be_written_is_told_with_its_remedy(hub: Hub, cache: Path) -> None:
    cache.write_text("in the way of the folder")
    with pytest.raises(SourceError, match=r"its files can't be kept here: .*move the cache with HF_HOME"):
        opened("unet")


def test_a_full_disk_while_downloading_is_told_with_its_remedy(hub: Hub, cache: Path) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.file_download.http_get", full)
        with pytest.raises(SourceError, match=r"can't be downloaded: .*No space left.*make room"):
            opened("unet", revision=hub.commit)


def test_a_server_that_is_no_hub_is_told_apart(hub: Hub) -> None:
    hub.stranger = True
    with pytest.raises(SourceError, match=r"what answered is no hub: .*check HF_ENDPOINT"):
        opened("unet")
