"""Whether a body names more than one model, so that the provider may use another one than the gateway has judged.

Owns JSON and forms, for calls whose key may ask for certain models only. Does not own the model that counts
(`gateway.model_field`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from llm_guard.call import Call
from llm_guard.gateway.asked import Asked, BadRequest
from llm_guard.policy.memo import Memo

_NAMES = frozenset({"model", "models", "fallbacks"})
"""OpenRouter goes on with the next of `models`, and LiteLLM with `fallbacks`."""
_PLAIN = b'"model"'
_NAMING = re.compile(rb'"(?:[mM][oO][dD][eE][lL][sS]?|[fF][aA][lL][lL][bB][aA][cC][kK][sS])"')
"""Servers in Go and .NET match the names of fields in any case."""
_ESCAPED = re.compile(rb"\\u(?:00[4-7]|017f|212[aA])")
_FOLDED = ("\u017f".encode(), "\u212a".encode())
"""A letter of a name may be written as an escape, an s as a long one, and a k as the sign for kelvin."""
_LONGEST = max(map(len, _NAMES))


def check_single_model(call: Call, asked: Asked) -> None:
    """Raises BadRequest for a call that names more than one model."""
    body = call.body
    is_doubled = asked.is_model_doubled
    if isinstance(body, bytes) and not call.content_encoding and body.lstrip().startswith(b"{"):
        is_doubled = is_doubled or _is_doubtful(body, asked)
    if is_doubled:
        message = "this API key may name one model only: write `model` once, and neither `models` nor `fallbacks`"
        raise BadRequest(400, "invalid_model", message, "model")


def _is_doubtful(document: bytes, asked: Asked) -> bool:
    """Whether a JSON object names several models, although its parsed fields show at most one."""
    if asked.model is not None and document.count(_PLAIN) == 1 and not _has_escaped_letter(document):
        return False  # only `model` itself could be there twice: the fields show every other name
    return names_more_models(document)


def names_more_models(document: bytes) -> bool:
    """Whether a JSON object has several fields that name models. A document that Python's parser does not read counts
    as one that has, where there is a reason to look."""
    if not _is_disguised(document) and len(_NAMING.findall(document)) < 2:
        return False
    try:
        top = json.loads(document, object_pairs_hook=_pairs, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return True
    return isinstance(top, _Pairs) and len([name for name in top.names if is_naming(name)]) > 1


def _is_disguised(document: bytes) -> bool:
    """Whether a name may be written so that `_NAMING` does not find it. Most documents are ASCII, or have no escape."""
    if _has_escaped_letter(document):
        return True
    return not document.isascii() and any(letter in document for letter in _FOLDED)


def _has_escaped_letter(document: bytes) -> bool:
    return b"\\" in document and _ESCAPED.search(document) is not None


def is_naming(name: str) -> bool:
    """Whether a server may take a field of this name for one that names a model."""
    return len(name) <= _LONGEST and name.casefold() in _NAMES


_is_naming = Memo(is_naming)


def names_several(fields: Iterable[str]) -> bool:
    """Whether several of the names of an object's fields name models."""
    return sum(map(_is_naming.__getitem__, fields)) > 1


class _Pairs:
    """An object's names, doubles included."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


def _pairs(pairs: list[tuple[str, Any]]) -> _Pairs:
    return _Pairs([name for name, _ in pairs])
