"""What a call of a client key must pass besides its path and model, before it is sent and before it is answered.

Owns which of the two filters sees which call. Does not own them (`gateway.isolation`, `gateway.model_list`).
"""

from __future__ import annotations

from collections.abc import Callable

from llm_guard.call import Call, Served
from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.gateway.isolation import Isolation, Run
from llm_guard.gateway.model_list import filter_models, is_filtered
from llm_guard.gateway.ownership import OwnedObjects
from llm_guard.gateway.whole_answer import ask_for_plain
from llm_guard.outcome import GaveUp, Refusal
from llm_guard.routes import RouteTable


class Screening:
    """For calls that have a scope."""

    def __init__(self, objects: OwnedObjects, table: Callable[[], RouteTable], clock: Clock) -> None:
        self._objects = objects
        self._isolation = Isolation(objects, clock)
        self._table = table
        self._clock = clock

    def adopt(self, config: Config) -> None:
        """From the next call on. Objects made before `isolate_objects` was set belong to no key."""
        self._isolation.is_on = config.server.isolate_objects
        if self._isolation.is_on:
            self._objects.begin()

    async def start(self, config: Config) -> None:
        """As `adopt`, and reads whose the objects are that were made before a restart."""
        self.adopt(config)
        if self._isolation.is_on:
            await self._objects.wait_read()

    async def close(self) -> None:
        """At the end of the process."""
        await self._objects.close()

    def applies_to(self, call: Call) -> bool:
        """Whether a call has anything to pass: `check` before it is sent, and `screen` before it is answered."""
        return (self._isolation.is_on and self._isolation.applies_to(call)) or is_filtered(call)

    def needs_whole_body(self, call: Call) -> bool:
        return self._isolation.needs_whole_body(call)

    async def check(self, call: Call) -> Refusal | None:
        """Before a call with a route is sent."""
        if is_filtered(call):
            ask_for_plain(call)
        return await self._isolation.check(call) if self._isolation.applies_to(call) else None

    async def screen(self, call: Call, result: Served | GaveUp, run: Run) -> Served | GaveUp:
        """The answer as the call's key may see it. `run` asks for more of a list."""
        if not isinstance(result, Served):
            return result
        if is_filtered(call):
            return filter_models(call, result, self._table(), self._clock)
        return await self._isolation.screen(call, result, run) if self._isolation.applies_to(call) else result
