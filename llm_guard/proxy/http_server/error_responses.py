"""Writes the gateway's own responses: refusals, deferred calls (202), and errors passed on from an upstream.

The error texts are in `gateway.refusals`.
"""

from __future__ import annotations

import json

from llm_guard.call import Call
from llm_guard.dialect import DIALECTS
from llm_guard.gateway import headers as header_rules
from llm_guard.gateway.refusals import last_words
from llm_guard.gateway.reply import Reply
from llm_guard.gateway.request import METHODS
from llm_guard.outcome import Answer, Failure, Refusal

KEPT_CALLS = "/v1/llm-guard/calls/"
"""Path below which a client fetches the response of a deferred call."""

_ON_RETRYING = ("x-should-retry", "retry-after", "retry-after-ms")
_OURS_ALWAYS = ("x-should-retry",)


async def refuse(call: Call, refusal: Refusal, reply: Reply) -> None:
    """Sends a refusal in the client's dialect. After an early head it is sent as an event, and the response is
    aborted."""
    if call.failure is None:
        call.refusal = refusal
    body = json.dumps(DIALECTS[call.dialect].refusal_body(refusal, call.id)).encode()
    if reply.has_begun:  # too late for a status: the response can only be aborted
        await reply.break_off(last_words(call, body) if reply.is_early else b"")
        return
    call.sent_status = refusal.status
    headers = [("Content-Type", "application/json"), *header_rules.ours(call, None)]
    headers.append(("x-should-retry", "true" if refusal.should_retry else "false"))
    if refusal.by is not None:
        headers.append(("x-llm-guard-refused-by", refusal.by))
    if refusal.retry_after_s is not None:
        headers += header_rules.retry_after(refusal.retry_after_s)
    headers += refusal.headers
    if refusal.status == 405:
        headers.append(("Allow", ", ".join(METHODS)))
    await reply.send(refusal.status, "", headers, body)


async def pass_on(call: Call, failure: Failure, answer: Answer, wait_s: float | None, reply: Reply) -> None:
    """Passes on the upstream's own error, unmodified but for the retry headers, since the gateway has retried already.
    `wait_s`: the Retry-After, if one is known. A 4xx keeps a retry-after that the gateway could not interpret. If a
    cooldown refused this call, the error is the one that began the cooldown."""
    if reply.is_early:
        await reply.break_off(last_words(call, answer.body))
        return
    call.sent_status = answer.status
    is_wait_ours = failure.retry_after_s is not None or answer.status >= 500
    replaced = _ON_RETRYING if is_wait_ours else _OURS_ALWAYS
    kept = [pair for pair in header_rules.to_client(answer.headers) if pair[0].lower() not in replaced]
    said_by = (each.target.deployment.label for each in call.attempts if each.failure is failure)
    kept += [*header_rules.ours(call, next(said_by, None)), ("x-should-retry", "false")]
    if call.refused_by is not None:
        kept.append(("x-llm-guard-refused-by", call.refused_by))
    if wait_s is not None:
        kept += header_rules.retry_after(wait_s)
    await reply.send(answer.status, answer.reason, kept, answer.body)


async def give_promise(call: Call, kept_id: str, reply: Reply) -> None:
    """Sends 202 for a deferred call: its id, and the URL at which its response can be fetched."""
    url = KEPT_CALLS + kept_id
    call.sent_status = 202
    body = json.dumps({"id": kept_id, "object": "llm_guard.call", "status": "queued", "url": url}).encode()
    headers = [("Content-Type", "application/json"), ("Location", url), *header_rules.ours(call, None)]
    await reply.send(202, "", headers + header_rules.retry_after(1.0), body)
