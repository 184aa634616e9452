"""The model field of a request: found without parsing the rest, renamed without touching the rest.

Owns JSON, multipart and compressed bodies, and queries, as far as `model`, `stream` and `n` go. Does not own what a
model means. Measured on CPython 3.11: 2 ms for a JSON body of 10 MB.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from urllib.parse import quote, unquote_plus

import msgspec

MAX_MODEL_CHARS = 256
_MODEL_FIELD = re.compile(rb'("model"\s*:\s*)("(?:[^"\\]|\\.)*")')
_PART_NAME = re.compile(
    rb"""^content-disposition:[ \t]*[\w-]+
    (?:[ \t]*;[ \t]*(?!name=)[\w*-]+=(?:"(?:[^"\\\r\n]|\\.)*"|[^;"\s]*))*  # a file's name may contain `name=`
    [ \t]*;[ \t]*name=(?:"([^"\r\n]*)"|([^;"\s]+))""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_MAX_PART_HEAD_BYTES = 4096
_SLOW_PARSE_BYTES = 1 << 20
_MAX_MODEL_FIELDS = 10_000


class BadRequest(Exception):
    """A request that no upstream could read; the text is for the caller."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for, as far as the gateway needs to know."""

    model: str | None = None
    is_stream: bool = False
    choices: int = 1
    is_bound: bool = False
    """It goes on from what one provider keeps: a previous response, a conversation."""
    is_stateful: bool = False
    """It asks the provider to keep it, or goes on from what is kept."""


class _Head(msgspec.Struct):
    """The fields read of a JSON body; msgspec checks the syntax of the others and keeps nothing of them."""

    model: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    stream: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    n: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    previous_response_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    conversation: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    background: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    store: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_HEAD = msgspec.json.Decoder(_Head)
_FIELDS = _Head.__struct_fields__
_SAYS_NOTHING = (None, b"null", b"false", b'""')


def inspect(body: bytes, content_type: str, content_encoding: str, max_bytes: int) -> Asked:
    """What `body` asks for; raises BadRequest. A body of another kind, or an empty one, asks for nothing."""
    if not body:
        # SDKs send DELETE and some POST with a JSON content type and no body: that is not invalid JSON.
        return Asked()
    kind = _kind_of(content_type)
    if kind == "other" and body.lstrip()[:1] != b"{":
        return Asked()
    plain = inflate(body, content_encoding, max_bytes)
    if plain is None:
        raise BadRequest(
            415, "unsupported_content_encoding",
            f"the gateway cannot find the model in a body with content-encoding {content_encoding!r}: "
            "send it uncompressed, gzip or deflate",
        )  # fmt: skip
    return _inspect_form(plain, content_type) if kind == "form" else _inspect_json(plain, is_sure=kind == "json")


def rename(body: bytes, content_type: str, content_encoding: str, model: str) -> bytes:
    """`body` with `model` as its model and every other byte as it was; a compressed body is compressed again.

    For a body that `inspect` has accepted and found a model in; raises BadRequest.
    """
    plain = inflate(body, content_encoding, max_bytes=1 << 62)
    assert plain is not None  # noqa: S101  # inspect has read it
    renamed = (
        _rename_form(plain, content_type, model) if _kind_of(content_type) == "form" else _rename_json(plain, model)
    )
    return _deflate(renamed, content_encoding)


def inflate(body: bytes, content_encoding: str, max_bytes: int) -> bytes | None:
    """The body behind a gzip or deflate encoding; None for one we cannot read. Raises BadRequest when it is corrupt
    (400) or grows beyond `max_bytes` (413)."""
    encoding = content_encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        return None
    inflater = zlib.decompressobj(wbits=47 if encoding != "deflate" else 15)  # 47: gzip or zlib, by its header
    try:
        plain = inflater.decompress(body, max_bytes + 1)
    except zlib.error:
        raise BadRequest(
            400, "invalid_body", f"the body is not valid {encoding}, as its content-encoding says"
        ) from None
    if len(plain) > max_bytes:
        raise BadRequest(413, "body_too_large", f"the body inflates to more than {max_bytes} bytes")
    if not inflater.eof:
        raise BadRequest(400, "invalid_body", f"the {encoding} body ends too early")
    return plain


def _kind_of(content_type: str) -> str:
    media = content_type.partition(";")[0].strip().lower()
    if media == "multipart/form-data":
        return "form"
    return "json" if media == "application/json" or media.endswith("+json") else "other"


def _deflate(plain: bytes, content_encoding: str) -> bytes:
    encoding = content_encoding.strip().lower()
    if encoding in ("", "identity"):
        return plain
    return zlib.compress(plain) if encoding == "deflate" else gzip.compress(plain, mtime=0)


def model_in_query(query: str) -> str | None:
    """The model that a query names (`/v1/realtime?model=…`); raises BadRequest when it is too long."""
    for pair in query.split("&"):
        if pair.startswith("model="):
            return _checked(unquote_plus(pair[6:]))
    return None


def rename_in_query(query: str, model: str) -> str:
    """`query` with `model` as its model and every other character as it was."""
    return "&".join(
        f"model={quote(model, safe='')}" if pair.startswith("model=") else pair for pair in query.split("&")
    )


# JSON


