"""Reads how long a provider requests to wait.

Knows every form of a wait: `retry-after` and its variants, rate-limit reset headers, body fields, and sentences.
`resilience.retry.decision` decides what follows. Nonsense is ignored: zero, the past, NaN, -1.

Order, as in the official SDKs: a header with the time to return; the longest of the exhausted windows; a body field; a
sentence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from itertools import islice

from llm_guard.resilience.classification.error_body import ErrorBody

_EPOCH_S = 1e9
"""A number above this is an instant, not a duration; above a thousand times this, one in milliseconds."""
_LONGEST_S = 400 * 86400.0
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?(?:e[+-]?\d{1,2})?", re.IGNORECASE)
_UNITS = {
    "ms": 0.001, "milli": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "hr": 3600.0,
    "hour": 3600.0, "d": 86400.0, "day": 86400.0, "w": 604800.0, "week": 604800.0,
    "second": 1.0, "minute": 60.0, "millisecond": 0.001, "us": 1e-6, "µs": 1e-6, "ns": 1e-9,
}  # fmt: skip
_UNIT = r"(?:milliseconds?|millis?|ms|seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|[smhdw]|us|µs|ns)"
_TERM = re.compile(rf"(\d{{1,12}}(?:\.\d{{1,15}})?)\s?({_UNIT})(?![a-z])", re.IGNORECASE)
_CLOCK = re.compile(r"(?:(\d{1,4})\.)?(\d{1,2}):(\d{2}):(\d{2}(?:\.\d{1,9})?)")
_DURATION = (
    r"(?:(?:\d{1,4}\.)?\d{1,2}:\d{2}:\d{2}(?:\.\d{1,9})?"
    rf"|(?:\d{{1,12}}(?:\.\d{{1,15}})?\s?{_UNIT}(?![a-z])[, ]{{0,2}}(?:and )?){{1,5}})"
)
_SENTENCE = re.compile(
    r"\b(?=[trwabc])"  # fails faster than the words do
    r"(?:try(?: your request)? again|try|retry(?: your request| the request)?|retry[-_ ]after|retrying|wait(?:ing)?"
    r"|reset(?:s|ting)?|replenished|available(?: again)?|come back|back off|refresh(?:es|ed)?|renews?)"
    r"(?: again)?\s?[:=]?\s?(?:in|after|for|at least|within)?\s?(?:about|approximately|around|another|at least|~)?\s?"
    rf"({_DURATION})",
    re.IGNORECASE,
)
_DIGIT = re.compile(r"\d")
"""Required by `_SENTENCE`, and found much faster."""
_DRAFT = re.compile(r"\br=(\d{1,9})\b.{0,40}?\bt=(\d{1,9})\b")
_MOST_RESETS = 16
"""No provider has more windows. Each is compared with all headers, so thousands of them would take seconds."""
_LONGEST_DURATION = 200
_DIMENSIONS = ("input-tokens", "output-tokens", "tokens", "requests")


def hint_s(headers: Mapping[str, str], said: ErrorBody, wall: float, *, is_limit: bool) -> float | None:
    """Returns the seconds to wait, > 0, or None without a hint.

    `headers` with lower-case names; `wall` in epoch seconds, used if the response has no `date`. `is_limit`: the error
    is about a window, so headers that describe windows are evidence too.
    """
    asked = retry_after(headers, wall)
    now = sender_now(headers, wall)
    if is_limit:
        asked = _longer(asked, _subscription_s(headers, now))
        asked = asked or _window_s(headers, said, now)
    asked = asked or _field_s(said, now)
    if asked is None and said.headers:
        asked = retry_after(said.headers, wall) or _window_s(said.headers, said, now)
    return asked or _sentence_s(layer.message for layer in reversed(said.layers))


def retry_after(headers: Mapping[str, str], wall: float) -> float | None:
    """Returns the seconds to wait by `retry-after-ms`, `x-ms-retry-after-ms` or `retry-after` (RFC 9110, section
    10.2.3, and the fractions, epochs and durations that providers send); None without a usable hint."""
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if (value := headers.get(name)) is None:
            continue
        milliseconds = plain_number(value)
        if milliseconds is not None and (found := _usable(milliseconds / 1000)):
            return found
    for name in ("retry-after", "x-retry-after"):
        if (value := headers.get(name)) is not None and (found := reset_s(value, sender_now(headers, wall))):
            return found
    return None


def duration_s(text: str) -> float | None:
    """Parses `7m12s`, `2m59.56s`, `818ms`, `26 seconds`, `2.12 days`, `00:30:02` or `14.07:13:56` into seconds."""
    if len(text) > _LONGEST_DURATION:  # 30 kB of digits take 40 ms
        return None
    clock = _CLOCK.fullmatch(text.strip())
    if clock:
        days, hours, minutes, seconds = clock.groups()
        return _usable(float(days or 0) * 86400 + float(hours) * 3600 + float(minutes) * 60 + float(seconds))
    total = 0.0
    for number, unit in _TERM.findall(text):
        unit = unit.lower()
        total += float(number) * (_UNITS.get(unit) or _UNITS[unit.rstrip("s")])
    return _usable(total)


# Headers of windows


def _window_s(headers: Mapping[str, str], said: ErrorBody, now: float) -> float | None:
    """Returns the seconds until the longest exhausted window resets. A header without a `remaining` counts if it is the
    only one."""
    used_up: list[float] = []
    unknown: list[float] = []
    named = _named_dimension(said)
    resets = (name for name in headers if "reset" in name and "unified" not in name)
    for name in islice(resets, _MOST_RESETS):
        wait_s = reset_s(headers[name], now)
        if wait_s is None:
            continue
        left = _remaining(headers, name)
        if left == 0 or (left is not None and left > 0 and named is not None and named in name):
            used_up.append(wait_s)
        elif left is None:
            unknown.append(wait_s)
    if used_up:
        return max(used_up)
    for value in (headers.get("ratelimit", ""), headers.get("x-ratelimit", "")):
        draft = _DRAFT.search(value)  # draft-ietf-httpapi-ratelimit-headers-08
        if draft and draft[1] == "0":
            return _usable(float(draft[2]))
    return unknown[0] if len(unknown) == 1 else None


def _remaining(headers: Mapping[str, str], reset_name: str) -> float | None:
    """Returns the remaining amount of the window; None if there is no usable value (Azure's -1: openai-dotnet issue
    838)."""
    partner = reset_name.replace("reset", "remaining")
    value = headers.get(partner)
    if value is None and reset_name.endswith("reset") and (stem := partner.partition("-remaining")[0]):
        # Mistral: ratelimitbysize-reset beside x-ratelimitbysize-remaining-minute.
        near = [name for name in headers if stem in name and "remaining" in name]
        value = headers[near[0]] if len(near) == 1 else None
    number = plain_number(value or "")
    return number if number is not None and number >= 0 else None


def _named_dimension(said: ErrorBody) -> str | None:
    """Returns the dimension of the exceeded window, from `type: tokens` beside a rate limit, even if some of it is
    left."""
    for layer in said.layers:
        plain = layer.type.lower().replace("_", "-")
        if plain in _DIMENSIONS:
            return plain
    return None


def _subscription_s(headers: Mapping[str, str], now: float) -> float | None:
    """Anthropic's subscriptions: the reset of a rejected window, which can be hours after retry-after."""
    waits = [
        reset_s(headers.get(name.removesuffix("status") + "reset", ""), now)
        for name, value in headers.items()
        if name.startswith("anthropic-ratelimit-unified-") and name.endswith("status") and value == "rejected"
    ]
    return max(filter(None, waits), default=None)


