"""A server with a certificate: what it has drawn is signed, and what clients have sent is not."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("c2pa")

from PIL import Image

from olivelike.errors import UsageError
from olivelike.extras.credentials.picture_check import check_picture
from olivelike.serve import ServeSettings
from tests.extras.credentials.signed_pictures import write_certificate
from tests.serve.conftest import _forked_children, base_settings, forks, little, serve  # noqa: F401


def test_what_a_job_has_drawn_is_signed_in_every_format_and_what_a_client_sent_is_not(serve, tmp_path):  # noqa: F811
    certificate, key = write_certificate(tmp_path)
    server = serve(sign_pictures=certificate, sign_key=key)
    job = server.draw()
    (picture,) = job["pictures"]
    sent = io.BytesIO()
    Image.new("RGB", (32, 32)).save(sent, "PNG")
    with server.client() as client:
        large = client.post("/api/upscale?upscaler=Lanczos&factor=2", content=sent.getvalue()).json()
    roots = [tmp_path / "root.pem"]
    states = {
        f"{name}{suffix}": check_picture(server.call(server.service.library.file_bytes(one["id"], suffix)), roots).state
        for name, one in (("drawn", picture), ("sent", large))
        for suffix in (".png", ".jpg", ".webp")
    }
    assert states == {
        "drawn.png": "trusted", "drawn.jpg": "trusted", "drawn.webp": "trusted",
        "sent.png": "none", "sent.jpg": "none", "sent.webp": "none",
    }  # fmt: skip
    kept = b"".join(path.read_bytes() for path in (tmp_path / "gallery").rglob("*") if path.is_file())
    for secret in (b"PRIVATE", b"studio.key", b"studio.pem"):
        assert secret not in kept


def test_workers_of_a_cluster_have_no_key(tmp_path):
    with pytest.raises(UsageError, match="--sign-pictures: workers of a cluster have no key"):
        ServeSettings(cluster="local:1", sign_pictures=tmp_path / "a.pem").check()
