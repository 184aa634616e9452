"""The status API of stored calls: everything for the owner, nothing for other callers."""

from __future__ import annotations

import json

from llm_guard.outcome import Refusal
from llm_guard.proxy.cache.response_buffer import ResponseBuffer
from tests.fakes.clock import let_run
from tests.fakes.stored_calls import deferred_call
from tests.unit.deferred.world import BUSY, WRONG, world


async def test_call_that_waits_is_shown_with_its_state() -> None:
    async with world(rules={"deferred": {"deadline": "10m"}}) as it:
        it.provider.outcomes = [BUSY]
        kept = await it.new_deferred()
        await let_run()
        shown = await it.shown(kept.id)
        assert shown.status == 202
        said = json.loads(shown.body)
        assert (said["id"], said["status"], said["model"], said["attempts"]) == (kept.id, "queued", "gpt", 1)
        assert said["next_try_at"] == round(it.clock.wall() + 0.75, 3)
        assert said["last_failure"] == {"kind": "overloaded", "detail": "answered 503"}
        headers = dict(shown.headers)
        assert (headers["retry-after"], headers["x-llm-guard-state"]) == ("1", "queued")


async def test_call_that_is_being_sent_is_running() -> None:
    async with world() as it:
        it.provider.is_silent = True
        kept = await it.new_deferred()
        await let_run()
        shown = await it.shown(kept.id)
        assert (shown.status, json.loads(shown.body)["status"]) == (202, "running")


async def test_response_is_returned_unchanged_any_number_of_times() -> None:
    async with world() as it:
        kept = await it.new_deferred()
        await let_run()
        for _ in range(2):
            shown = await it.shown(kept.id)
            assert (shown.status, bytes(shown.body)) == (200, b'{"id":"good"}')
            headers = dict(shown.headers)
            assert headers["content-type"] == "application/json"
            assert (headers["x-llm-guard-attempts"], headers["x-llm-guard-deployment"]) == ("1", "one/gpt")
            assert headers["Content-Length"] == "13"
        assert (await it.shown(kept.id, method="HEAD")).body == b""


async def test_failed_call_is_an_error_in_its_own_dialect() -> None:
    async with world() as it:
        it.provider.outcomes = [WRONG]
        kept = await it.new_deferred()
        await let_run()
        shown = await it.shown(kept.id, dialect="anthropic")
        assert (shown.status, dict(shown.headers)["x-should-retry"]) == (502, "false")
        error = json.loads(shown.body)["error"]
        assert (error["code"], error["message"]) == (
            "upstream_invalid_request", "answered 400 (attempts: 1)",
        )  # fmt: skip


async def test_others_calls_are_as_if_they_had_never_been() -> None:
    async with world() as it:
        kept = await it.new_deferred()
        await let_run()
        answers = [
            await it.shown(kept.id, key_digest="other"),
            await it.shown(kept.id, client_key="app"),
            await it.shown("0" * 32),
            await it.shown(kept.id, method="DELETE", key_digest="other"),
        ]
        assert {(answer.status, bytes(answer.body)) for answer in answers} == {(404, bytes(answers[0].body))}
        assert kept.id in it.store.rows


async def test_clients_of_the_gateway_are_distinguished_by_name() -> None:
    async with world() as it:
        kept = await it.new_deferred(client_key="app")
        assert (await it.shown(kept.id, client_key="app", key_digest="another key of the same client")).status != 404
        assert (await it.shown(kept.id, client_key="other")).status == 404


async def test_waiting_call_can_be_cancelled() -> None:
    async with world() as it:
        it.provider.outcomes = [BUSY]
        kept = await it.new_deferred()
        await let_run()
        shown = await it.shown(kept.id, method="DELETE")
        assert (shown.status, json.loads(shown.body)["deleted"]) == (200, True)
        await it.pass_s(60)
        assert len(it.provider.asked) == 1
        assert (await it.shown(kept.id)).status == 404


async def test_call_that_is_being_sent_can_be_cancelled() -> None:
    async with world() as it:
        it.provider.is_silent = True
        kept = await it.new_deferred()
        await let_run()
        assert (await it.shown(kept.id, method="DELETE")).status == 200
        assert it.store.rows == {}
        await let_run()
        assert it.store.rows == {}
        assert it.gateway.running == 0
        assert it.deferred.counts.rounds == {("deferred", "cancelled"): 1}


async def test_call_can_be_cancelled_at_the_moment_of_its_start() -> None:
    async with world() as it:
        kept = deferred_call(due_at=0.0)
        it.store.rows[kept.id] = kept
        await it.deferred.runner._begin("deferred", 1)
        it.running.give_up(kept.id)
        await let_run()
        assert (it.store.rows, it.provider.asked, it.running.ids()) == ({}, [], [])


async def test_call_that_another_gateway_runs_can_be_cancelled_here() -> None:
    async with world() as it:
        it.deferred.leave()
        kept = await it.new_deferred()
        it.store.beside("two").begin(it.clock.wall(), 1, 10.0)
        assert (await it.shown(kept.id, method="DELETE")).status == 200
        assert (await it.shown(kept.id)).status == 404
        assert it.store.beside("two").extend([kept.id], it.clock.wall(), 10.0) == [kept.id]


async def test_unreadable_store_asks_for_a_retry() -> None:
    async with world() as it:
        kept = await it.new_deferred()
        it.store.problem = "disk I/O error"
        shown = await it.shown(kept.id)
        assert (shown.status, dict(shown.headers)["x-should-retry"], b"I/O" in shown.body) == (503, "true", False)


async def test_other_paths_and_methods_are_not_there() -> None:
    async with world() as it:
        kept = await it.new_deferred()
        for path, method in (
            ("/v1/llm-guard/calls/", "POST"),
            ("/v1/llm-guard/", "GET"),
            ("/v1/llm-guard/calls/x/", "GET"),
        ):
            shown = await it.shown(kept.id, method=method, path=path)
            assert (shown.status, json.loads(shown.body)["error"]["code"]) == (404, "unknown_path")


async def test_status_request_is_no_call_to_a_model() -> None:
    async with world() as it:
        call = it.call("/v1/llm-guard/calls/x", method="GET", route=None)
        recorder = it.gateway.recorder
        await it.intake.serve_status_api(call, ResponseBuffer().reply("GET"))
        recorder.end(call)
        assert dict(it.counters.models["other"].calls) == {}
        assert recorder.timelines.snapshot().calls == 0
        assert isinstance(call.refusal, Refusal)
