"""Idempotency: calls that may be sent again, calls that must not be, and what decides it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.chaos.forms import ANY_ANSWER, CHAT, MESSAGES, RESPONSES, Form, name_of
from tests.chaos.sinks import never_accepting, refusing
from tests.chaos.stand import config_of, facing, standing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import END, Close, Hold, Reset, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually

RETRY = {"max_attempts": 3}
OK = b'{"id": "made", "output": []}'
FORM = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}\r\n--x--\r\n'
MULTIPART = {"content-type": "multipart/form-data; boundary=x"}
STATE: list[dict[str, Any]] = [
    {"store": True}, {"background": True}, {"previous_response_id": "resp_1"}, {"conversation": {"id": "conv_1"}},
]  # fmt: skip
ONCE: list[tuple[str, bytes, dict[str, str]]] = [
    ("/v1/files", FORM, MULTIPART),
    ("/v1/batches", b'{"input_file_id": "f", "endpoint": "/v1/embeddings"}', {}),
    ("/v1/fine_tuning/jobs", b'{"model": "gpt", "training_file": "f"}', {}),
    ("/v1/messages/batches", b'{"requests": []}', {"anthropic-version": "2023-06-01"}),
    ("/v1/responses/resp_1/cancel", b"", {}),
    *(("/v1/responses", json.dumps({"model": "gpt", "input": "hi", **state}).encode(), {}) for state in STATE),
]
once = pytest.mark.parametrize(
    ("path", "body", "headers"), ONCE, ids=[path.removeprefix("/v1/") + str(n) for n, (path, _, _) in enumerate(ONCE)]
)
often = pytest.mark.parametrize("form", [CHAT, RESPONSES, MESSAGES], ids=name_of)
UNCLEAR: list[tuple[str, Sequence[Step]]] = [
    ("reset", [Reset()]),
    ("closed", [Close()]),
    ("silent", [Hold()]),
    ("500", [whole(500)]),
    ("504", [whole(504)]),
    ("cut", [whole(200, b"{", {"content-length": "9"}), Close()]),
]
unclear = pytest.mark.parametrize("script", [script for _, script in UNCLEAR], ids=[name for name, _ in UNCLEAR])
LIMITS = {"attempt": "200ms", "first_token": "200ms"}


def kind(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.headers["x-llm-guard-attempts"]


@once
@unclear
async def test_non_idempotent_call_is_sent_once_when_its_execution_is_unknown(
    path: str, body: bytes, headers: dict[str, str], script: Sequence[Step]
) -> None:
    async with facing(script, [whole(200, OK)], retry=RETRY, timeout=LIMITS) as (stand, provider):
        reply = await ask(stand.url, path, body, headers)
        assert reply.status >= 500
        assert reply.headers["x-should-retry"] == "false"
        assert len(provider.requests) == 1
        (call,) = await stand.calls()
        assert call["gave_up"] == "not idempotent: it may have been executed"


@once
async def test_non_idempotent_call_is_sent_once_on_a_kept_alive_connection_too(
    path: str, body: bytes, headers: dict[str, str]
) -> None:
    """On a reused connection a reset normally counts as a stale connection, and the request is sent again."""
    get = {**headers, "content-type": "application/json"}
    async with facing([whole(200, OK)], [Reset()], [whole(200, OK)], retry=RETRY) as (stand, provider):
        assert (await ask(stand.url, "/v1/files", headers=get, method="GET")).status == 200
        assert (await ask(stand.url, path, body, headers)).status == 502
        assert len(provider.requests) == 2
        assert [len(connection.requests) for connection in provider.connections] == [1, 1]


@once
@pytest.mark.parametrize("status", [429, 503])
async def test_call_that_changes_something_is_sent_again_after_a_refusal_at_the_door(
    path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    async with facing([whole(status)], [whole(200, OK)], retry=RETRY) as (stand, provider):
        assert kind(await ask(stand.url, path, body, headers)) == (200, "2")
        assert len(provider.requests) == 2


@once
async def test_call_that_changes_something_is_sent_again_after_a_refused_connection(
    path: str, body: bytes, headers: dict[str, str]
) -> None:
    with refusing() as (url, _):
        async with standing(config_of(url, retry=RETRY)) as stand:
            assert kind(await ask(stand.url, path, body, headers)) == (502, "3")


async def test_non_idempotent_call_is_sent_again_after_a_connection_that_was_never_made() -> None:
    with never_accepting() as url:
        async with standing(config_of(url, retry={"max_attempts": 2}, timeout={"connect": "100ms"})) as stand:
            assert kind(await ask(stand.url, "/v1/files", FORM, MULTIPART)) == (504, "2")
            assert stand.deployment("one").host.snapshot(time.monotonic()).failures == 2


async def test_upload_reaches_a_provider_that_comes_up_between_two_attempts() -> None:
    retry = {"max_attempts": 100, "base_delay": "50ms", "multiplier": 1}
    with refusing() as (url, held):
        async with standing(config_of(url, retry=retry)) as stand:
            asking = asyncio.create_task(ask(stand.url, "/v1/files", FORM, MULTIPART))
            await eventually(lambda: stand.deployment("one").host.snapshot(time.monotonic()).failures)
            async with ScriptedProvider([whole(200, OK)], sock=held) as provider:
                reply = await asking
            assert (reply.status, reply.body) == (200, OK)
            assert int(reply.headers["x-llm-guard-attempts"]) > 1
            assert len(provider.requests) == 1
            assert FORM in provider.requests[0]


@often
@unclear
async def test_model_call_is_sent_again_after_any_outcome_of_the_first(form: Form, script: Sequence[Step]) -> None:
    async with facing(script, form.ok, retry=RETRY, timeout=LIMITS) as (stand, provider):
        assert kind(await form.ask(stand.url)) == (200, "2")
        assert len(provider.requests) == 2


async def test_failed_stream_of_a_stored_response_is_not_started_twice() -> None:
    error = b'event: error\ndata: {"type":"error","code":"server_is_overloaded","message":"busy","param":null}\n\n'
    failing: list[Step] = [stream_head(), *map(chunk, RESPONSES.preamble), chunk(error), END]
    async with facing(failing, RESPONSES.good_stream, retry=RETRY) as (stand, provider):
        assert (await RESPONSES.ask(stand.url, stream=True, store=True)).status == 503
        assert len(provider.requests) == 1
    async with facing(failing, RESPONSES.good_stream, retry=RETRY) as (stand, provider):
        assert kind(await RESPONSES.ask(stand.url, stream=True)) == (200, "2")


async def test_stored_chat_completion_is_repeated_as_any_other() -> None:
    """`store` of a chat completion only writes a log; no later call continues from it."""
    async with facing([Reset()], CHAT.ok, retry=RETRY) as (stand, _):
        assert kind(await CHAT.ask(stand.url, store=True)) == (200, "2")


# server.idempotency


async def test_config_may_allow_and_forbid_repetition_by_path() -> None:
    server = {"idempotency": {"/v1/batches": True, "/v1/fine_tuning/*": True, "/v1/chat/completions": False}}
    for path, body, attempts in (("/v1/batches", b"{}", "2"), ("/v1/fine_tuning/jobs", b'{"model": "gpt"}', "2")):
        async with facing([Reset()], [whole(200, OK)], retry=RETRY, server=server) as (stand, _):
            assert kind(await ask(stand.url, path, body)) == (200, attempts)
    async with facing([Reset()], CHAT.ok, retry=RETRY, server=server) as (stand, provider):
        assert kind(await CHAT.ask(stand.url)) == (502, "1")
        assert len(provider.requests) == 1


async def test_path_with_an_upstream_name_is_judged_by_its_remainder() -> None:
    async with facing([Reset()], [whole(200, OK)], retry=RETRY, server={"idempotency": {"/v1/files": True}}) as (
        stand,
        _,
    ):
        assert kind(await ask(stand.url, "/upstreams/one/v1/files", FORM, MULTIPART)) == (200, "2")
    async with facing([Reset()], CHAT.ok, retry=RETRY) as (stand, _):
        assert kind(await ask(stand.url, "/upstreams/one/v1/batches", b"{}")) == (502, "1")


# calls that must go to the provider with their state


@pytest.mark.parametrize("state", STATE[2:])
async def test_call_that_continues_stored_state_goes_to_no_other_provider(state: dict[str, Any]) -> None:
    async with ScriptedProvider([whole(200, ANY_ANSWER)]) as other:
        upstreams = {"other": {"dialect": "openai", "base_url": f"{other.url}/v1"}}
        models = {"gpt": {"deployments": [{"upstream": "one"}, {"upstream": "other"}]}}
        async with facing([whole(503)], retry=RETRY, upstreams=upstreams, models=models) as (stand, provider):
            assert kind(await RESPONSES.ask(stand.url, **state)) == (503, "3")
            assert (len(provider.requests), len(other.requests)) == (3, 0)
            # The other deployment is tried first, because this one fails.
            assert kind(await RESPONSES.ask(stand.url, store=True)) == (200, "1")
            assert kind(await CHAT.ask(stand.url, conversation="a field of its own", store=True)) == (200, "1")


# retries by the client


async def test_clients_own_retry_brings_the_retry_budget_nothing() -> None:
    async with facing(CHAT.ok) as (stand, _):
        for count in ("0", "1", "2"):
            reply = await ask(stand.url, CHAT.path, CHAT.body(), {"X-Stainless-Retry-Count": count})
            assert reply.status == 200
        assert stand.deployment(CHAT.deployment).budget.snapshot(time.monotonic()).calls == 1
