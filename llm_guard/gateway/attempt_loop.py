"""Attempt, classify, decide: until one deployment answers well, or nothing more would help.

Owns the order of attempts and the only sleep of the data path. Every decision it takes is `policy.next_step`'s or a
breaker's; every failure it sees is `gateway.upstream`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from llm_guard.call import Attempt, Call, GaveUp, Opened, Served
from llm_guard.clock import Clock
from llm_guard.gateway.record import settle
from llm_guard.outcome import Failure, FailureKind, Refusal, Signal
from llm_guard.policy.breaker import Permit
from llm_guard.policy.next_step import FallBack, GiveUp, Retry, Step, next_step
from llm_guard.routes import Target


class Opener(Protocol):
    """What the loop asks of `upstream.Upstreams`."""

    async def open(self, call: Call, target: Target) -> Opened | Failure:
        """One exchange, up to the point where it is known to be good or to have failed."""


async def attempt(
    call: Call, targets: tuple[Target, ...], upstreams: Opener, clock: Clock, draw: Callable[[], float]
) -> Served | GaveUp:
    """Asks the targets in their order, each as often as its rules allow. Cancelled, it leaves nothing behind.

    `draw` gives a uniform number in [0, 1).
    """
    last: Failure | None = None
    why = "every breaker is open"
    place, retries, waited_s = 0, 0, 0.0
    while place < len(targets):
        target = targets[place]
        now = clock.now()
        permit = target.deployment.breaker.try_acquire(now)
        if permit is None:
            call.skipped.append(target.deployment.label)
            place, retries, waited_s = place + 1, 0, 0.0
            continue
        if retries == 0:
            target.deployment.budget.deposit(now)

        outcome = await _one(call, target, permit, waited_s, upstreams, clock)
        if isinstance(outcome, Served):
            return outcome
        last = _more_useful(last, outcome)

        now = clock.now()
        match _decide(outcome, target, retries, waited_s, place + 1 < len(targets), call.deadline_at, now, draw()):
            case Retry(after_s):
                target.deployment.budget.try_spend(now)
                retries, waited_s = retries + 1, after_s
                await clock.sleep(after_s)
            case FallBack():
                place, retries, waited_s = place + 1, 0, 0.0
                why = "every other breaker is open"
            case GiveUp(why):
                break
    return GaveUp(last, None if last else _all_open(targets, clock.now()), why)


async def _one(
    call: Call, target: Target, permit: Permit, waited_s: float, upstreams: Opener, clock: Clock
) -> Served | Failure:
    """One exchange with its permit; the permit is given back, or goes along with the stream that it was for."""
    this = Attempt(target, clock.now(), waited_s)
    call.attempts.append(this)
    try:
        outcome = await upstreams.open(call, target)
    except BaseException as error:
        kind = FailureKind.CLIENT_CANCELLED if isinstance(error, asyncio.CancelledError) else FailureKind.INTERNAL
        this.failure = Failure(kind, type(error).__name__)
        settle(this, permit, Signal.NO_EVIDENCE, clock)
        raise
    if isinstance(outcome, Failure):
        this.failure = outcome
        settle(this, permit, outcome.kind.signal, clock)
        return outcome
    this.status = outcome.status
    if outcome.view is not None:
        call.first_token_at = clock.now()
    # A stream's success is known at its end; but a probe has answered its question with the first token.
    if outcome.exchange is None or permit.is_probe:
        settle(this, permit, Signal.HEALTHY, clock)
    return Served(outcome, this, permit)


def _decide(
    failure: Failure,
    target: Target,
    retries: int,
    waited_s: float,
    has_next: bool,
    deadline_at: float,
    now: float,
    u: float,
) -> Step:
    return next_step(
        failure,
        retries_done=retries,
        settings=target.retry,
        previous_s=waited_s if retries else None,
        has_next=has_next,
        can_spend=target.deployment.budget.can_spend(now),
        now=now,
        deadline_at=deadline_at,
        u=u,
    )


def _more_useful(last: Failure | None, new: Failure) -> Failure:
    """The failure that the client is told: the newest in which an upstream said something, else the newest."""
    if last is not None and last.answer is not None and new.answer is None:
        return last
    return new


def _all_open(targets: tuple[Target, ...], now: float) -> Refusal:
    wait_s = min(target.deployment.breaker.retry_after_s(now) for target in targets)
    names = ", ".join(target.deployment.label for target in targets)
    return Refusal(
        503,
        "breaker_open",
        f"{names}: failing, and left alone for {wait_s:.1f} s more",
        by="breaker",
        retry_after_s=wait_s,
    )
