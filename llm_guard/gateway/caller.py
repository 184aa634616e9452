"""Whose call it is: who is one caller before a deployment's breaker, and who is where calls wait.

Does not own which callers are judged by themselves (`policy.callers`), nor whose turn it is (`policy.line`).
"""

from __future__ import annotations

from llm_guard.call import Call
from llm_guard.deployment import Deployment
from llm_guard.policy.breaker import Breaker
from llm_guard.policy.callers import Suspect
from llm_guard.policy.line import Caller


def caller_of(call: Call, deployment: Deployment, now: float) -> str:
    """A client key, by name, or a key of the caller's own, by digest, if this provider has accepted it lately. All
    others are one caller."""
    if call.client_key is not None:
        return call.client_key
    is_known = not deployment.upstream.has_own_key and deployment.callers.is_accepted(call.key_digest, now)
    return f"key {call.key_digest[:12]}" if is_known else ""


def source_of(call: Call, deployment: Deployment) -> str:
    """The caller that a refusal for a rate or a quota tells of: the client key, by name, or the caller's own key, by
    digest, which has a quota of its own. All others are one caller."""
    if call.client_key is not None:
        return call.client_key
    return "" if deployment.upstream.has_own_key else call.key_digest


def share_of(call: Call) -> Caller:
    """Whose turn it takes where calls wait: the client key's, or without client keys the one of the key it was sent
    with."""
    return Caller(call.client_key or call.key_digest, call.weight)


def suspect_of(call: Call, deployment: Deployment, now: float) -> Suspect | None:
    """By what the call's caller is judged, if it is judged by itself."""
    callers = deployment.callers
    return callers.suspect(caller_of(call, deployment, now)) if callers.has_failures else None


def breaker_of(call: Call, deployment: Deployment, now: float) -> Breaker:
    """The breaker that decides about a call."""
    return deployment.judge_of(suspect_of(call, deployment, now))
