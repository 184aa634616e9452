"""The attempt loop: attempts, classifies and decides until one deployment answers well, or nothing more would help.

`resilience.retry.decision` decides after each failure, `proxy.attempts.candidate_selection` selects the next deployment
and does all waiting, and `proxy.attempts.upstream_attempt` runs the exchanges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import inf

from llm_guard.clock import Clock
from llm_guard.outcome import Exhausted, Failure, FailureKind, Scope, Signal
from llm_guard.proxy.attempts.admission import AdmissionControl, credential_of, settle, settle_host
from llm_guard.proxy.attempts.candidate_selection import CandidateSelector
from llm_guard.proxy.attempts.exhaustion import note_decision, with_reason, without_attempts
from llm_guard.proxy.attempts.upstream_attempt import AttemptRunner, Hedge, HedgeCandidate, Opener, more_useful
from llm_guard.proxy.call import Attempt, Call, Delivered
from llm_guard.proxy.caller_identity import source_of
from llm_guard.resilience.circuit_breaker.cooldown import Cooldowns, deployment_key
from llm_guard.resilience.retry.decision import ChangeKey, FallBack, GiveUp, Retry, Step, next_step
from llm_guard.resilience.retry.hedging import HedgeDelays
from llm_guard.resilience.retry.key_selection import gives_way, is_free_of_charge
from llm_guard.resilience.retry.limits import RetryBudget, try_spend_all
from llm_guard.resilience.routing.candidates import Candidate, attempt_ends_at, first_token_s, reserve_s
from llm_guard.resilience.throttling.release_spreading import WORTH_SPREADING_S
from llm_guard.routing.deployment import Deployment
from llm_guard.routing.lease import Lease
from llm_guard.routing.route_table import Hedging, Route, Target

# Deciding and sending take time too, which matters where answers are very fast.
_SLACK_S = 0.02


class AttemptLoop:
    """Tries the deployments of a call's route, each as often as its rules allow."""

    def __init__(self, upstreams: Opener, cooldowns: Cooldowns, clock: Clock, draw: Callable[[], float]) -> None:
        """`draw` gives a uniform number in [0, 1)."""
        self._admission = AdmissionControl(cooldowns, clock)
        self._upstreams = upstreams
        self._runner = AttemptRunner(upstreams, cooldowns, clock)
        self._cooldowns = cooldowns
        self._hedge_delays = HedgeDelays()
        self._clock = clock
        self._draw = draw

    def begin(self, call: Call, route: Route) -> CandidateSelector:
        """Returns the selector of a call's deployments, for `next_response`."""
        selector = CandidateSelector(call, route, self._admission, self._clock, self._draw)
        if call.client_retries == 0:  # a client's own retry adds no budget tokens
            route.budget.deposit(selector.tried_since)
            if route.hedging is not None:
                route.hedging.budget.deposit()
        return selector

    async def next_response(self, selector: CandidateSelector, failure: Failure | None = None) -> Delivered | Exhausted:
        """Returns the next good response, or why there is none. `failure` is how the response that was returned before
        has died on its way to the client. Releases everything it holds when cancelled."""
        call, last, why = selector.call, failure, "no deployment available"
        if failure is not None and selector.latest is not None:
            after = self._decide_after_death(selector, selector.latest.target, failure)
            if isinstance(after, Exhausted):
                return after
            why = after
        while (entered := await selector.next()) is not None:
            candidate, lease = entered
            begun = len(call.attempts)
            attempt, delay_s = self._begin(selector, candidate, lease)
            hedge: Hedge | None = None
            if delay_s is not None:
                hedge = self._runner.watch(call, attempt, delay_s, partial(self._beside, selector, candidate))
            call.attempts.append(attempt)
            try:
                opened = await self._upstreams.open(call, attempt)
            except BaseException as error:  # noqa: BLE001  # raised again, unless the hedge has ended the attempt
                outcome = await self._runner.abandon(attempt, lease, hedge, error)
            else:
                outcome = self._runner.end(call, attempt, lease, opened)
                if hedge is not None:
                    hedge.stop()
                    if hedge.task is not None:
                        outcome = await self._runner.better_of(hedge, outcome)
            if isinstance(outcome, Delivered):
                selector.latest = outcome.attempt
                return outcome
            last = more_useful(last, outcome)
            self._put_back(selector, candidate, call.attempts[begun:])
            if (keys := selector.target(candidate).deployment.upstream.keys) is not None:
                await keys.catch_up(outcome)
            step = self._decide(selector, candidate, _decisive(call.attempts[begun], outcome))
            if isinstance(step, GiveUp):
                return Exhausted(last, None, step.why)
            why = self._take(selector, candidate, step)
        return Exhausted(last, None, with_reason(why, call)) if last is not None else without_attempts(selector)

    def _decide_after_death(self, selector: CandidateSelector, target: Target, failure: Failure) -> str | Exhausted:
        """Decides after a response of `target` has died on its way to the client. Returns the reason to report if no
        deployment can be tried after it, or the end of the call."""
        candidate = next(candidate for candidate in selector.candidates.all() if selector.target(candidate) is target)
        selector.tried_since = self._clock.now()  # the time before a fallback to another model begins again
        step = self._decide(selector, candidate, failure)
        if isinstance(step, GiveUp):
            return Exhausted(failure, None, step.why)
        # A deployment that has just lost a stream is tried after those that have not.
        step = _after_others(step) if selector.preferred(candidate) else step
        return self._take(selector, candidate, step)

    def adopt(self, deployments: Iterable[Deployment]) -> None:
        """Admits waiting calls that new settings of these deployments may let pass."""
        for deployment in deployments:
            for gate in deployment.gates.all():
                self._admission.advance(gate)

    # attempt

    def _begin(self, selector: CandidateSelector, candidate: Candidate, lease: Lease) -> tuple[Attempt, float | None]:
        """Returns a new attempt, and after how many seconds a hedge may run beside it (None: not at all)."""
        call = selector.call
        attempt = self._new(selector, candidate, lease)
        if selector.wait_reason:
            attempt.waited_s, attempt.waited_for = call.waited_s, selector.wait_reason
            call.waited_s = 0.0
        if not attempt.is_retry and call.client_retries == 0:
            budget: RetryBudget = attempt.budgets[0]  # as a C struct in the compiled build
            budget.deposit(attempt.started_at)
        hedging = selector.route.hedging
        return attempt, self._hedge_delay_s(hedging, call, attempt) if hedging is not None else None

    def _new(self, selector: CandidateSelector, candidate: Candidate, lease: Lease) -> Attempt:
        """Returns an attempt that begins now, with its limits."""
        call, target, now = selector.call, selector.route.targets[candidate.place], self._clock.now()
        timeouts, commit_by = target.timeouts, call.commit_by
        first_s = limit_s = 0.0
        if call.is_stream or call.may_stream or call.is_upgrade:
            first_s = limit_s = first_token_s(timeouts, target.deployment.first_tokens, now)
        if not call.is_stream:
            limit_s = timeouts.attempt_s(is_client_timeout_known=call.client_deadline < inf)
        left_s = commit_by - now
        ends_by = commit_by
        if left_s < 2 * limit_s:  # else this attempt's own limit leaves enough time for the next
            kept_s = _kept_s(selector, candidate, left_s, limit_s, now)
            if kept_s:
                ends_by = attempt_ends_at(now, left_s, commit_by, kept_s + _SLACK_S)
        budgets = selector.budgets(candidate)
        attempt = Attempt(target, now, call.id, budgets, call.is_stream, lease.breaker, first_s, ends_by)
        attempt.key = lease.key
        if call.attempts or call.skipped:
            attempt.is_retry = _has_tried(call, target)
            attempt.is_fallback = not attempt.is_retry
        if call.recovery is not None:
            attempt.resume_mode = call.recovery.resume_mode(target)
        if call.translation is not None:
            attempt.translation = call.translation.begin(target, self._clock.wall())
        return attempt

    def _hedge_delay_s(self, hedging: Hedging, call: Call, attempt: Attempt) -> float | None:
        """Returns after how many seconds a hedge may run beside this attempt; None: not at all."""
        if not call.is_repeatable or call.is_upgrade:
            return None
        latency = attempt.target.deployment.latency_of(call.is_stream)
        return self._hedge_delays.delay_s(hedging.settings, latency, attempt.started_at)

    def _beside(self, selector: CandidateSelector, candidate: Candidate) -> HedgeCandidate | None:
        """Returns a hedge on another deployment of the model, or on the same one; None if the budgets have no token."""
        second = selector.free_peer(candidate) or candidate
        hedging, lease, now = selector.route.hedging, selector.try_enter(second), self._clock.now()
        if lease is None:
            return None
        attempt = self._new(selector, second, lease)
        attempt.is_hedge = True
        budgets = selector.budgets(second)
        can_retry = all(budget.can_spend(now) for budget in budgets)
        if hedging is not None and can_retry and hedging.budget.try_spend() and try_spend_all(budgets, now):
            return attempt, lease
        settle_host(attempt, lease, Signal.NO_EVIDENCE, self._clock)
        settle(attempt, lease, Signal.NO_EVIDENCE, self._clock)
        return None

    # decide

    def _take(self, selector: CandidateSelector, candidate: Candidate, step: Retry | ChangeKey | FallBack) -> str:
        """Applies a decision. Returns the reason to report if no deployment can be tried after it."""
        match step:
            case Retry():
                try_spend_all(selector.budgets(candidate), self._clock.now())
                selector.candidates.retry(candidate, step, self._clock.now())
                return "the deployment could not be retried"
            case ChangeKey():
                if step.is_paid:
                    try_spend_all(selector.budgets(candidate), self._clock.now())
                selector.candidates.ask_again(candidate)
                return "no other key available"
            case FallBack():
                selector.candidates.fall_back(candidate, step, self._clock.now())
                return "no fallback available"

    def _put_back(self, selector: CandidateSelector, candidate: Candidate, raced: list[Attempt]) -> None:
        """Decides for deployments that failed as a hedge of this attempt: they may be tried again after all others."""
        for hedge in raced[1:]:
            if hedge.failure is None or hedge.failure.kind.is_final or hedge.target is selector.target(candidate):
                continue
            others = selector.candidates.others(candidate)
            other = next(peer for peer in others if selector.target(peer) is hedge.target)
            step = self._decide(selector, other, hedge.failure)
            if isinstance(step, GiveUp):
                selector.candidates.drop(other)
            else:
                selector.candidates.fall_back(other, _after_others(step), self._clock.now())

    def _decide(self, selector: CandidateSelector, candidate: Candidate, failure: Failure) -> Step:
        call, target, now = selector.call, selector.target(candidate), self._clock.now()
        others, preferred = selector.candidates.others(candidate), selector.preferred(candidate)
        budgets = selector.budgets(candidate)
        step = (
            _other_mode(call, failure)
            or self._other_key(selector, candidate, failure)
            or next_step(
                failure,
                retries_done=candidate.retries,
                settings=target.retry,
                previous_s=candidate.previous_s,
                has_next=bool(others),
                has_peer=bool(preferred),
                has_free_peer=selector.has_free(preferred),
                has_free_same_model=selector.free_peer(candidate) is not None,
                has_other_model=any(other.alias != candidate.alias for other in others),
                fallback_at=selector.fallback_at(candidate) if target.retry.fallback_after else inf,
                is_repeatable=call.is_repeatable,
                has_timed_out_again=_has_timed_out_again(call, failure),
                can_spend=all(budget.can_spend(now) for budget in budgets),
                failure_share=budgets[0].recent.failure_share(now),
                now=now,
                deadline_at=call.commit_by,
                u=self._draw(),
            )
        )
        note_decision(call, failure, step, min(budget.snapshot(now).tokens for budget in budgets))
        self._note_rest(call, target, failure, step, now)
        return step

    def _other_key(self, selector: CandidateSelector, candidate: Candidate, failure: Failure) -> ChangeKey | None:
        """Returns a change to another key of the upstream's pool; None: the pool has no other, or it would not help."""
        call, target = selector.call, selector.target(candidate)
        attempt = _attempt_of(call, failure)
        if target.deployment.upstream.keys is None or attempt is None:
            return None
        attempt.gave_way = gives_way(failure, is_repeatable=call.is_repeatable)
        now, is_paid = self._clock.now(), not is_free_of_charge(failure)
        if failure.kind is FailureKind.AUTH:
            self._admission.end_refusals(call, target)
        if not attempt.gave_way or now >= call.commit_by or not selector.has_free_key(candidate):
            return None
        if is_paid and not all(budget.can_spend(now) for budget in selector.budgets(candidate)):
            return None
        return ChangeKey(is_paid)

    def _note_rest(self, call: Call, target: Target, failure: Failure, step: Step, now: float) -> None:
        """Starts the deployment's cooldown for a Retry-After that this call does not wait out."""
        wait_s = failure.retry_after_s
        if wait_s is not None and wait_s >= WORTH_SPREADING_S:
            target.deployment.returns.note_refusal(target.deployment.budget.calls, now)
        # A failure that concerns this call alone must not hold back other calls.
        if target.model is None or wait_s is None or failure.kind.scope is Scope.CALL:
            return
        if isinstance(step, FallBack | ChangeKey) or wait_s > target.retry.max_delay:
            attempt = _attempt_of(call, failure)
            credential = credential_of(call, target, None if attempt is None else attempt.key)
            key = deployment_key(credential, target.model)
            source = source_of(call, target.deployment)
            self._cooldowns.note_wait(key, failure, target.retry.max_retry_after, now, source)


