"""The rate at which calls may go according to the rate-limit headers of recent answers.

Owns which windows limit the rate, and how many tokens a call takes. Does not own how the headers are written
(`policy.rate_hints`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from llm_guard.policy.gcra import LOWEST_RATE
from llm_guard.policy.rate_hints import RateHint, Window

_NEARLY_EMPTY_SHARE = 0.05
# The rest of a window may go within this time, in addition to what is refilled.
_SPEND_S = 10.0
_EXPIRES_S = 30.0
# Header names come from the provider: memory must be bounded.
_MOST_WINDOWS = 16
_CALLS_PER_SAMPLE = 4
_SAMPLE_WEIGHT = 0.3


class HeaderRate:
    """The lowest rate that any nearly empty window allows.

    A window limits the rate only while less than 5 % of it is left, or fewer calls than are in flight. A window of
    tokens is converted to calls by the moving average of the tokens per call, and ignored until that is known.
    """

    __slots__ = ("_expires_at", "_windows", "rate", "since")

    def __init__(self, now: float) -> None:
        self.rate: float | None = None
        """Calls a second; None: no limit."""
        self.since = now
        """When headers began to limit the rate."""
        self._expires_at = -inf
        self._windows: dict[str, _TokenWindow] = {}

    def note(self, hint: RateHint, in_flight: int, accepted: int, now: float) -> None:
        """Takes the headers of an answer into account. `accepted` counts all calls so far that met no 429."""
        rates = [self._window_rate(window, in_flight, accepted, now) for window in hint.windows]
        self._expires_at = now + _EXPIRES_S
        self._set(min((rate for rate in rates if rate is not None), default=None), now)

    def expire(self, now: float) -> bool:
        """Drops the rate 30 s after the latest headers. Returns whether it was dropped just now."""
        if self.rate is None or now < self._expires_at:
            return False
        self._set(None, now)
        return True

    def forget(self) -> None:
        self.rate = None

    def _set(self, rate: float | None, now: float) -> None:
        if self.rate is None:
            self.since = now
        self.rate = rate

    def _window_rate(self, window: Window, in_flight: int, accepted: int, now: float) -> float | None:
        tokens_per_call = self._tokens_per_call(window, accepted, now) if window.is_tokens else 1.0
        if tokens_per_call is None or window.refill_per_s == 0:
            return None
        calls_left = window.remaining / tokens_per_call
        if window.remaining > window.limit * _NEARLY_EMPTY_SHARE and calls_left >= in_flight:
            return None
        return max(LOWEST_RATE, window.refill_per_s / tokens_per_call + calls_left / _SPEND_S)

    def _tokens_per_call(self, window: Window, accepted: int, now: float) -> float | None:
        """Average of this window; None: not known yet."""
        before = self._windows.get(window.name)
        if before is None:
            if len(self._windows) >= _MOST_WINDOWS:
                self._windows.clear()
            self._windows[window.name] = _TokenWindow(now, accepted, window.remaining)
            return None
        calls = accepted - before.accepted
        if calls >= _CALLS_PER_SAMPLE:
            was_left = min(window.limit, before.remaining + window.refill_per_s * (now - before.at))
            before.add_sample(max(1.0, (was_left - window.remaining) / calls))
            before.at, before.accepted, before.remaining = now, accepted, window.remaining
        return before.tokens_per_call


@dataclass(slots=True, eq=False)
class _TokenWindow:
    """A window of tokens as of the last sample."""

    at: float
    accepted: int
    remaining: float
    tokens_per_call: float | None = None

    def add_sample(self, tokens: float) -> None:
        average = self.tokens_per_call
        self.tokens_per_call = tokens if average is None else average + _SAMPLE_WEIGHT * (tokens - average)
