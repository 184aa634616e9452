"""Types of one exchange with the mock, and the parsing of a request (dialect, model, fields).

The responses are in `openai_answers` and `anthropic_answers`.
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

MockDialect = Literal["openai", "anthropic"]

HEALTH = "/health"
"""A path without a model; its faults are switched on under the path."""

# In a query `+` is a space: `?model=gpt-realtime+reset` arrives with a space, which no model name has.
_PLUS_IN_QUERY = str.maketrans(" ", "+")


@dataclass(frozen=True, slots=True)
class MockResponse:
    """A complete response."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    output_tokens: int = 0
    """Tokens of text in it."""


@dataclass(frozen=True, slots=True)
class Script:
    """A stream, event by event, as bytes of the dialect."""

    opening: tuple[bytes, ...]
    """Events before the first token: `message_start`, a role."""
    tokens: tuple[bytes, ...]
    closing: tuple[bytes, ...]
    """Events after the last token, the terminal event last."""
    error: bytes
    """An in-band error event."""
    broken: bytes
    """A token event with incomplete JSON."""


@dataclass(frozen=True, slots=True)
class Upload:
    """One part of a multipart form that carries a file."""

    name: str
    data: bytes


@dataclass(slots=True)
class MockRequest:
    """A parsed request."""

    dialect: MockDialect
    number: int
    """Sequence number of the request."""
    method: str
    path: str
    """Without a leading `/v1`."""
    query: dict[str, list[str]]
    headers: Mapping[str, str]
    fields: dict[str, Any]
    """The JSON object or the multipart form of the body; empty if there is neither."""
    prompt_tokens: int
    model: str = ""
    """Name without its faults."""
    wants_stream: bool = False
    is_another: bool = False
    """True if the response must differ from the usual one."""
    overlap: int | None = None
    """Number of words to repeat after an instruction to continue a text; None: those that the instruction quotes."""
    has_preamble: bool = False
    """True if a continued text begins with a remark to the reader."""

    @property
    def model_text(self) -> str:
        """The requested model with its faults; empty if the request names none."""
        model = self.fields.get("model") if self.path != HEALTH else HEALTH
        if isinstance(model, str):
            return model
        return self.query.get("model", [""])[0].translate(_PLUS_IN_QUERY)

    def host(self) -> str:
        return self.headers.get("host", "mock")


def understand(number: int, method: str, target: str, headers: Mapping[str, str], body: bytes) -> MockRequest:
    """Parses a request; `headers` must be case-insensitive.

    Raises ValueError if the body does not match its headers."""
    path, _, query = target.partition("?")
    fields = _read_fields(headers, body) if body else {}
    return MockRequest(
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


def dialect_of(target: str, headers: Mapping[str, str]) -> MockDialect:
    """The dialect, decided by headers for paths that both have."""
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