def _kept_s(selector: CandidateSelector, candidate: Candidate, left_s: float, limit_s: float, now: float) -> float:
    """Returns how many of the `left_s` seconds until the deadline an attempt leaves for the one after it."""
    target, is_stream = selector.route.targets[candidate.place], selector.call.is_stream
    other = selector.candidates.first_other(candidate)
    if other is None and candidate.retries + 1 >= target.retry.max_attempts:
        return 0.0
    after = target if other is None else selector.route.targets[other.place]
    following = after.deployment.latency_of(is_stream)
    if not following.has_history:
        return 0.0
    own = target.deployment.latency_of(is_stream)
    # Without a configured limit a slow answer is legitimate, and cutting it short would lose it.
    is_chosen = target.timeouts.is_configured("first_token" if is_stream else "attempt")
    return reserve_s(left_s, limit_s, own, following, now, 0.0 if is_chosen else own.longest_s)


def _has_tried(call: Call, target: Target) -> bool:
    return any(earlier.target is target for earlier in call.attempts)


def _decisive(first: Attempt, told: Failure) -> Failure:
    """Returns the failure to decide by after a lost race: the first attempt's own, unless `told` is final."""
    return told if told.kind.is_final or first.failure is None else first.failure


def _has_timed_out_again(call: Call, failure: Failure) -> bool:
    """Returns whether a default limit has now ended two exchanges. An answer that takes longer than the limit would be
    paid for each time and never arrive. A configured limit is different: it says when a deployment hangs."""
    if failure.limit not in ("attempt", "first_token"):
        return False
    ended = [past for past in call.attempts if past.failure is not None and past.failure.limit == failure.limit]
    return len(ended) > 1 and not any(past.target.timeouts.is_configured(failure.limit) for past in ended)


def _other_mode(call: Call, failure: Failure) -> Retry | None:
    """Returns an immediate retry if only this way of resuming the stream was refused, and another is left, or if the
    refusal of a translated request has shown how to write it."""
    attempt = _attempt_of(call, failure)
    if attempt is None:
        return None
    if call.recovery is not None and call.recovery.is_refused(attempt, failure):
        return Retry(0.0)
    if call.translation is None or attempt.translation is None:
        return None
    return Retry(0.0) if call.translation.learns_from(attempt.target, failure) else None


def _attempt_of(call: Call, failure: Failure) -> Attempt | None:
    return next((attempt for attempt in call.attempts if attempt.failure is failure), None)


def _after_others(step: Retry | ChangeKey | FallBack) -> FallBack:
    if isinstance(step, ChangeKey):
        return FallBack(back_after_s=0.0)
    return FallBack(back_after_s=step.after_s, is_hint=step.is_hint) if isinstance(step, Retry) else step
