"""Who may ask, from where, and how much: the layer alone, around an application that tells what it got."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
from pathlib import Path

import httpx
import pytest

from olivelike.errors import SourceError, UsageError
from olivelike.serve.api import guards
from olivelike.serve.api.guards import GuardRules, Guards, Visitor, is_loopback
from olivelike.serve.listen import listening
from olivelike.serve.settings import ServeSettings

HERE = "http://127.0.0.1:7860"
KEYED = GuardRules(api_keys={"anna": "key-of-anna", "bert": "key-of-bert"}, basic={"carl": "pass:word"})


async def echo(scope, receive, send):
    """Tell who asks and how much came, with a policy of its own for /own."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        more = message["more_body"]
    body = json.dumps({"client": scope["state"]["client"], "size": size}).encode()
    own = [(b"Content-Security-Policy", b"sandbox")] if scope["path"] == "/own" else []
    await send({"type": "http.response.start", "status": 200, "headers": own})
    await send({"type": "http.response.body", "body": body})


def ask(rules=KEYED, method="GET", path="/api/jobs", **request):
    async def once():
        transport = httpx.ASGITransport(Guards(echo, rules), client=("10.0.0.9", 1))
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
            return await client.request(method, path, **request)

    return asyncio.run(once())


def basic(user, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    ("host", "bound", "status"),
    [
        ("127.0.0.1:7860", "127.0.0.1", 200),
        ("localhost", "127.0.0.1", 200),
        ("LocalHost:1", "127.0.0.1", 200),
        ("me.localhost:7860", "127.0.0.1", 200),
        ("127.9.9.9", "127.0.0.1", 200),
        ("[::1]:7860", "127.0.0.1", 200),
        ("box.lan", "127.0.0.1", 200),
        ("Box.Lan.:80", "127.0.0.1", 200),
        ("evil.example", "127.0.0.1", 421),
        ("evil.example:7860", "127.0.0.1", 421),
        ("127.0.0.1.evil.example", "127.0.0.1", 421),
        ("localhost.evil.example", "127.0.0.1", 421),
        ("192.168.1.5", "127.0.0.1", 421),
        ("192.168.1.5", "0.0.0.0", 200),
        ("[fe80::1]", "::", 200),
        ("evil.example", "0.0.0.0", 421),
        ("studio", "studio", 200),
        ("", "127.0.0.1", 421),
        ("127.0.0.1@evil.example", "127.0.0.1", 421),
        ("localhost/../..", "127.0.0.1", 421),
        ("0x7f000001", "127.0.0.1", 421),
    ],
)
def test_a_server_answers_only_by_names_that_no_stranger_can_let_point_at_it(host, bound, status):
    rules = GuardRules(host=bound, allow_hosts=frozenset({"box.lan"}))
    assert ask(rules, headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:7860", 200),
        ("https://127.0.0.1:7860", 200),
        ("https://app.example", 200),
        ("https://APP.example", 200),
        ("https://app.example.evil.example", 403),
        ("http://app.example", 403),
        ("http://127.0.0.1:7861", 403),
        ("http://localhost:7860", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("file://", 403),
        ("http://[", 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_pages_of_other_origins_may_not_use_it(origin, status, method):
    rules = GuardRules(allow_origins=frozenset({"https://app.example"}))
    answer = ask(rules, method, headers={"Origin": origin})
    assert answer.status_code == status
    allowed = origin.lower() == "https://app.example"
    assert answer.headers.get("access-control-allow-origin") == (origin if allowed else None)
    assert answer.headers["cross-origin-resource-policy"] == ("cross-origin" if allowed else "same-origin")


def test_an_allowed_page_asks_first_without_a_key_and_another_may_not():
    rules = GuardRules(allow_origins=frozenset({"https://app.example"}), api_keys={"a": "k"})
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    answer = ask(rules, "OPTIONS", headers={"Origin": "https://app.example", **asked})
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "access-control-allow-credentials" not in answer.headers
    assert ask(rules, "OPTIONS", headers={"Origin": "https://evil.example", **asked}).status_code == 403
    assert ask(rules, "OPTIONS").status_code == 401


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ({"Authorization": "Bearer key-of-anna"}, "anna"),
        ({"Authorization": "bearer key-of-bert"}, "bert"),
        (basic("carl", "pass:word"), "carl"),
        (basic("anna", "key-of-anna"), "anna"),
        ({}, None),
        ({"Authorization": ""}, None),
        ({"Authorization": "Bearer "}, None),
        ({"Authorization": "Bearer pass:word"}, None),
        ({"Authorization": "Bearer key-of-ann"}, None),
        ({"Authorization": "Basic "}, None),
        ({"Authorization": "Basic %%%"}, None),
        ({"Authorization": "Basic /w=="}, None),
        ({"Authorization": b"Basic \xe9"}, None),
        (basic("anna", "key-of-bert"), None),
        (basic("carl", ""), None),
        ({"Authorization": "Digest key-of-anna"}, None),
    ],
)
def test_a_key_or_a_password_says_who_asks(headers, client):
    answer = ask(headers=headers)
    if client is None:
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")
        assert answer.json()["error"]["code"] == "unauthorized"
    else:
        assert answer.json()["client"] == client


def test_without_keys_the_address_says_who_asks():
    assert ask(GuardRules()).json()["client"] == "10.0.0.9"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/healthz", 200), ("/readyz", 200), ("/metrics", 401), ("/", 401), ("/healthz/../metrics", 401)],
)
def test_health_is_free_of_keys_and_metrics_are_not(path, status):
    assert ask(path=path).status_code == status


