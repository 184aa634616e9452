"""Fuzz harnesses for request bodies: the model in JSON and in forms."""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from typing import Any

from llm_guard.proxy.request_body.model_field import BadRequest, BodyFields, inspect, rename
from tests.fuzz.mutation import rolled

_JSON, _FORM = "application/json", "multipart/form-data; boundary=b"
_KINDS = (
    _JSON, _JSON, _JSON, "application/json; charset=utf-8", "application/x+json", "", "text/plain", _FORM, _FORM,
    'multipart/form-data; boundary="b"', "multipart/form-data", "multipart/form-data; boundary=",
    "a/b; boundary=\udcff",
)  # fmt: skip
_ENCODINGS = ("", "", "", "identity", "gzip", " GZIP ", "deflate", "br", "x-gzip", "gzip, gzip", "\udcff")
_MODELS = ("new", "a/b:c", 'q"\\', "😀\u2028", "x" * 256, "0", "1", "null")
_BOUND = 1 << 18
_DELIMITER = re.compile(rb"\r\n--b(?:--)?[ \t]*(?=\r\n|$)")


def fuzz_model(data: bytes) -> None:
    """A body is refused, or read as a JSON parser reads it; renaming the model changes nothing else."""
    dice, plain = rolled(data)
    kind, encoding, new = dice.choice(_KINDS), dice.choice(_ENCODINGS), dice.choice(_MODELS)
    body = _packed(dice, plain, encoding)
    try:
        asked = inspect(body, kind, encoding, _BOUND)
    except BadRequest as error:
        is_told = 400 <= error.status < 500 and bool(error.message)
        assert is_told
        return
    assert 1 <= asked.choices < 1000
    is_sent_as_it_is = body == plain and _is_plain(encoding)
    if kind.startswith("application/json") and is_sent_as_it_is:
        _is_what_json_says(asked, plain)
    if asked.model is None:
        return
    assert 0 < len(asked.model) <= 256
    try:
        changed = rename(body, kind, encoding, new)
    except BadRequest:
        return
    again = inspect(changed, kind, encoding, 2 * _BOUND)
    assert again.model == new
    assert _but_the_model(again) == _but_the_model(asked)
    assert rename(changed, kind, encoding, new) == changed
    if is_sent_as_it_is and "form" not in kind:
        _is_same_but(plain, changed, new)


def fuzz_form(data: bytes) -> None:
    """Renaming in a form changes only the model; files stay as they are."""
    dice, rest = rolled(data)
    new = dice.choice(("new", "a/b:c"))
    try:
        asked = inspect(rest, _FORM, "", _BOUND)
        changed = rename(rest, _FORM, "", new) if asked.model is not None else b""
    except BadRequest:
        return
    if asked.model is None:
        return
    assert inspect(changed, _FORM, "", 2 * _BOUND).model == new
    assert _others(changed) == _others(rest)


def _packed(dice: random.Random, plain: bytes, encoding: str) -> bytes:
    """Compresses the body as the encoding says, or leaves it plain."""
    if dice.random() < 0.2:
        return plain
    match encoding.strip().lower():
        case "gzip" | "x-gzip":
            packed = gzip.compress(plain, mtime=0)
        case "deflate":
            packed = zlib.compress(plain)
        case _:
            return plain
    return packed[: dice.randrange(len(packed))] if dice.random() < 0.1 else packed


def _is_plain(encoding: str) -> bool:
    return encoding.strip().lower() in ("", "identity")


def _is_what_json_says(asked: BodyFields, body: bytes) -> None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return
    if not isinstance(value, dict):
        assert asked == BodyFields()
        return
    assert asked.model == value.get("model")
    assert asked.is_stream is (value.get("stream") is True)


def _is_same_but(body: bytes, changed: bytes, new: str) -> None:
    """Checks that the changed body parses to the same value except for the model."""
    try:
        value: dict[str, Any] = json.loads(body)
    except (ValueError, RecursionError):
        return
    assert repr(json.loads(changed)) == repr({**value, "model": new})


def _others(form: bytes) -> list[bytes]:
    """Returns the parts that do not mention a model, as delimited by RFC 2046 (section 5.1.1)."""
    return [part for part in _DELIMITER.split(b"\r\n" + form) if b"model" not in part]


def _but_the_model(asked: BodyFields) -> list[object]:
    return [getattr(asked, name) for name in asked.__struct_fields__ if name != "model"]
