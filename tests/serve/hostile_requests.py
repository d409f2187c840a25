"""Requests that mean harm, for all routes of an application: as bytes, since clients refuse to send some.

All come from one seed, so that what was found once is found again.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import random
import re
import socket
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

METHODS = ("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "FOO", "PROPFIND")
NAMES = (
    "../../../../etc/passwd", "/etc/passwd", "..\\..\\secret", "%2e%2e%2f%2e%2e%2fsecret.png", "....//....//secret",
    "file:///etc/passwd", "../secret", "../secret.png", "../../secret.safetensors", "~/.ssh/id_rsa", "${HOME}", "CON",
    "a\0b", "\0", "\ud800", "\u202egnp", "", " ", ".", "..", "x" * 5000, "x" * 70_000, "'; DROP TABLE pictures;--", "%s%n",  # noqa: E501
    "<script>alert(1)</script>", "-1", "null", "*", "http://127.0.0.1:22/", "data:image/png;base64,AAAA", "é" * 300,
)  # fmt: skip
PROMPTS = (
    "<lora:../secret:1>", "<lora:/etc/passwd:1>", "<lora:x:nan>", "<lora:x:1e999>", "<lora::>", "<lora:" * 500,
    "__../secret__", "__/etc/passwd__", "__" * 5000, "{a|b}" * 500, "{" * 5000, "{99999$$a|b}", "{1-999999999$$a|b|c}",
    "(" * 10_000, "(((" + "a" * 100 + ":9e99)))", "[a:b:1e999]", "(a:nan)", "BREAK " * 500, "a, " * 4000, "\ud83d", "\x1b[2J",  # noqa: E501
)  # fmt: skip
NUMBERS = (
    "@NaN@", "@Infinity@", "@-Infinity@", "@1e999@", "@-1e999@", "@1e-320@", -1, 0, -0.0, 0.5, 2**31, 2**32, 2**63, 2**64,  # noqa: E501
    10**30, 100_000, 1e308, -1e308, True, "1", "@" + "9" * 5000 + "@",
)  # fmt: skip
BROKEN = "broken HTTP"
_STATUS = re.compile(rb"^HTTP/1\.[01] ([2-5]\d\d) ", re.MULTILINE)
"""`100 Continue` may come before it."""


class Exploit:
    """What unpickling would write."""

    def __reduce__(self):
        return (exec, ("open('/tmp/olivelike-was-here', 'w')",))


@dataclass(frozen=True)
class Request:
    what: str
    data: bytes


def pictures(rng: random.Random) -> dict[str, bytes]:
    """Return files that are no pictures, or too much of one."""

    def png(image: Image.Image, **texts: str) -> bytes:
        chunks = PngInfo()
        for key, text in texts.items():
            chunks.add_text(key, text, zip=True)
        buffer = io.BytesIO()
        image.save(buffer, "PNG", pnginfo=chunks)
        return buffer.getvalue()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    def claiming(width: int, height: int) -> bytes:
        header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
        body = zlib.compress(bytes(100_000), 9)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")

    good = png(Image.new("RGB", (24, 24), "teal"))
    gif = io.BytesIO()
    frames = [Image.new("L", (16, 16), n) for n in range(30)]
    frames[0].save(gif, "GIF", save_all=True, append_images=frames[1:])
    scans = io.BytesIO()
    Image.new("L", (2048, 2048)).save(scans, "JPEG", progressive=True)
    jpeg = scans.getvalue()
    tiff = io.BytesIO()
    Image.new("RGB", (16, 16)).save(tiff, "TIFF")
    return {
        "good": good,
        "alpha": png(Image.new("RGBA", (24, 24), (1, 2, 3, 0))),
        "pickle": pickle.dumps(Exploit()),
        "pickle named PNG": b"\x89PNG\r\n\x1a\n" + pickle.dumps(Exploit()),
        "bomb": claiming(60_000, 60_000),
        "huge": claiming(2**31 - 1, 2**31 - 1),
        "flat": claiming(1, 60_000_000),
        "nothing": claiming(0, 0),
        "cut": good[: len(good) // 2],
        "text bomb": png(Image.new("RGB", (8, 8)), parameters="a" * 4_000_000),
        "deep record": png(
            Image.new("RGB", (24, 24)), olivelike='{"format": "olivelike/picture/1", "other": ' + "[" * 9000
        ),
        "lying record": png(
            Image.new("RGB", (24, 24)),
            olivelike='{"format": "olivelike/picture/1", "prompt": "\\ud800", "init_image": {"name": "/etc/passwd"}, "seed": 1e999}',  # noqa: E501
            parameters="a\nSteps: nan, Seed: 9" + "9" * 5000 + ", Size: 1x1, Sampler: ../x",
        ),
        "many parts": b"\xff\xd8" + b"\xff\xe1\0\x0aExif\0\0aa" * 1000 + jpeg[2:],
        "many scans": jpeg[:-2] + jpeg[jpeg.rindex(b"\xff\xda") : -2] * 1000 + jpeg[-2:],
        "wheel": bytes(rng.randrange(256) for _ in range(2000)),
        "gif": gif.getvalue(),
        "tiff": tiff.getvalue()[:-40],
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "postscript": b"%!PS-Adobe-3.0\n(/etc/passwd) (r) file\n",
        "zip": b"PK\3\4" + bytes(100),
        "nothing at all": b"",
    }


class Fuzzer:
    """Makes requests for the routes of an OpenAPI description."""

    def __init__(
        self, openapi: dict[str, Any], port: int, seed: int, *, model: str, skip: tuple[str, ...] = ()
    ) -> None:
        self._model = model
        self._rng = random.Random(seed)
        self._schemas = openapi.get("components", {}).get("schemas", {})
        self._port = port
        self._files = pictures(self._rng)
        self._images = [base64.b64encode(data).decode() for data in self._files.values() if len(data) < 200_000]
        self._routes = [
            (path, method.upper(), operation)
            for path, operations in openapi["paths"].items()
            for method, operation in operations.items()
            if not path.startswith(skip or ("\0",))
            for _ in range(4 if "requestBody" in operation else 1)
        ]
        self._rng.shuffle(self._routes)

    def requests(self, number: int) -> Iterator[Request]:
        """Return so many requests; each route has its turn, those that take a body four."""
        for turn in range(number):
            path, method, operation = self._routes[turn % len(self._routes)]
            if self._rng.random() < 0.08:
                yield Request(BROKEN, self._broken(path))
            else:
                yield self._request(path, method, operation)

    def _request(self, path: str, method: str, operation: dict[str, Any]) -> Request:
        rng = self._rng
        said = method if rng.random() < 0.9 else rng.choice(METHODS)
        filled = re.sub(r"\{[^}]*\}", lambda _: self._in_path(), path)
        if rng.random() < 0.06:
            filled = rng.choice(("/..", "//", "/%2e%2e/", "/\\", "/%00", "/%ff", "/.git", "/static/../")) + filled
        query = []
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "query" and rng.random() < 0.5:
                query.append(f"{parameter['name']}={self._quoted(str(rng.choice((*NAMES, *NUMBERS))))}")
        target = filled + ("?" + "&".join(query) if query else "")
        body, kind = self._body(operation)
        return Request(f"{said} {path} {kind[:40]}", self._http(said, target, body, kind))

    def _in_path(self) -> str:
        return self._quoted(self._rng.choice((*NAMES, "0" * 20, "f" * 64, "txt2img", "little.png")))[:8000]

    def _quoted(self, text: str) -> str:
        raw = text.encode("utf-8", "surrogatepass")[:8000]
        return "".join(chr(b) if 48 <= b < 58 or 97 <= b < 123 or self._plain(b) else f"%{b:02x}" for b in raw)

    def _plain(self, byte: int) -> bool:
        return byte in b"./~-_" and self._rng.random() < 0.5

    def _body(self, operation: dict[str, Any]) -> tuple[bytes, str]:
        rng, content = self._rng, operation.get("requestBody", {}).get("content", {})
        chance = rng.random()
        if "multipart/form-data" in content and chance < 0.85:
            return self._form(content["multipart/form-data"]["schema"])
        if "application/json" in content and chance < 0.85:
            return self._json(content["application/json"]["schema"]), "application/json"
        kinds = (
            "application/json",
            "text/plain",
            "application/x-www-form-urlencoded",
            "image/png",
            "a/b; charset=utf-7",
            "",
        )
        if chance < 0.5:
            return rng.choice(list(self._files.values())), rng.choice(kinds)
        odd = (
            b"",
            b"{",
            b"[" * 100_000,
            b'{"prompt": "\xff\xfe"}',
            b"\0",
            b"null",
            b"1e999",
            b"NaN",
            b'"\\ud800"',
            b"[1]",
        )
        return rng.choice(odd), rng.choice(kinds)

    def _json(self, schema: dict[str, Any]) -> bytes:
        value = self._value(schema, "")
        for _ in range(self._rng.choice((0, 0, 0, 1, 1, 2))):
            value = self._spoilt(value)
        text = re.sub(r'"@([^"]*)@"', r"\1", json.dumps(value))
        return text.encode("utf-8", "replace")

    def _value(self, schema: dict[str, Any], name: str) -> Any:
        """Return something that a schema allows, small enough to be drawn in no time."""
        rng = self._rng
        if "$ref" in schema:
            return self._value(self._schemas[schema["$ref"].rpartition("/")[2]], name)
        for key in ("anyOf", "oneOf", "allOf"):
            if key in schema:
                choices = [inner for inner in schema[key] if inner.get("type") != "null"]
                return self._value(rng.choice(choices), name) if rng.random() < 0.8 else None
        if "enum" in schema or "const" in schema:
            return rng.choice(schema.get("enum", [schema.get("const")]))
        match schema.get("type"):
            case "object":
                chosen = {
                    key: self._value(inner, key)
                    for key, inner in schema.get("properties", {}).items()
                    if key in schema.get("required", ()) or key == "init_images" or rng.random() < 0.1
                }
                small = {
                    "steps": 4,
                    "num_inference_steps": 4,
                    "width": 16,
                    "height": 16,
                    "n": 1,
                    "n_iter": 1,
                    "batch_size": 1,
                }
                return chosen | {key: value for key, value in small.items() if key in schema.get("properties", {})}
            case "array":
                return [self._value(schema.get("items", {}), name) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
            case "integer":
                return rng.choice((schema.get("minimum", 0), 1, 2))
            case "number":
                return rng.choice((0.5, 1, schema.get("minimum", 0)))
            case "boolean":
                return rng.random() < 0.1
            case "null":
                return None
            case "string" if "image" in name or name in ("mask", "data"):
                return self._images[0] if rng.random() < 0.6 else rng.choice(("", "f" * 64, *self._images))
            case "string" if "prompt" in name:
                return rng.choice(("a", "a", *PROMPTS))
            case "string":
                usual = {
                    "sampler": "Euler a",
                    "schedule": rng.choice(("Karras", "Euler")),
                    "script": "",
                    "upscaler": "Lanczos",
                    "size": "16x16",
                    "type": "queued",
                    "model": self._model,
                }
                fitting = [text for part, text in usual.items() if part in name]
                return rng.choice(fitting) if fitting and rng.random() < 0.8 else rng.choice(NAMES)
        return rng.choice((None, 1, "a", {}, []))

    def _spoilt(self, value: Any) -> Any:
        """Replace something in a value by what does not belong there."""
        rng = self._rng
        if isinstance(value, dict) and value and rng.random() < 0.9:
            key = rng.choice(list(value))
            return {**value, key: self._spoilt(value[key])}
        if isinstance(value, list) and value and rng.random() < 0.7:
            return [self._spoilt(value[0]), *value[1:]]
        deep: Any = "a"
        for _ in range(rng.choice((1, 60, 400))):
            deep = rng.choice(([deep], {"a": deep}))
        return rng.choice(
            (*NUMBERS, *NUMBERS, *NAMES, *PROMPTS, None, [], {}, [1] * 10_000, {"a": 1}, deep, *self._images)
        )

    def _form(self, schema: dict[str, Any]) -> tuple[bytes, str]:
        rng = self._rng
        value = self._value({**schema, "type": "object"}, "")
        parts = []
        for key, inner in value.items():
            if schema["properties"][key].get("format") == "binary" or key in ("image", "mask"):
                name = rng.choice((key, key, "image[]", *NAMES[:6])).replace("\r", "").encode("utf-8", "replace")
                file = rng.choice(rng.choice(NAMES[:9])).encode()
                name = key.encode() if rng.random() < 0.8 else name
                data = self._files["good"] if rng.random() < 0.6 else rng.choice(list(self._files.values()))
                parts.append((b'name="%s"; filename="%s"' % (name, file), data))
            else:
                sent = self._spoilt(inner) if rng.random() < 0.3 else inner
                text = sent if isinstance(sent, str) else json.dumps(sent)
                parts.append((b'name="%s"' % key.encode(), text.strip("@").encode("utf-8", "surrogatepass")))
        line = rng.choice(("x", "x" * 70, "x y"))
        body = b"".join(
            b"--%s\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (line.encode(), head, data)
            for head, data in parts
        )
        body += b"--%s--\r\n" % line.encode() if rng.random() < 0.9 else b""
        charset = rng.choice(("",) * 12 + ("; charset=utf-7", "; charset=undefined", "; charset=zlib"))
        boundary = f'; boundary="{line}"' if rng.random() < 0.95 else ""
        return body, f"multipart/form-data{boundary}{charset}"

    def _http(self, method: str, target: str, body: bytes, kind: str) -> bytes:
        rng, here = self._rng, f"127.0.0.1:{self._port}"
        headers = [("Host", here), ("Content-Length", str(len(body))), ("Connection", "close")]
        headers += [("Content-Type", kind)] if kind else []
        if rng.random() < 0.2:
            odd = (
                ("Origin", "http://evil.example"), ("Origin", "null"), ("Origin", f"http://{here}"), ("Origin", "http://[["),
                ("Host", "evil.example"), ("X-Forwarded-Host", "evil.example"), ("X-Forwarded-For", "8.8.8.8"),
                ("Authorization", "Bearer x"), ("Authorization", "Basic ///"), ("Authorization", "Basic " + "A" * 9000),
                ("Range", "bytes=0-999999999999"), ("Range", "bytes=" + "0-1," * 3000), ("Range", "bytes=-1,x"),
                ("If-None-Match", "*" * 5000), ("Accept", "text/event-stream"), ("Last-Event-ID", "-1"), ("Cookie", "a=b;" * 2000),  # noqa: E501
                ("Expect", "100-continue"), ("Upgrade", "websocket"), ("Content-Encoding", "gzip"), ("X-A", "é"),
                ("Access-Control-Request-Method", "PUT"), ("Content-Type", "application/json; charset=utf-16"),
            )  # fmt: skip
            name, value = rng.choice(odd)
            headers = [pair for pair in headers if pair[0] != name] + [(name, value)]
        if rng.random() < 0.02:
            headers += [(f"X-{n}", "1") for n in range(rng.choice((90, 200, 3000)))]
        if rng.random() < 0.02:
            headers += [("X-Long", "1" * rng.choice((8000, 20_000, 200_000)))]
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
        return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body

    def _broken(self, path: str) -> bytes:
        here = b"Host: 127.0.0.1:%d\r\nConnection: close\r\n" % self._port
        post = b"POST %s HTTP/1.1\r\n" % path.encode()
        return self._rng.choice(
            (
                b"GET / HTTP/1.1\r\n\r\n",
                b"GET / HTTP/0.9\r\n\r\n",
                b"GET / HTTP/1.0\r\n\r\n",
                b"GET http://evil.example/api/jobs HTTP/1.1\r\n" + here + b"\r\n",
                b"GET / HTTP/9.9\r\n" + here + b"\r\n",
                b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(200),
                b"GET /\x00 HTTP/1.1\r\n" + here + b"\r\n",
                b"GET /\xff\xfe HTTP/1.1\r\n" + here + b"\r\n",
                b"GET / HTTP/1.1\r\nNo colon\r\n" + here + b"\r\n",
                b"GET / HTTP/1.1\r\n" + here + here + b"\r\n",
                b"A" * 100_000,
                post + here + b"Content-Length: -1\r\n\r\n",
                post + here + b"Content-Length: 99999999999999999999\r\n\r\n{}",
                post + here + b"Content-Length: 1073741824\r\nContent-Type: application/json\r\n\r\n{}",
                post + here + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
                post
                + here
                + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /api/jobs HTTP/1.1\r\n\r\n",
                post + here + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
                post + here + b"Transfer-Encoding: chunked\r\n\r\n" + b"ffff\r\n" + bytes(65535) + b"\r\n",
                post + here + b"Transfer-Encoding: gzip\r\n\r\nabc",
                post + here + b"Content-Length: 100\r\nContent-Type: application/json\r\n\r\n{",
            )
        )


def ask(port: int, request: Request, timeout: float = 60) -> int | None:
    """Send a request; return the status of the answer, or `None` if the connection was closed without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        with suppress(ConnectionError):
            connection.sendall(request.data)
            if request.what == BROKEN:  # What is missing would be waited for.
                connection.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(OSError):
            while not _STATUS.search(answer) and (part := connection.recv(4096)):
                answer += part
    match = _STATUS.search(answer)
    return int(match[1]) if match else None
