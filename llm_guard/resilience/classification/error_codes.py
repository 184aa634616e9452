"""Normalizes machine-readable words and statuses of an error, and finds them in fields and sentences.

`resilience.classification.error_body` decides which fields of a body are opened; the meaning of words is in
`resilience.classification.vocabulary`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_ANY_STATUS = re.compile(r"[45]\d\d")
"""Required by `_STATUS_FIRST` and `_STATUS_SAID`: most sentences have none, which is found much faster."""
_STATUS_FIRST = re.compile(
    r"\W{0,2}(?:(?:error(?: code)?|http(?: error| status)?|status(?: code)?|upstream error"
    r"|request failed with status code)[:=]?\s*)?"
    r"([45]\d\d)\b(?![.,]\d)(?!\s*(?:tokens|characters|bytes|images|messages))",
    re.IGNORECASE,
)
_STATUS_SAID = re.compile(
    r"\b(?:with status code|error code|returned|status)[: ]\s*([45]\d\d)\b(?!\.\d)", re.IGNORECASE
)
_STATUS_LAST = re.compile(
    r"\b(?:status|code|error|returned|http|failed)\b\D{0,20}\b([45]\d\d)\b\W{0,6}$", re.IGNORECASE
)
_EXCEPTION_FIRST = re.compile(r"(?:[\w.]{0,40}\.)?(\w{3,60}(?:Error|Exception|Exceeded|Failed))\b\s*[:\-(]")
_CODE_FIRST = re.compile(r"An error occurred \((\w{3,60})\)|\W?\[([\w.]{3,40})\]")
_CODE_LAST = re.compile(r"\((\d{4})\)\s*$")
CLOUDFLARE = re.compile(r"error(?:\s+code)?:?\s*(1\d{3})\b", re.IGNORECASE)
_MARKS = frozenset({
    "blockReason", "error_type", "kind", "limit_source", "n_ctx", "object", "reasons", "violations",
})  # fmt: skip
"""The fields that `marks` looks at: most objects have none of them."""


def plain_code(code: str) -> str:
    """Normalizes the spelling of a codeword: RateLimitError, rate_limit_error and rate-limit become the same."""
    if "://" in code or "#" in code:
        code = code.partition(":")[0].rpartition("#")[2]  # x-amzn-errortype: ThrottlingException:http://...
    prefix, dot, last = code.rpartition(".")
    if dot and prefix.islower():
        code = last  # litellm.RateLimitError
    plain = "".join(filter(str.isalnum, code.lower()))
    for ending in ("exception", "error"):
        plain = plain.removesuffix(ending)
    return plain


def _google_codes(value: dict[str, Any]) -> Iterator[str]:
    """Yields the windows named in QuotaFailure's identifiers: GenerateRequestsPerDayPerProjectPerModel-FreeTier."""
    violations = value.get("violations")
    for violation in violations[:10] if isinstance(violations, list) else ():
        name = violation.get("quotaId") if isinstance(violation, dict) else None
        if isinstance(name, str):
            for window in ("PerMinute", "PerDay", "PerSecond", "PerHour"):
                if window in name:
                    yield f"quota{window.lower()}"


def marks(value: dict[str, Any]) -> Iterator[str]:
    """Yields codewords for fields that are evidence by their presence, or by what they contain."""
    if _MARKS.isdisjoint(value):
        return
    yield from _google_codes(value)
    if value.get("object") == "error" and isinstance(value.get("type"), str) and value["type"][:1].isupper():
        yield "markvllm"
    if "error_type" in value and isinstance(value.get("error"), str):
        yield "marktgi"
    if isinstance(value.get("n_ctx"), int):
        yield "markllamacpp"
    if isinstance(value.get("reasons"), list) and "flagged_input" in value:
        yield "flagged"
    if isinstance(value.get("limit_source"), str):
        yield plain_code(value["limit_source"])
    if value.get("blockReason"):
        yield "blockreason"
    if value.get("kind") == "Status" and isinstance(value.get("reason"), str):
        yield f"kubernetes{plain_code(value['reason'][:80])}"


def codes_in(text: str) -> Iterator[str]:
    """Yields machine-readable words at fixed places of a sentence."""
    found = _EXCEPTION_FIRST.match(text) or _CODE_FIRST.match(text)
    if found and status_of(code := found[found.lastindex or 1]) is None:
        yield plain_code(code)
    if found := _CODE_LAST.search(text[-12:]):
        yield f"minimax{found[1]}"
    if found := CLOUDFLARE.match(text):
        yield f"cloudflare{found[1]}"


def status_first(text: str) -> int | None:
    if not _ANY_STATUS.search(text):
        return None
    found = _STATUS_FIRST.match(text) or _STATUS_SAID.search(text[:120])
    return int(found[1]) if found else None


def status_last(text: str) -> int | None:
    """Returns the status at the end of the words before a quoted response: `request failed with status 400: `."""
    found = _STATUS_LAST.search(text[-80:])
    return int(found[1]) if found else None


def status_of(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
        return value
    return None
