"""Deferred calls: accepted at once or after a failure, retried until they succeed, and fetched by their owner."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from aiohttp import web

from llm_guard.webhooks.signature import signature
from tests.chaos.forms import CHAT, MESSAGES, STREAMS, Form, name_of
from tests.chaos.stand import standing
from tests.chaos.wire import ask
from tests.fakes.provider import Hold, Reset, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually
from tests.integration.calls_on_disk import (
    ASYNC,
    DEAD_LETTER,
    OWN_KEY,
    config_with_store,
    defer,
    on_disk,
    outcome,
    running_with_store,
    shown,
)
from tests.tokens import BEARER

BUSY = (whole(503, b'{"error":{"message":"busy"}}'),)
KEY = {"authorization": "Bearer sk-canary-of-the-caller"}
CANARY = "canary"


async def test_call_is_deferred_at_once_and_answered_as_the_provider_did(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", CHAT.ok) as (stand, provider):
        kept_id = await defer(stand)
        reply = await outcome(stand, kept_id)
        assert (reply.status, reply.body) == (200, CHAT.answer)
        assert (reply.headers["content-type"], reply.headers["x-llm-guard-state"]) == ("application/json", "answered")
        assert (await shown(stand, kept_id)).body == CHAT.answer
        (request,) = provider.requests
        assert f"idempotency-key: {kept_id}".encode() in request
        assert OWN_KEY.encode() in request
        assert b"x-llm-guard" not in request


@pytest.mark.parametrize("form", STREAMS, ids=name_of)
async def test_stream_is_stored_whole_and_returned_as_a_stream(tmp_path: Path, form: Form) -> None:
    async with running_with_store(tmp_path / "s", form.good_stream) as (stand, _):
        reply = await outcome(stand, await defer(stand, form, stream=True))
        assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
        assert reply.body == form.stream_bytes


async def test_stream_that_dies_is_requested_again(tmp_path: Path) -> None:
    dying: list[Step] = [stream_head(), *map(chunk, CHAT.preamble), chunk(CHAT.token), Reset()]
    async with running_with_store(tmp_path / "s", dying, CHAT.good_stream) as (stand, provider):
        reply = await outcome(stand, await defer(stand, stream=True))
        assert (reply.body, len(provider.requests)) == (CHAT.stream_bytes, 2)


async def test_failed_call_is_deferred_where_its_route_allows_it(tmp_path: Path) -> None:
    rules = {"deferred": {"mode": "on_failure"}}
    async with running_with_store(tmp_path / "s", BUSY, CHAT.ok, rules=rules) as (stand, provider):
        kept_id = await defer(stand, headers={})
        waiting = (await shown(stand, kept_id)).json
        assert (waiting["status"], waiting["last_failure"]["kind"]) == ("queued", "overloaded")
        reply = await outcome(stand, kept_id)
        assert (reply.status, len(provider.requests), reply.headers["x-llm-guard-attempts"]) == (200, 2, "2")
        (line,) = [call for call in await stand.calls() if call.get("deferred_id") and "background_purpose" not in call]
        assert (line["status"], line["outcome"], line["deferred_id"]) == (202, "overloaded", kept_id)


async def test_route_may_deferred_call_every_call_an_answer(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", CHAT.ok, rules={"deferred": {"mode": "always"}}) as (stand, _):
        assert (await outcome(stand, await defer(stand, headers={}))).status == 200


async def test_route_may_refuse_deferred_calls(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", CHAT.ok, rules={"deferred": {"mode": "off"}}) as (stand, _):
        reply = await ask(stand.url, CHAT.path, CHAT.body(), ASYNC)
        assert (reply.status, reply.body) == (200, CHAT.answer)
        assert not (tmp_path / "s").exists()


async def test_unknown_value_of_the_header_is_refused(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", CHAT.ok) as (stand, provider):
        reply = await ask(stand.url, CHAT.path, CHAT.body(), {"x-llm-guard-async": "yes"})
        assert (reply.status, CHAT.error_of(reply)["code"]) == (400, "invalid_async")
        assert (await ask(stand.url, CHAT.path, CHAT.body(), {"x-llm-guard-async": "False"})).status == 200
        assert len(provider.requests) == 1


async def test_only_requests_to_a_model_are_deferred(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", (whole(200, b'{"data":[]}'),)) as (stand, _):
        assert (await ask(stand.url, "/v1/files", headers=ASYNC, method="GET")).status == 200


async def test_failed_call_is_reported_in_its_dialect(tmp_path: Path) -> None:
    wrong = (whole(400, b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}'),)
    async with running_with_store(tmp_path / "s", wrong) as (stand, _):
        reply = await outcome(stand, await defer(stand, MESSAGES))
        assert (reply.status, reply.headers["x-should-retry"]) == (400, "false")
        assert "(attempts: 1)" in MESSAGES.error_of(reply)["message"]


async def test_only_its_owner_sees_it(tmp_path: Path) -> None:
    clients = [{"name": "a", "key": "key-a"}, {"name": "b", "key": "key-b"}]
    async with running_with_store(tmp_path / "s", CHAT.ok, server={"client_keys": clients}) as (stand, provider):
        mine, others = {"authorization": "Bearer key-a"}, {"authorization": "Bearer key-b"}
        kept_id = await defer(stand, headers={**ASYNC, **mine})
        assert (await outcome(stand, kept_id, {"x-api-key": "key-a"})).status == 200
        never_was = await shown(stand, "0" * 32, others)
        theirs = await shown(stand, kept_id, others)
        assert (
            (theirs.status, theirs.json["error"]["code"]) == (never_was.status, "unknown_call") == (404, "unknown_call")
        )
        assert theirs.json["error"] == never_was.json["error"]
        assert (await shown(stand, kept_id)).status == 401
        assert b"key-a" not in provider.requests[0]


async def test_callers_key_is_used_and_never_on_the_disk(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    headers = {**ASYNC, **KEY, "cookie": "session=canary", "x-custom": "canary", "openai-organization": "canary"}
    async with running_with_store(folder, BUSY, CHAT.ok, one={}) as (stand, provider):
        kept_id = await defer(stand, headers=headers)
        await outcome(stand, kept_id, KEY)
        assert [CANARY.encode() in request for request in provider.requests] == [True, True]
        assert b"session=" not in provider.requests[1]
        assert CANARY.encode() not in on_disk(folder)
        assert CANARY not in json.dumps(stand.log, default=str)


async def test_deferred_call_survives_a_restart_and_so_does_its_answer(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    async with ScriptedProvider((Hold(),), CHAT.ok) as provider:
        config = config_with_store(provider.url, folder, server={"drain": "100ms"})
        async with standing(config) as stand:
            kept_id = await defer(stand)
            await eventually(lambda: provider.requests)
        async with standing(config) as stand:
            assert (await outcome(stand, kept_id)).body == CHAT.answer
        async with standing(config) as stand:
            assert (await shown(stand, kept_id)).body == CHAT.answer
            await asyncio.sleep(0.05)
        assert len(provider.requests) == 2


async def test_key_lost_with_its_process_ends_the_call_with_a_remedy(tmp_path: Path) -> None:
    refused = (whole(401, b'{"error":{"message":"You did not provide an API key."}}'),)
    async with ScriptedProvider((Hold(),), refused) as provider:
        config = config_with_store(provider.url, tmp_path / "s", server={"drain": "100ms"}, one={})
        async with standing(config) as stand:
            kept_id = await defer(stand, headers={**ASYNC, **KEY})
            await eventually(lambda: provider.requests)
        async with standing(config) as stand:
            reply = await outcome(stand, kept_id, KEY)
            assert (reply.status, "set the upstream's api_key" in reply.text) == (401, True)
            assert CANARY.encode() not in provider.requests[1]


async def test_shutdown_waits_no_longer_for_background_calls_than_for_clients(tmp_path: Path) -> None:
    async with ScriptedProvider((Hold(),)) as provider:
        async with asyncio.timeout(3):
            async with standing(config_with_store(provider.url, tmp_path / "s", server={"drain": "100ms"})) as stand:
                await defer(stand)
                await eventually(lambda: provider.requests)
        assert await provider.closed_within(1)


async def test_running_call_can_be_cancelled(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", (Hold(),)) as (stand, provider):
        kept_id = await defer(stand)
        await eventually(lambda: provider.requests)
        assert (await shown(stand, kept_id)).json["status"] == "running"
        assert (await shown(stand, kept_id, method="DELETE")).status == 200
        assert await provider.closed_within(1)
        await stand.idle()
        await eventually(lambda: not stand.app.deferred.runner._running.ids())
        assert (await shown(stand, kept_id)).status == 404


async def test_calls_above_the_limit_get_retry_after(tmp_path: Path) -> None:
    store = {"deferred": {"max_pending": 2}}
    async with running_with_store(tmp_path / "s", (Hold(),), store=store, server={"drain": "100ms"}) as (stand, _):
        for _ in range(2):
            await defer(stand)
        reply = await ask(stand.url, CHAT.path, CHAT.body(), ASYNC)
        assert (reply.status, reply.headers["x-llm-guard-refused-by"]) == (503, "limit")
        assert (reply.headers["x-should-retry"], reply.headers["retry-after"]) == ("true", "10")


async def test_disk_that_cannot_be_written_refuses_deferred_calls_and_serves_all_else(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("no folder")
    async with running_with_store(tmp_path / "s", CHAT.ok) as (stand, _):
        reply = await ask(stand.url, CHAT.path, CHAT.body(), ASYNC)
        assert (reply.status, CHAT.error_of(reply)["code"]) == (503, "deferral_failed")
        assert (await CHAT.ask(stand.url)).status == 200
        assert (await shown(stand, "0" * 32)).status in (404, 503)


async def test_webhook_is_sent_when_the_call_is_over(tmp_path: Path) -> None:
    got: list[tuple[dict[str, str], bytes]] = []

    async def take(request: web.BaseRequest) -> web.Response:
        got.append((dict(request.headers), await request.read()))
        return web.Response(status=500 if len(got) == 1 else 204)

    server = await asyncio.get_running_loop().create_server(web.Server(take), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    store = {"webhooks": [{"name": "team", "url": url, "secret": "s3cret"}]}
    try:
        async with running_with_store(
            tmp_path / "s", CHAT.ok, store=store, rules={"deferred": {"webhook": "team"}}
        ) as (
            stand,
            _,
        ):
            kept_id = await defer(stand)
            await eventually(lambda: stand.app.deferred.counts.webhook_requests["team", "failed"] == 1)
            stand.app.deferred.adopt(stand.app.config)  # otherwise it is retried only after two seconds
            await eventually(lambda: len(got) == 2)
            headers, content = got[1]
            said = json.loads(content)
            assert (said["id"], said["status"], said["http_status"]) == (kept_id, "answered", 200)
            sent = headers["x-llm-guard-signature"]
            found = re.match(r"t=(\d+),", sent)
            assert found
            assert sent == signature("s3cret", content, int(found[1]))
            assert await stand.metric("llm_guard_completion_webhooks_total", webhook="team", outcome="delivered") == 1
    finally:
        server.close()


async def test_events_of_deferred_calls_are_counted_and_published(tmp_path: Path) -> None:
    async with running_with_store(tmp_path / "s", BUSY, CHAT.ok) as (stand, _):
        await outcome(stand, await defer(stand))
        assert await stand.metric("llm_guard_deferred_calls_accepted_total", model="gpt") == 1
        assert await stand.metric("llm_guard_deferred_executions_total", purpose="deferred", outcome="retry") == 1
        assert await stand.metric("llm_guard_deferred_executions_total", purpose="deferred", outcome="answered") == 1
        assert await stand.metric("llm_guard_attempts_total", deployment="one/gpt") == 2
        assert await stand.metric("llm_guard_calls_total") == 1
        await stand.app.deferred._upkeep._look()  # normally runs every few seconds
        assert await stand.metric("llm_guard_stored_calls", purpose="deferred", state="answered") == 1
        events = [event.facts for event in stand.app.ops.journal.since(0)[0] if event.kind == "deferred"]
        assert [event["event"] for event in events] == ["accepted", "answered"]
        purposes = [line["background_purpose"] for line in stand.log if "background_purpose" in line]
        assert purposes.count("deferred") == 2


async def test_dead_deferred_call_can_be_requeued_and_then_has_its_response(tmp_path: Path) -> None:
    wrong = (whole(400, b'{"error":{"message":"no"}}'),)
    async with running_with_store(tmp_path / "s", wrong, CHAT.ok) as (stand, _):
        kept_id = await defer(stand, headers={**ASYNC, **DEAD_LETTER})
        assert (await outcome(stand, kept_id)).status == 400
        body = json.dumps({"ids": [kept_id], "reason": "it was ours"}).encode()
        headers = {"host": "localhost", **BEARER}
        assert (await ask(stand.url, "/admin/dead-letters/requeue", body, headers)).status == 200
        assert (await outcome(stand, kept_id)).body == CHAT.answer
