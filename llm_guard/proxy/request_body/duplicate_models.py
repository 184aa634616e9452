"""Detects bodies that name more than one model, so that the provider might use another one than the gateway has
checked.

Covers JSON and forms, for calls with a key that allows certain models only. `proxy.request_body.model_field` finds the
model that counts.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llm_guard.proxy.call import Call
from llm_guard.proxy.request_body.fields import BadRequest, BodyFields

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
