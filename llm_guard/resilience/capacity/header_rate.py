"""The rate that the rate-limit headers of recent responses allow.

Decides which windows limit the rate, and estimates how many tokens a call takes. The formats of the headers are in
`resilience.capacity.rate_limit_headers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from llm_guard.resilience.capacity.rate_limit_headers import RateHint, RateLimitWindow
from llm_guard.resilience.throttling.gcra import LOWEST_RATE

_NEARLY_EMPTY_SHARE = 0.05
# The rest of a window may be used within this time, in addition to what is refilled.
_SPEND_S = 10.0
# Calls in flight may not be counted yet in what remains. At most this share of the limit is kept back for them.
_MOST_RESERVED_SHARE = 0.2
_EXPIRES_S = 30.0
# Header names come from the provider: memory must be bounded.
_MOST_WINDOWS = 16
_CALLS_PER_SAMPLE = 4
_SAMPLE_WEIGHT = 0.3
# Each call delays the reset of a bucket by the time of one refill, and that of a fixed window not at all. The sum of
# the delays must be clearly more than the second to which providers round.
_TELLING_DELAY_S = 3.0
_FIXED_SHARE = 0.25
_MOST_CLOSED_S = 60.0
# A window that says that it is empty, and from which so many more calls are accepted than it could hold, is wrong.
_REFUTING_CALLS = 3.0


class HeaderRate:
    """The lowest rate that any nearly empty window allows.

    A window limits the rate only while less than 5 % of it is left, or fewer calls than are in flight and waiting. Most
    windows are buckets, refilled steadily; a fixed window is recognized by a reset that does not move while calls are
    taken. An empty fixed window allows nothing before its reset. A window of tokens is converted to calls by the moving
    average of the tokens per call, and ignored until that is known. A window that stays empty while calls are accepted
    is ignored too: its headers are wrong, and obeying them would refuse calls that the provider serves.
    """

    __slots__ = ("_expires_at", "_rate_after_reset", "_sent_at", "_windows", "closed_until", "rate", "since")

    def __init__(self, now: float) -> None:
        self.rate: float | None = None
        """Calls a second; None: no limit."""
        self.since = now
        """When headers began to limit the rate."""
        self.closed_until = -inf
        """Reset of an empty fixed window, before which no call can be accepted. At most 60 s ahead."""
        self._expires_at = -inf
        self._rate_after_reset: float | None = None
        self._sent_at = -inf
        """When the request of the latest known headers was sent."""
        self._windows: dict[str, _WindowState] = {}

    def note(self, hint: RateHint, wanted: int, in_flight: int, accepted: int, sent_at: float, now: float) -> None:
        """Takes the headers of a response into account, unless those of a later request are known. Providers count a
        request when it arrives, so the headers are as of `sent_at`. `wanted`: calls in flight and waiting. `accepted`:
        all calls so far that got no 429."""
        if sent_at < self._sent_at:
            return
        self._sent_at = sent_at
        self._expires_at = now + _EXPIRES_S
        self.closed_until = -inf
        self._rate_after_reset = None
        rates = [self._window_rate(window, wanted, in_flight, accepted, sent_at) for window in hint.windows]
        self._set(min((rate for rate in rates if rate is not None), default=None), now)

    def expire(self, now: float) -> bool:
        """Drops the rate 30 s after the latest headers. At the reset of a fixed window, sets a rate at which waiting
        calls use it over ten seconds. Returns whether the rate has just changed."""
        if self.rate is None or now < self._expires_at:
            return False
        self._expires_at = now + _EXPIRES_S
        self._set(self._rate_after_reset, now)
        self._rate_after_reset = None
        return True

    def forget(self) -> None:
        self.rate = None

    def _set(self, rate: float | None, now: float) -> None:
        if self.rate is None:
            self.since = now
        self.rate = rate

    def _window_rate(
        self, window: RateLimitWindow, wanted: int, in_flight: int, accepted: int, now: float
    ) -> float | None:
        state = self._state(window, accepted, now)
        tokens_per_call = state.note(window, accepted, now) if window.is_tokens else 1.0
        state.note_reset(window, now)
        if tokens_per_call is None or window.refill_per_s == 0:
            return None
        calls_left = window.remaining / tokens_per_call
        if state.is_refuted(window, calls_left, window.refill_per_s / tokens_per_call, in_flight, accepted, now):
            return None
        if window.remaining > window.limit * _NEARLY_EMPTY_SHARE and calls_left >= wanted:
            return None
        limit = window.limit / tokens_per_call
        spare = calls_left - min(in_flight, limit * _MOST_RESERVED_SHARE)
        if state.is_fixed and window.reset_s is not None:
            return self._fixed_rate(spare, limit, window.reset_s, now)
        return max(LOWEST_RATE, window.refill_per_s / tokens_per_call + spare / _SPEND_S)

    def _fixed_rate(self, spare: float, limit: float, reset_s: float, now: float) -> float:
        reset_at = now + min(reset_s, _MOST_CLOSED_S)
        rate_after = max(LOWEST_RATE, limit / _SPEND_S)
        if spare < 1:
            self._expires_at = self.closed_until = max(self.closed_until, reset_at)
            self._rate_after_reset = rate_after
            return rate_after
        if reset_at <= self._expires_at:
            self._expires_at, self._rate_after_reset = reset_at, rate_after
        return max(LOWEST_RATE, spare / min(_SPEND_S, reset_s))

    def _state(self, window: RateLimitWindow, accepted: int, now: float) -> _WindowState:
        state = self._windows.get(window.name)
        if state is None:
            if len(self._windows) >= _MOST_WINDOWS:
                self._windows.clear()
            state = self._windows[window.name] = _WindowState(now, accepted, window.remaining)
        return state


@dataclass(slots=True, eq=False)
class _WindowState:
    """State of a window as of the last sample."""

    at: float
    accepted: int
    remaining: float
    tokens_per_call: float | None = None
    """Moving average; None: unknown yet."""
    is_fixed: bool = False
    reset_at: float | None = None
    """Time of the reset when the delays below began to be counted."""
    least_remaining: float = 0.0
    delay_s: float = 0.0
    """Delay of a bucket's reset by the calls taken since."""
    empty_at: float | None = None
    """Time at which it first reported no calls left; None: it has calls left."""
    empty_until: float = 0.0
    accepted_then: int = 0
    """Calls accepted until then, plus those in flight, which may be counted already, plus those left."""

    def note(self, window: RateLimitWindow, accepted: int, now: float) -> float | None:
        """Returns the tokens per call of this window."""
        calls = accepted - self.accepted
        if calls >= _CALLS_PER_SAMPLE:
            was_left = min(window.limit, self.remaining + window.refill_per_s * (now - self.at))
            self._add_sample(max(1.0, (was_left - window.remaining) / calls))
            self.at, self.accepted, self.remaining = now, accepted, window.remaining
        return self.tokens_per_call

    def note_reset(self, window: RateLimitWindow, now: float) -> None:
        """Finds out whether the reset stays at its time while calls are taken."""
        if window.reset_s is None:
            return
        reset_at = now + window.reset_s
        if self.reset_at is None or window.remaining > self.least_remaining:
            self._begin(reset_at, window.remaining)
            return
        self.delay_s += (self.least_remaining - window.remaining) / window.refill_per_s
        self.least_remaining = window.remaining
        if self.delay_s >= _TELLING_DELAY_S:
            self.is_fixed = abs(reset_at - self.reset_at) <= _FIXED_SHARE * self.delay_s
            self._begin(reset_at, window.remaining)

    def is_refuted(
        self, window: RateLimitWindow, calls_left: float, refill: float, in_flight: int, accepted: int, now: float
    ) -> bool:
        """Returns True if more calls were accepted since it became empty than it can hold. `refill`: calls a second."""
        if calls_left >= 2:
            self.empty_at = None
            return False
        if self.empty_at is None or now >= self.empty_until:
            self.empty_at, self.accepted_then = now, accepted + in_flight + int(calls_left)
            self.empty_until = inf if window.reset_s is None else now + window.reset_s
            return False
        return accepted - self.accepted_then - refill * (now - self.empty_at) >= _REFUTING_CALLS

    def _begin(self, reset_at: float, remaining: float) -> None:
        self.reset_at, self.least_remaining, self.delay_s = reset_at, remaining, 0.0

    def _add_sample(self, tokens: float) -> None:
        average = self.tokens_per_call
        self.tokens_per_call = tokens if average is None else average + _SAMPLE_WEIGHT * (tokens - average)
