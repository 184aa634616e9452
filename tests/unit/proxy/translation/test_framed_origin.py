"""Streams in Amazon's frames are read as server-sent events."""

from __future__ import annotations

from typing import Any

import pytest

from llm_guard.outcome import FailureKind
from llm_guard.proxy.http_client.connection_pool import UpstreamError
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.proxy.translation.framed_origin import FramedExchange, FramedOrigin
from tests.fakes.event_frames import chunk_frame
from tests.fakes.script import OpenExchange

FRAMES = (("Content-Type", "application/vnd.amazon.eventstream"), ("x-amzn-requestid", "r"))
PING = chunk_frame(b'{"type": "ping"}')
EVENT = b'event: ping\ndata: {"type": "ping"}\n\n'


class Streamed(OpenExchange):
    """An exchange with these chunks."""

    def __init__(self, headers: Any, *chunks: bytes) -> None:
        super().__init__()
        self.status, self.reason, self.headers = 200, "OK", headers
        self._chunks = [*chunks]
        self.aborts = 0

    async def read(self) -> bytes:
        return self._chunks.pop(0) if self._chunks else b""

    def abort(self) -> None:
        self.aborts += 1


async def opened(exchange: Streamed) -> Any:
    class Sent:
        async def send(self, *_args: Any, **_named: Any) -> Any:
            return exchange

    return await FramedOrigin(Sent()).send("POST", "/", RequestHeaders([]), b"", None, is_repeatable=True)


async def test_frames_are_read_as_events() -> None:
    exchange = await opened(Streamed(FRAMES, PING[:5], PING[5:] + PING[:20], PING[20:]))
    assert exchange.headers == (("x-amzn-requestid", "r"), ("Content-Type", "text/event-stream; charset=utf-8"))
    assert [await exchange.read() for _ in range(3)] == [EVENT, EVENT, b""]


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", ""])
async def test_other_responses_stay_as_they_are(kind: str) -> None:
    exchange = Streamed((("Content-Type", kind),), b"{}")
    assert await opened(exchange) is exchange


async def test_compressed_frames_are_refused_and_the_connection_is_closed() -> None:
    exchange = Streamed((*FRAMES, ("Content-Encoding", "gzip")))
    with pytest.raises(UpstreamError) as caught:
        await opened(exchange)
    assert (caught.value.kind, exchange.aborts) == (FailureKind.MALFORMED, 1)


@pytest.mark.parametrize(("last", "kind"), [
    (PING[:30], FailureKind.TRUNCATED), (b"\0" * 12, FailureKind.MALFORMED), (PING[:-1] + b"\0", FailureKind.MALFORMED),
])  # fmt: skip
async def test_damage_breaks_the_exchange(last: bytes, kind: FailureKind) -> None:
    exchange = await opened(Streamed(FRAMES, PING, last))
    assert await exchange.read() == EVENT
    with pytest.raises(UpstreamError) as caught:
        await exchange.read()
    assert caught.value.kind is kind


async def test_abort_closes_the_connection() -> None:
    exchange = Streamed(FRAMES)
    FramedExchange(exchange).abort()
    assert exchange.aborts == 1
