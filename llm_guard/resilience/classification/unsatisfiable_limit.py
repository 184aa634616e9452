"""Recognizes a limit that is smaller than the single request that it refused, so that no wait helps."""

from __future__ import annotations

import re

_NUMBER = r"[:=\s(]{0,3}(?:of|is|to|about|a total of)?\s{0,3}(\d[\d,_]{0,14})"
_BOTH = (
    re.compile(rf"\blimit(?:ed)?\b{_NUMBER}.{{0,80}}?\brequest(?:ed|s)?\b{_NUMBER}", re.IGNORECASE | re.DOTALL),
    re.compile(rf"\brequested\b{_NUMBER}.{{0,80}}?\b(?:limit|maximum)\b{_NUMBER}", re.IGNORECASE | re.DOTALL),
)
_MAX_CHARS = 600


def is_over_limit(sentence: str) -> bool:
    """Returns whether a sentence names a limit and a larger request: "Limit 30000, Requested 30601"."""
    text = sentence[:_MAX_CHARS]
    if "request" not in text.lower():
        return False
    limit_first, request_first = (pattern.search(text) for pattern in _BOTH)
    if limit_first is not None:
        return _number(limit_first[2]) > _number(limit_first[1]) > 0
    return request_first is not None and _number(request_first[1]) > _number(request_first[2]) > 0


def _number(digits: str) -> int:
    return int(digits.replace(",", "").replace("_", ""))
