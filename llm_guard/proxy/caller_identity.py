"""The caller of a call: as a deployment's breaker sees it, for a provider's quotas, and in the wait queue.

`resilience.circuit_breaker.callers` decides which callers are judged separately, `resilience.capacity.wait_queue` the
order of the queue.
"""

from __future__ import annotations

from llm_guard.proxy.call import Call
from llm_guard.resilience.capacity.fair_queue import Caller
from llm_guard.resilience.circuit_breaker.breaker import Breaker
from llm_guard.resilience.circuit_breaker.callers import Suspect
from llm_guard.routing.deployment import Deployment


def caller_of(call: Call, deployment: Deployment, now: float) -> str:
    """Returns the caller as breakers see it: the name of the client key, or the digest of the caller's own key if this
    provider has accepted it lately. All other callers are one."""
    if call.client_key is not None:
        return call.client_key
    is_known = not deployment.upstream.has_own_key and deployment.callers.is_accepted(call.key_digest, now)
    return f"key {call.key_digest[:12]}" if is_known else ""


def source_of(call: Call, deployment: Deployment) -> str:
    """Returns the caller that a rate limit or quota of the provider concerns: the name of the client key, or the digest
    of the caller's own key, which has a quota of its own. All other callers are one."""
    if call.client_key is not None:
        return call.client_key
    return "" if deployment.upstream.has_own_key else call.key_digest


def share_of(call: Call) -> Caller:
    """Returns the caller that takes turns in the wait queue: the client key, or without client keys the key that was
    sent."""
    return Caller(call.client_key or call.key_digest, call.weight)


def suspect_of(call: Call, deployment: Deployment, now: float) -> Suspect | None:
    """Returns the separate breaker and retry budget of the call's caller, if it has them."""
    callers = deployment.callers
    return callers.suspect(caller_of(call, deployment, now)) if callers.has_failures else None


def breaker_of(call: Call, deployment: Deployment, now: float) -> Breaker:
    """Returns the breaker that decides about a call."""
    return deployment.judge_of(suspect_of(call, deployment, now))
