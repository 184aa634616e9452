"""Attempt, classify, decide: until one deployment answers well, or nothing more would help.

Owns the order of attempts and the only sleep of the data path. Every decision it takes is `policy.next_step`'s or a
breaker's; every failure it sees is `gateway.upstream`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from llm_guard.call import Attempt, Call, GaveUp, Opened, Served
from llm_guard.clock import Clock
from llm_guard.gateway.record import settle, settle_host
from llm_guard.outcome import Failure, FailureKind, Refusal, Scope, Signal
from llm_guard.policy.bench import Bench, Benched, Key, as_of
from llm_guard.policy.breaker import Permit
from llm_guard.policy.next_step import FallBack, GiveUp, Retry, Step, next_step
from llm_guard.routes import Target


class Opener(Protocol):
    """What the loop asks of `upstream.Upstreams`."""

    async def open(self, call: Call, target: Target) -> Opened | Failure:
        """One exchange, up to the point where it is known to be good or to have failed."""


async def attempt(
    call: Call, targets: tuple[Target, ...], upstreams: Opener, bench: Bench, clock: Clock, draw: Callable[[], float]
) -> Served | GaveUp:
    """Asks the targets in their order, each as often as its rules allow. Cancelled, it leaves nothing behind.

    `draw` gives a uniform number in [0, 1).
    """
    if call.is_bound:
        targets = targets[:1]
    last: Failure | None = None
    why = "nobody could be asked"
    place, retries, waited_s = 0, 0, 0.0
    while place < len(targets):
        target = targets[place]
        now = clock.now()
        leave = _try_enter(call, target, bench, now, is_last=place + 1 == len(targets))
        if leave is None:
            call.skipped.append(target.deployment.label)
            place, retries, waited_s = place + 1, 0, 0.0
            continue
        if retries == 0 and call.client_retries == 0:
            target.deployment.budget.deposit(now)

        outcome = await _one(call, target, leave, waited_s, upstreams, clock)
        if isinstance(outcome, Served):
            _note_accepted(call, target, bench, clock.now())
            return outcome
        last = _more_useful(last, outcome)

        now = clock.now()
        step = _decide(call, outcome, targets, place, retries, waited_s, now, draw())
        _note_rest(call, outcome, target, step, bench, now)
        match step:
            case Retry(after_s):
                target.deployment.budget.try_spend(now)
                retries, waited_s = retries + 1, after_s
                await clock.sleep(after_s)
            case FallBack(to_other_model):
                place, retries, waited_s = _next_place(targets, place, to_other_model), 0, 0.0
                why = "no other could be asked"
            case GiveUp(why):
                break
    if last is None:
        return _nobody_asked(call, targets, bench, clock.now())
    return GaveUp(last, None, why)


@dataclass(frozen=True, slots=True)
class _Leave:
    """Permits for one attempt, of the deployment's breaker and of its host's."""

    deployment: Permit
    host: Permit


def _try_enter(call: Call, target: Target, bench: Bench, now: float, *, is_last: bool) -> _Leave | None:
    """Leave to ask a target, or None: it rests, or it or its host is failing."""
    deployment = target.deployment
    if _is_left_alone(call, target, bench, now, is_last):
        return None
    host = deployment.host.try_acquire(now)
    if host is None:
        return None
    permit = deployment.breaker.try_acquire(now)
    if permit is None:
        deployment.host.settle(host, Signal.NO_EVIDENCE, now)
        return None
    return _Leave(permit, host)


def _is_left_alone(call: Call, target: Target, bench: Bench, now: float, is_last: bool) -> bool:
    """Whether its credential rests, or it rests itself and there is another, or nobody would have waited for it."""
    if target.model is None:  # files and the like cost nothing, and have permissions of their own
        return False
    if bench.find((credential_of(call, target),), now) is not None:
        return True
    rest = bench.find((_deployment_key(call, target),), now)
    # A call that has a fallback benches a deployment for a wait that one without would have slept out.
    return rest is not None and (not is_last or (rest.failure.retry_after_s or 0.0) > target.retry.max_delay)


async def _one(
    call: Call, target: Target, leave: _Leave, waited_s: float, upstreams: Opener, clock: Clock
) -> Served | Failure:
    """One exchange with its permits; they are given back, or the deployment's goes along with its stream."""
    this = Attempt(target, clock.now(), waited_s)
    call.attempts.append(this)
    try:
        outcome = await upstreams.open(call, target)
    except BaseException as error:
        kind = FailureKind.CLIENT_CANCELLED if isinstance(error, asyncio.CancelledError) else FailureKind.INTERNAL
        this.failure = Failure(kind, type(error).__name__)
        settle_host(this, leave.host, Signal.NO_EVIDENCE, clock)
        settle(this, leave.deployment, Signal.NO_EVIDENCE, clock)
        raise
    if isinstance(outcome, Failure):
        this.failure = outcome
        signal = _evidence(call, outcome)
        # A host is well when it accepts connections, whatever it answers.
        settle_host(this, leave.host, signal if outcome.is_before_sending else Signal.HEALTHY, clock)
        settle(this, leave.deployment, signal, clock)
        return outcome
    settle_host(this, leave.host, Signal.HEALTHY, clock)
    this.status = outcome.status
    if outcome.view is not None:
        call.first_token_at = clock.now()
    # A stream's success is known at its end; but a probe has answered its question with the first token.
    if outcome.exchange is None or leave.deployment.is_probe:
        settle(this, leave.deployment, Signal.HEALTHY, clock)
    return Served(outcome, this, leave.deployment)


