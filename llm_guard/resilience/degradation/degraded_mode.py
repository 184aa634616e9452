"""Degraded mode of a route: calls wait only a short time before they get a fallback response.

Decides when a route enters and leaves it, and when the cause is the gateway's rather than one route's. The form of
fallback responses is in `dialects.static_answer`; `proxy.response.fallback_response` sends them.

    normal    a call waits for a real response as long as its limits allow
    degraded  a call that has a fallback response waits `max_wait` for a real one. A call that is cut short this way is
              not evidence: otherwise a route with slow responses would never recover. So now and then one call waits
              for as long as it normally would
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated

from llm_guard.resilience.units import Count, Ratio, Seconds, Unit, nullable, or_none

MOST_CHARS = 8000
"""Longest static response."""
FEWEST = 2
"""Least number of degraded routes that can be the gateway's trouble."""

_HURRIED_CALLS = 10
"""Least number of calls that are cut short before one is not."""
_STEPS = 60
"""Number of steps in which the shorter of the two look-back periods is recorded."""
_MOST_STEPS = 1000
"""Largest number of steps for the longer one."""


def parse_answer(value: object) -> str:
    """Checks the text of a static response; raises ValueError."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be the response's text, in quotes")
    if len(value) > MOST_CHARS:
        raise ValueError(f"must have at most {MOST_CHARS} characters, has {len(value)}")
    return value


StaticResponseText = Annotated[
    str | None, Unit(or_none(parse_answer), nullable({"type": "string", "pattern": r"\S", "maxLength": MOST_CHARS}))
]


@dataclass(frozen=True, slots=True)
class DegradedSettings:
    """Fallback responses, and when they are used. Durations in seconds."""

    static_response: StaticResponseText = None
    """Text of the static response; None: there is none, the call fails."""
    enter_failure_rate: Ratio = 0.5
    """The route becomes degraded when at least this share of the calls within `window` had no real response."""
    exit_failure_rate: Ratio = 0.1
    """It recovers when at most this share of the calls within the last `recovery_window` had none, or when no call has
    come for the length of `window`."""
    window: Seconds = 60.0
    """Period in which calls are counted."""
    min_calls: Count = 10
    """Fewer calls within `window` are not enough to judge."""
    recovery_window: Seconds = 30.0
    """Shortest time for which it stays degraded."""
    max_wait: Seconds = 10.0
    """While it is degraded, a call that has a fallback response waits at most this long for a real one."""

    def __post_init__(self) -> None:
        if self.exit_failure_rate >= self.enter_failure_rate:
            rates = f"{self.exit_failure_rate:g} is not below {self.enter_failure_rate:g}"
            raise ValueError(f"`exit_failure_rate` must be below `enter_failure_rate`: {rates}")


@dataclass(frozen=True, slots=True)
class RouteTotals:
    """Totals of a route's calls since the start."""

    begun: int = 0
    answered: int = 0
    """Calls served by a provider."""
    failed: int = 0
    """Calls that no provider served, without those that failed because of their client or were cut short."""


@dataclass(frozen=True, slots=True)
class ModeChange:
    """Change of the mode, with its reason."""

    is_degraded: bool
    why: str


@dataclass(frozen=True, slots=True)
class DegradationSnapshot:
    is_degraded: bool
    since: float | None
    """When it became degraded; None: it is not."""
    why: str
    """Why it is degraded; "" if it is not."""
    calls: int
    """Calls within the window that are evidence."""
    failed: int
    is_in_use: bool
    """True if a call has come within the window."""


