"""Words for the decision after an attempt, and for the end of a call that got no response: for its record and its
client."""

from __future__ import annotations

from llm_guard.outcome import Exhausted, Failure, Refusal
from llm_guard.proxy.attempts.admission import AtCapacity, Unavailable
from llm_guard.proxy.attempts.candidate_selection import CandidateSelector
from llm_guard.proxy.call import Call
from llm_guard.resilience.retry.decision import ChangeKey, FallBack, GiveUp, Retry, Step

_MOMENT_S = 0.05


def note_decision(call: Call, failure: Failure, step: Step, budget_left: float) -> None:
    for attempt in call.attempts:
        if attempt.failure is failure:
            attempt.next_step, attempt.budget_left = _said(step), round(budget_left, 1)


def _said(step: Step) -> str:
    match step:
        case Retry(after_s):
            return f"retry after {after_s:.3g} s"
        case ChangeKey():
            return "retry with another key"
        case FallBack(_, None):
            return "fall back"
        case FallBack(_, back_after_s):
            return f"fall back, and retry here after {back_after_s:.3g} s"
        case GiveUp(why):
            return f"give up: {why}"


def with_reason(why: str, call: Call) -> str:
    """Returns `why`, with the reason for which the last candidate was skipped."""
    return f"{why}: {call.skipped[-1].why}" if call.skipped else why


def without_attempts(selector: CandidateSelector) -> Exhausted:
    """Returns the result of a call without attempts. It reports the deployment that is back soonest."""
    if not selector.rejected and selector.call.translation is not None:
        return Exhausted(None, selector.call.translation.refusal(), "cannot be translated")
    soonest = min(selector.rejected, key=lambda rejection: rejection.wait_s)
    if isinstance(soonest, Unavailable) and soonest.rest is not None:
        return Exhausted(soonest.rest, None, "in cooldown", is_cooldown=True)
    names = ", ".join(skipped.deployment for skipped in selector.call.skipped)
    if isinstance(soonest, AtCapacity):
        message = f"{names}: at capacity, too many calls are waiting; retry in {_for_people(soonest.wait_s)}"
        refusal = Refusal(429, "at_capacity", message, by="limit", retry_after_s=soonest.wait_s, should_retry=True)
        return Exhausted(None, refusal, "at capacity")
    if soonest.is_held:
        message = f"{names}: taken out of service by an operator"
        refusal = Refusal(503, "deployment_held", message, by="hold", retry_after_s=soonest.wait_s)
        return Exhausted(None, refusal, "out of service (operator)")
    message = f"{names}: failing, circuit breaker open; retry in {_for_people(soonest.wait_s)}"
    refusal = Refusal(503, "breaker_open", message, by="breaker", retry_after_s=soonest.wait_s)
    return Exhausted(None, refusal, "breakers open")


def _for_people(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= _MOMENT_S else "a moment"
