"""What each fault plan has met so far, and the faults that were switched on at run time.

Owns the dice's count, the buckets of `limit` and the places of `capacity`, per plan. Does not own the grammar
(`faults`) nor act anything out (`player`).
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from llm_guard.mock.faults import Fault, FaultPlan, Struck, TokenBucket, parse_plan

_MOST_CALLS = 100_000
"""Calls counted before the count restarts at zero."""


@dataclass(slots=True)
class Course:
    """One plan as it has gone so far."""

    plan: FaultPlan
    _seed: int
    _draws: int = 0
    _buckets: dict[Fault, TokenBucket] = field(default_factory=dict)
    _rooms: dict[int, asyncio.Semaphore] = field(default_factory=dict)

    def throw(self, call_id: str = "", attempt: int = 0) -> Struck:
        """The faults that strike the plan's next request; with `call_id`, that attempt of the call."""
        if not self.plan.faults:
            return Struck()
        if call_id:
            return self.plan.draw_for(self._seed, call_id, attempt)
        self._draws += 1
        return self.plan.draw(self._seed, self._draws)

    def take(self, limit: Fault, now: float) -> float:
        """0.0 when the request may pass the limit; else the seconds until the next one may."""
        return self._buckets.setdefault(limit, TokenBucket(limit.rate_per_s)).take(now)

    def place(self, places: int | None) -> AbstractAsyncContextManager[None]:
        """One of `places`, in the order of asking; None: there is always one."""
        if places is None:
            return nullcontext()
        return self._rooms.setdefault(places, asyncio.Semaphore(places))


class Courses:
    """Every plan's course. The same seed and the same requests meet the same faults."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._courses: dict[str, Course] = {}
        self._switched: dict[str, str] = {}
        self._attempts: dict[str, int] = {}

    def of(self, model: str, header: str) -> Course:
        """The course of a model text and a header text, and what was switched on; raises BadFaultError."""
        switched = self._switched.get(model.partition("+")[0], "")
        plan = parse_plan(model, ",".join(text for text in (header, switched) if text))
        return self._courses.setdefault(plan.text, Course(plan, self._seed))

    def attempt(self, call_id: str) -> int:
        """The number of this request among those with the header `x-mock-call: call_id`, from 1; 0 without one."""
        if not call_id:
            return 0
        if len(self._attempts) >= _MOST_CALLS:
            self._attempts.clear()
        self._attempts[call_id] = number = self._attempts.get(call_id, 0) + 1
        return number

    def switch(self, model: str, faults: str) -> None:
        """From now on `faults` strike `model` (a name without faults) too, after its own; an empty text lifts them.

        Its dice, buckets and places start anew. Raises BadFaultError, and changes nothing then.
        """
        parse_plan(model, faults)
        self._switched[model] = faults
        self._courses = {text: course for text, course in self._courses.items() if course.plan.model != model}