def _inspect_json(body: bytes, *, is_sure: bool) -> Asked:
    try:
        head = _HEAD.decode(body)
    except msgspec.ValidationError:
        if body.lstrip()[:1] == b"{":  # pragma: no cover - an object always fits _Head
            raise
        return Asked()  # a list or a scalar: valid, names no model, is the upstream's to judge
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        asked = _inspect_slowly(body)
        if asked is not None:
            return asked
        if not is_sure:
            return Asked()
        raise BadRequest(400, "invalid_json", f"the body is not valid JSON: {_reason(error)}") from None
    return _asked({name: _bytes(getattr(head, name)) for name in _FIELDS})


def _inspect_slowly(body: bytes) -> Asked | None:
    """For the one oddity that is valid JSON but not for msgspec: half of a surrogate pair, which SDKs do send when
    they cut a string inside an emoji."""
    if b"\\ud" not in body.lower() or len(body) > _SLOW_PARSE_BYTES:
        return None
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
        if not isinstance(value, dict):
            return Asked()
        raw = {name: json.dumps(value[name]).encode() for name in _FIELDS if name in value}
    except (ValueError, RecursionError):
        return None
    return _asked(raw)


def _asked(raw: Mapping[str, bytes | None]) -> Asked:
    """The fields as they stand in the body, each as its JSON."""
    says = {name: raw.get(name) not in _SAYS_NOTHING for name in _FIELDS}
    is_bound = says["previous_response_id"] or says["conversation"]
    return Asked(
        model=_model(raw.get("model")),
        is_stream=raw.get("stream") == b"true",
        choices=_choices(raw.get("n")),
        is_bound=is_bound,
        is_stateful=is_bound or says["background"] or says["store"],
    )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _bytes(raw: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    return bytes(raw) if isinstance(raw, msgspec.Raw) else None


def _model(raw: bytes | None) -> str | None:
    if raw is None or raw == b"null":
        return None
    try:
        model = msgspec.json.decode(raw, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise BadRequest(400, "invalid_model", "`model` must be a string", "model") from None
    return _checked(model)


def _checked(model: str) -> str:
    if not 0 < len(model) <= MAX_MODEL_CHARS:
        raise BadRequest(400, "invalid_model", f"`model` must have 1 to {MAX_MODEL_CHARS} characters", "model")
    return model


def _choices(raw: bytes | None) -> int:
    return max(1, int(raw)) if raw is not None and raw.isdigit() and len(raw) < 4 else 1


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).removeprefix("JSON is malformed: ")


def _rename_json(body: bytes, model: str) -> bytes:
    """Every field that could be the model's is numbered, and the parser says which one it read: nested ones and
    doubles need no scanner of ours."""
    found = list(islice(_MODEL_FIELD.finditer(body), _MAX_MODEL_FIELDS))
    numbers = iter(range(len(found)))
    numbered = _MODEL_FIELD.sub(lambda match: match[1] + b"%d" % next(numbers), body, count=_MAX_MODEL_FIELDS)
    index = _model_read(numbered)
    if not isinstance(index, int) or not 0 <= index < len(found):
        raise BadRequest(
            400,
            "invalid_model",
            'the gateway renames this model: write the key "model" once and without escapes',
            "model",
        )
    start, end = found[index].span(2)
    return body[:start] + msgspec.json.encode(model) + body[end:]


def _model_read(body: bytes) -> object:
    """The value of the field that a parser takes for the model, in a body that `inspect` has accepted."""
    try:
        raw = _HEAD.decode(body).model
        return msgspec.json.decode(raw) if isinstance(raw, msgspec.Raw) else None
    except msgspec.DecodeError:  # half of a surrogate pair, as in _inspect_slowly
        return json.loads(body).get("model")


# multipart/form-data (RFC 7578)


def _inspect_form(body: bytes, content_type: str) -> Asked:
    values = {name: body[start:end] for name, start, end in _form_fields(body, content_type)}
    raw = values.get("model")
    if raw is None:
        return Asked(is_stream=values.get("stream") == b"true")
    try:
        model = raw.decode()
    except UnicodeDecodeError:
        raise BadRequest(400, "invalid_model", "`model` must be UTF-8 text", "model") from None
    return Asked(_checked(model), is_stream=values.get("stream") == b"true")


def _rename_form(body: bytes, content_type: str, model: str) -> bytes:
    spans = [(start, end) for name, start, end in _form_fields(body, content_type) if name == "model"]
    if not spans:
        raise BadRequest(400, "invalid_model", "the form has no model field", "model")
    # Of doubles some servers read the first and some the last.
    for start, end in reversed(spans):
        body = body[:start] + model.encode() + body[end:]
    return body


def _form_fields(body: bytes, content_type: str) -> list[tuple[str, int, int]]:
    """(name, start, end) of the fields `model` and `stream`; files are skipped at the speed of a search."""
    delimiter = b"--" + _boundary(content_type)
    fields = []
    at = body.find(delimiter)
    while at != -1:
        head_start = at + len(delimiter)
        head_end = body.find(b"\r\n\r\n", head_start, head_start + _MAX_PART_HEAD_BYTES)
        at = body.find(b"\r\n" + delimiter, head_start)
        if head_end == -1 or at == -1:
            break
        found = _PART_NAME.search(body, head_start, head_end)
        name = (found[1] or found[2]) if found else None
        if name in (b"model", b"stream"):
            fields.append((name.decode(), head_end + 4, at))
        at += 2
    return fields


def _boundary(content_type: str) -> bytes:
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "boundary" and value:
            return value.strip('"').encode()
    raise BadRequest(400, "invalid_body", "multipart/form-data without a boundary")
