"""State of each fault plan, and the faults that were switched on at run time.

For each plan: number of draws, token buckets of `limit`, and places of `capacity`. The grammar is in `faults`; `player`
carries the faults out.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from llm_guard.mock.faults import DrawnFaults, Fault, FaultPlan, TokenBucket, parse_plan
from llm_guard.resilience.bounded_map import BoundedMap

_MOST_CALLS = 100_000
"""Number of call ids remembered; beyond it all counts restart at zero."""


@dataclass(slots=True)
class FaultState:
    """State of one plan."""

    plan: FaultPlan
    _seed: int
    _draws: int = 0
    _buckets: dict[Fault, TokenBucket] = field(default_factory=dict)
    _rooms: dict[int, asyncio.Semaphore] = field(default_factory=dict)

    def throw(self, call_id: str = "", attempt: int = 0) -> DrawnFaults:
        """The faults for the plan's next request; with `call_id`, for that attempt of the call."""
        if not self.plan.faults:
            return DrawnFaults()
        if call_id:
            return self.plan.draw_for(self._seed, call_id, attempt)
        self._draws += 1
        return self.plan.draw(self._seed, self._draws)

    def take(self, limit: Fault, now: float) -> float:
        """Returns 0.0 if the request passes the limit; else the seconds until the next one may."""
        return self._buckets.setdefault(limit, TokenBucket(limit.rate_per_s)).take(now)

    def place(self, places: int | None) -> AbstractAsyncContextManager[None]:
        """A context that holds one of `places`, granted in order; None: unlimited."""
        if places is None:
            return nullcontext()
        return self._rooms.setdefault(places, asyncio.Semaphore(places))


class FaultStates:
    """The state of every plan. The same seed and the same requests produce the same faults."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._courses: dict[str, FaultState] = {}
        self._switched: dict[str, str] = {}
        self._attempts = BoundedMap[str, int](_MOST_CALLS)

    def of(self, model: str, header: str) -> FaultState:
        """The state for a model text and a header text, with the faults switched on; raises BadFaultError."""
        switched = self._switched.get(model.partition("+")[0], "")
        plan = parse_plan(model, ",".join(text for text in (header, switched) if text))
        return self._courses.setdefault(plan.text, FaultState(plan, self._seed))

    def attempt(self, call_id: str) -> int:
        """The number of this request among those with the header `x-mock-call: call_id`, from 1; 0 without one."""
        if not call_id:
            return 0
        self._attempts[call_id] = number = self._attempts.get(call_id, 0) + 1
        return number

    def switch(self, model: str, faults: str) -> None:
        """Adds `faults` to those of `model` (a name without faults) from now on; an empty text removes them.

        Resets the model's draws, buckets and places. Raises BadFaultError, and changes nothing then."""
        parse_plan(model, faults)
        self._switched[model] = faults
        self._courses = {text: course for text, course in self._courses.items() if course.plan.model != model}
