"""Begins and ends a response to a client, wherever it comes from: an upstream, another call's request, or the cache."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable

from llm_guard.dialects import DIALECTS
from llm_guard.outcome import Failure, FailureKind, Refusal, Source
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Call, Headers
from llm_guard.proxy.http_server.error_responses import DRAINED
from llm_guard.proxy.http_server.response_writer import ResponseWriter

CLIENT_DISCONNECTED = Failure(FailureKind.CLIENT_CANCELLED, "the client disconnected")
CLIENT_STALLED = Failure(FailureKind.CLIENT_CANCELLED, "the client stopped reading")
ENDED_BY_DRAIN = Failure(FailureKind.INTERNAL, DRAINED.message)
OUT_OF_PLACE = Failure(FailureKind.MALFORMED, "cannot continue the client's stream: no stream, or a compressed one")
"""A whole response behind an early head of a stream, or a compressed one behind any."""


def is_encoded(headers: Headers) -> bool:
    return header_rules.value_of(headers, "content-encoding") not in ("", "identity")


def content_length(headers: Headers) -> int | None:
    """Returns the announced length in bytes; None if there is none, or it is no number."""
    length = header_rules.value_of(headers, "content-length")
    return int(length) if length.isdigit() else None


async def end_response(
    call: Call,
    failure: Failure | None,
    reply: ResponseWriter,
    store_dead_letter: Callable[[Call, ResponseWriter], Awaitable[None]] | None,
    last_words: Callable[[Failure], bytes | None],
) -> None:
    """Completes a response, or breaks it off so that it cannot be taken for a complete one.

    `last_words` returns what is sent before the connection is closed in the middle of the body; None if the provider's
    own error was the last thing that was passed on, after which the response ends like a complete one.
    `store_dead_letter` is called before the connection is closed: closing it cancels the task that serves the call.
    """
    if failure is None:
        if not reply.is_over:
            with contextlib.suppress(ConnectionError):  # the client disconnected at the terminal event
                await reply.end()
        return
    if store_dead_letter is not None:
        await store_dead_letter(call, reply)
    if failure.kind.source is Source.CLIENT:
        reply.connection.abort()
    elif (words := last_words(failure)) is not None:
        await reply.break_off(words)
    else:
        with contextlib.suppress(ConnectionError):
            await reply.end()


def error_text(call: Call, failure: Failure, detail: str, *, is_event: bool) -> bytes:
    """Returns the failure as an event in the client's dialect, or as the body of a response that is not streamed."""
    dialect = DIALECTS[call.dialect]
    status = 504 if failure.kind.category == "timeout" else 502
    refusal = Refusal(status, f"upstream_{failure.kind.label}", detail, by=None)
    if call.is_draining:
        refusal = DRAINED
    if is_event:
        return dialect.error_event(refusal, call.id)
    return json.dumps(dialect.refusal_body(refusal, call.id)).encode()