def test_every_key_is_compared_whole_whatever_was_found(monkeypatch):
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(guards.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    ask(headers={"Authorization": "Bearer key-of-anna"})
    assert len(compared) == 2
    assert {len(one) for pair in compared for one in pair} == {32}


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/models", {"error": {"type": "invalid_request_error", "param": None, "code": "invalid_api_key"}}),
        ("/sdapi/v1/options", {"error": "unauthorized", "body": ""}),
        ("/api/jobs", {"error": {"code": "unauthorized"}}),
    ],
)
def test_what_is_refused_is_refused_in_the_words_of_the_api(path, shape):
    body = ask(path=path).json()
    for key, value in shape.items():
        assert body[key] == (value if isinstance(value, str) else {**body[key], **value})


def test_a_body_that_says_it_is_too_large_is_not_read():
    answer = ask(GuardRules(body_limit=10), "POST", content=b"x" * 11)
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")
    assert ask(GuardRules(body_limit=10), "POST", content=b"x" * 10).json()["size"] == 10


def test_a_body_in_parts_is_read_as_far_as_the_limit():
    given = []

    async def endless():
        while True:
            given.append(1)
            yield b"x" * 1000

    answer = ask(GuardRules(body_limit=10_000), "POST", content=endless())
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert len(given) <= 12


@pytest.mark.parametrize("length", ["-1", "1e9", "0x10", "ten", "9" * 30, ""])
def test_a_length_that_is_none_is_refused(length):
    assert ask(GuardRules(), "POST", headers={"Content-Length": length}).status_code == 400


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(guards, "_BODY_WAIT", 0.05)

    answers = []

    async def run():
        async def receive(parts=iter([b"x"])):  # noqa: B008
            part = next(parts, None) or await asyncio.sleep(30)
            return {"type": "http.request", "body": part, "more_body": True}

        async def send(message):
            answers.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        await Guards(echo, GuardRules())(scope, receive, send)

    asyncio.run(run())
    assert answers[0]["status"] == 408


def test_floods_of_headers_and_doubled_ones_are_refused():
    assert ask(GuardRules(), headers={f"X-{n}": "1" for n in range(200)}).status_code == 431
    assert ask(GuardRules(), headers={"X-Long": "1" * 40_000}).status_code == 431
    for name in ("Host", "Origin", "Authorization"):
        twice = [("Host", "localhost"), (name, "localhost"), (name, "other")]
        assert ask(GuardRules(), headers=twice).status_code == 400


