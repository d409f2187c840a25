"""Forms with files: read into memory alone, within the bound that the guards set on every body."""

from __future__ import annotations

from collections import defaultdict
from email.message import Message
from typing import TYPE_CHECKING, Final

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from olivelike.serve.api.refusals import RequestRefusedError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from starlette.requests import Request

    from olivelike._untrusted import Json

Files = dict[str, list[bytes]]
_MOST_FILES: Final = 17
_MOST_FIELDS: Final = 100


class _InMemory(MultiPartParser):
    spool_max_size = 1 << 40


async def read_form(request: Request) -> tuple[dict[str, str], Files]:
    """Return a form's fields and its files by name. Raises `RequestRefusedError` if the body is none."""
    fields, files = await read_named_files(request)
    return fields, {field: [data for _, data in found] for field, found in files.items()}


async def read_named_files(request: Request) -> tuple[dict[str, str], dict[str, list[tuple[str, bytes]]]]:
    """Return a form's fields, and its files with the names that they were sent with. Raises as `read_form`."""
    said = Message()
    said["Content-Type"] = request.headers.get("content-type", "")
    if said.get_content_type() != "multipart/form-data":
        raise RequestRefusedError(400, "invalid", "send multipart/form-data")
    if said.get_content_charset("utf-8") not in ("utf-8", "utf8"):  # Others, such as UTF-7, have texts that are none.
        raise RequestRefusedError(400, "invalid", "the form is to be UTF-8")
    parser = _InMemory(request.headers, request.stream(), max_files=_MOST_FILES, max_fields=_MOST_FIELDS)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise RequestRefusedError(400, "invalid", f"the form can't be read: {error.message}") from None
    fields: dict[str, str] = {}
    files: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            files[name].append((value.filename or "", await value.read()))
        else:
            fields[name] = value
    await form.close()
    return fields, dict(files)


def form_of(fields: type[BaseModel], *files: str) -> Json:
    """Return what OpenAPI says of a form."""
    schema = fields.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    schema["properties"] |= {name: {"type": "string", "format": "binary"} for name in files}
    schema["required"] = [*schema.get("required", ()), files[0]]
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
