"""The load generator against the mock, and against bytes that only a scripted provider sends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from llm_guard.mock.content import say
from llm_guard.mock.load import LoadPlan, closed_loop, run_calls, run_load
from llm_guard.mock.provider import MockProvider
from tests.chaos.lag import measured
from tests.fakes.provider import END, Close, ScriptedProvider, chunk, stream_head, whole
from tests.fakes.waiting import eventually


@pytest.fixture
async def provider() -> AsyncIterator[MockProvider]:
    async with MockProvider() as provider:
        yield provider


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "unary", "streamed"),
    [
        ("", "ok", "ok"),
        ("+status:503", "http_503", "http_503"),
        ("+reset", "disconnected", "disconnected"),
        ("+close", "disconnected", "disconnected"),
        ("+cut:2", "truncated", "truncated"),
        ("+truncated", "malformed", "truncated"),
        ("+malformed:2", "malformed", "malformed"),
        ("+error:2", "error_event", "error_event"),
        ("+stall:2", "timeout", "timeout"),
    ],
)
async def test_outcomes_are_distinguished(
    provider: MockProvider, dialect: Any, stream: bool, fault: str, unary: str, streamed: str
) -> None:
    result = await closed_loop(
        provider.url, 1, 1, model=f"m{fault}", stream=stream, dialect=dialect,
        timeout_s=0.2 if "stall" in fault else 10,
    )  # fmt: skip
    assert result.outcomes == {streamed if stream else unary: 1}
    assert result.success_share == (0.0 if fault else 1.0)
    assert (result.first_token.count == 1) == (stream and fault not in ("+status:503", "+reset", "+close"))


async def test_arrivals_do_not_wait_for_a_slow_server(provider: MockProvider) -> None:
    most = 0

    def watch(_ended: int, _planned: int) -> None:
        nonlocal most
        most = max(most, provider.stats().open_connections)

    plan = LoadPlan(f"{provider.url}/v1", ("m+latency:300ms",), rate_per_s=200, calls=20)
    result = await run_load(plan, watch)
    assert result.outcomes == {"ok": 20}
    assert most >= 15, "one after the other they would share one connection"
    assert result.latency.p50 >= 0.3


async def test_sender_that_cannot_keep_up_says_so(provider: MockProvider) -> None:
    def block(ended: int, _planned: int) -> None:
        if ended == 3:
            time.sleep(0.3)  # what else runs in this process

    plan = LoadPlan(provider.url, ("m",), rate_per_s=100.0, calls=20)
    kept_up, blocked = await run_load(plan), await run_load(plan, block)
    assert blocked.sent_late_s > 0.2
    assert kept_up.sent_late_s < blocked.sent_late_s


async def test_a_call_above_the_cap_is_not_sent_and_counts_as_a_failure(provider: MockProvider) -> None:
    plan = LoadPlan(provider.url, ("m+silence",), rate_per_s=1000, calls=10, concurrency=2, timeout_s=0.3)
    result = await run_load(plan)
    assert result.outcomes == {"not_sent": 8, "timeout": 2}
    assert result.success_share == 0.0


async def test_models_are_drawn_by_the_seed_and_headers_sent(provider: MockProvider) -> None:
    asked = []
    for seed in (1, 1, 2):
        provider.seen.clear()
        plan = LoadPlan(
            provider.url,
            ("a", "b"),
            rate_per_s=500,
            calls=20,
            seed=seed,
            dialect="anthropic",
            headers={"x-mine": "1"},
        )
        result = await run_load(plan)
        assert result.ok == 20
        assert provider.last.header("x-mine") == "1"
        assert provider.last.target == "/v1/messages"
        asked.append(sorted(seen.model for seen in provider.seen))
    assert asked[0] == asked[1]
    assert set(asked[0]) == {"a", "b"}


async def test_progress_shows_ended_and_planned(provider: MockProvider) -> None:
    told: list[tuple[int, int]] = []
    await closed_loop(provider.url, 2, 4, progress=lambda ended, planned: told.append((ended, planned)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert provider.stats().requests == 4


async def test_refused_connection_is_distinguished_from_a_lost_one() -> None:
    async with MockProvider() as gone:
        url = gone.url
    assert (await closed_loop(url, 1, 1)).outcomes == {"connect": 1}


@pytest.mark.parametrize(
    ("steps", "outcome"),
    [
        ([whole(200, b"[]")], "malformed"),
        ([whole(200, b"{}")], "malformed"),
        ([stream_head(), chunk(b'data: {"choices":[]}\n\n'), END], "truncated"),
        ([stream_head(), chunk(b"data: [DO"), chunk(b"NE]\n\n"), END], "ok"),
        ([stream_head(), chunk(b": ping\n\n"), chunk(b"data: [DONE]\n\ndata: {"), END], "truncated"),
        ([stream_head(), chunk(b"data: [DONE]\n\n"), Close()], "truncated"),
    ],
)
async def test_success_needs_a_whole_body_and_the_terminal_event(steps: Any, outcome: str) -> None:
    async with ScriptedProvider(steps) as scripted:
        stream = len(steps) > 1
        assert (await closed_loop(scripted.url, 1, 1, stream=stream)).outcomes == {outcome: 1}


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_stream_must_contain_the_whole_text(provider: MockProvider, dialect: Any) -> None:
    async def load(model: str, text: str) -> Any:
        result = await closed_loop(provider.url, 1, 1, model=model, stream=True, dialect=dialect, text=text)
        return result.outcomes

    text = "".join(say(8))
    assert await load("m", text) == {"ok": 1}
    assert await load("m+another", text) == {"wrong_text": 1}
    assert await load("m", text + "more ") == {"wrong_text": 1}
    assert await load("m+cut:2", text) == {"truncated": 1}
    assert await load("m+error:2", text) == {"error_event": 1}


async def test_tool_call_has_a_first_token_and_no_text() -> None:
    delta = b'{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{}"}}'
    steps = [stream_head(), chunk(b"data: " + delta + b'\n\ndata: {"type":"message_stop"}\n\n'), END]
    async with ScriptedProvider(steps) as scripted:
        result = await closed_loop(scripted.url, 1, 1, stream=True, dialect="anthropic", text="")
    assert (result.outcomes, result.first_token.count) == ({"ok": 1}, 1)


@pytest.mark.parametrize(
    ("words", "outcome"), [("abc", "ok"), ("abbc", "wrong_text"), ("ac", "wrong_text"), ("aBc", "wrong_text")]
)
async def test_lost_repeated_and_altered_words_are_found_at_the_end(words: str, outcome: str) -> None:
    events = [chunk(f'data: {{"choices":[{{"delta":{{"content":"{word}"}}}}]}}\n\n'.encode()) for word in words]
    steps = [stream_head(), *events, chunk(b"data: [DONE]\n\n"), END]
    async with ScriptedProvider(steps) as scripted:
        plan = LoadPlan(scripted.url, ("m",), rate_per_s=1, calls=1, stream=True, text="abc", retries=2)
        [ended] = await run_calls(plan)
    assert (ended.outcome, ended.requests) == (outcome, 1)


async def test_cancelled_load_leaves_no_call(provider: MockProvider) -> None:
    plan = LoadPlan(provider.url, ("m+silence",), rate_per_s=100, calls=100)
    running = asyncio.ensure_future(run_load(plan))
    await eventually(lambda: provider.stats().in_flight >= 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: provider.stats().in_flight == 0)


def once(provider: MockProvider, model: str, **more: Any) -> LoadPlan:
    return LoadPlan(provider.url, (model,), rate_per_s=1, calls=1, **more)


@pytest.mark.parametrize(
    ("model", "requests", "outcome"),
    [
        ("m+status:503:0.01", 3, "http_503"),
        ("m+status:400", 1, "http_400"),
        ("m+status:503:121", 1, "http_503"),
        ("m", 1, "ok"),
    ],
)
async def test_client_with_retries_sends_as_often_as_an_sdk(
    provider: MockProvider, model: str, requests: int, outcome: str
) -> None:
    [ended] = await run_calls(once(provider, model, retries=2))
    assert (ended.outcome, ended.requests, provider.stats().requests) == (outcome, requests, requests)


async def test_client_without_retries_sends_once_and_reports_retry_after(provider: MockProvider) -> None:
    [ended] = await run_calls(once(provider, "m+status:503:0.01"))
    assert (ended.requests, ended.retry_after_s, ended.refused_by) == (1, 0.01, None)


@pytest.mark.parametrize(
    ("fault", "stream", "requests"),
    [("reset", False, 2), ("reset", True, 2), ("cut:0", False, 2), ("cut:0", True, 1), ("truncated", False, 1)],
)
async def test_broken_response_is_requested_again_unless_its_stream_had_begun(
    provider: MockProvider, fault: str, stream: bool, requests: int
) -> None:
    [ended] = await run_calls(once(provider, f"m+{fault}", stream=stream, retries=1))
    assert ended.requests == provider.stats().requests == requests


async def test_a_retry_can_save_the_call_and_its_time_counts(provider: MockProvider) -> None:
    provider.switch("m", "status:503:0.2")
    running = asyncio.ensure_future(run_calls(once(provider, "m", retries=1)))
    await eventually(lambda: provider.stats().requests == 1)
    provider.switch("m", "")
    [ended] = await running
    assert (ended.outcome, ended.requests) == ("ok", 2)
    assert ended.latency_s >= 0.2
    assert ended.due_at == pytest.approx(ended.ended_at - ended.latency_s)


async def test_each_request_has_the_whole_timeout(provider: MockProvider) -> None:
    plan = once(provider, "m+silence", patience_s=0.3, timeout_s=0.2)
    with measured() as lag:
        [ended] = await run_calls(plan)
        assert (ended.outcome, ended.requests) == ("timeout", 1)
        assert ended.latency_s < 0.4 + lag.total_s


async def test_persistent_client_retries_after_every_refusal(provider: MockProvider) -> None:
    provider.switch("m", "status:503:0.02")
    running = asyncio.ensure_future(run_calls(once(provider, "m", patience_s=5.0)))
    await eventually(lambda: provider.stats().requests >= 5)
    provider.switch("m", "")
    assert [ended.outcome for ended in await running] == ["ok"]


async def test_a_refusal_names_the_gateway_that_refused() -> None:
    headers = {"x-llm-guard-refused-by": "breaker", "retry-after-ms": "1500", "retry-after": "2"}
    steps = [whole(503, b"{}", headers)]
    async with ScriptedProvider(steps) as scripted:
        [ended] = await run_calls(LoadPlan(scripted.url, ("m",), rate_per_s=1, calls=1))
    assert (ended.refused_by, ended.retry_after_s) == ("breaker", 1.5)
