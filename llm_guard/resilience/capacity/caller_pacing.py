"""Paces of a gate: which callers share the general pace, and which the pace of those that a provider limits.

Decides when callers are separated and when they share one pace again. A pace is a `resilience.capacity.pacing.Pace`;
`resilience.capacity.throttled_callers` has the evidence that a limited caller does not belong to the others.

A limit that one caller's 429s have begun applies to this caller alone until others are refused too. When another one
calls, the refused callers keep the limited pace, and the other one begins with a fresh pace. If its own 429s limit that
pace, it joins them: the limit is that of the whole account, and they share it. If many calls of other callers are
refused, all callers join, including those that call too seldom to learn a pace.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_guard.resilience.bounded_map import BoundedMap
from llm_guard.resilience.capacity.fair_queue import SourceFilter
from llm_guard.resilience.capacity.pacing import Pace, PaceSnapshot
from llm_guard.resilience.capacity.settings import CapacitySettings
from llm_guard.resilience.capacity.throttled_callers import MOST_CALLERS, ThrottledCallers


class Paces:
    """The paces of one gate."""

    __slots__ = ("_late_s", "_refused", "apart", "free")

    def __init__(self, now: float, late_s: float = 0.0) -> None:
        """`late_s`: see `Pace`."""
        self._late_s = late_s
        self.free = Pace(now, late_s)
        """The pace of all callers that are not apart."""
        self.apart: ThrottledCallers | None = None
        self._refused = BoundedMap[str, None](MOST_CALLERS)
        """Callers at `free` that were refused and not accepted since; once a limit has begun, all that were refused."""

    def of(self, caller: str, now: float) -> Pace:
        """Returns the pace of a new call. Separates a caller that was not refused from those that were."""
        apart = self.apart
        if apart is not None and apart.has(caller):
            return apart.pace
        if self._refused and caller not in self._refused and self.free.is_limited:
            self._part(now)
        return self.free

    def of_known(self, caller: str) -> Pace:
        """Returns the pace of a call that waits or has gone."""
        apart = self.apart
        return apart.pace if apart is not None and apart.has(caller) else self.free

    def forecast_of(self, caller: str) -> Pace | None:
        """Returns the pace that `of` would find; None: a fresh one. Read-only."""
        pace = self.of_known(caller)
        parts = pace is self.free and self._refused and caller not in self._refused and pace.is_limited
        return None if parts else pace

    def note_rate_limited(
        self, caller: str, entered_at: float, settings: CapacitySettings, now: float, *, has_waited: bool
    ) -> None:
        """Notes a 429 for a caller's call that entered at `entered_at`; `has_waited`: not at once."""
        pace, apart = self.of_known(caller), self.apart
        pace.note_rate_limited(entered_at, settings, now, has_waited=has_waited)
        if apart is not None and pace is apart.pace:
            apart.note_refused(caller, entered_at, now)
            return
        self._refused[caller] = None
        self._refused.move_to_end(caller)
        if apart is not None:
            apart.note_other_refused()
            if apart.has_all:
                self._refused.clear()
                self.free = Pace(now, self._late_s)
        self.join_if_limited(now)

    def note_accepted(
        self, caller: str, entered_at: float, settings: CapacitySettings, waiting: int, now: float, *, is_ok: bool
    ) -> None:
        """Notes any other response than a 429 to a caller's call; `is_ok`: the call succeeded."""
        apart = self.apart
        if apart is None or not apart.has(caller):
            self.free.note_accepted(entered_at, settings, waiting, now, is_ok=is_ok)
            if apart is not None:
                apart.note_other_accepted()
            if self._refused and not self.free.is_limited:
                self._refused.pop(caller, None)
            return
        apart.pace.note_accepted(entered_at, settings, waiting, now, is_ok=is_ok)
        if apart.note_accepted(caller, entered_at):
            apart.leave(caller)
            if not self.free.is_limited:
                self.free.open_for_backlog(settings, waiting, now)
        if apart.is_over(now):
            self.apart = None

    def join_if_limited(self, now: float) -> None:
        """Adds the callers of the other pace to those apart once 429s limit that pace too."""
        apart = self.apart
        if apart is not None and self._refused and self.free.is_limited:
            apart.join(list(self._refused))
            self._refused.clear()
            self.free = Pace(now, self._late_s)

    def reset(self, now: float) -> None:
        """Forgets what was learned from 429s: an operator's reset."""
        self.apart = None
        self._refused.clear()
        self.free.reset(now)

    def begin_at(self, state: PaceSnapshot, gateways: int, callers: Sequence[str], now: float) -> None:
        """Continues with an equal part, for one of `gateways`, of a pace that was learned elsewhere, in addition to the
        rate that there is. `callers`: those that it applies to; none: it applies to all."""
        if callers and self.apart is None:
            self.apart = ThrottledCallers(Pace(now, self._late_s), list(callers), now)
        pace = self.free if self.apart is None or not callers else self.apart.pace
        pace.begin_at(state, gateways, now)

    def release(self, now: float) -> None:
        """Forgets rates but keeps holds: pacing is off."""
        self.free.release(now)
        if self.apart is not None:
            self.apart.pace.release(now)

    def end_holds(self, now: float) -> None:
        self.free.end_hold(now)
        if self.apart is not None:
            self.apart.pace.end_hold(now)

    def shown(self) -> tuple[Pace, tuple[str, ...] | None]:
        """Returns the pace that is limited, and the callers that keep to it; None: all do."""
        if self.apart is None or self.free.is_limited:
            return self.free, None
        return self.apart.pace, None if self.apart.has_all else self.apart.callers

    def only(self, *, is_apart: bool) -> SourceFilter:
        """Selects the waiting calls of one pace."""
        apart = self.apart
        if apart is not None and apart.has_all:
            return SourceFilter((), is_among=not is_apart)
        return SourceFilter(() if apart is None else apart.callers, is_among=is_apart)

    def beside(self, caller: str) -> SourceFilter | None:
        """Selects the waiting calls that keep to the same pace as this caller's; None: all do."""
        apart = self.apart
        return None if apart is None else self.only(is_apart=apart.has(caller))

    def _part(self, now: float) -> None:
        refused = list(self._refused)
        self._refused.clear()
        if self.apart is None:
            self.apart = ThrottledCallers(self.free, refused, now)
        else:
            self.apart.join(refused)
        self.free = Pace(now, self._late_s)
