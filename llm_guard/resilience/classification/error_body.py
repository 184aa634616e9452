"""Reads an error body, in any wrapping.

Knows the shapes: object, string, array, top-level fields, `detail`, JSON in JSON, Python repr, HTML, plain text, cut or
empty. The meaning of words is in `resilience.classification.vocabulary`. Only known fields are opened: what a provider
echoes of the request (`input`, `failed_generation`, `param`) is never read.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from llm_guard.resilience.classification.error_codes import (
    CLOUDFLARE,
    codes_in,
    marks,
    plain_code,
    status_first,
    status_last,
    status_of,
)
from llm_guard.resilience.classification.lenient_json import embedded, loads
from llm_guard.resilience.classification.phrase_match import MAX_MESSAGE_CHARS, words_of
from llm_guard.resilience.memo import Memo

MAX_BODY_BYTES = 8192
"""Only this much of an error body is read."""


def _in_order(*names: str) -> dict[str, int]:
    return {name: place for place, name in enumerate(names)}


_DEEPEST = 6
_MAX_FIELDS = 50
_MAX_LAYERS = 12
_MESSAGE_FIELDS = _in_order(
    "message", "Message", "msg", "error_message", "errorMessage", "error_msg", "errmsg", "detail", "description",
    "error_description", "status_msg", "status_message", "originalMessage", "title", "finishMessage", "text",
)  # fmt: skip
_CODE_FIELDS = _in_order("code", "error_code", "errorCode", "err_code", "status_code", "statusCode", "Code", "ret_code")
_TYPE_FIELDS = _in_order(
    "type", "error_type", "errorType", "__type", "status", "status_name", "statusText", "reason", "name",
)  # fmt: skip
_NESTED_FIELDS = _in_order(
    "error", "errors", "fault", "response", "innererror", "inner_error", "metadata", "details", "detail", "raw",
    "cause", "base_resp", "last_error", "incomplete_details", "status_details", "body", "exception", "Error",
    "originalMessage", "data", "output", "param",
)  # fmt: skip
_WAIT_FIELD = re.compile(r"(?:retry|try_?again)_?(?:after|delay|in)|resets?_?(?:in|after)|estimated_?time|cool_?down")
"""A field that names a wait, in any case; one that ends in `ms` has milliseconds."""

# Names and codes of errors repeat.
_is_wait_field = Memo[str, bool](lambda name: _WAIT_FIELD.match(name.lower()[:40]) is not None)
_plain = Memo(plain_code)

_LIKE_JSON = re.compile(r"""\{|\[\s*(?:[{\["']|$)|"[^"]""")
_TITLE = re.compile(r"<title[^<>]{0,100}>([^<]{0,300})", re.IGNORECASE)
_HEADING = re.compile(r"<h[12][^<>]{0,100}>(.{0,200})", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]{0,200}>")

BodyFormat = Literal["json", "html", "text", "empty"]


@dataclass(slots=True)
class Layer:
    """One party's error; an error that quotes another has a layer for each."""

    code: str = ""
    """`error.code` as written; "" if it has none that is text."""
    type: str = ""
    message: str = ""
    status: int | None = None
    """An HTTP status that the layer names itself."""
    codes: frozenset[str] = frozenset()
    """Every machine-readable word of the layer, normalized by `plain_code`."""
    labels: tuple[str, ...] = ()
    """The same words as written."""


@dataclass(slots=True)
class ErrorBody:
    """Content of an error body. `layers` from the outermost to the innermost."""

    shape: BodyFormat
    layers: list[Layer] = field(default_factory=list)
    waits: list[object] = field(default_factory=list)
    """Values of fields that name a wait, as written; milliseconds converted to seconds."""
    quoted_status: int | None = None
    """The status that an exception's text names right before the response that it quotes."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the response behind this one, if a gateway passes them on in the body (OpenRouter)."""

    @property
    def status(self) -> int | None:
        """The status of the innermost error that names one."""
        return next((layer.status for layer in reversed(self.layers) if layer.status), None)

    @property
    def message(self) -> str:
        """The innermost message, to be read by people."""
        return next((layer.message for layer in reversed(self.layers) if layer.message), "")


def read_body(body: bytes | str) -> ErrorBody:
    """Reads a body, up to MAX_BODY_BYTES. Never raises."""
    raw = body[: MAX_BODY_BYTES + 4]
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    text = text[:MAX_BODY_BYTES].strip().lstrip("\ufeff")
    if not text:
        return ErrorBody("empty")
    if text[0] == "<":
        return _read_html(text)
    if _LIKE_JSON.match(text):
        try:
            return read_value(loads(text))
        except ValueError:
            pass
    said = ErrorBody("text")
    _open(said, text, 0)
    return said


def read_value(value: object) -> ErrorBody:
    """Reads a body that has been parsed."""
    said = ErrorBody("json")
    _open(said, value, 0)
    return said


def _read_html(text: str) -> ErrorBody:
    found = [*_TITLE.findall(text), *_HEADING.findall(text)[:2]]
    message = html.unescape(" | ".join(" ".join(_TAG.sub(" ", part).split()) for part in found))
    said = ErrorBody("html")
    code = CLOUDFLARE.search(message)
    codes = frozenset({f"cloudflare{code[1]}"} if code else ())
    said.layers.append(Layer(message=message, status=status_first(message), codes=codes))
    return said


def _open(said: ErrorBody, value: object, depth: int) -> None:
    if depth > _DEEPEST or len(said.layers) >= _MAX_LAYERS:
        return
    if isinstance(value, dict):
        _open_object(said, value, depth)
    elif isinstance(value, list):
        for item in value[:4]:
            _open(said, item, depth + 1)
    elif isinstance(value, str):
        _open_text(said, value, depth)


def _open_text(said: ErrorBody, value: str, depth: int) -> None:
    text = value.strip()
    if _LIKE_JSON.match(text):
        try:
            inner = loads(text[:MAX_BODY_BYTES])
        except ValueError:
            inner = None
        if isinstance(inner, dict | list | str) and inner != value:
            _open(said, inner, depth + 1)
            return
    quoted = embedded(text[:MAX_BODY_BYTES])
    if quoted is not None:
        before, inner = quoted
        said.quoted_status = said.quoted_status or status_last(before)
        said.layers.append(_text_layer(before))
        _open(said, inner, depth + 1)
        return
    if text:
        said.layers.append(_text_layer(text))


def _waits_in(value: dict[str, Any]) -> Iterator[object]:
    for name, wait in islice(value.items(), _MAX_FIELDS):
        if wait is None or not _is_wait_field[name]:
            continue
        is_ms = name.endswith(("ms", "Ms", "millis")) and isinstance(wait, int | float)
        yield wait / 1000 if is_ms else wait


def _text_layer(text: str) -> Layer:
    text = text[:MAX_MESSAGE_CHARS]
    return Layer(message=text, status=status_first(text), codes=frozenset(codes_in(text)))


def _open_object(said: ErrorBody, value: dict[str, Any], depth: int) -> None:
    said.waits += _waits_in(value)
    if isinstance(value.get("headers"), dict):
        said.headers.update({str(k).lower(): str(v) for k, v in list(value["headers"].items())[:50]})
    error = value.get("error", value.get("Error"))
    message, taken = _message_of(value, error)
    code, kind, status, codes, labels = _labels_of(value, error, said_elsewhere=message is not error)
    inner = _text_of(message) if message is not None else None
    if inner is not None:
        codes.update(codes_in(inner))
    if codes or status or inner:
        status = status or (status_first(inner) if inner else None)
        said.layers.append(Layer(code, kind, inner or "", status, frozenset(codes), tuple(labels)))
    if isinstance(message, str) and inner is None:
        _open(said, message, depth + 1)
    for name in _present(value, _NESTED_FIELDS):
        nested = value[name]
        if name == "param" and not isinstance(nested, dict):
            continue  # the caller's field, unless a gateway has put the upstream's error there (Vercel)
        if nested and name != taken and isinstance(nested, dict | list | str):
            _open_nested(said, name, nested, depth)
    if isinstance(value.get(taken), dict | list) and taken not in _NESTED_FIELDS:
        _open(said, value[taken], depth + 1)  # Mistral: the message itself is an object


def _present(value: dict[str, Any], fields: dict[str, int]) -> list[str]:
    """Returns the names of those of the object's fields that are in the table, in the table's order."""
    found = [name for name in value if name in fields]
    found.sort(key=fields.__getitem__)
    return found


def _open_nested(said: ErrorBody, name: str, nested: object, depth: int) -> None:
    if isinstance(nested, str) and name in ("data", "output", "response", "metadata", "details", "status_details"):
        return
    if name == "raw" and isinstance(nested, str):
        nested = nested[:MAX_BODY_BYTES]
    _open(said, nested, depth + 1)


def _message_of(value: dict[str, Any], error: object) -> tuple[object, str]:
    """Returns the object's own message and the name of its field."""
    for name in _present(value, _MESSAGE_FIELDS):
        said = value[name]
        if isinstance(said, str) and said:
            return said, name
        if name == "message" and isinstance(said, dict | list) and said:
            return None, name
    if isinstance(error, str) and error:
        return error, "error" if "error" in value else "Error"
    return None, ""


def _text_of(message: object) -> str | None:
    """Returns the message if it is a sentence; None if it is another error, written as text."""
    if not isinstance(message, str):
        return None
    text = message.strip()
    if _LIKE_JSON.match(text) and text[0] != '"':
        try:
            if isinstance(loads(text[:MAX_BODY_BYTES]), dict | list):
                return None
        except ValueError:
            pass
    if text[:1] == '"' and text[-1:] == '"':
        return text[1:-1][:MAX_MESSAGE_CHARS]
    return None if embedded(text[:MAX_BODY_BYTES]) else text[:MAX_MESSAGE_CHARS]


def _labels_of(
    value: dict[str, Any], error: object, *, said_elsewhere: bool
) -> tuple[str, str, int | None, set[str], list[str]]:
    labels: list[str] = []
    code = kind = ""
    status: int | None = None
    for name in _present(value, _CODE_FIELDS):
        found = value[name]
        named = status_of(found)
        status = status or named
        if named is None and isinstance(found, str | int) and not isinstance(found, bool):
            code = code or str(found)
            labels.append(str(found)[:200])
    for name in _present(value, _TYPE_FIELDS):
        found = value[name]
        if name in ("status", "type") and status is None:
            status = status_of(found)
        if isinstance(found, str):
            kind = kind or found
            labels.append(found[:200])
    if isinstance(error, str) and said_elsewhere:
        kind = kind or error
        labels.append(error[:200])
    status = status_of(value.get("originalStatusCode")) or status_of(value.get("http_code")) or status
    codes = {_plain[label] for label in labels}
    if isinstance(aws_type := value.get("__type"), str):
        codes.add(f"aws{plain_code(aws_type[:200])}")
    codes.update(marks(value))
    codes.discard("")
    return code[:200], kind[:200], status, codes, labels


def sentence_of(layer: Layer, *, without_quotes: bool) -> str:
    """Returns the layer's message as `Phrase.matches` takes it. A code that is a sentence (xAI) is part of it."""
    text = layer.message
    if " " in layer.code:
        text = f"{layer.code} | {text}"
    return words_of(text, without_quotes=without_quotes)
