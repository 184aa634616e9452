"""A single flight: one request to the providers for all identical calls at the same time.

Owns the task of the request, its lifetime, and which call's record holds the attempts. `proxy.coalescing.waiter`
answers the waiting calls, `proxy.cache.response_cache` stores the response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from llm_guard.outcome import Disposition, Exhausted, Failure, FailureKind, Source
from llm_guard.proxy.call import Call
from llm_guard.proxy.coalescing.broadcast_buffer import BroadcastBuffer, BroadcastReader
from llm_guard.proxy.headers import ask_for_plain
from llm_guard.proxy.http_server.error_responses import DRAINED
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.proxy.telemetry.access_log import log_ids
from llm_guard.routing.route_table import Route

_log = structlog.get_logger("llm_guard.proxy.coalescing.single_flight")

Fetch = Callable[[Call, ResponseWriter], Awaitable[Exhausted | None]]
"""Executes a call from its route on (`Handler.execute`, `Handler.execute_background`)."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A call that waits for the response of a flight."""

    call: Call
    reader: BroadcastReader


class SingleFlight:
    """One shared request: `begin` it, then `follow` and `await leave` for each call. It is cancelled as soon as its
    last follower has left, unless it is a background refresh."""

    def __init__(self, call: Call, whole_bytes: int, *, is_background: bool = False) -> None:
        """`call` is the flight's own. A response of up to `whole_bytes` is buffered as a whole."""
        self.call = call
        self.tape = BroadcastBuffer(whole_bytes, self._is_breaking_off)
        self.gave_up: Exhausted | None = None
        """Why the request failed; None: it has not."""
        self._bad: BadRequest | None = None
        self.is_background = is_background
        """True for a background refresh, which needs no follower."""
        self._followers: list[Waiter] = []
        self._owner: Waiter | None = None
        """The follower that has the attempts in its record; a refresh has its own record."""
        self.task: asyncio.Task[None]
        """Done once the response has been stored, too."""

    def begin(self, fetch: Fetch, on_over: Callable[[SingleFlight], Awaitable[None]]) -> None:
        """Starts the request. `on_over` is awaited when the response is complete or has failed, but not after a
        cancellation."""
        self.task = asyncio.get_running_loop().create_task(self._run(fetch, on_over))
        self.task.add_done_callback(self._end)  # `_run` never runs if the task is cancelled before it starts

    @property
    def can_be_joined(self) -> bool:
        """True while everything that has arrived is still buffered, and the request has not failed."""
        is_lost = self.tape.is_broken or self.gave_up is not None or self._bad is not None
        return self.tape.is_whole and not is_lost and not self.task.cancelling()

    def is_fit_for(self, call: Call) -> bool:
        """Returns whether this call would make the same request: by the same route (a reload may have replaced it), and
        not queued at a lower priority than the call's own."""
        is_waiting = not self.tape.status and all(attempt.ended_at is not None for attempt in self.call.attempts)
        return self.call.route is call.route and not (is_waiting and call.priority < self.call.priority)

    @property
    def has_said_all(self) -> bool:
        """True once the stream's terminal event has arrived, though perhaps not the end of the body: SDKs leave at that
        event."""
        watches = (attempt.watch for attempt in self.call.attempts if attempt.watch is not None)
        return any(watch.has_ended and watch.error is None for watch in watches)

    def follow(self, call: Call, *, is_own: bool) -> Waiter:
        """Adds a call that waits for the response. `is_own`: the request was started for this call."""
        follower = Waiter(call, self.tape.join())
        self._followers.append(follower)
        self.call.priority = min(self.call.priority, call.priority)
        self.wait_for(call)
        if is_own:
            self._hand_to(follower)
        return follower

    def wait_for(self, call: Call) -> None:
        """Extends the request's deadlines to those of this call, if they are later."""
        own = self.call
        if call.client_deadline > own.client_deadline or call.deadline_at > own.deadline_at:
            own.deadline_at = max(own.deadline_at, call.deadline_at)
            own.extend_client_deadline(max(own.client_deadline, call.client_deadline))

    def raise_bad(self) -> None:
        """Raises BadRequest if the request itself was found to be wrong: a new exception for each follower."""
        if (bad := self._bad) is not None:
            raise BadRequest(bad.status, bad.code, bad.message, bad.param, should_retry=bad.should_retry)

    async def leave(self, follower: Waiter) -> None:
        """Detaches a follower. If it owned the request, ownership passes to the next follower, unless there is none or
        the request is over."""
        is_owner = self._owner is follower
        try:
            if is_owner and self.has_said_all and follower.reader.is_at_end:
                await follower.reader.wait_over()  # this is near, and completes the usage figures
        finally:
            self._followers.remove(follower)
            self.tape.leave(follower.reader)
            if is_owner:
                self._settle_up(follower.call)
        if not (self.tape.is_over or self._followers or self.is_background or self.has_said_all):
            self.call.is_draining = follower.call.is_draining
            self.task.cancel()
            await asyncio.wait((self.task,))

    def _settle_up(self, owner: Call) -> None:
        self._owner = None
        if self._followers and not self.tape.is_over:
            owner.attempts, owner.skipped = [], []
            self._hand_to(self._followers[0])
        else:
            owner.usage, owner.wasted_tokens = self.call.usage, self.call.wasted_tokens

    def _hand_to(self, follower: Waiter) -> None:
        """Makes this call the owner: from now on its record shares the request's lists of attempts."""
        self._owner = follower
        follower.call.attempts, follower.call.skipped = self.call.attempts, self.call.skipped

    async def _run(self, fetch: Fetch, on_over: Callable[[SingleFlight], Awaitable[None]]) -> None:
        try:
            self.gave_up = await fetch(self.call, self.tape.reply())
        except BadRequest as bad:
            self._bad = bad
        except Exception as error:  # noqa: BLE001  # a bug of ours must not look like a provider's failure
            _log.exception("unexpected error in a coalesced request", **log_ids(self.call))
            self.gave_up = Exhausted(
                Failure(FailureKind.INTERNAL, type(error).__name__), None, "internal error of the gateway"
            )
        self.tape.end()
        await on_over(self)

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a response could not be cached", **log_ids(self.call), exc_info=error)
        if not self.tape.is_over:  # only a drain cancels the task while calls still follow it
            self.gave_up = Exhausted(None, DRAINED, "the gateway is shutting down")
            self.tape.is_broken = True
            self.tape.end()

    def _is_breaking_off(self) -> bool:
        failure = self.call.failure
        return failure is not None and failure.kind.source is not Source.CLIENT


def call_for_all(call: Call) -> Call:
    """Returns a copy of a call for a request that serves several clients, without what concerns its own client alone.
    It requests an uncompressed response: not every client that gets it may read a compressed one."""
    shared = replace(call, disposition=None, is_in_flight=False)
    ask_for_plain(shared)
    return shared


def refresh_call(call: Call, route: Route, now: float) -> Call:
    """Returns a copy of an answered call that refreshes the cached response in the background."""
    background_call = call_for_all(call)
    background_call.id = f"{call.id}-refresh"
    background_call.started_at = now
    background_call.client_deadline, background_call.deadline_at = float("inf"), now + route.timeouts.total
    background_call.priority, background_call.client_retries = 2, 0
    background_call.trace, background_call.trace_id = None, 0  # the call's, which is over
    background_call.reservation = None
    background_call.disposition = Disposition(background_purpose="refresh")
    return background_call
