"""Decides which deployments can serve a call, and prepares its request for each."""

from __future__ import annotations

import asyncio
import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from llm_guard.config import parse_config
from llm_guard.outcome import Failure, FailureKind, UpstreamErrorResponse
from llm_guard.proxy.call import Call
from llm_guard.proxy.identification import translate_or_refuse
from llm_guard.proxy.translation.attempt import LARGE_BYTES
from llm_guard.proxy.translation.call import TranslatedCall
from llm_guard.resilience.capacity.response_memory import ResponseMemory
from llm_guard.resilience.translation.settings import TranslateSettings
from llm_guard.routing.route_table import Route, Target, compile_routes

CONFIG = """
upstreams:
  openai: {{dialect: openai, base_url: "http://openai.test/v1"}}
  anthropic: {{dialect: anthropic, base_url: "http://anthropic.test", api_key: k}}
  local: {{dialect: anthropic, base_url: "http://local.test", auth: none}}
models:
  m:
    deployments:
      - {{upstream: openai}}
      - {{upstream: anthropic, model: claude-sonnet-4-5, max_tokens: 777}}
      - {{upstream: local, model: claude-x}}
    translate: {translate}
"""
SAID = [{"role": "user", "content": "hi"}]
AT = 1_700_000_000.0


def targets(translate: str = "{}") -> tuple[Target, ...]:
    route = compile_routes(parse_config(CONFIG.format(translate=translate), "f.yaml", {}), 0.0).find("m")
    assert route is not None
    return route.targets


def call_with(body: Any = None, **facts: Any) -> Call:
    is_raw = body is not None and not isinstance(body, dict)
    raw = body if is_raw else json.dumps({"model": "m", "messages": SAID, **(body or {})}).encode()
    known: dict[str, Any] = {"id": "lg-1", "dialect": "openai", "method": "POST", "path": "/v1/chat/completions",
                             "query": "", "headers": (), "started_at": 0.0, "body": raw, **facts}  # fmt: skip
    return Call(**known)


async def sent(call: Call, target: Target, settings: TranslateSettings | None = None) -> dict[str, Any]:
    """Returns the body that a target gets."""
    translation = TranslatedCall(call, settings or TranslateSettings(), ResponseMemory())
    assert await translation.prepare(target) is None
    attempt = translation.begin(target, AT)
    assert attempt is not None
    found: dict[str, Any] = json.loads((await attempt.request(target, None, None)).body)
    return found


async def test_target_of_the_calls_dialect_needs_nothing() -> None:
    openai, *_ = targets()
    call = call_with(b"this is never read")
    translation = TranslatedCall(call, TranslateSettings(), ResponseMemory())
    assert await translation.prepare(openai) is None
    assert translation.is_ready(openai)
    assert translation.begin(openai, AT) is None


CHAT_ONLY = """
upstreams:
  local: {dialect: openai, base_url: "http://local.test/v1", responses: chat}
  openai: {dialect: openai, base_url: "http://openai.test/v1"}
models:
  mixed: {deployments: [{upstream: local, model: qwen}, {upstream: openai}]}
  plain: {deployments: [{upstream: openai}]}
"""


def route_of(model: str) -> Route:
    found = compile_routes(parse_config(CHAT_ONLY, "f.yaml", {}), 0.0).find(model)
    assert found is not None
    return found


async def test_server_without_the_responses_api_gets_a_chat() -> None:
    local, openai = route_of("mixed").targets
    call = call_with(b'{"model": "mixed", "input": "hi"}', path="/v1/responses")
    body = await sent(call, local)
    assert (body["model"], body["messages"]) == ("qwen", [{"role": "user", "content": "hi"}])
    translation = TranslatedCall(call, TranslateSettings(), ResponseMemory())
    assert await translation.prepare(openai) is None
    assert translation.begin(openai, AT) is None
    chat = TranslatedCall(call_with(), TranslateSettings(), ResponseMemory())
    assert await chat.prepare(local) is None
    assert chat.begin(local, AT) is None


