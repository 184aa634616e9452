"""The nouns of one exchange with the mock: what was asked, and what is to be answered.

Owns how a request is understood (dialect, model, fields). Does not answer it (`openai_answers`,
`anthropic_answers`).
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs

import msgspec

Dialect = Literal["openai", "anthropic"]

HEALTH = "/health"
"""A page that names no model: its faults are switched on under its path."""

# In a query `+` is a space: `?model=gpt-realtime+reset` arrives with a blank, which no model name has.
_PLUS_IN_QUERY = str.maketrans(" ", "+")


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Script:
    """A stream, event by event, in the dialect's bytes."""

    opening: tuple[bytes, ...]
    """What comes before the first token: `message_start`, a role."""
    tokens: tuple[bytes, ...]
    closing: tuple[bytes, ...]
    """What comes after the last token, the terminal event last."""
    error: bytes
    """An in-band error event."""
    broken: bytes
    """A token event whose JSON is cut."""


@dataclass(frozen=True, slots=True)
class Upload:
    """One part of a multipart form that carries a file."""

    name: str
    data: bytes


@dataclass(slots=True)
class Asked:
    """A request as the mock understands it."""

    dialect: Dialect
    number: int
    """The running number of the request."""
    method: str
    path: str
    """Without a leading `/v1`."""
    query: dict[str, list[str]]
    headers: Mapping[str, str]
    fields: dict[str, Any]
    """The JSON object or the multipart form of the body; empty where there is neither."""
    prompt_tokens: int
    model: str = ""
    """Without its faults."""
    wants_stream: bool = False
    is_another: bool = False
    """The answer is to be another one than usual."""
    overlap: int | None = None
    """Words that are repeated when it is told to go on with a text; None: those that it is told to."""
    has_preamble: bool = False
    """A text that goes on begins with a remark to the reader."""

    @property
    def model_text(self) -> str:
        """The model as it was asked for, faults included; empty where the request names none."""
        model = self.fields.get("model") if self.path != HEALTH else HEALTH
        if isinstance(model, str):
            return model
        return self.query.get("model", [""])[0].translate(_PLUS_IN_QUERY)

    def host(self) -> str:
        return self.headers.get("host", "mock")


def understand(number: int, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Asked:
    """Reads a request; `headers` must be case-insensitive.

    Raises ValueError when the body is not what its headers claim.
    """
    path, _, query = target.partition("?")
    fields = _read_fields(headers, body) if body else {}
    return Asked(
        dialect=dialect_of(target, headers),
        number=number,
        method=method,
        path=path.removeprefix("/v1").rstrip("/"),
        query=parse_qs(query),
        headers=headers,
        fields=fields,
        prompt_tokens=max(1, len(body) // 4),
        wants_stream=fields.get("stream") is True,
    )


def dialect_of(target: str, headers: Mapping[str, str]) -> Dialect:
    """Paths that both dialects have are told apart by their headers."""
    if target.removeprefix("/v1").startswith("/messages"):
        return "anthropic"
    return "anthropic" if "anthropic-version" in headers or "x-api-key" in headers else "openai"


def _read_fields(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    content_type = headers.get("content-type", "")
    if headers.get("content-encoding", "").lower() == "gzip":
        body = _inflate(body)
    if content_type.startswith("multipart/form-data"):
        return read_form(content_type, body)
    try:
        fields = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise ValueError(f"We could not parse the JSON body of your request. ({error})") from None
    if not isinstance(fields, dict):
        raise ValueError("The JSON body of a request must be an object.")
    return fields


def _inflate(body: bytes) -> bytes:
    try:
        return gzip.decompress(body)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"The body is not gzip, though content-encoding says so. ({error})") from None


def read_form(content_type: str, body: bytes) -> dict[str, Any]:
    """The fields of a multipart form: text as str, files as Upload, byte for byte. Raises ValueError."""
    boundary = re.search(r'boundary="?([^";]+)"?', content_type)
    if boundary is None:
        raise ValueError("multipart/form-data without a boundary")
    fields: dict[str, Any] = {}
    for part in body.split(b"--" + boundary[1].encode())[1:-1]:
        head, _, data = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        disposition = head.decode(errors="replace")
        name = re.search(r'[; ]name="([^"]*)"', disposition)
        if name is None:
            raise ValueError("a part of the form has no name")
        filename = re.search(r'filename="([^"]*)"', disposition)
        data = data.removesuffix(b"\r\n")
        fields[name[1]] = data.decode(errors="replace") if filename is None else Upload(filename[1], data)
    return fields
