"""Parses JSON that is not quite JSON: truncated, written by Python's repr, or wrapped in a sentence.

Takes time linear in the length of the text. What the value means is `resilience.classification.error_body`'s concern.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],:]', re.DOTALL)
# A string without an end matches to the end: searching again from the next quote would be quadratic.
_REPR = re.compile(r"""'(?:[^'\\]|\\.)*'?|"(?:[^"\\]|\\.)*"?|\b(?:True|False|None)\b|[()]""", re.DOTALL)
_BARE_QUOTE = re.compile(r'\\.|"')
# The part of an escape that a cut leaves, after any pairs of backslashes.
_CUT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?$")
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "(": "[", ")": "]"}
_MAX_TOKENS = 2000
"""No real error has more brackets, commas, colons and strings in MAX_BODY_BYTES; hostile text does."""
_EMBEDDED = re.compile(r"""(?:\{\s*|\[\s*\{\s*)["']""")
_INTRODUCED = re.compile(r"(?:[:\-=(\s]|body|received)\s*$")
_EXCEPTION = re.compile(r"error|exception|failed|status code|\bcode\b|http", re.IGNORECASE)


def loads(text: str) -> Any:
    """Parses `text` as JSON, as truncated JSON, or as a Python repr; raises ValueError if it is none of these."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    except RecursionError:
        raise ValueError("nested too deeply") from None
    for candidate in (text, _from_repr(text)):
        try:
            return json.loads(_closed(candidate))
        except (ValueError, RecursionError):
            continue
    raise ValueError("not JSON")


def embedded(sentence: str) -> tuple[str, Any] | None:
    """Returns the response that an exception's text quotes, after the words before it: `Error code: 429 - {...}`."""
    if "{" not in sentence:  # as most are
        return None
    found = _EMBEDDED.search(sentence)
    if found is None or found.start() == 0:
        return None
    before, inside = sentence[: found.start()], sentence[found.start() :]
    if not _INTRODUCED.search(before[-16:]) or not _EXCEPTION.search(before):
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(inside)
    except ValueError:
        pass
    except RecursionError:
        return None
    else:
        return before, value
    try:
        return before, loads(inside)
    except ValueError:
        return None


def _closed(text: str) -> str:
    """Closes what a cut has left open; an unfinished member is dropped."""
    text = _CUT_ESCAPE.sub(r"\1", text)
    open_ones: list[str] = []
    safe_end, safe_depth, expects_value = 0, 0, False
    end = len(text)
    for token in islice(_STRUCTURE.finditer(text), _MAX_TOKENS):
        mark = token[0]
        if mark in "{[":
            open_ones.append(mark)
            safe_end, safe_depth, expects_value = token.end(), len(open_ones), False
        elif mark in "}]":
            if not open_ones:
                break
            open_ones.pop()
            safe_end, safe_depth = token.end(), len(open_ones)
            if not open_ones:
                end = safe_end
                break
        elif mark == ",":
            safe_end, safe_depth, expects_value = token.start(), len(open_ones), False
        elif mark == ":":
            expects_value = True
        elif len(mark) > 1 and mark.endswith('"') and not _is_escaped_end(mark):
            if expects_value or (open_ones and open_ones[-1] == "["):
                safe_end, safe_depth, expects_value = token.end(), len(open_ones), False
        elif token.end() == len(text) and expects_value:
            # The cut went through a value: the rest is the beginning of the message.
            return text + '"' + _closers(open_ones)
    if not open_ones:
        return text[:end]
    return text[:safe_end] + _closers(open_ones[:safe_depth])


def _is_escaped_end(mark: str) -> bool:
    body = mark[1:-1]
    return (len(body) - len(body.rstrip("\\"))) % 2 == 1


def _closers(open_ones: list[str]) -> str:
    return "".join("}" if mark == "{" else "]" for mark in reversed(open_ones))


def _from_repr(text: str) -> str:
    return _REPR.sub(_as_json, text)


def _as_json(match: re.Match[str]) -> str:
    text = match[0]
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    is_whole = len(text) > 1 and text[-1] == text[0]
    body = (text[1:-1] if is_whole else text[1:]).replace("\\'", "'")
    if text[0] == "'":
        body = _BARE_QUOTE.sub(_escaped, body)
    return f'"{body}"' if is_whole else f'"{body}'


def _escaped(match: re.Match[str]) -> str:
    """Adds the backslash to a double quote that Python left bare inside single quotes."""
    return match[0] if match[0] != '"' else '\\"'