def test_route_with_such_a_server_has_no_dialect_of_its_own() -> None:
    assert (route_of("mixed").dialect, route_of("plain").dialect) == (None, "openai")


def test_calls_are_prepared_for_translation_only_if_a_target_needs_it() -> None:
    table = compile_routes(parse_config(CHAT_ONLY, "f.yaml", {}), 0.0)
    call = call_with()
    assert translate_or_refuse(call, route_of("mixed"), table) is None
    assert call.translation is None
    call = call_with(path="/v1/responses")
    assert translate_or_refuse(call, route_of("mixed"), table) is None
    assert call.translation is not None


def test_responses_are_refused_if_calls_are_not_translated() -> None:
    local, _ = route_of("mixed").targets
    call = call_with(path="/v1/responses")
    assert "has no Responses API" in str(TranslatedCall(call, None, ResponseMemory()).obstacle(local))
    assert TranslatedCall(call_with(), None, ResponseMemory()).obstacle(local) is None


async def test_request_is_written_for_each_target() -> None:
    _, anthropic, local = targets()
    call = call_with()
    assert (await sent(call, anthropic))["max_tokens"] == 777
    body = await sent(call, local, TranslateSettings(max_tokens=5))
    assert (body["model"], body["max_tokens"]) == ("claude-x", 5)


async def test_stream_is_requested_as_the_gateway_has_understood_it() -> None:
    _, anthropic, _ = targets()
    assert "stream" not in await sent(call_with({"stream": 1}), anthropic)
    assert (await sent(call_with(is_stream=True), anthropic))["stream"] is True


async def test_compressed_and_large_bodies_are_read() -> None:
    _, anthropic, _ = targets()
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * LARGE_BYTES}]}).encode()
    found = await sent(call_with(gzip.compress(body), content_encoding="gzip"), anthropic)
    assert len(found["messages"][0]["content"]) == LARGE_BYTES
    translation = TranslatedCall(call_with(body), TranslateSettings(), ResponseMemory())
    assert not translation.is_ready(anthropic)  # a hedge does not wait for it
    assert await translation.prepare(anthropic) is None
    assert translation.is_ready(anthropic)


async def test_small_request_is_ready_for_a_hedge_at_once() -> None:
    _, anthropic, _ = targets()
    assert TranslatedCall(call_with(), TranslateSettings(), ResponseMemory()).is_ready(anthropic)
    assert not TranslatedCall(call_with({"n": 2}), TranslateSettings(), ResponseMemory()).is_ready(anthropic)


async def test_upstream_of_another_dialect_without_a_key_is_no_target() -> None:
    openai, anthropic, local = targets()
    call = call_with({"max_tokens": 9}, dialect="anthropic", path="/v1/messages")
    translation = TranslatedCall(call, TranslateSettings(), ResponseMemory())
    assert "no API key of its own" in str(await translation.prepare(openai))
    assert await translation.prepare(anthropic) is None
    assert not translation.is_ready(openai)
    assert TranslatedCall(call_with(), TranslateSettings(), ResponseMemory()).obstacle(local) is None


@pytest.mark.parametrize(
    ("settings", "path"), [(None, "/v1/chat/completions"), (TranslateSettings(), "/v1/embeddings")]
)
async def test_other_endpoints_are_not_translated_and_none_is_where_that_is_off(
    settings: TranslateSettings | None, path: str
) -> None:
    openai, anthropic, _ = targets()
    translation = TranslatedCall(call_with(path=path), settings, ResponseMemory())
    assert translation.obstacle(openai) is None
    assert "is not translated" in str(await translation.prepare(anthropic))
    assert translation.refusal().code == "not_expressible"


