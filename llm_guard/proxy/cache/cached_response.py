"""Sends a cached response to a client.

`resilience.caching.freshness` decides when one may be used, `storage.cache.response_store` stores them.
"""

from __future__ import annotations

from collections.abc import Iterator

from llm_guard.clock import Clock
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.response.ending import end_response
from llm_guard.proxy.response.shared_response import SharedResponse, send_shared
from llm_guard.storage.cache.response_store import CachedResponse

_PIECE_BYTES = 1 << 16


async def replay(call: Call, answer: CachedResponse, reply: ResponseWriter, clock: Clock) -> None:
    """Sends a cached response, as a stream if it was one. Leaves `call.failure` unchanged, unless the client leaves."""
    pieces = _pieces(answer.body)

    async def next_piece() -> bytes:
        return next(pieces, b"")

    length = None if answer.is_stream else len(answer.body)
    response = SharedResponse(
        answer.status, answer.reason, answer.headers, answer.deployment or None, length, next_piece
    )
    failure = await send_shared(call, response, reply, clock)
    if failure is not None:
        call.failure = failure
    await end_response(call, failure, reply, None, lambda _: None)


def _pieces(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), _PIECE_BYTES):
        yield body[at : at + _PIECE_BYTES]