def reset_s(value: str, now: float) -> float | None:
    """Returns the seconds until the instant in a header: seconds, an epoch in seconds or milliseconds, a duration, a
    date."""
    value = value.strip()
    number = plain_number(value)
    if number is not None:
        if number > _EPOCH_S:
            number = (number / 1000 if number > _EPOCH_S * 1000 else number) - now
        return _usable(number)
    if value[:1].isdigit() and (duration := duration_s(value)) and "T" not in value:
        return duration
    at = _instant(value)
    return None if at is None else _usable(at - now)


def sender_now(headers: Mapping[str, str], wall: float) -> float:
    """Returns the sender's clock, in epoch seconds: the `date` header, or `wall` without one."""
    date = headers.get("date")
    return (_instant(date) if date else None) or wall


def _instant(value: str) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError, OSError):
        pass
    try:
        at = datetime.fromisoformat(value)
        return at.timestamp() if at.tzinfo else None
    except (ValueError, OverflowError, OSError):
        return None


# Bodies


def _field_s(said: ErrorBody, now: float) -> float | None:
    """Returns the longest of the fields that name a wait: google.rpc.RetryInfo, `estimated_time`, `retry_after`."""
    waits = []
    for value in said.waits:
        if isinstance(value, str):
            waits.append(reset_s(value, now))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            waits.append(reset_s(f"{value:.6f}" if abs(value) < _EPOCH_S**2 else "", now))
        elif isinstance(value, dict):
            seconds = value.get("seconds")  # google.protobuf.Duration in full
            waits.append(reset_s(str(seconds), now))
    return max(filter(None, waits), default=None)


def _sentence_s(messages: Iterable[str]) -> float | None:
    for message in messages:
        if not _DIGIT.search(message):
            continue
        waits = [duration_s(found) for found in _SENTENCE.findall(message[:4000])]
        longest = max(filter(None, waits), default=None)
        if longest:
            return longest
    return None


# Numbers


def plain_number(value: str) -> float | None:
    value = value.strip()
    return float(value) if _NUMBER.fullmatch(value) else None


def _usable(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) and 0 < seconds <= _LONGEST_S else None


def _longer(one: float | None, other: float | None) -> float | None:
    return max(one or 0.0, other or 0.0) or None