@pytest.mark.parametrize(("drop", "lost", "why"), [
    ("hints", ("seed",), None), ("nothing", (), "cannot express seed"), (("n",), ("seed", "n"), None),
])  # fmt: skip
async def test_rule_decides_what_may_be_lost(drop: Any, lost: tuple[str, ...], why: str | None) -> None:
    _, anthropic, _ = targets()
    body: dict[str, Any] = {"seed": 1} if drop != ("n",) else {"seed": 1, "n": 2}
    translation = TranslatedCall(call_with(body), TranslateSettings(drop=drop), ResponseMemory())
    assert await translation.prepare(anthropic) == why
    attempt = translation.begin(anthropic, AT)
    assert (attempt.dropped if attempt is not None else ()) == lost


async def test_refusal_names_the_place_of_the_first_field() -> None:
    _, anthropic, _ = targets()
    audio = {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}
    translation = TranslatedCall(
        call_with({"messages": [{"role": "user", "content": [audio]}]}), TranslateSettings(), ResponseMemory()
    )
    assert await translation.prepare(anthropic) is not None
    refusal = translation.refusal()
    assert (refusal.status, refusal.by, refusal.param) == (400, "translation", "messages[0].content[0]")
    assert "anthropic/claude-sonnet-4-5: cannot express input_audio" in refusal.message


@pytest.mark.parametrize(("body", "param"), [
    ({"messages": 5}, "messages"), ({"messages": [{"role": "x"}]}, "messages[0].role"), (b"[]", None), (b"{", None),
    ({"temperature": "hot"}, "temperature"), ({"tools": [{"type": "function"}]}, "tools[0].function"),
])  # fmt: skip
async def test_invalid_request_is_the_clients_mistake(body: Any, param: str | None) -> None:
    _, anthropic, _ = targets()
    translation = TranslatedCall(call_with(body), TranslateSettings(), ResponseMemory())
    assert "cannot be translated" in str(await translation.prepare(anthropic))
    refusal = translation.refusal()
    assert (refusal.status, refusal.code, refusal.param) == (400, "invalid_request", param)


def refused(message: str, kind: FailureKind = FailureKind.UNTRANSLATED) -> Failure:
    body = json.dumps({"error": {"message": message}}).encode()
    return Failure(kind, "answered 400", answer=UpstreamErrorResponse(400, "", (), body))


LIMIT = "max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens for claude-x"


async def test_limit_is_learned_once_and_written_from_then_on() -> None:
    _, _, local = targets()
    translation = TranslatedCall(call_with(), TranslateSettings(), ResponseMemory())
    assert await translation.prepare(local) is None
    assert translation.learns_from(local, refused(LIMIT))
    assert not translation.learns_from(local, refused(LIMIT.replace("8192", "8191")))
    assert await translation.prepare(local) is None
    attempt = translation.begin(local, AT)
    assert attempt is not None
    assert json.loads((await attempt.request(local, None, None)).body)["max_tokens"] == 8192
    assert local.deployment.most_tokens == 8192


@pytest.mark.parametrize("failure", [
    refused("something else"), refused(LIMIT, FailureKind.INVALID_REQUEST),
    Failure(FailureKind.UNTRANSLATED, "no answer"),
])  # fmt: skip
async def test_other_failures_teach_nothing(failure: Failure) -> None:
    _, _, local = targets()
    assert not TranslatedCall(call_with(), TranslateSettings(), ResponseMemory()).learns_from(local, failure)


async def test_request_for_the_rest_of_a_stream_is_translated_too() -> None:
    _, anthropic, _ = targets()
    translation = TranslatedCall(call_with(), TranslateSettings(), ResponseMemory())
    await translation.prepare(anthropic)
    attempt = translation.begin(anthropic, AT)
    assert attempt is not None
    resumed = {"model": "m", "messages": [*SAID, {"role": "assistant", "content": "Once upon "}]}
    found = json.loads((await attempt.request(anthropic, None, json.dumps(resumed).encode())).body)
    assert found["messages"][-1] == {"role": "assistant", "content": "Once upon"}