class Degradation:
    """Automatic mode of one route. It is fed with totals at intervals: a call itself costs nothing."""

    __slots__ = ("_at", "_called_at", "_hurried", "_patient_at", "_seen", "_since", "_why", "settings")

    def __init__(self, settings: DegradedSettings, seen: RouteTotals, now: float) -> None:
        """`seen`: the totals so far, which are not evidence."""
        self.settings = settings
        """May be replaced at any moment."""
        self._since: float | None = None
        self._why = ""
        self._called_at = float("-inf")
        self._hurried = 0
        """Calls cut short since one has waited its normal time."""
        self._patient_at = now
        """The next call may not wait its normal time before this instant."""
        self._begin(seen, now)

    @property
    def is_degraded(self) -> bool:
        return self._since is not None

    def note(self, seen: RouteTotals, now: float) -> ModeChange | None:
        """Takes the totals so far; returns the change that follows, if any."""
        self._keep(seen, now)
        if self._since is None:
            why = self._reason_to_enter(seen, now)
            return None if why is None else self._turn(now, why, seen, now)
        why = self._reason_to_leave(seen, self._since, now)
        return None if why is None else self._turn(None, why, seen, now)

    def may_wait(self, now: float) -> bool:
        """Returns whether the present call, one in many, waits its normal time to find out how long a real response
        takes. Counts the call."""
        if self._hurried < _HURRIED_CALLS or now < self._patient_at:
            self._hurried += 1
            return False
        self._hurried, self._patient_at = 0, now + self.settings.max_wait
        return True

    def snapshot(self, now: float) -> DegradationSnapshot:
        last = self._seen[-1]
        before = self._before(now - self.settings.window)
        failed = last.failed - before.failed
        calls = last.answered - before.answered + failed
        is_in_use = now - self._called_at < self.settings.window
        return DegradationSnapshot(self.is_degraded, self._since, self._why, calls, failed, is_in_use)

    def _reason_to_enter(self, seen: RouteTotals, now: float) -> str | None:
        rules = self.settings
        before = self._before(now - rules.window)
        failed = seen.failed - before.failed
        calls = seen.answered - before.answered + failed
        is_in_use = now - self._called_at < rules.window
        if not is_in_use or calls < rules.min_calls or failed < rules.enter_failure_rate * calls:
            return None
        return f"{failed} of {calls} calls within {rules.window:g} s failed"

    def _reason_to_leave(self, seen: RouteTotals, since: float, now: float) -> str | None:
        rules = self.settings
        if now - max(since, self._called_at) >= rules.window:
            return f"no calls for {rules.window:g} s"
        if now - since < rules.recovery_window:
            return None
        before = self._before(now - rules.recovery_window)
        answered, failed = seen.answered - before.answered, seen.failed - before.failed
        if not answered or failed > rules.exit_failure_rate * (answered + failed):
            return None
        return f"{answered} of {answered + failed} calls within {rules.recovery_window:g} s succeeded"

    def _turn(self, since: float | None, why: str, seen: RouteTotals, now: float) -> ModeChange:
        self._since = since
        self._why = why if since is not None else ""
        self._hurried, self._patient_at = 0, now
        self._begin(seen, now)  # what led to this is not to lead back
        return ModeChange(since is not None, why)

    def _begin(self, seen: RouteTotals, now: float) -> None:
        self._at, self._seen = [now], [seen]

    def _keep(self, seen: RouteTotals, now: float) -> None:
        """Records the totals. Entries before the last are about a step apart, the first is as old as the look-back."""
        if seen.begun > self._seen[-1].begun:
            self._called_at = now
        short_s, span_s = sorted((self.settings.window, self.settings.recovery_window))
        step_s = max(short_s / _STEPS, span_s / _MOST_STEPS)
        if len(self._at) > 1 and self._at[-1] - self._at[-2] < step_s and now - self._at[-1] < step_s:
            self._at.pop()
            self._seen.pop()
        self._at.append(now)
        self._seen.append(seen)
        lost = max(0, bisect_right(self._at, now - span_s) - 1)
        del self._at[:lost], self._seen[:lost]

    def _before(self, at: float) -> RouteTotals:
        """Returns the totals at that instant, or the first that are known."""
        return self._seen[max(0, bisect_right(self._at, at) - 1)]


def is_common(degraded: int, in_use: int) -> bool:
    """Returns whether the gateway is the cause: at least half of the routes in use are degraded, and more than one."""
    return degraded >= FEWEST and 2 * degraded >= in_use
