"""Writes the gateway's own responses: refusals, deferred calls (202), and errors passed on from an upstream.

Owns the texts of the gateway's own errors. `proxy.handler` decides when a call is refused, `dialects` writes the
bodies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from llm_guard.dialects import DIALECTS
from llm_guard.outcome import Failure, FailureKind, Refusal, UpstreamErrorResponse
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.request import METHODS
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.routing.route_table import Route, RouteTable

KEPT_CALLS = "/v1/llm-guard/calls/"
"""Path below which a client fetches the response of a deferred call."""

_ON_RETRYING = ("x-should-retry", "retry-after", "retry-after-ms")
_OURS_ALWAYS = ("x-should-retry",)


async def refuse(call: Call, refusal: Refusal, reply: ResponseWriter) -> None:
    """Sends a refusal in the client's dialect. After an early head it is sent as an event, and the response is
    aborted."""
    if call.failure is None:
        call.refusal = refusal
    body = json.dumps(DIALECTS[call.dialect].refusal_body(refusal, call.id)).encode()
    if reply.has_begun:  # too late for a status: the response can only be aborted
        await reply.break_off(closing_error(call, body) if reply.is_early else b"")
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


async def pass_on(
    call: Call, failure: Failure, answer: UpstreamErrorResponse, wait_s: float | None, reply: ResponseWriter
) -> None:
    """Passes on the upstream's own error, unmodified but for the retry headers, since the gateway has retried already.
    `wait_s`: the Retry-After, if one is known. A 4xx keeps a retry-after that the gateway could not interpret. If a
    cooldown refused this call, the error is the one that began the cooldown."""
    if answer.dialect not in ("", call.dialect) or failure.kind is FailureKind.UNTRANSLATED:
        answer = _translated(call, failure, answer)
    if reply.is_early:
        await reply.break_off(closing_error(call, answer.body))
        return
    call.sent_status = answer.status
    is_wait_ours = failure.retry_after_s is not None or answer.status >= 500
    replaced = _ON_RETRYING if is_wait_ours else _OURS_ALWAYS
    kept = [pair for pair in header_rules.to_client(answer.headers) if pair[0].lower() not in replaced]
    said_by = (attempt.target.deployment.label for attempt in call.attempts if attempt.failure is failure)
    kept += [*header_rules.ours(call, next(said_by, None)), ("x-should-retry", "false")]
    if call.refused_by is not None:
        kept.append(("x-llm-guard-refused-by", call.refused_by))
    if wait_s is not None:
        kept += header_rules.retry_after(wait_s)
    await reply.send(answer.status, answer.reason, kept, answer.body)


def _translated(call: Call, failure: Failure, answer: UpstreamErrorResponse) -> UpstreamErrorResponse:
    """Returns an error of another dialect in the client's. One about a request that the gateway wrote does not blame
    the client's."""
    from llm_guard.dialects.translation import error_bodies  # noqa: PLC0415  # few configs mix dialects

    translated = error_bodies.translated_error(answer.status, answer.body, call.dialect, call.id)
    status = 502 if failure.kind is FailureKind.UNTRANSLATED else translated.status
    headers = (*error_bodies.translated_headers(answer.headers, call.dialect), ("Content-Type", "application/json"))
    return UpstreamErrorResponse(status, "", headers, translated.body, call.dialect)


async def send_accepted(call: Call, kept_id: str, reply: ResponseWriter) -> None:
    """Sends 202 for a deferred call: its id, and the URL at which its response can be fetched."""
    url = KEPT_CALLS + kept_id
    call.sent_status = 202
    body = json.dumps({"id": kept_id, "object": "llm_guard.call", "status": "queued", "url": url}).encode()
    headers = [("Content-Type", "application/json"), ("Location", url), *header_rules.ours(call, None)]
    await reply.send(202, "", headers + header_rules.retry_after(1.0), body)


DRAINED = Refusal(
    503, "gateway_draining", "this gateway is shutting down", by="drain", retry_after_s=1.0, should_retry=True
)


def refusal_for(call: Call, failure: Failure) -> Refusal:
    """Returns the error response for a failure without an upstream's response that could be passed on."""
    asked = call.attempts[-1].target.deployment.label if call.attempts else "in cooldown"
    tried = f"{asked}: {failure.detail}"
    if len(call.attempts) > 1:
        tried += f" ({len(call.attempts)} attempts)"
    if failure.kind.category == "timeout":
        return Refusal(504, "upstream_timeout", tried, by=call.failed_by)
    return Refusal(502, f"upstream_{failure.kind.label}", tried, by=call.failed_by, retry_after_s=failure.retry_after_s)


def refusal_of(bad: BadRequest) -> Refusal:
    """Returns the refusal of a request that is invalid, or for which there is no room."""
    return Refusal(
        bad.status,
        bad.code,
        bad.message,
        by="limit" if bad.should_retry else "request",
        retry_after_s=bad.retry_after_s,
        should_retry=bad.should_retry,
        param=bad.param,
    )


def unknown_model(table: RouteTable, model: str) -> Refusal:
    near = table.near(model)
    hint = f"; similar names: {', '.join(near)}" if near else ""
    return Refusal(404, "model_not_found", f"no route for the model {model!r}{hint}", by="route", param="model")


def wrong_dialect(call: Call, route: Route, why: str | None) -> Refusal:
    """Returns the refusal of a call that no deployment of its route can serve in its dialect. `why`: why the calls of
    this endpoint are not translated; None: translation is off."""
    upstream = route.targets[0].deployment.upstream
    served = upstream.dialect
    path = DIALECTS[served].DEFAULT_PATH
    message = f"{call.model or upstream.name!r} speaks the {served} dialect: call {path} with an {served} SDK"
    if why is not None:
        message += f" (the upstream {upstream.name!r} {why})"
    return Refusal(400, "wrong_dialect", message, by="route", param="model")


def unserved(call: Call, reasons: Mapping[str, str | None]) -> Refusal:
    """Returns the refusal of a call whose endpoint no upstream of its route has. `reasons` are by upstream."""
    said = "; ".join(f"{upstream} {why}" for upstream, why in reasons.items())
    message = f"no deployment serves {call.method} {call.path}: {said}"
    return Refusal(404, "unserved_path", message, by="route")


def closing_error(call: Call, body: bytes) -> bytes:
    """Returns an error body for a client that already has an early head: as an event in a stream, else unchanged."""
    if not call.is_stream:
        return body
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict) and said.get("error"):
        return b"event: error\ndata: " + json.dumps(said).encode() + b"\n\n"
    message = "the upstream failed with an error that does not fit into a stream"
    return DIALECTS[call.dialect].error_event(Refusal(502, "upstream_error", message, by=None), call.id)
