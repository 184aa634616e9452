"""One request to the providers for all who ask the same at the same time.

Owns the task in which it is made, how long it goes on, and in whose record its attempts stand. Does not own what its
followers are told (`gateway.following`), nor what is kept of its answer (`gateway.answer_cache`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from llm_guard.call import Call
from llm_guard.gateway.asked import BadRequest
from llm_guard.gateway.call_line import log_ids
from llm_guard.gateway.refusals import DRAINED
from llm_guard.gateway.reply import Reply
from llm_guard.gateway.tape import Reader, Tape
from llm_guard.outcome import Beyond, Failure, FailureKind, GaveUp, Source

_log = structlog.get_logger("llm_guard.gateway.flight")

Fetch = Callable[[Call, Reply], Awaitable[GaveUp | None]]
"""The way of a call through the gateway, from its route on (`Gateway.fetch`, `Gateway.ask`)."""


@dataclass(slots=True, eq=False)
class Follower:
    """A call that gets what a flight brings."""

    call: Call
    reader: Reader


class Flight:
    """`begin` it, then `follow` and `await leave`. While somebody follows it goes on; when nobody does any more it is
    broken off at once, unless it is an errand."""

    def __init__(self, call: Call, whole_bytes: int, *, is_errand: bool = False) -> None:
        """`call` is the flight's own. Of an answer up to `whole_bytes` nothing is let go."""
        self.call = call
        self.tape = Tape(whole_bytes, self._is_breaking_off)
        self.gave_up: GaveUp | None = None
        """Nobody has answered."""
        self._bad: BadRequest | None = None
        self.is_errand = is_errand
        """Nobody need follow it."""
        self._followers: list[Follower] = []
        self._owner: Follower | None = None
        """In whose record the attempts stand; of an errand they stand in its own."""
        self.task: asyncio.Task[None]
        """Done when what it has brought has been kept, too."""

    def begin(self, fetch: Fetch, on_over: Callable[[Flight], Awaitable[None]]) -> None:
        """`on_over` is awaited when all has come, or nothing more will; not when it was broken off."""
        self.task = asyncio.get_running_loop().create_task(self._run(fetch, on_over))
        self.task.add_done_callback(self._end)  # broken off before it has begun, it has not run at all

    @property
    def can_be_joined(self) -> bool:
        """Whether all that it has brought is there."""
        is_lost = self.tape.is_broken or self.gave_up is not None or self._bad is not None
        return self.tape.is_whole and not is_lost and not self.task.cancelling()

    def is_fit_for(self, call: Call) -> bool:
        """Whether it is made as this call's own would be: by the same rules, though a reload may have come between; and
        it waits behind nobody before whom this call may go."""
        is_waiting = not self.tape.status and all(each.ended_at is not None for each in self.call.attempts)
        return self.call.route is call.route and not (is_waiting and call.priority < self.call.priority)

    @property
    def has_said_all(self) -> bool:
        """Whether a stream's terminal event has come, though perhaps not its end: there SDKs leave."""
        watches = (each.watch for each in self.call.attempts if each.watch is not None)
        return any(watch.has_ended and watch.error is None for watch in watches)

    def follow(self, call: Call, *, is_own: bool) -> Follower:
        """`is_own`: it is this call's request."""
        follower = Follower(call, self.tape.join())
        self._followers.append(follower)
        self.call.priority = min(self.call.priority, call.priority)
        self.wait_for(call)
        if is_own:
            self._hand_to(follower)
        return follower

    def wait_for(self, call: Call) -> None:
        """It may take as long as this call waits, if that is longer than was known."""
        own = self.call
        if call.decide_by > own.decide_by or call.deadline_at > own.deadline_at:
            own.deadline_at = max(own.deadline_at, call.deadline_at)
            own.lift_patience(max(own.decide_by, call.decide_by))

    def raise_bad(self) -> None:
        """Raises BadRequest where the request itself was found to be wrong: to each who follows, its own."""
        if (bad := self._bad) is not None:
            raise BadRequest(bad.status, bad.code, bad.message, bad.param, should_retry=bad.should_retry)

    async def leave(self, follower: Follower) -> None:
        """It follows no more. Whose request it is leaves it to another, unless there is none, or it is over."""
        is_owner = self._owner is follower
        try:
            if is_owner and self.has_said_all and follower.reader.is_at_end:
                await follower.reader.wait_over()  # that is near, and brings word of the cost
        finally:
            self._followers.remove(follower)
            self.tape.leave(follower.reader)
            if is_owner:
                self._settle_up(follower.call)
        if not (self.tape.is_over or self._followers or self.is_errand or self.has_said_all):
            self.call.is_draining = follower.call.is_draining
            self.task.cancel()
            await asyncio.wait((self.task,))

    def _settle_up(self, owner: Call) -> None:
        self._owner = None
        if self._followers and not self.tape.is_over:
            owner.attempts, owner.skipped = [], []
            self._hand_to(self._followers[0])
        else:
            owner.usage, owner.thrown_away = self.call.usage, self.call.thrown_away

    def _hand_to(self, follower: Follower) -> None:
        """The record of the request is from now on this call's: the lists are the same."""
        self._owner = follower
        follower.call.attempts, follower.call.skipped = self.call.attempts, self.call.skipped

    async def _run(self, fetch: Fetch, on_over: Callable[[Flight], Awaitable[None]]) -> None:
        try:
            self.gave_up = await fetch(self.call, self.tape.reply())
        except BadRequest as bad:
            self._bad = bad
        except Exception as error:  # noqa: BLE001  # a bug of ours must not look like a provider's failure
            _log.exception("a request for several calls broke the gateway", **log_ids(self.call))
            self.gave_up = GaveUp(Failure(FailureKind.INTERNAL, type(error).__name__), None, "the gateway failed")
        self.tape.end()
        await on_over(self)

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("an answer could not be kept", **log_ids(self.call), exc_info=error)
        if not self.tape.is_over:  # whoever follows all the same was not heard of: there is no such way but a drain
            self.gave_up = GaveUp(None, DRAINED, "the gateway is going away")
            self.tape.is_broken = True
            self.tape.end()

    def _is_breaking_off(self) -> bool:
        failure = self.call.failure
        return failure is not None and failure.kind.source is not Source.CLIENT


def call_for_all(call: Call) -> Call:
    """The request of a call, without what is true of its client alone. It asks for an answer that is not compressed:
    who gets it, now or later, may read none that is."""
    kept = tuple(pair for pair in call.headers if pair[0].lower() != "accept-encoding")
    return replace(
        call,
        headers=(*kept, ("Accept-Encoding", "identity")),
        attempts=[],
        skipped=[],
        beyond=None,
        is_in_flight=False,
    )


def errand_for(call: Call, now: float) -> Call:
    """The request of a call that has its answer, made once more for the sake of those to come."""
    assert call.route is not None  # noqa: S101  # it has an answer
    errand = call_for_all(call)
    errand.id = f"{call.id}-refresh"
    errand.started_at = now
    errand.decide_by, errand.deadline_at = float("inf"), now + call.route.timeouts.total
    errand.priority, errand.client_retries = 2, 0
    errand.trace, errand.trace_id = None, 0  # the call's, which is over
    errand.reservation = None
    errand.beyond = Beyond(errand="refresh")
    return errand