class NotingExecutor(ThreadPoolExecutor):
    """Notes the methods that are called in its threads."""

    def __init__(self, noted: list[str]) -> None:
        super().__init__(1)
        self._noted = noted

    def submit(self, act: Any, /, *args: Any, **named: Any) -> Any:
        self._noted.append(act.func.__name__)
        return super().submit(act, *args, **named)


class BodyInFile:
    """A body of this size that is not in memory."""

    def __init__(self, body: bytes, size: int | None = None) -> None:
        self._body = body
        self.size = size or len(body)

    def blocks(self) -> Any:
        yield from (self._body[at : at + 1000] for at in range(0, len(self._body), 1000))


async def test_large_requests_share_a_bound_of_memory_until_the_end_of_each_call() -> None:
    _, anthropic, _ = targets()
    body = BodyInFile(json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 5000}]}).encode())
    memory = ResponseMemory(4 * len(body._body))
    one, two = (TranslatedCall(call_with(body=body), TranslateSettings(), memory) for _ in range(2))
    assert await one.prepare(anthropic) is None
    assert "too many large requests" in str(await two.prepare(anthropic))
    refusal = two.refusal()
    assert (refusal.status, refusal.code, refusal.should_retry) == (503, "translation_busy", True)
    one.close()
    assert memory.taken_bytes == 0
    assert await two.prepare(anthropic) is None


async def test_compressed_request_counts_with_its_size_once_it_is_inflated() -> None:
    _, anthropic, _ = targets()
    plain = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * LARGE_BYTES}]}).encode()
    memory, threads = ResponseMemory(4 * len(plain)), list[str]()
    asyncio.get_running_loop().set_default_executor(NotingExecutor(threads))
    facts: Any = {"body": BodyInFile(gzip.compress(plain)), "content_encoding": "gzip", "inflated_bytes": len(plain)}
    one = TranslatedCall(call_with(**facts), TranslateSettings(), memory)
    assert await one.prepare(anthropic) is None
    assert memory.taken_bytes == 3 * len(plain)
    assert threads == ["_read", "_prepare"]  # not in the event loop
    one.close()


@pytest.mark.parametrize(("body", "facts", "why"), [
    (BodyInFile(b"{}", 33 << 20), {}, "larger than 32 MiB"),
    (BodyInFile(b"{}"), {"content_encoding": "gzip", "inflated_bytes": 33 << 20}, "larger than 32 MiB"),
    (b"no gzip", {"content_encoding": "gzip"}, "not valid gzip"),
    (b"{}", {"content_encoding": "br"}, "content-encoding"),
])  # fmt: skip
async def test_request_that_cannot_be_read_is_left_to_deployments_of_its_dialect(
    body: Any, facts: Any, why: str
) -> None:
    openai, anthropic, _ = targets()
    translation = TranslatedCall(call_with(body=body, **facts), TranslateSettings(), ResponseMemory())
    assert why in str(await translation.prepare(anthropic))
    assert await translation.prepare(openai) is None
    assert not translation.is_ready(anthropic)
    assert translation.refusal().status == 400


async def test_refusal_does_not_repeat_all_that_a_client_has_written() -> None:
    _, anthropic, _ = targets()
    fields = {f"{'x' * 500}{index}": 1 for index in range(100)}
    translation = TranslatedCall(call_with(fields), TranslateSettings(), ResponseMemory())
    why = str(await translation.prepare(anthropic))
    assert why.endswith(" and 95 more")
    assert len(translation.refusal().message) < 700


async def test_part_with_an_unexpected_form_is_the_clients_mistake() -> None:
    _, anthropic, _ = targets()
    tool = {"type": "function", "function": {"name": "f", "parameters": {"anyOf": [{"properties": [5]}]}}}
    translation = TranslatedCall(call_with({"tools": [tool]}), TranslateSettings(), ResponseMemory())
    assert "unexpected form" in str(await translation.prepare(anthropic))
    assert translation.refusal().code == "invalid_request"
