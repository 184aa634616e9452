"""The model of a request: found in a complete body, and renamed without changing anything else.

Covers JSON, multipart and compressed bodies, and queries. For a key that allows certain models only, also detects
bodies that name more than one, so that the provider might use another one than the gateway has checked. Bodies that are
too large to be read in one go are handled in `proxy.request_body.reader`.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any, Literal
from urllib.parse import quote, unquote_plus

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple

from llm_guard.proxy.call import Call
from llm_guard.proxy.gc_pause import uncollected
from llm_guard.proxy.request_body.content_encoding import deflater, inflate, is_coded
from llm_guard.proxy.request_body.fields import (
    MAX_MODEL_CHARS,
    NAMES_IN_MODEL,
    NOTHING,
    BadRequest,
    BodyFields,
    JsonFields,
    inputs_in_list,
)
from llm_guard.proxy.request_body.multipart_scanner import MultipartScanner, boundary
from llm_guard.resilience.memo import Memo

_NAMES = frozenset({"model", "models", "fallbacks"})
"""OpenRouter falls back to the next of `models`, and LiteLLM to `fallbacks`."""
_NAMING = re.compile(rb'"(?:[mM][oO][dD][eE][lL][sS]?|[fF][aA][lL][lL][bB][aA][cC][kK][sS])"')
"""Servers in Go and .NET match the names of fields in any case."""
_BACKSLASH = ord("\\")  # as a number it is found five times as fast
_ESCAPED = re.compile(rb"\\u(?:00[4-7]|017f|212[aA])")
_FOLDED = ("\u017f".encode(), "\u212a".encode())
"""In JSON a letter may be an escape. Case folding turns U+017F (long s) into s, and U+212A (kelvin sign) into k."""
_LONGEST = max(map(len, _NAMES))


def check_single_model(call: Call, asked: BodyFields) -> None:
    """Raises BadRequest for a call that names more than one model."""
    body = call.body
    is_doubled = asked.is_model_doubled
    if not is_doubled and isinstance(body, bytes):
        is_doubled = not call.content_encoding and body.lstrip().startswith(b"{") and names_more_models(body)
    if is_doubled:
        message = "this API key may use only one model per call: set `model` once, without `models` and `fallbacks`"
        raise BadRequest(400, "invalid_model", message, "model")


def names_more_models(document: bytes) -> bool:
    """Returns whether a JSON object has several fields that name models. A document that looks suspicious and that
    Python's parser cannot read counts as one that has."""
    if not _is_disguised(document) and len(_NAMING.findall(document)) < 2:
        return False
    try:
        top = json.loads(document, object_pairs_hook=_pairs, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return True
    return isinstance(top, _Pairs) and len([name for name in top.names if is_naming(name)]) > 1


def _is_disguised(document: bytes) -> bool:
    """Returns whether a name may be written in a way that `_NAMING` does not match. Cheap for most documents: they are
    ASCII, or have no escape."""
    if _BACKSLASH in document and _ESCAPED.search(document):
        return True
    return not document.isascii() and any(letter in document for letter in _FOLDED)


def is_naming(name: str) -> bool:
    """Returns whether a server may read a field of this name as one that names a model."""
    return len(name) <= _LONGEST and name.casefold() in _NAMES


class _Pairs:
    """The names of an object's members, duplicates included."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


def _pairs(pairs: list[tuple[str, Any]]) -> _Pairs:
    return _Pairs([name for name, _ in pairs])


__all__ = [
    "MAX_MODEL_CHARS", "BadRequest", "BodyFields", "inflate", "inspect", "model_in_query", "rename", "rename_in_query",
]  # fmt: skip

_POSITION = re.compile(r"\(byte (\d+)\)")
_VALUE = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*")')
_MODEL_FIELD = re.compile(rb'("model"\s*:\s*)("(?:[^"\\]|\\.)*")')
_TOKEN = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*"|(?<![\w.+-])(?>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.+-])', re.DOTALL
)
"""A string or a number."""
_MAX_NUMBER_BYTES = 300
_MAX_MODEL_FIELDS = 3000
_MAX_FORMAT_BYTES = 64
_FEW_BYTES = 1 << 13

BodyKind = Literal["json", "form", "other"]


class _Head(msgspec.Struct):
    """The model of an object; msgspec keeps nothing of the rest."""

    model: Any = None


class _RawHead(msgspec.Struct):
    """The model of an object, as raw JSON."""

    model: msgspec.Raw = msgspec.Raw(b"null")


_read = msgspec.json.Decoder().decode
_read_fields = msgspec.json.Decoder(JsonFields).decode
_read_head = msgspec.json.Decoder(_Head).decode
_read_raw_head = msgspec.json.Decoder(_RawHead).decode


def inspect(body: bytes, content_type: str, content_encoding: str, max_bytes: int) -> BodyFields:
    """Returns the fields of `body`; raises BadRequest. A body of another kind, or an empty one, has none.

    Costs 1 us for a chat request of 1.5 kB (CPython 3.11), and up to 18 ms a MiB.
    """
    if not body:
        # SDKs send DELETE and some POST with a JSON content type and no body: that is not invalid JSON.
        return NOTHING
    kind = _kind_of[content_type]
    if kind == "other" and not may_be_json(body):
        return NOTHING
    if content_encoding:
        body = inflate(body, content_encoding, max_bytes)
    if kind == "form":
        scan = MultipartScanner(boundary(content_type))
        scan.feed(body)
        return form_fields(scan)
    if len(body) <= _FEW_BYTES:
        return _inspect_json(body, kind)
    return uncollected(_inspect_json, body, kind)


def rename(body: bytes, content_type: str, content_encoding: str, model: str) -> bytes:
    """Returns `body` with `model` as its model and every other byte unchanged. A compressed body is compressed again.

    For a body in which `inspect` has found a model. Raises BadRequest.
    """
    is_packed = content_encoding != "" and is_coded(content_encoding)
    plain = inflate(body, content_encoding, max_bytes=1 << 62) if is_packed else body
    if kind_of(content_type) == "form":
        scan = MultipartScanner(boundary(content_type))
        scan.feed(plain)
        # From the end, so that earlier positions stay valid.
        for start, end in reversed(scan.spans):
            plain = plain[:start] + model.encode() + plain[end:]
    else:
        start, end = span_of_model(plain)
        plain = plain[:start] + msgspec.json.encode(model) + plain[end:]
    if not is_packed:
        return plain
    packer = deflater(content_encoding)
    return packer.compress(plain) + packer.flush()


def kind_of(content_type: str) -> BodyKind:
    """Returns how a body of this type is read; `other` is read as JSON if it begins like an object."""
    return _kind_of[content_type]


def may_be_json(body: bytes) -> bool:
    """Returns whether a body begins like a JSON object."""
    return body.lstrip()[:1] == b"{"


def model_in_query(query: str) -> str | None:
    """Returns the model that a query names (`/v1/realtime?model=…`). Raises BadRequest if it is too long."""
    for pair in query.split("&"):
        if pair.startswith("model="):
            return checked_model(unquote_plus(pair[6:]))
    return None


def rename_in_query(query: str, model: str) -> str:
    """Returns `query` with `model` as its model and every other character unchanged."""
    return "&".join(
        f"model={quote(model, safe='')}" if pair.startswith("model=") else pair for pair in query.split("&")
    )


def _kind(content_type: str) -> BodyKind:
    media = content_type.partition(";")[0].strip().lower()
    if media == "multipart/form-data":
        return "form"
    return "json" if media == "application/json" or media.endswith("+json") else "other"


_kind_of: Memo[str, BodyKind] = Memo(_kind)


# JSON


def read_json(document: bytes, begins_at: int = 0) -> Any:
    """Returns the value of a complete document; raises BadRequest. Of repeated fields the last one counts, as it does
    for providers. `begins_at`: offset of the document in the body, for error messages.

    All values are built: a mere syntax check would accept invalid UTF-8. Numbers of any size are valid.
    """
    try:
        return _read_numbers(document)
    except RecursionError:
        raise invalid_json("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise _no_utf_8(document) from None
    except msgspec.DecodeError as error:
        if b"\\ud" not in document and b"\\uD" not in document:
            raise invalid_json(_reason(error, begins_at)) from None
    return _read_halves(document, begins_at)


def span_of_model(document: bytes) -> tuple[int, int]:
    """Returns the span of the model's value, in an object that has one. Raises BadRequest if it cannot be
    determined."""
    at = document.find(b'"model"')
    if document.find(b'"model"', at + 1) < 0 and b"\\u" not in document:
        only = _VALUE.match(document, at + 7)
        if only is not None:
            return only.span(1)
    # Each `model` field is replaced by its number, and the parser shows which one it has read. That handles nested and
    # repeated fields without a parser of our own.
    found = list(islice(_MODEL_FIELD.finditer(document), _MAX_MODEL_FIELDS))
    numbers = iter(range(len(found)))
    numbered = _MODEL_FIELD.sub(lambda match: match[1] + b"%d" % next(numbers), document, count=_MAX_MODEL_FIELDS)
    index = _read_head(_with_stand_ins(numbered, b"\\ue")).model
    if type(index) is dict and (span := _span_in_object(_with_stand_ins(document, b"\\ue"))) is not None:
        return span
    if type(index) is not int or not 0 <= index < len(found):
        message = 'the gateway renames this model: write the key "model" once and without escapes'
        raise BadRequest(400, "invalid_model", message, "model")
    return found[index].span(2)


def _span_in_object(document: bytes) -> tuple[int, int] | None:
    """Returns the span of the name in a model that is an object; None if it cannot be determined."""
    raw = bytes(_read_raw_head(document).model)
    places = list(re.finditer(rb'"model"\s*:\s*' + re.escape(raw), document))
    for name in NAMES_IN_MODEL:
        found = list(re.finditer(rb'"%b"\s*:\s*("(?:[^"\\]|\\.)*")' % name.encode(), raw))
        if len(found) == len(places) == 1:
            at = places[0].end() - len(raw)
            return at + found[0].start(1), at + found[0].end(1)
    return None


def _inspect_json(body: bytes, kind: BodyKind) -> BodyFields:
    try:
        fields = _fields_of(body)
    except BadRequest as bad:
        if kind == "other" and bad.code == "invalid_json":
            return NOTHING
        raise
    # A list or a scalar is valid JSON without a model: the upstream decides about it.
    return NOTHING if fields is None else body_fields(fields)


def _fields_of(document: bytes) -> JsonFields | None:
    """Returns the fields of a complete document, None if it is no object; raises BadRequest.

    msgspec skips the other fields, which takes a half to a fifth of the time; unlike values that it builds, it takes
    them in any encoding. `read_json` decides about documents that it refuses.
    """
    try:
        if not document.isascii():
            document.decode()
        return _read_fields(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        value = read_json(document)
    return json_fields(value) if type(value) is dict else None


def invalid_json(reason: str) -> BadRequest:
    """Returns the error for a body with invalid JSON syntax."""
    return BadRequest(400, "invalid_json", f"the body is not valid JSON: {reason}")


def _read_numbers(document: bytes) -> Any:
    """Returns the document's value, with 0 for numbers beyond a float and for integers of more digits than Python reads
    (CVE-2020-10735). Raises like msgspec."""
    try:
        return _read(document)
    except msgspec.ValidationError:
        return _read(_TOKEN.sub(_small_number, document))


def _small_number(token: re.Match[bytes]) -> bytes:
    text = token[0]
    is_small = text[:1] == b'"' or (len(text) <= _MAX_NUMBER_BYTES and b"e" not in text and b"E" not in text)
    return text if is_small else b"0"


def _read_halves(document: bytes, begins_at: int) -> Any:
    """Reads a document with half of a surrogate pair. That is valid JSON but not for msgspec, and SDKs send it when
    they cut a string inside an emoji. The stand-in for it must not change the model."""
    try:
        first, second = (_read_numbers(_with_stand_ins(document, other)) for other in (b"\\ue", b"\\uf"))
    except RecursionError:
        raise invalid_json("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise _no_utf_8(document) from None
    except msgspec.DecodeError as error:
        raise invalid_json(_reason(error, begins_at)) from None
    if type(first) is dict and type(first.get("model")) is str and first["model"] != second["model"]:
        first["model"] = _exact_model(document)
    return first


def _exact_model(document: bytes) -> str | Literal[False]:
    """Returns the model as it is written; False, which is no valid name, if it contains half of a pair or cannot be
    located."""
    try:
        start, end = span_of_model(document)
        return str(_read(document[start:end]))
    except (BadRequest, msgspec.DecodeError):
        return False


def _with_stand_ins(document: bytes, other: bytes) -> bytes:
    """Returns a document of the same length, with private-use characters in place of surrogates."""
    return document.replace(b"\\ud", other).replace(b"\\uD", other)


def _no_utf_8(document: bytes) -> BadRequest:
    try:
        model = _read_head(document.decode(errors="replace").encode()).model
    except (msgspec.DecodeError, RecursionError):
        model = None
    return no_string() if type(model) is str and "\ufffd" in model else invalid_json("it is not UTF-8")


def _reason(error: msgspec.DecodeError, begins_at: int) -> str:
    reason = str(error).removeprefix("JSON is malformed: ").partition(" - at")[0]
    return _POSITION.sub(lambda found: f"(byte {begins_at + int(found[1])})", reason)


# multipart/form-data (RFC 7578)

_TRUE_IN_FORMS = frozenset({b"true", b"1", b"on", b"t", b"y", b"yes"})
"""Values, in any case, that FastAPI and so vLLM and others read as `true` in a form."""


def form_fields(scan: MultipartScanner) -> BodyFields:
    """Returns the fields of a form. Raises BadRequest if its model is not a valid name, or the form cannot be read."""
    if scan.fault:
        raise BadRequest(400, "invalid_body", f"the form cannot be read: {scan.fault}")
    raw = scan.fields.get("model")
    stream = scan.fields.get("stream", b"")
    is_stream = stream == b"true"
    may_stream = not is_stream and stream.lower() in _TRUE_IN_FORMS
    response_format = scan.fields.get("response_format", b"")[:_MAX_FORMAT_BYTES].decode("latin-1")
    is_doubled = len(scan.spans) > 1
    try:
        model = checked_model(raw.decode()) if raw is not None else None
        return BodyFields(model, is_stream, 1, 1, False, response_format, may_stream, is_model_doubled=is_doubled)
    except UnicodeDecodeError:
        raise BadRequest(400, "invalid_model", "`model` must be UTF-8 text", "model") from None


_NUMBERS_AND_TEXT = frozenset({int, float, str})
_MOST_TOKENS = 1 << 31


def json_fields(value: dict[str, Any]) -> JsonFields:
    """Returns the fields that are read, of an object with these members."""
    return msgspec.convert(value, JsonFields)


def body_fields(fields: JsonFields) -> BodyFields:
    """Returns the fields of a JSON object. Raises BadRequest if its model is not a valid name."""
    (
        model, stream, max_tokens, max_completion_tokens, max_output_tokens, n,
        previous_response, conversation, background, store, prompt, inputs,
    ) = astuple(fields)  # fmt: skip
    is_bound = _says(previous_response) or _says(conversation)
    return BodyFields(
        None if model is None else _model_of(model),
        stream is True,
        n if type(n) is int and 0 < n < 1000 else 1,
        inputs_in(prompt) if prompt else 1,
        is_bound,
        "",
        type(stream) in _NUMBERS_AND_TEXT and bool(stream),
        token_limit(max_tokens or max_completion_tokens or max_output_tokens),
        is_bound or _says(background) or _says(store),
        False,
        inputs_in(prompt if inputs is UNSET else inputs),
    )


def token_limit(number: Any) -> int:
    """Returns a limit of the output tokens, as it is written in a body; 0: there is none, or it is not a number."""
    return number if type(number) is int and 0 < number < _MOST_TOKENS else 0


def inputs_in(value: Any) -> int:
    """Returns the number of inputs in a field `input` or `prompt`; 0: unknown, as for lists of objects, which at some
    endpoints are parts of one input. A list of numbers is one tokenized input."""
    if type(value) is str:
        return 1
    if type(value) is not list or not value:
        return 0
    return inputs_in_list(value[0], len(value))


def checked_model(model: str) -> str:
    """Returns `model` if it is a valid name, else raises BadRequest."""
    if not 0 < len(model) <= MAX_MODEL_CHARS:
        raise BadRequest(400, "invalid_model", f"`model` must have 1 to {MAX_MODEL_CHARS} characters", "model")
    return model


def no_string() -> BadRequest:
    return BadRequest(400, "invalid_model", "`model` must be a string", "model")


def _model_of(model: Any) -> str | None:
    """Returns the name in a field `model`; None if that is an object without one. Raises BadRequest."""
    if type(model) is dict:
        named = {model[name] for name in NAMES_IN_MODEL if type(model.get(name)) is str}
        if len(named) > 1:
            raise no_string()
        if not named:
            return None
        model = named.pop()
    if type(model) is not str:
        raise no_string()
    return checked_model(model)


def _says(value: Any) -> bool:
    return value is not None and value is not False and value != ""
