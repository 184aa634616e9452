"""Whether a body names its model twice, so that the provider may read another name than the gateway does.

Owns JSON and forms, for calls whose key may ask for certain models only. Does not own the model that counts
(`gateway.model_field`).
"""

from __future__ import annotations

import json
import re
from typing import Any

from llm_guard.call import Call
from llm_guard.gateway.asked import Asked, BadRequest

_MODEL = re.compile(rb'"[mM][oO][dD][eE][lL]"')
"""Servers in Go and .NET match the names of fields in any case."""
_ESCAPED = re.compile(rb"\\u00[46][4-9a-fA-F]")
"""A letter of `model` may be written so."""
_LENGTH = len("model")


def check_single_model(call: Call, asked: Asked) -> None:
    """Raises BadRequest for a call that names two models."""
    is_plain = isinstance(call.body, bytes) and not call.content_encoding and call.body.lstrip()[:1] == b"{"
    if asked.is_model_doubled or (is_plain and isinstance(call.body, bytes) and names_model_twice(call.body)):
        message = "`model` stands there twice, and readers differ on which one counts: write it once"
        raise BadRequest(400, "invalid_model", message, "model")


def names_model_twice(document: bytes) -> bool:
    """Whether a JSON object has two fields `model`, in any case. A document that Python's parser does not read counts
    as one that has, where there is a reason to look."""
    if len(_MODEL.findall(document)) < 2 and _ESCAPED.search(document) is None:
        return False
    try:
        top = json.loads(document, object_pairs_hook=_pairs, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return True
    return isinstance(top, _Pairs) and len([name for name in top.names if is_model(name)]) > 1


def is_model(name: str) -> bool:
    """Whether a server may take a field of this name for `model`."""
    return len(name) == _LENGTH and name.lower() == "model"


class _Pairs:
    """An object's names, doubles included."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


def _pairs(pairs: list[tuple[str, Any]]) -> _Pairs:
    return _Pairs([name for name, _ in pairs])
