"""The gateway's own answers: a refusal, a promise, or what an upstream has said of its failure.

Owns how they are written to a client. Does not own the words (`gateway.refusals`), nor when they are due
(`gateway.server`, `gateway.last_resort`).
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
"""Below it a client finds what was promised."""

_ON_RETRYING = ("x-should-retry", "retry-after", "retry-after-ms")
_OURS_ALWAYS = ("x-should-retry",)


async def refuse(call: Call, refusal: Refusal, reply: Reply) -> None:
    """In the client's dialect; behind an early head it is an event, and the answer is broken off."""
    if call.failure is None:
        call.refusal = refusal
    body = json.dumps(DIALECTS[call.dialect].refusal_body(refusal, call.id)).encode()
    if reply.has_begun:  # it can only be broken off
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
    """The upstream's own error, unmodified but for the headers on retrying, which the gateway has done. `wait_s`: when
    to come back, if that is known. A 4xx keeps its retry-after where that is no hint that the gateway reads. It is
    another call's error where a cooldown refused this one."""
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
    """202: the call is kept under this id, and where its answer can be fetched."""
    url = KEPT_CALLS + kept_id
    call.sent_status = 202
    body = json.dumps({"id": kept_id, "object": "llm_guard.call", "status": "queued", "url": url}).encode()
    headers = [("Content-Type", "application/json"), ("Location", url), *header_rules.ours(call, None)]
    await reply.send(202, "", headers + header_rules.retry_after(1.0), body)
