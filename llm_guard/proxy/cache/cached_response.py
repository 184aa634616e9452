"""Sends a cached response to a client.

`resilience.caching.freshness` decides when one may be used, `storage.cache.response_store` stores them.
"""

from __future__ import annotations

import asyncio

from llm_guard.clock import Clock
from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Call, Headers
from llm_guard.proxy.http_server.error_responses import DRAINED
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.storage.cache.response_store import CachedResponse

CLIENT_DISCONNECTED = Failure(FailureKind.CLIENT_CANCELLED, "the client disconnected")
CLIENT_STALLED = Failure(FailureKind.CLIENT_CANCELLED, "the client stopped reading")
_TRUE_AGAIN = (
    "content-encoding", "content-language", "content-type", "openai-model", "openai-version", "x-accel-buffering",
)  # fmt: skip
"""Headers that are cached. All others belong to one exchange: dates, ids, rate limits, cookies, servers, timings."""
_PIECE_BYTES = 1 << 16


def shareable_headers(headers: Headers) -> Headers:
    """Returns the headers that are valid for any client at any time."""
    return tuple(pair for pair in headers if pair[0].lower() in _TRUE_AGAIN)


async def replay(call: Call, answer: CachedResponse, reply: ResponseWriter, clock: Clock) -> None:
    """Sends a cached response, as a stream if it was one. Leaves `call.failure` unchanged, unless the client leaves."""
    headers = [*answer.headers, *header_rules.ours(call, answer.deployment or None)]
    call.sent_status = call.sent_status or answer.status
    before, call.failure = call.failure, CLIENT_DISCONNECTED
    try:
        if answer.is_stream:
            reply.begin(answer.status, answer.reason, headers)
            for at in range(0, len(answer.body), _PIECE_BYTES):
                await write(call, answer.body[at : at + _PIECE_BYTES], reply, clock)
            await reply.end()
        else:
            await reply.send(answer.status, answer.reason, headers, answer.body)
        call.failure = before
    except TimeoutError:
        call.failure = CLIENT_STALLED
        reply.connection.abort()
    except asyncio.CancelledError:
        if call.is_draining:
            call.failure = Failure(FailureKind.INTERNAL, DRAINED.message)
        raise


async def write(call: Call, piece: bytes, reply: ResponseWriter, clock: Clock) -> None:
    """Writes a piece of the body. Raises TimeoutError if the client reads nothing for the route's `idle` timeout."""
    if reply.push(piece):
        return
    assert call.route is not None  # noqa: S101  # only a call with a route has a response
    with clock.limit() as limit:
        limit.set(min(clock.now() + call.route.timeouts.idle, call.deadline_at), "idle")
        await reply.connection.wait_room()
