"""Converts between a call and its stored form, which has no credentials (`deferred.credentials` has those)."""

from __future__ import annotations

import secrets

from llm_guard.clock import Clock
from llm_guard.deferred.credentials import Presented, plain_headers, plain_query, presented_by
from llm_guard.outcome import Disposition, Failure, Refusal
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Call
from llm_guard.proxy.headers import digests_of
from llm_guard.proxy.http_server.error_responses import refusal_for
from llm_guard.resilience.routing.client_hints import PRIORITIES
from llm_guard.storage.calls.store import CallFailure, Purpose, State, StoredCall, StoredRequest

MOST_BODY_BYTES = 16 * 1024**2
"""Largest body of a call that is stored."""
_MOST_WORDS_BYTES = 64 * 1024
"""Bytes of a provider's error body that are kept."""


def new_id() -> str:
    """Returns 128 random bits in hex. An id is not guessable."""
    return secrets.token_hex(16)


def owner_of(call: Call) -> str:
    """Identifies the caller by its client key's name, or by a digest from which the key cannot be recovered."""
    return f"client {call.client_key}" if call.client_key is not None else f"key {call.key_digest}"


async def body_of(call: Call, clock: Clock) -> bytes | None:
    """Returns the whole body, or None if it is too large. Raises OSError if its spool file cannot be read."""
    if isinstance(call.body, bytes):
        return call.body if len(call.body) <= MOST_BODY_BYTES else None
    size = call.body.size
    if size is None or size > MOST_BODY_BYTES:
        return None
    pieces = []
    for block in call.body.blocks():
        if not isinstance(block, bytes):
            await block
            continue
        pieces.append(block)
        await clock.sleep(0)  # lets the event loop run: a block takes a tenth of a millisecond
    return b"".join(pieces)


def stored_call(
    kept_id: str,
    call: Call,
    body: bytes | None,
    ended: CallFailure | None,
    clock: Clock,
    *,
    purpose: Purpose,
    state: State,
) -> StoredCall:
    """Builds the stored form. `ended` is how the call has failed so far."""
    assert call.route is not None  # noqa: S101  # calls without a route are never stored
    past = clock.wall() - clock.now()
    failed_at = [past + attempt.ended_at for attempt in call.attempts if attempt.ended_at is not None]
    return StoredCall(
        id=kept_id,
        request_id=call.id,
        purpose=purpose,
        state=state,
        owner=owner_of(call),
        client=call.client_key,
        request=_request(call, body, call.route.alias),
        received_at=past + call.started_at,
        first_failed_at=None if ended is None else min(failed_at, default=clock.wall()),
        last_failed_at=None if ended is None else clock.wall(),
        attempts=len(call.attempts),
        ended=ended,
    )


def _request(call: Call, body: bytes | None, route: str) -> StoredRequest:
    return StoredRequest(
        method=call.method,
        path=call.path,
        query=plain_query(call.query),
        headers=plain_headers(call.headers),
        body=body,
        dialect=call.dialect,
        model=call.model,
        route=route,
        upstream_name=call.upstream_name,
        is_stream=call.is_stream,
        is_repeatable=call.is_repeatable,
        needs_credentials=presented_by(call) != Presented(),
        priority=call.priority,
    )


def ended_of(call: Call) -> CallFailure:
    """Describes how the call has failed."""
    attempts = len(call.attempts)
    end = end_of(call)
    if isinstance(end, Refusal):
        return CallFailure(kind=end.code, detail=end.message, status=end.status, attempts=attempts)
    answer = end.answer
    status = answer.status if answer is not None else call.sent_status or refusal_for(call, end).status
    words = answer.body[:_MOST_WORDS_BYTES] if answer is not None else None
    return CallFailure(kind=end.kind.label, detail=end.detail, status=status, attempts=attempts, body=words)


def end_of(call: Call) -> Failure | Refusal:
    """Returns the call's failure or refusal."""
    end = call.failure or call.refusal
    assert end is not None  # noqa: S101  # a call without a response has one of the two
    return end


def call_of(kept: StoredCall, presented: Presented, now: float) -> Call:
    """Builds the call that executes a stored one, without body and route. `presented` are its caller's credentials. The
    stored call's id is the idempotency key if the caller sent none, so that a provider can detect a repeat."""
    request = kept.request
    headers = [*request.headers, *presented.headers, ("accept-encoding", "identity")]
    if not header_rules.value_of(request.headers, "idempotency-key"):
        headers.append(("idempotency-key", kept.id))
    is_later = kept.purpose == "deferred"
    call = Call(
        f"lg-{secrets.token_hex(10)}",
        request.dialect,
        request.method,
        request.path,
        "&".join(part for part in (request.query, *presented.parameters) if part),
        tuple(headers),
        now,
        content_type=header_rules.value_of(request.headers, "content-type"),
        content_encoding=header_rules.value_of(request.headers, "content-encoding"),
        upstream_name=request.upstream_name,
        client_retries=kept.rounds - 1 if is_later else kept.rounds,
        priority=PRIORITIES["low"],
        client_key=kept.client,
    )
    names = header_rules.lower_names(call.headers)
    caller = digests_of(call.headers, names)
    call.key_digest, call.account_digest = caller.key_digest, caller.account_digest
    call.disposition = (
        Disposition(deferred_id=kept.id, background_purpose="deferred")
        if is_later
        else Disposition(dead_letter_id=kept.id, background_purpose="requeue")
    )
    return call
