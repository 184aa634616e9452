"""Lesser answers, and the mode in which they are given soon.

Owns when a route is degraded, when it is no more, and when that is the gateway's trouble rather than one route's. Does
not own the answers' form (`dialect.canned`), nor who gives them (`gateway.last_resort`).

    well      a call waits for a real answer as long as its limits allow
    degraded  a call that there is a lesser answer for waits `patience` for a real one. What is cut short so is no
              evidence: a route whose answers are slow would never be well again. That is why now and then one of them
              waits as it would otherwise
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated

from llm_guard.policy.units import Count, Ratio, Seconds, Unit, or_none

MOST_CHARS = 8000
"""Of a static answer."""
FEWEST = 2
"""Routes that have to be degraded before it is the gateway's trouble."""

_HURRIED_CALLS = 10
"""At least so many are hurried before one is not."""
_STEPS = 60
"""In which the shorter of the two times is seen that are looked back at."""
_MOST_STEPS = 1000
"""Of the longer one."""


def parse_answer(value: object) -> str:
    """The text of a static answer; raises ValueError."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("write the text that is to be the answer, in quotes")
    if len(value) > MOST_CHARS:
        raise ValueError(f"an answer has {MOST_CHARS} characters at most, this one {len(value)}")
    return value


Text = Annotated[str | None, Unit(or_none(parse_answer))]


@dataclass(frozen=True, slots=True)
class DegradedSettings:
    """What is given in place of an answer, and when. Durations in seconds."""

    answer: Text = None
    """The text of the static answer; None: there is none, the call fails."""
    enter: Ratio = 0.5
    """The route is degraded when at least this share of the calls within `window` had no real answer."""
    leave: Ratio = 0.1
    """It is no more when at most this share of the calls within the last `calm` had none; or when nobody has called
    for the length of `window`."""
    window: Seconds = 60.0
    min_calls: Count = 10
    """Fewer within `window` say nothing."""
    calm: Seconds = 30.0
    """It is degraded for so long at least."""
    patience: Seconds = 10.0
    """While it is degraded, a call that there is a lesser answer for waits no longer than this for a real one."""

    def __post_init__(self) -> None:
        if self.leave >= self.enter:
            raise ValueError(f"`leave` must be below `enter`: {self.leave:g} is not below {self.enter:g}")


@dataclass(frozen=True, slots=True)
class Seen:
    """Calls of a route since the start, in sum."""

    begun: int = 0
    answered: int = 0
    """By somebody who was asked."""
    failed: int = 0
    """Nobody has answered, and it was neither its client's doing nor cut short."""


@dataclass(frozen=True, slots=True)
class Turn:
    """It is degraded from now on, or no more, and why."""

    is_degraded: bool
    why: str


@dataclass(frozen=True, slots=True)
class DegradationSnapshot:
    is_degraded: bool
    since: float | None
    """When it became so; None: it is well."""
    why: str
    """"" where it is well."""
    calls: int
    """Within the window, as far as they tell anything."""
    failed: int
    is_in_use: bool
    """Somebody has called within the window."""


class Degradation:
    """One route's mode by the rule. It is told what was counted, time and again: a call itself pays nothing for it."""

    __slots__ = ("_at", "_called_at", "_hurried", "_patient_at", "_seen", "_since", "_why", "settings")

    def __init__(self, settings: DegradedSettings, seen: Seen, now: float) -> None:
        """`seen`: what was counted before, which says nothing."""
        self.settings = settings
        """May be replaced at any moment."""
        self._since: float | None = None
        self._why = ""
        self._called_at = float("-inf")
        self._hurried = 0
        """Calls since one has waited as long as it liked."""
        self._patient_at = now
        """Not before this instant may another."""
        self._begin(seen, now)

    @property
    def is_degraded(self) -> bool:
        return self._since is not None

    def note(self, seen: Seen, now: float) -> Turn | None:
        """What is counted by now; what follows from it, if anything."""
        self._keep(seen, now)
        if self._since is None:
            why = self._reason_to_enter(seen, now)
            return None if why is None else self._turn(now, why, seen, now)
        why = self._reason_to_leave(seen, self._since, now)
        return None if why is None else self._turn(None, why, seen, now)

    def may_wait(self, now: float) -> bool:
        """Whether the call at hand is the one in many that finds out how long a real answer takes; it is counted."""
        if self._hurried < _HURRIED_CALLS or now < self._patient_at:
            self._hurried += 1
            return False
        self._hurried, self._patient_at = 0, now + self.settings.patience
        return True

    def snapshot(self, now: float) -> DegradationSnapshot:
        last = self._seen[-1]
        before = self._before(now - self.settings.window)
        failed = last.failed - before.failed
        calls = last.answered - before.answered + failed
        is_in_use = now - self._called_at < self.settings.window
        return DegradationSnapshot(self.is_degraded, self._since, self._why, calls, failed, is_in_use)

    def _reason_to_enter(self, seen: Seen, now: float) -> str | None:
        rules = self.settings
        before = self._before(now - rules.window)
        failed = seen.failed - before.failed
        calls = seen.answered - before.answered + failed
        is_in_use = now - self._called_at < rules.window
        if not is_in_use or calls < rules.min_calls or failed < rules.enter * calls:
            return None
        return f"{failed} of {calls} calls within {rules.window:g} s had no real answer"

    def _reason_to_leave(self, seen: Seen, since: float, now: float) -> str | None:
        rules = self.settings
        if now - max(since, self._called_at) >= rules.window:
            return f"nobody has called for {rules.window:g} s"
        if now - since < rules.calm:
            return None
        before = self._before(now - rules.calm)
        answered, failed = seen.answered - before.answered, seen.failed - before.failed
        if not answered or failed > rules.leave * (answered + failed):
            return None
        return f"{answered} of {answered + failed} calls within {rules.calm:g} s had a real answer"

    def _turn(self, since: float | None, why: str, seen: Seen, now: float) -> Turn:
        self._since = since
        self._why = why if since is not None else ""
        self._hurried, self._patient_at = 0, now
        self._begin(seen, now)  # what led to this is not to lead back
        return Turn(since is not None, why)

    def _begin(self, seen: Seen, now: float) -> None:
        self._at, self._seen = [now], [seen]

    def _keep(self, seen: Seen, now: float) -> None:
        """The last is as it is now; those before it are about a step apart, and the first as old as is looked back."""
        if seen.begun > self._seen[-1].begun:
            self._called_at = now
        short_s, span_s = sorted((self.settings.window, self.settings.calm))
        step_s = max(short_s / _STEPS, span_s / _MOST_STEPS)
        if len(self._at) > 1 and self._at[-1] - self._at[-2] < step_s and now - self._at[-1] < step_s:
            self._at.pop()
            self._seen.pop()
        self._at.append(now)
        self._seen.append(seen)
        lost = max(0, bisect_right(self._at, now - span_s) - 1)
        del self._at[:lost], self._seen[:lost]

    def _before(self, at: float) -> Seen:
        """What was counted up to that instant, or to the first that is known."""
        return self._seen[max(0, bisect_right(self._at, at) - 1)]


def is_common(degraded: int, in_use: int) -> bool:
    """Whether it is the gateway's trouble: at least half of the routes in use are degraded, and not one alone."""
    return degraded >= FEWEST and 2 * degraded >= in_use
