"""The official SDKs' own retries: when they retry, and how long they wait before.

Implements the SDKs' rules independently of the gateway's policies, so that one bug cannot hide in both. `load_call`
sends and sleeps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from random import Random

_FIRST_S, _LONGEST_S = 0.5, 8.0
_HEEDED_S = 120.0
_STATUSES = (408, 409, 429)


class SdkRetries:
    """The retries of openai-python 3.52 (`src/openai/_base_client.py`: `_should_retry`, `_calculate_retry_timeout`).

    After 408, 409, 429, any 5xx and every exchange without a response: 0.5 s, doubling to 8 s at most, shortened by up
    to a quarter. A retry-after of up to 120 s replaces that, a longer one ends the call, and `x-should-retry` overrides
    the decision. anthropic-sdk-python differs in heeding any retry-after."""

    def __init__(self, retries: int, seed: int = 0, patience_s: float | None = None) -> None:
        """`retries`: maximum for one call. With `patience_s` it is an application that needs its response: it retries
        for this long, without a limit on the number, even if `x-should-retry` says otherwise."""
        self._retries = retries
        self._patience_s = patience_s
        self._dice = Random(seed)

    def try_wait_s(
        self, taken: int, status: int | None, headers: Mapping[str, str], elapsed_s: float = 0.0
    ) -> float | None:
        """Seconds to wait before the next retry; None: no more.

        `taken` retries have been made, in `elapsed_s` since the call began; `status` None: no complete response.
        `headers` must be case-insensitive."""
        told_s = retry_after_s(headers)
        wait_s = min(_FIRST_S * 2.0 ** min(taken, 10), _LONGEST_S) * (1 - 0.25 * self._dice.random())
        if told_s is not None and 0 < told_s <= _HEEDED_S:
            wait_s = told_s
        if self._patience_s is not None:
            return wait_s if elapsed_s + wait_s < self._patience_s else None
        if taken >= self._retries or (told_s is not None and told_s > _HEEDED_S):
            return None
        return wait_s if _should_retry(status, headers.get("x-should-retry")) else None


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Wait that `retry-after-ms` or `retry-after` requests, in seconds from now; None if neither can be read."""
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / divisor
        except (KeyError, ValueError):
            continue
        if math.isfinite(seconds):
            return seconds
    try:
        return parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time()
    except (KeyError, ValueError, OverflowError):
        return None


def _should_retry(status: int | None, told: str | None) -> bool:
    if told in ("true", "false"):
        return told == "true"
    return status is None or status in _STATUSES or status >= 500
