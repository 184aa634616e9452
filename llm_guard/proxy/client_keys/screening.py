"""Applies the filters for client keys to calls and responses: object isolation (`proxy.client_keys.object_isolation`)
and lists of models (`proxy.client_keys.model_list`)."""

from __future__ import annotations

from llm_guard.clock import Clock
from llm_guard.config import Config
from llm_guard.outcome import Exhausted, Failure, FailureKind, Refusal
from llm_guard.proxy.attempts.admission import ResponseScope
from llm_guard.proxy.call import Call, Delivered
from llm_guard.proxy.client_keys.model_list import filter_models, is_filtered
from llm_guard.proxy.client_keys.object_isolation import ObjectIsolation, RunAttempts
from llm_guard.proxy.client_keys.object_ownership import OwnedObjects
from llm_guard.proxy.headers import ask_for_plain
from llm_guard.routing.route_table import RouteTable


class Screening:
    """The filters for calls that are marked `is_screened`."""

    def __init__(self, objects: OwnedObjects, clock: Clock) -> None:
        self._objects = objects
        self._isolation = ObjectIsolation(objects, clock)
        self._clock = clock

    def adopt(self, config: Config) -> None:
        """Applies a config from the next call on. Objects made before `isolate_objects` was set belong to no key."""
        self._isolation.is_on = config.server.isolate_objects
        if self._isolation.is_on:
            self._objects.begin()

    async def start(self, config: Config) -> None:
        """Applies the first config, and reads the owners of objects made before a restart."""
        self.adopt(config)
        if self._isolation.is_on:
            await self._objects.wait_read()

    async def close(self) -> None:
        """Saves the owners, at the end of the process."""
        await self._objects.close()

    def needs_whole_body(self, call: Call) -> bool:
        return self._isolation.needs_whole_body(call)

    async def check(self, call: Call) -> Refusal | None:
        """Checks a call with a route before it is sent; returns its refusal, if any."""
        if is_filtered(call):
            ask_for_plain(call)
        return await self._isolation.check(call) if self._isolation.applies_to(call) else None

    async def screen(
        self, call: Call, result: Delivered | Exhausted, table: RouteTable, run: RunAttempts
    ) -> Delivered | Exhausted:
        """Returns the response as the call's key may see it. `table` has the current routes, `run` fetches further
        pages of a list. A response that cannot be screened is closed."""
        if not isinstance(result, Delivered):
            return result
        try:
            if is_filtered(call):
                return filter_models(call, result, table, self._clock)
            return await self._isolation.screen(call, result, run) if self._isolation.applies_to(call) else result
        except Exception as error:  # a bug in the gateway must not cost a slot
            result.attempt.failure = Failure(FailureKind.INTERNAL, type(error).__name__)
            with ResponseScope(result, self._clock):
                raise
