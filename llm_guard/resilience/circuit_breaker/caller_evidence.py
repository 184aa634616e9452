"""Evidence of several gateways about the callers of one deployment, and which of them fail alone by all of it.

A gateway that serves one caller only cannot tell whether the caller or the deployment is at fault. All together can:
a caller fails alone if it fails more often than the others by more than chance explains, and a call of another one,
at whichever gateway, has succeeded since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from llm_guard.resilience.circuit_breaker.callers import is_beyond_chance, share_of_failures


@dataclass(frozen=True, slots=True)
class CallerEvidence:
    """What one gateway knows of a caller that has failed there recently."""

    caller: str
    """A digest of its name, the same at all gateways."""
    calls: float
    failures: float
    """Both lose their weight with time."""
    run_began_s: float | None
    """Time since the first failure after its last success; None: its last call has succeeded."""
    in_run: int
    """Its failures since the last success of any caller."""


@dataclass(frozen=True, slots=True)
class CallersSummary:
    """What one gateway knows of the callers that it judges together. Times are ages in seconds."""

    failing: tuple[CallerEvidence, ...] = ()
    calls: float = 0.0
    failures: float = 0.0
    """Both of all callers, while any has failed recently; they lose their weight with time."""
    ok_caller: str = ""
    ok_began_s: float | None = None
    """Caller and age of the youngest call that has succeeded; None: none has."""
    looks: Mapping[str, float] = field(default_factory=dict)
    """Callers that have failed or sent an extra probe since the last success, with the seconds after which each may
    send the next one."""

    def aged(self, by_s: float) -> CallersSummary:
        """Returns the summary as it is after so many seconds."""
        return replace(
            self,
            failing=tuple(
                one if one.run_began_s is None else replace(one, run_began_s=one.run_began_s + by_s)
                for one in self.failing
            ),
            ok_began_s=None if self.ok_began_s is None else self.ok_began_s + by_s,
            looks={caller: seconds - by_s for caller, seconds in self.looks.items()},
        )


NO_CALLERS = CallersSummary()


def lone_callers(parts: Sequence[CallersSummary]) -> frozenset[str]:
    """Returns the callers that fail alone, by the evidence of all gateways."""
    known = {one.caller for part in parts for one in part.failing}
    return frozenset(caller for caller in known if _is_alone(caller, parts)) if known else frozenset()


def _is_alone(caller: str, parts: Sequence[CallersSummary]) -> bool:
    own = [one for part in parts for one in part.failing if one.caller == caller]
    # Its youngest run: it cannot have succeeded since at any gateway that knows of its failures.
    run_began_s = min((one.run_began_s for one in own if one.run_began_s is not None), default=-inf)
    ok_began_s = min(
        (part.ok_began_s for part in parts if part.ok_began_s is not None and part.ok_caller != caller), default=inf
    )
    if ok_began_s >= run_began_s:
        return False
    calls, failures = sum(one.calls for one in own), sum(one.failures for one in own)
    others = share_of_failures(
        sum(part.calls for part in parts) - calls, sum(part.failures for part in parts) - failures
    )
    return is_beyond_chance(calls, failures, others)
