"""Responses that need no upstream: a deferred call (202) or a cached response; else a single flight for identical
calls.

Owns the order of these, and the flights under way. `proxy.cache.response_cache` holds the responses, `proxy.ports` the
deferred calls.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from llm_guard.clock import Clock
from llm_guard.outcome import Disposition, Exhausted, Refusal
from llm_guard.proxy.cache.response_cache import Lookup, ResponseCache, may_serve_stale_later
from llm_guard.proxy.call import Call
from llm_guard.proxy.coalescing.single_flight import SingleFlight, call_for_all, refresh_call
from llm_guard.proxy.coalescing.waiter import WaiterResponder
from llm_guard.proxy.degraded_mode import DegradedMode
from llm_guard.proxy.http_server.error_responses import refuse, send_accepted
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.ports import DeferredStore
from llm_guard.proxy.response.fallback_response import (
    ASYNC_HEADER,
    FallbackResponder,
    is_async_header_valid,
    is_deferred_at_once,
)
from llm_guard.proxy.telemetry.recorder import Recorder
from llm_guard.routing.route_table import Route

_INVALID = Refusal(400, "invalid_async", f"{ASYNC_HEADER} must be true or false", by="request")
_NOT_CACHED = Refusal(504, "not_cached", "no cached response, and the request has only-if-cached", by="request")


class CallExecutor(Protocol):
    """The part of `handler.Handler` that this module uses."""

    recorder: Recorder
    is_leaving: bool

    async def execute_background(self, call: Call, reply: ResponseWriter) -> Exhausted | None: ...
    async def execute(self, call: Call, reply: ResponseWriter) -> Exhausted | None: ...


class CacheStage:
    """The stage before the attempts, for calls of routes with a cache, and for calls that may be deferred."""

    def __init__(
        self,
        executor: CallExecutor,
        cache: ResponseCache,
        deferred_store: DeferredStore,
        fallback: FallbackResponder,
        degraded: DegradedMode,
        clock: Clock,
    ) -> None:
        self._executor = executor
        self._cache = cache
        self._deferred_store = deferred_store
        self._degraded = degraded
        self._clock = clock
        self._following = WaiterResponder(fallback, clock, lambda: executor.is_leaving)
        self._flights: dict[bytes, SingleFlight] = {}

    async def try_respond(self, call: Call, route: Route, reply: ResponseWriter) -> bool:
        """Returns whether the client has its response; if not, the call goes on to the attempts."""
        return await self._has_deferred(call, reply) or await self._has_cached(call, route, reply)

    @property
    def flights(self) -> int:
        """Number of requests under way that may serve several calls."""
        return len(self._flights)

    # deferred calls

    async def _has_deferred(self, call: Call, reply: ResponseWriter) -> bool:
        """Returns whether the call was deferred or refused."""
        if not is_async_header_valid(reply):
            await refuse(call, _INVALID, reply)
            return True
        if not is_deferred_at_once(call, reply):
            return False
        deferred_id = await self._deferred_store.defer(call, is_at_once=True)
        if isinstance(deferred_id, Refusal):
            await refuse(call, deferred_id, reply)
        else:
            await send_accepted(call, deferred_id, reply)
        return True

    # cached responses and single flights

    async def _has_cached(self, call: Call, route: Route, reply: ResponseWriter) -> bool:
        lookup = await self._cache.look_up(call, route)
        if lookup is None:
            return False
        reply.closes_connection |= self._executor.is_leaving
        if lookup.result == "stale":
            self._refresh(call, route, lookup)
        if lookup.found is not None and lookup.result != "miss":
            await self._cache.give(call, lookup.found, lookup.result, reply)
        elif lookup.cache_control.only_if_cached:
            await refuse(call, _NOT_CACHED, reply)
        else:
            await self._fly(call, lookup, reply)
        return True

    async def _fly(self, call: Call, lookup: Lookup, reply: ResponseWriter) -> None:
        """Joins a flight that already fetches this response, or starts one."""
        call.disposition = call.disposition or Disposition()
        self._degraded.limit_wait(call, has_stale=may_serve_stale_later(lookup))
        flight = self._flights.get(lookup.key)
        is_found = flight is not None and flight.can_be_joined and flight.is_fit_for(call)
        if flight is not None and is_found and not lookup.cache_control.no_cache:
            call.disposition.cache = "coalesced"
            await self._following.follow(flight, call, reply, is_own=False)
            return
        call.disposition.cache = "miss"
        flight = SingleFlight(call_for_all(call), lookup.rules.max_answer)
        self._begin(flight, lookup)
        await self._following.follow(flight, call, reply, is_own=True)

    def _refresh(self, call: Call, route: Route, lookup: Lookup) -> None:
        """Refreshes a stale response in the background, at most once at a time."""
        if lookup.key not in self._flights and not self._executor.is_leaving:
            background_call = refresh_call(call, route, self._clock.now())
            self._begin(SingleFlight(background_call, lookup.rules.max_answer, is_background=True), lookup)

    def _begin(self, flight: SingleFlight, lookup: Lookup) -> None:
        """Starts the flight. It can be joined until its response is stored, also by a call that looked it up before
        then."""
        self._flights[lookup.key] = flight
        flight.begin(
            self._executor.execute_background if flight.is_background else self._executor.execute,
            partial(self._cache.keep, lookup),
        )
        flight.task.add_done_callback(lambda _: self._forget(flight, lookup.key))

    def _forget(self, flight: SingleFlight, key: bytes) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if flight.is_background:
            call, gave_up = flight.call, flight.gave_up
            if gave_up is not None:
                call.give_up(gave_up)
            self._executor.recorder.end(call)
