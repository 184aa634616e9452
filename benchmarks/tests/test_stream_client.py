"""Classification of stream ends by their reader, on which the soak's verdict rests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from benchmarks.relay_peers import _EVENT
from benchmarks.stream_client import StreamClient

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
ERROR = b'event: error\ndata: {"error": {"message": "cut"}}\n\n'
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


class Line(asyncio.Transport):
    """Records what a client writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def new_client(*, pace_s: float | None = None) -> StreamClient:
    client = StreamClient("/v1/chat/completions", "gpt-4o", pace_s=pace_s)
    client.connection_made(Line())
    return client


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def test_request_is_for_a_stream_of_the_model() -> None:
    client = new_client()
    assert isinstance(client.transport, Line)
    head, _, body = client.transport.written.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert b'"model": "gpt-4o"' in body
    assert b'"stream": true' in body


@pytest.mark.parametrize("size", [7, 10_000])
@pytest.mark.parametrize(
    ("answer", "is_cut", "how"),
    [
        (HEAD + chunk(TOKEN) + chunk(DONE) + END, False, "whole"),
        (HEAD + chunk(TOKEN) + END, False, "silent"),
        (HEAD + chunk(TOKEN) + chunk(ERROR) + END, False, "told"),
        (HEAD + chunk(TOKEN) + chunk(ERROR), True, "told"),
        (HEAD + chunk(TOKEN), True, "cut"),
        (HEAD + chunk(TOKEN) + chunk(DONE), True, "cut"),
        (b"", True, "cut"),
    ],
)
async def test_each_end_is_distinguished_from_the_others(answer: bytes, is_cut: bool, how: str, size: int) -> None:
    client = new_client()
    for piece in pieces(answer, size):
        client.data_received(piece)
    assert client.ended.done() is not is_cut
    if is_cut:
        client.connection_lost(None)
    assert client.ended.result() == how
    assert isinstance(client.transport, Line)
    assert client.transport.is_closed


async def test_an_error_in_place_of_a_stream_is_a_refusal() -> None:
    client = new_client()
    client.data_received(b'HTTP/1.1 503 Busy\r\ncontent-length: 12\r\n\r\n{"error": 1}')
    assert client.ended.result() == "refused"
    assert client.begun.is_set(), "whoever waits for its first event would wait for ever"


async def test_client_that_disconnects_is_not_counted_as_cut_off() -> None:
    client = new_client()
    client.data_received(HEAD + chunk(TOKEN))
    client.leave()
    client.connection_lost(None)
    assert client.ended.result() == "left"


async def test_a_stream_has_begun_with_its_first_event() -> None:
    client = new_client()
    client.data_received(HEAD)
    assert not client.begun.is_set()
    client.data_received(chunk(TOKEN))
    assert client.begun.is_set()


async def test_events_and_the_writes_that_carried_them_are_counted() -> None:
    client = new_client()
    client.data_received(HEAD)
    before = client.frames
    client.data_received(chunk(TOKEN + TOKEN) + chunk(TOKEN))
    assert (client.events, client.frames - before) == (3, 2)


async def test_delay_is_read_from_the_providers_stamp() -> None:
    client = new_client(pace_s=0.01)
    client.data_received(HEAD + chunk(_EVENT % (time.monotonic() - 5)))
    [delay_s] = client.delays_s
    assert delay_s == pytest.approx(5, abs=0.5)
