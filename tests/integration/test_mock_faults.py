"""The mock's faults and life cycle, seen from bare sockets and a plain client."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import re
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from llm_guard.mock.content import say
from llm_guard.mock.provider import MockProvider
from tests.chaos.lag import measured
from tests.fakes.client import VanishingClient, raw_request
from tests.fakes.waiting import eventually

SAID: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def provider() -> AsyncIterator[MockProvider]:
    async with MockProvider() as provider:
        yield provider


@pytest.fixture
async def http(provider: MockProvider) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(provider.url, timeout=aiohttp.ClientTimeout(10)) as session:
        yield session


async def post(
    http: aiohttp.ClientSession,
    model: str,
    *,
    stream: bool = False,
    path: str = "/v1/chat/completions",
    **headers: str,
) -> aiohttp.ClientResponse:
    fields = {"model": model, "messages": SAID, "stream": stream}
    return await http.post(path, json=fields, headers={k.replace("_", "-"): v for k, v in headers.items()})


async def read_until_broken(response: aiohttp.ClientResponse) -> bytes:
    received = bytearray()

    async def read() -> None:
        async for chunk in response.content.iter_any():
            received.extend(chunk)

    with pytest.raises(aiohttp.ClientPayloadError):
        await read()
    return bytes(received)


def tokens_in(stream: bytes) -> int:
    """Counts the token events of an OpenAI chat stream."""
    return sum(stream.count(f'"content":"{word}"'.encode()) for word in set(say(8)))


@pytest.mark.parametrize("after", [0, 3])
async def test_a_cut_stream_ends_after_its_tokens_without_an_end(http: aiohttp.ClientSession, after: int) -> None:
    async with await post(http, f"m+cut:{after}", stream=True) as response:
        received = await read_until_broken(response)
    assert response.status == 200
    assert tokens_in(received) == after
    assert b'finish_reason":"stop' not in received


async def test_a_cut_whole_answer_lacks_its_second_half(http: aiohttp.ClientSession) -> None:
    async with await post(http, "m+cut:0") as response:
        received = await read_until_broken(response)
        assert len(received) == int(response.headers["content-length"]) // 2


async def test_a_truncated_answer_has_the_right_length_and_cut_json(http: aiohttp.ClientSession) -> None:
    async with await post(http, "m+truncated") as response:
        body = await response.read()
    assert len(body) == int(response.headers["content-length"])
    with pytest.raises(json.JSONDecodeError):
        json.loads(body)


async def test_a_truncated_stream_ends_clean_without_its_terminal_event(http: aiohttp.ClientSession) -> None:
    async with await post(http, "m+truncated", stream=True) as response:
        received = await response.read()
    assert tokens_in(received) == 4
    assert b"[DONE]" not in received


async def test_malformed_event_is_among_good_ones(http: aiohttp.ClientSession) -> None:
    async with await post(http, "m+malformed:2", stream=True) as response:
        *events, end = (await response.read()).split(b"\n\n")[:-1]
    broken = [event for event in events if not is_json(event.removeprefix(b"data: "))]
    assert len(broken) == 1
    assert events.index(broken[0]) == 3
    assert end == b"data: [DONE]"
    async with await post(http, "m+malformed:0") as response:
        assert not is_json(await response.read())


def is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except json.JSONDecodeError:
        return False
    return True


async def test_error_body_can_have_status_200(http: aiohttp.ClientSession) -> None:
    async with await post(http, "m+error:0") as response:
        assert (response.status, (await response.json())["error"]["type"]) == (200, "server_error")


@pytest.mark.parametrize("fault", ["reset", "close"])
async def test_a_connection_can_end_in_place_of_an_answer(
    http: aiohttp.ClientSession, provider: MockProvider, fault: str
) -> None:
    with pytest.raises(aiohttp.ClientOSError if fault == "reset" else aiohttp.ServerDisconnectedError):
        await post(http, f"m+{fault}")
    assert provider.stats().departures == ()


@pytest.mark.parametrize(
    ("model", "is_stream", "first"),
    [
        ("m+silence", False, b""),
        ("m+headers", True, b"HTTP/1.1 200"),
        ("m+headers", False, b"HTTP/1.1 200"),
        ("m+stall:1", True, say(1)[0].strip().encode()),
        ("m+stall:0", False, b'"id":"chatcmpl'),
    ],
)
@pytest.mark.parametrize("how", ["reset", "close"])
async def test_silence_lasts_until_the_peer_leaves_and_that_is_noticed_at_once(
    provider: MockProvider, model: str, is_stream: bool, first: bytes, how: Any
) -> None:
    body = json.dumps({"model": model, "stream": is_stream}).encode()
    request = raw_request("/v1/chat/completions", body)
    received = await VanishingClient(provider.url).vanish(request, after_s=0.3, how=how)
    with measured() as lag:
        left_at = time.monotonic()
        await eventually(lambda: provider.stats().departures)
        departure = provider.stats().departures[0]
        assert departure.at - left_at < 0.5 + lag.total_s
    assert departure.model == model
    assert first in received
    assert b"[DONE]" not in received
    assert not received.endswith(b"}")
    assert (provider.stats().in_flight, provider.stats().open_connections) == (0, 0)


async def test_a_client_that_leaves_amid_its_request_is_noticed_without_noise(
    provider: MockProvider, caplog: pytest.LogCaptureFixture
) -> None:
    request = raw_request("/v1/chat/completions", b"x" * 100)[:-50]
    await VanishingClient(provider.url).vanish(request, after_s=0.02)
    await eventually(lambda: provider.stats().departures)
    assert provider.stats().requests == 0
    assert caplog.records == []


async def test_latency_precedes_the_head(http: aiohttp.ClientSession) -> None:
    started_at = time.monotonic()
    async with await post(http, "m", x_mock_fault="latency:60ms, status:503") as response:
        assert response.status == 503
    assert time.monotonic() - started_at >= 0.06


async def test_limit_is_enforced_per_model(http: aiohttp.ClientSession) -> None:
    statuses = [(await post(http, "m+limit:0.01/s")).status for _ in range(3)]
    assert statuses == [200, 429, 429]
    async with await post(http, "n+limit:0.01/s") as other:
        assert other.status == 200


async def test_the_same_seed_strikes_the_same_requests() -> None:
    runs = []
    for seed in (1, 1, 2):
        async with MockProvider(seed=seed) as provider, aiohttp.ClientSession(provider.url) as http:
            runs.append([(await post(http, "m+status:503@50%")).status for _ in range(40)])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert 5 < runs[0].count(503) < 35


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_bad_fault_is_answered_with_the_grammar(http: aiohttp.ClientSession, path: str) -> None:
    async with await post(http, "m+explode:1", path=path) as response:
        body = await response.json()
    assert response.status == 400
    assert body["error"]["type"] == "invalid_request_error"
    assert "'explode:1'" in body["error"]["message"]
    assert "status:CODE" in body["error"]["message"]


async def test_request_is_recorded_byte_for_byte(provider: MockProvider, http: aiohttp.ClientSession) -> None:
    body = gzip.compress(b'{"model": "m", "a": 1.0e2}')
    target = "/v1/chat/completions?a[]=%5b&b=%C3%A9+x"
    request = raw_request(target, body, {"content-encoding": "gzip", "X-Odd": "caf\xc3"})
    answer = await VanishingClient(provider.url).vanish(request, after_bytes=12)
    assert answer.startswith(b"HTTP/1.1 200")
    assert (provider.last.target, provider.last.body) == (target, body)
    assert (b"X-Odd", "caf\xc3".encode()) in provider.last.raw_headers
    assert provider.last.header("x-odd") is not None


@pytest.mark.parametrize("is_stream", [False, True])
async def test_answers_are_compressed_on_request(provider: MockProvider, is_stream: bool) -> None:
    async with (
        aiohttp.ClientSession(provider.url, auto_decompress=False) as http,
        await post(http, "m", stream=is_stream, x_mock_gzip="1") as response,
    ):
        packed = await response.read()
        assert response.headers["content-encoding"] == "gzip"
    assert say(1)[0].encode() in zlib.decompress(packed, wbits=31)


async def test_a_gzipped_stream_can_be_read_event_by_event(http: aiohttp.ClientSession) -> None:
    async with await post(http, "m+stall:2", stream=True, x_mock_gzip="1") as response:
        received = b""
        async with asyncio.timeout(5):
            while tokens_in(received) < 2:
                received += await response.content.readany()


async def test_stats_are_served_and_do_not_count_themselves(
    provider: MockProvider, http: aiohttp.ClientSession
) -> None:
    await (await post(http, "a")).read()
    await (await post(http, "b", path="/chat/completions")).read()
    await (await http.get("/mock/stats")).read()
    async with http.get("/mock/stats") as response:
        stats = await response.json()
    assert stats["requests"] == 2
    assert stats["by_model"] == {"a": 1, "b": 1}
    assert stats["by_path"] == {"/v1/chat/completions": 1, "/chat/completions": 1}
    assert stats["open_connections"] == provider.stats().open_connections == 1
    assert (stats["in_flight"], stats["departures"]) == (0, [])
    assert stats["arrivals"] == [request.at for request in provider.seen]


@pytest.mark.parametrize(
    ("model", "is_stream", "tokens"),
    [
        ("m", False, 8),
        ("m", True, 8),
        ("m+cut:3", True, 3),
        ("m+cut:3", False, 8),
        ("m+status:503", False, 0),
        ("m+status:503", True, 0),
    ],
)
async def test_tokens_count_as_generated_even_if_they_arrive_in_vain(
    provider: MockProvider, http: aiohttp.ClientSession, model: str, is_stream: bool, tokens: int
) -> None:
    with contextlib.suppress(aiohttp.ClientPayloadError):
        await (await post(http, model, stream=is_stream)).read()
    await eventually(lambda: provider.stats().in_flight == 0)
    assert provider.stats().output_tokens == tokens


async def test_answer_is_generated_for_a_client_that_does_not_wait_for_it(
    provider: MockProvider, http: aiohttp.ClientSession
) -> None:
    for model in ("m+latency:1h", "m+latency:1h+status:503"):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await post(http, model)
    await eventually(lambda: provider.stats().in_flight == 0)
    assert provider.stats().output_tokens == 8


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/nowhere", b"{}", 404),
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", b'{"tools": 5}', 400),
    ],
)
async def test_a_bad_request_is_refused_in_the_dialect(
    http: aiohttp.ClientSession, path: str, body: bytes, status: int
) -> None:
    async with http.post(path, data=body) as response:
        assert response.status == status
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_a_body_of_megabytes_is_taken(http: aiohttp.ClientSession, provider: MockProvider) -> None:
    body = json.dumps({"model": "e", "input": "x" * 3_000_000}).encode()
    async with http.post("/v1/embeddings", data=io.BytesIO(body)) as response:
        assert response.status == 200
    assert provider.last.body == body


async def test_delayed_tokens_arrive_one_after_the_other() -> None:
    async with (
        MockProvider(tokens=3, token_delay_s=0.02) as provider,
        aiohttp.ClientSession(provider.url) as http,
    ):
        started_at = time.monotonic()
        async with await post(http, "m", stream=True) as response:
            assert b"role" in await response.content.readany()
            await response.read()
        assert time.monotonic() - started_at >= 0.06


async def test_stop_ends_held_connections_at_once_and_they_are_no_departures() -> None:
    provider = MockProvider()
    url = await provider.start()
    async with aiohttp.ClientSession(url) as http:
        held = asyncio.ensure_future(post(http, "m+silence"))
        await eventually(lambda: provider.stats().in_flight)
        with measured() as lag:
            started_at = time.monotonic()
            await provider.stop()
            assert time.monotonic() - started_at < 1 + lag.total_s
        with pytest.raises(aiohttp.ClientError):
            await held
        with pytest.raises(aiohttp.ClientConnectorError):
            await post(http, "m")
    assert provider.stats().departures == ()
    await provider.stop()


async def test_stop_does_not_wait_for_a_peer_that_does_not_read() -> None:
    provider = MockProvider(tokens=2_000_000)
    await provider.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(provider.url.rpartition(":")[2]), limit=1024)
    writer.write(raw_request("/v1/completions", b'{"model": "m"}'))
    head = await reader.readuntil(b"\r\n\r\n")
    await provider.stop()
    received = 0
    with contextlib.suppress(ConnectionResetError):
        while data := await reader.read(1 << 20):
            received += len(data)
    writer.close()
    length = re.search(rb"Content-Length: (\d+)", head)
    assert length is not None
    assert received < int(length[1])
