"""The gateway's own error responses, for when there is no upstream's that could be passed on.

`gateway.server` decides when a call is refused, `dialect` writes the bodies.
"""

from __future__ import annotations

import json

from llm_guard.call import Call
from llm_guard.dialect import DIALECTS
from llm_guard.gateway.asked import BadRequest
from llm_guard.outcome import Failure, Refusal
from llm_guard.routes import RouteTable

DRAINED = Refusal(
    503, "gateway_draining", "this gateway is going away", by="drain", retry_after_s=1.0, should_retry=True
)


def own_words(call: Call, failure: Failure) -> Refusal:
    """Returns the error response for a failure without an upstream's response that could be passed on."""
    asked = call.attempts[-1].target.deployment.label if call.attempts else "benched"
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
    hint = f"; near it are {', '.join(near)}" if near else ""
    return Refusal(404, "model_not_found", f"no route for the model {model!r}{hint}", by="route", param="model")


def wrong_dialect(call: Call) -> Refusal | None:
    assert call.route is not None  # noqa: S101  # `identify` has set it
    served = call.route.targets[0].deployment.upstream.dialect
    if served == call.dialect:
        return None
    path = "/v1/messages" if served == "anthropic" else "/v1/chat/completions"
    return Refusal(
        400,
        "wrong_dialect",
        f"{call.model or call.route.targets[0].deployment.upstream.name!r} speaks the {served} dialect: call {path} "
        f"with an {served} SDK",
        by="route",
        param="model",
    )


def last_words(call: Call, body: bytes) -> bytes:
    """Returns an error body for a client that already has an early head: as an event in a stream, else unchanged."""
    if not call.is_stream:
        return body
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict) and said.get("error"):
        return b"event: error\ndata: " + json.dumps(said).encode() + b"\n\n"
    message = "the upstream failed, in words that cannot stand in a stream"
    return DIALECTS[call.dialect].error_event(Refusal(502, "upstream_error", message, by=None), call.id)