@pytest.mark.parametrize(("path", "headers"), [("/", {}), ("/", {"Host": "evil.example"}), ("/", {"Origin": "null"})])
def test_every_answer_has_safe_headers(path, headers):
    answer = ask(GuardRules(), path=path, headers=headers)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_a_page_with_a_policy_of_its_own_keeps_it():
    assert ask(GuardRules(), path="/own").headers.get_list("content-security-policy") == ["sandbox"]


def test_a_signed_link_opens_one_file_for_an_hour(monkeypatch):
    async def once():
        layer = Guards(echo, KEYED)
        link = Visitor("anna", layer._secret).link("/files/abc.png")
        transport = httpx.ASGITransport(layer)
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:

            async def status(path, method="GET"):
                return (await client.request(method, path)).status_code

            assert await status(link) == 200
            assert await status(link, "HEAD") == 200
            assert await status(link, "DELETE") == 401
            assert await status(link.replace("abc", "abd")) == 401
            assert await status(link.replace("until=", "until=9")) == 401
            assert await status(link[:-1] + ("0" if link[-1] != "0" else "1")) == 401
            assert await status("/files/abc.png?until=x&signature=x") == 401
            assert await status("/files/abc.png?" + "&".join(["until=1"] * 30)) == 401
            other = Visitor("anna", layer._secret).link("/api/jobs")
            assert await status(other) == 401
            now = guards.time.time()
            monkeypatch.setattr(guards.time, "time", lambda: now + 3601)
            assert await status(link) == 401

    asyncio.run(once())
    assert Visitor("anna", None).link("/files/abc.png") == "/files/abc.png"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 421),
        ([(b"host", b"evil.example")], 421),
        ([(b"host", b"localhost"), (b"origin", b"https://evil.example")], 403),
        ([(b"host", b"localhost")], 401), ([(b"host", b"localhost"), (b"authorization", b"Bearer key-of-anna")], None),
    ],
)  # fmt: skip
def test_websockets_are_guarded_as_requests_are(headers, status):
    sent, opened = [], []

    async def send(message):
        sent.append(message)

    async def app(scope, receive, send):
        opened.append(scope["state"]["client"])

    scope = {"type": "websocket", "path": "/ws", "headers": headers, "query_string": b""}
    asyncio.run(Guards(app, KEYED)(scope, None, send))
    assert [message["status"] for message in sent[:1]] == ([status] if status else [])
    assert opened == ([] if status else ["anna"])


def test_loopback_is_known_by_name_and_address():
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.5", "box.lan", "localhost.evil.example")))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"host": "0.0.0.0"}, "could all use the server: give --api-key or --basic, or --no-auth"),
        ({"host": "::"}, "--no-auth"),
        ({"api_keys": {"a": "b"}, "basic": {"a": "c"}}, "'a' has a key and a password"),
        ({"allow_origins": ("https://example.com/",)}, "is no origin; write scheme and name alone"),
        ({"allow_hosts": ("http://studio.lan:7860",)}, "is no name; write it without scheme, port and path"),
    ],
)
def test_what_would_let_everybody_in_or_nobody_is_refused(settings, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        listening(ServeSettings(port=0, **settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lora_dirs": (Path("nope"),)}, "--lora-dir nope: no such folder"),
        ({"wildcard_dirs": (Path("nope"),)}, "--wildcard-dir nope: no such folder"),
        ({"models_dirs": (Path("nope"),)}, "--models nope: no such folder"),
        ({"providers": ("banana",)}, "banana"),
        ({"max_body": 1}, "--max-body 1: an order alone may have more"),
    ],
)
def test_what_the_first_who_asks_would_find_out_is_refused_at_the_start(settings, said):
    with pytest.raises((UsageError, SourceError), match=re.escape(said)):
        ServeSettings(**settings).check()


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "0.0.0.0", "no_auth": True},
        {"host": "0.0.0.0", "api_keys": {"a": "b"}},
        {"allow_hosts": ("studio.lan", "*", "::1"), "allow_origins": ("https://example.com:8443", "*")},
    ],
)
def test_what_is_meant_so_is_listened_on(settings):
    listening(ServeSettings(port=0, **settings)).close()
