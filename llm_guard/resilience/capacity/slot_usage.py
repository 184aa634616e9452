"""Time for which callers have used slots recently, by priority and caller.

Sums in which use decays with time; `resilience.capacity.wait_queue` decides by them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import exp

_FADE_S = 60.0
_MOST_CALLERS = 1024
_FORGOTTEN_S = 0.01
_LATEST_WEIGHT = 0.1


@dataclass(slots=True)
class _Use:
    """Seconds of ended uses, and the uses in progress."""

    seconds: float
    faded_at: float
    count: int = 0
    began_at: float = 0.0
    """Sum of the instants at which the uses in progress began."""

    def used_s(self, now: float) -> float:
        faded_s = self.seconds * exp((self.faded_at - now) / _FADE_S)
        return faded_s + max(0.0, self.count * now - self.began_at)

    def begin(self, now: float) -> None:
        self.count += 1
        self.began_at += now

    def end(self, began_at: float, now: float) -> None:
        self.count -= 1
        self.began_at -= began_at
        self.seconds = self.seconds * exp((self.faded_at - now) / _FADE_S) + now - began_at
        self.faded_at = now


class SlotTime:
    """Slot-seconds of callers. Keeps the callers that use slots now, and at most 1,024 others."""

    __slots__ = ("_sums", "_typical_s", "_uses")

    def __init__(self) -> None:
        self._uses: dict[int, dict[str, _Use]] = {}
        self._sums: dict[int, _Use] = {}
        """Sum over the callers of each priority: the next turn is decided for every call, with up to 1,024 callers."""
        self._typical_s: dict[int, float] = {}
        """Moving average of the seconds for which a call of each priority uses a slot."""

    def begin(self, priority: int, caller: str, now: float) -> None:
        uses = self._uses.setdefault(priority, {})
        use = uses.get(caller)
        if use is None:
            if len(uses) >= _MOST_CALLERS:
                self._forget(uses, now)
            use = uses[caller] = _Use(0.0, now)
        use.begin(now)
        self._sums.setdefault(priority, _Use(0.0, now)).begin(now)

    def end(self, priority: int, caller: str, began_at: float, now: float) -> None:
        self._uses[priority][caller].end(began_at, now)
        self._sums[priority].end(began_at, now)
        typical_s = self._typical_s.get(priority, now - began_at)
        self._typical_s[priority] = typical_s + _LATEST_WEIGHT * (now - began_at - typical_s)

    def of_priority(self, priority: int, now: float) -> float:
        """Returns the seconds for which calls of a priority have used slots."""
        use = self._sums.get(priority)
        return 0.0 if use is None else use.used_s(now)

    def total(self, now: float) -> float:
        return sum(use.used_s(now) for use in self._sums.values())

    def typical_s(self, priority: int) -> float | None:
        """Returns the moving average of the seconds for which a call of a priority uses a slot; None: none has ended
        yet."""
        return self._typical_s.get(priority)

    def of_callers(self, priority: int, callers: Collection[str], now: float) -> dict[str, float]:
        """Returns the seconds for which calls of some callers have used slots at this priority."""
        uses = self._uses.get(priority, {})
        return {caller: uses[caller].used_s(now) for caller in callers if caller in uses}

    def _forget(self, uses: dict[str, _Use], now: float) -> None:
        idle = sorted((use.used_s(now), caller) for caller, use in uses.items() if not use.count)
        for used_s, caller in idle:
            if len(uses) < _MOST_CALLERS // 2 and used_s >= _FORGOTTEN_S:
                return
            del uses[caller]
