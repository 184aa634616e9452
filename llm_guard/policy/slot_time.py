"""How long callers have used slots lately, by priority and caller.

Owns these sums, in which use loses its weight with time. Does not own what follows from them (`policy.line`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import exp

_FADE_S = 60.0
_MOST_CALLERS = 1024
_FORGOTTEN_S = 0.01


@dataclass(slots=True)
class _Use:
    """Seconds of ended uses, and the uses that go on."""

    seconds: float
    faded_at: float
    count: int = 0
    began_at: float = 0.0
    """The sum of the instants at which the uses that go on began."""

    def used_s(self, now: float) -> float:
        faded_s = self.seconds * exp((self.faded_at - now) / _FADE_S)
        return faded_s + max(0.0, self.count * now - self.began_at)


class SlotTime:
    """Slot-seconds of callers. Keeps the callers that use slots now, and 1,024 others at most."""

    __slots__ = ("_uses",)

    def __init__(self) -> None:
        self._uses: dict[int, dict[str, _Use]] = {}

    def begin(self, priority: int, caller: str, now: float) -> None:
        uses = self._uses.setdefault(priority, {})
        use = uses.get(caller)
        if use is None:
            if len(uses) >= _MOST_CALLERS:
                self._forget(uses, now)
            use = uses[caller] = _Use(0.0, now)
        use.count += 1
        use.began_at += now

    def end(self, priority: int, caller: str, began_at: float, now: float) -> None:
        use = self._uses[priority][caller]
        use.count -= 1
        use.began_at -= began_at
        use.seconds = use.seconds * exp((use.faded_at - now) / _FADE_S) + now - began_at
        use.faded_at = now

    def of_priority(self, priority: int, now: float) -> float:
        """Seconds that calls of a priority have used slots."""
        return sum(use.used_s(now) for use in self._uses.get(priority, {}).values())

    def total(self, now: float) -> float:
        return sum(self.of_priority(priority, now) for priority in self._uses)

    def of_callers(self, priority: int, callers: Collection[str], now: float) -> dict[str, float]:
        """Seconds that calls of some callers have used slots at this priority."""
        uses = self._uses.get(priority, {})
        return {caller: uses[caller].used_s(now) for caller in callers if caller in uses}

    def _forget(self, uses: dict[str, _Use], now: float) -> None:
        idle = sorted((use.used_s(now), caller) for caller, use in uses.items() if not use.count)
        for used_s, caller in idle:
            if len(uses) < _MOST_CALLERS // 2 and used_s >= _FORGOTTEN_S:
                return
            del uses[caller]