def _evidence(call: Call, failure: Failure) -> Signal:
    """What a failure tells of the deployment's health: nothing, where the client's patience ended first. A caller that
    waits for 10 ms must not open a breaker for everybody."""
    is_impatience = failure.limit == "total" and call.decide_by < call.deadline_at
    return Signal.NO_EVIDENCE if is_impatience else failure.kind.signal


def _decide(
    call: Call,
    failure: Failure,
    targets: tuple[Target, ...],
    place: int,
    retries: int,
    waited_s: float,
    now: float,
    u: float,
) -> Step:
    target = targets[place]
    return next_step(
        failure,
        retries_done=retries,
        settings=target.retry,
        previous_s=waited_s if retries else None,
        has_next=place + 1 < len(targets),
        has_other_model=_next_place(targets, place, to_other_model=True) < len(targets),
        is_repeatable=call.is_repeatable,
        can_spend=target.deployment.budget.can_spend(now),
        now=now,
        deadline_at=call.commit_by,
        u=u,
    )


def _next_place(targets: tuple[Target, ...], place: int, to_other_model: bool) -> int:
    alias = targets[place].alias
    place += 1
    while to_other_model and place < len(targets) and targets[place].alias == alias:
        place += 1
    return place


def _note_rest(call: Call, failure: Failure, target: Target, step: Step, bench: Bench, now: float) -> None:
    """Benches a credential that was refused, and a deployment that asked for a wait and is not waited for."""
    scope, wait_s = failure.kind.scope, failure.retry_after_s
    if target.model is None:
        return
    if scope is Scope.CREDENTIAL:
        bench.note_refusal(credential_of(call, target), failure, now)
    if wait_s is None or scope is Scope.CALL:  # what is wrong with one call is nobody else's to wait for
        return
    if isinstance(step, FallBack) or wait_s > target.retry.max_delay:
        bench.note_wait(_deployment_key(call, target), failure, now)


def _note_accepted(call: Call, target: Target, bench: Bench, now: float) -> None:
    if target.model is not None:
        bench.note_success(credential_of(call, target), now)


def credential_of(call: Call, target: Target) -> Key:
    """Whose key the target is asked with, and on which account: the upstream's own key, or each caller's for itself."""
    upstream = target.deployment.upstream
    key = upstream.key_digest if upstream.api_key is not None else call.key_digest
    return ("credential", upstream.name, upstream.base_url, key, call.account_digest)


def _deployment_key(call: Call, target: Target) -> Key:
    """A provider counts what it limits by model and by account."""
    return ("deployment", *credential_of(call, target), target.model or "")


def _nobody_asked(call: Call, targets: tuple[Target, ...], bench: Bench, now: float) -> GaveUp:
    """Every target rests, or its breaker or its host's is open: said is what keeps the one that is back soonest."""
    soonest = min(targets, key=lambda target: max(_rest_s(call, target, bench, now), _refusing_s(target, now)))
    wait_s = _refusing_s(soonest, now)
    rest = _rest(call, soonest, bench, now)
    if rest is not None and rest.until - now >= wait_s:
        return GaveUp(as_of(rest, now), None, "benched")
    names = ", ".join(target.deployment.label for target in targets)
    message = f"{names}: failing, and left alone for {wait_s:.1f} s more"
    return GaveUp(None, Refusal(503, "breaker_open", message, by="breaker", retry_after_s=wait_s), "breakers open")


def _rest(call: Call, target: Target, bench: Bench, now: float) -> Benched | None:
    if target.model is None:
        return None
    return bench.find((credential_of(call, target), _deployment_key(call, target)), now)


def _rest_s(call: Call, target: Target, bench: Bench, now: float) -> float:
    rest = _rest(call, target, bench, now)
    return rest.until - now if rest is not None else 0.0


def _refusing_s(target: Target, now: float) -> float:
    deployment = target.deployment
    return max(deployment.breaker.retry_after_s(now), deployment.host.retry_after_s(now))


def _more_useful(last: Failure | None, new: Failure) -> Failure:
    """The failure that the client is told: the newest in which an upstream said something, else the newest."""
    if last is not None and last.answer is not None and new.answer is None:
        return last
    return new
