"""Sends a client a response that no upstream sends for its call alone: a cached one, or that of another call's
request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf

from llm_guard.clock import Clock
from llm_guard.outcome import Failure
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Call, Headers
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.response.ending import CLIENT_DISCONNECTED, CLIENT_STALLED, ENDED_BY_DRAIN
from llm_guard.resilience.routing.candidates import timeout_failure

GRACE_S = 0.05
"""Added to the call's own limits: a request that it waits for has the same ones, and its error says more."""
_SHAREABLE = (
    "content-encoding", "content-language", "content-type", "openai-model", "openai-version", "x-accel-buffering",
)  # fmt: skip
"""Headers that are valid for any client at any time. All others belong to one exchange: dates, ids, rate limits,
cookies, servers, timings."""


@dataclass(frozen=True, slots=True)
class SharedResponse:
    """A response, and where its body comes from."""

    status: int
    reason: str
    headers: Headers
    """Headers for the client, without the gateway's own."""
    deployment: str | None
    length: int | None
    """Length of the body in bytes; None if it is sent without."""
    next_piece: Callable[[], Awaitable[bytes]]
    """Returns the next bytes of the body; b"" at its end."""
    ends_by: float = inf
    """Instant by which the client must have all of it; infinite for a body that is at hand."""


def shareable_headers(headers: Headers) -> Headers:
    """Returns the headers that are valid for any client at any time."""
    return tuple(pair for pair in headers if pair[0].lower() in _SHAREABLE)


async def send_shared(call: Call, response: SharedResponse, reply: ResponseWriter, clock: Clock) -> Failure | None:
    """Sends the response, but does not end it. Returns why it broke off; None if all of its body was sent.

    Sets `call.failure` while it runs, for a client that leaves: it then holds the failure if the call is cancelled.
    """
    before, call.failure = call.failure, CLIENT_DISCONNECTED  # until the client has stayed to the end
    try:
        call.sent_status = call.sent_status or response.status
        headers = [*response.headers, *header_rules.ours(call, response.deployment)]
        reply.begin(response.status, response.reason, headers, response.length)
        failure = await _copy(call, response, reply, clock)
    except ConnectionError:
        return call.failure
    except asyncio.CancelledError:
        if call.is_draining:
            call.failure = ENDED_BY_DRAIN
        raise
    call.failure = before
    return failure


async def _copy(call: Call, response: SharedResponse, reply: ResponseWriter, clock: Clock) -> Failure | None:
    assert call.route is not None  # noqa: S101  # only a call with a route has a response
    limit = clock.limit()
    try:
        with limit:
            limit.set(response.ends_by + GRACE_S, "total")
            while piece := await response.next_piece():
                if not reply.push(piece):
                    await _wait_for_room(reply, min(clock.now() + call.route.timeouts.idle, response.ends_by), clock)
    except TimeoutError:
        return timeout_failure("total", call.route.timeouts) if clock.now() >= response.ends_by else CLIENT_STALLED
    return None


async def _wait_for_room(reply: ResponseWriter, until: float, clock: Clock) -> None:
    """Waits until the client has room again. Raises TimeoutError at `until`."""
    with clock.limit() as limit:
        limit.set(until, "idle")
        await reply.connection.wait_room()
