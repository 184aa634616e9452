"""Reads a provider's rate-limit headers: limit, remaining amount, and how fast it is refilled.

Knows the formats of these headers. Those of a wait are in `resilience.classification.retry_after`;
`resilience.capacity.pacing` acts on the rate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from llm_guard.resilience.classification.retry_after import plain_number, reset_s, sender_now

_MOST_WINDOWS = 8
_TOKENS = ("token", "bysize")
# Mistral sends no reset: the name of the window is its length.
_SPANS = {"minute": 60.0, "hour": 3600.0, "day": 86400.0, "month": 30 * 86400.0}
_PARAMETER = re.compile(r"\b(limit|remaining|reset|q|r|t)=(\d{1,15})\b")


@dataclass(frozen=True, slots=True)
class RateLimitWindow:
    """One limit of a provider, in calls or in tokens."""

    name: str
    """Name of the header with the remaining amount."""
    is_tokens: bool
    limit: float
    remaining: float
    """From 0 to `limit`."""
    refill_per_s: float
    """Refill rate, if it is refilled steadily; 0: the window is full."""
    reset_s: float | None = None
    """Seconds until it is full again; None: it is full, or no header says when."""


@dataclass(frozen=True, slots=True)
class RateHint:
    windows: tuple[RateLimitWindow, ...]


def rate_hint(headers: Mapping[str, str], wall: float) -> RateHint | None:
    """Reads the headers (lower-case names); `wall` in epoch seconds, used if the response has no `date`.

    Knows `[x-]ratelimit-{limit,remaining,reset}[-WHAT]` and `anthropic-ratelimit-WHAT-{limit,remaining,reset}` with
    resets in every form of `resilience.classification.retry_after` (OpenAI `6m0s`, Azure and Kong seconds, Anthropic
    RFC 3339, OpenRouter epochs), windows named by their length instead (Mistral `-minute`), and `ratelimit` of
    draft-ietf-httpapi-ratelimit-headers-07 (`limit=`) and -08 (`r=`, `t=`, with `q=` in `ratelimit-policy`). A window
    that lacks one of these three, or has nonsense (Azure's -1: openai-dotnet issue 838), is ignored.
    """
    names = [name for name in headers if "remaining" in name and "limit" in name]
    if names:
        now = sender_now(headers, wall)
        found = [_window(headers, name, now) for name in names[:_MOST_WINDOWS]]
    elif "ratelimit" in headers:
        found = [_draft(headers)]
    else:
        return None
    windows = tuple(window for window in found if window is not None)
    return RateHint(windows) if windows else None


def _window(headers: Mapping[str, str], name: str, now: float) -> RateLimitWindow | None:
    limit = plain_number(headers.get(name.replace("remaining", "limit"), "").partition(",")[0])
    remaining = plain_number(headers[name])
    if limit is None or remaining is None:
        return None
    reset = headers.get(name.replace("remaining", "reset"))
    wait_s = None if reset is None else reset_s(reset, now)
    return _checked(name, limit, remaining, wait_s)


def _checked(name: str, limit: float, remaining: float, wait_s: float | None) -> RateLimitWindow | None:
    """Returns a valid window or None. OpenAI and Anthropic define the reset as the time when it is full again."""
    if not 0 <= remaining <= limit or limit == 0:
        return None
    if wait_s is not None:
        refill_per_s = (limit - remaining) / wait_s
    elif remaining == limit:
        refill_per_s = 0.0
    elif (span := name.rpartition("-")[2]) in _SPANS:
        refill_per_s = limit / _SPANS[span]
    else:
        return None
    return RateLimitWindow(name, any(word in name for word in _TOKENS), limit, remaining, refill_per_s, wait_s or None)


def _draft(headers: Mapping[str, str]) -> RateLimitWindow | None:
    """Reads the first of several policies: senders list the most important one first."""
    said: dict[str, float] = {}
    for text in (headers["ratelimit"], headers.get("ratelimit-policy", "")):
        for key, value in _PARAMETER.findall(text):
            said.setdefault(key, float(value))
    limit, remaining = said.get("limit", said.get("q")), said.get("remaining", said.get("r"))
    wait_s = said.get("reset", said.get("t"))
    if limit is None or remaining is None:
        return None
    return _checked("ratelimit", limit, remaining, wait_s or None)
