"""Diagnosis of calls: recorded calls, running calls, and the explanation of a call that is not made."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llm_guard.cli.main import main
from llm_guard.config import parse_config
from tests.chaos.forms import CHAT, MESSAGES
from tests.chaos.stand import Stand, facing, standing
from tests.chaos.wire import Connection, Reply, ask
from tests.fakes.provider import END, Hold, Pause, Respond, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually
from tests.tokens import BEARER, SHARED

BUSY = (whole(503, b'{"error":{"message":"The server is currently overloaded"}}'),)
RETRY = {"max_attempts": 2}
HERE = {"host": "localhost", **BEARER}
"""Headers of an operator's requests."""


async def get(stand: Stand, path: str) -> Any:
    reply = await ask(stand.url, path, b"", HERE, "GET")
    assert reply.status == 200, reply.text
    return reply.json


async def explain(stand: Stand, **body: object) -> Reply:
    return await ask(stand.url, "/admin/explain", json.dumps(body).encode(), HERE)


async def command(stand: Stand, *arguments: str, env: Mapping[str, str] | None = None) -> Result:
    env = {"LLM_GUARD_OPS_TOKEN": SHARED} if env is None else env
    return await asyncio.to_thread(
        CliRunner().invoke, main, ["explain", "--url", stand.url, *arguments], env=env
    )  # fmt: skip


# recorded calls


async def test_retried_call_is_shown_attempt_by_attempt() -> None:
    async with facing(BUSY, CHAT.ok, retry=RETRY) as (stand, _):
        reply = await CHAT.ask(stand.url)
        await stand.idle()
        call = await get(stand, f"/admin/calls/{reply.headers['x-llm-guard-request-id']}")
        first, second = call["attempts"]
        assert (call["outcome"], call["status"], call["model"], call["route"]) == ("ok", 200, "gpt", "gpt")
        assert (first["outcome"], first["deployment"]) == ("overloaded", "one/gpt")
        assert "answered 503" in first["reason"]
        assert first["next_step"].startswith("retry after")
        assert (second["outcome"], second["waited_for"]) == ("ok", "backoff")
        began_s = second["started_s"] - second["waited_s"]
        assert first["started_s"] + first["duration_s"] <= began_s + 0.001
        assert second["started_s"] + second["duration_s"] <= call["duration_s"] + 0.0002


async def test_stored_lines_are_those_of_the_log() -> None:
    async with facing(CHAT.ok, BUSY) as (stand, _):
        await CHAT.ask(stand.url)
        await CHAT.ask(stand.url)
        logged = await stand.calls()
        kept = (await get(stand, "/admin/calls"))["calls"]
        for line, entry in zip(reversed(logged), kept, strict=True):
            assert {key: entry[key] for key in entry if key not in ("level", "timestamp")} == {
                key: value for key, value in line.items() if key != "log_level"
            }


async def test_list_is_newest_first_and_filtered() -> None:
    async with facing(CHAT.ok, BUSY, MESSAGES.ok, CHAT.ok) as (stand, _):
        replies = [await form.ask(stand.url) for form in (CHAT, CHAT, MESSAGES, CHAT)]
        ids = [reply.headers["x-llm-guard-request-id"] for reply in replies]
        await ask(stand.url, CHAT.path, b'{"model":"nobody"}')
        await stand.idle()

        async def listed(query: str) -> list[int]:
            found = (await get(stand, f"/admin/calls?{query}"))["calls"]
            return [ids.index(each["request_id"]) if each["request_id"] in ids else -1 for each in found]

        assert await listed("") == [-1, 3, 2, 1, 0]
        assert await listed("limit=2") == [-1, 3]
        assert await listed("failed=true") == [1]
        assert await listed("model=gpt") == [3, 1, 0]
        assert await listed("model=nobody") == [-1]
        assert await listed("deployment=two%2Fclaude") == [2]
        assert await listed("model=gpt&deployment=two%2Fclaude") == []
        assert await listed("model=%22%2C%22route%22") == []
        whole_list = await get(stand, "/admin/calls")
        assert (whole_list["retained"], whole_list["retained_failed"], whole_list["running"]) == (5, 1, 0)


async def test_flood_of_unauthorised_calls_leaves_the_failed_ones_in_place() -> None:
    server = {"client_keys": [{"name": "app", "key": "right-key"}]}
    ops = {"recent_calls": {"calls": 5}}
    async with facing(BUSY, server=server, ops=ops) as (stand, _):
        reply = await ask(stand.url, CHAT.path, CHAT.body(), {"Authorization": "Bearer right-key"})
        failed = reply.headers["x-llm-guard-request-id"]
        for _ in range(20):
            assert (await CHAT.ask(stand.url)).status == 401
        await stand.idle()
        listed = await get(stand, "/admin/calls?limit=1000")
        assert [each["refused_by"] for each in listed["calls"][:-1]] == ["auth"] * 5
        assert listed["calls"][-1]["request_id"] == failed
        assert (await get(stand, f"/admin/calls/{failed}"))["outcome"] == "overloaded"


async def test_call_that_runs_is_shown_as_such_and_then_as_it_ended() -> None:
    script = (stream_head(), chunk(CHAT.token), Pause(0.3), chunk(CHAT.end), END)
    async with facing(script) as (stand, _), Connection(stand.url) as connection:
        connection.writer.write(CHAT.request(stream=True))
        head = await connection.head()
        name = head.headers["x-llm-guard-request-id"]
        running = await get(stand, f"/admin/calls/{name}")
        assert (running["outcome"], running["attempts"][0]["outcome"]) == ("running", "running")
        assert running["ttft_s"] > 0
        listed = await get(stand, "/admin/calls?running=true")
        assert [each["request_id"] for each in listed["calls"]] == [name]
        assert (listed["running"], listed["retained"]) == (1, 0)
        assert (await get(stand, "/admin/calls"))["calls"] == []
        await stand.idle()
        over = await get(stand, f"/admin/calls/{name}")
        assert (over["outcome"], over["attempts"][0]["outcome"]) == ("ok", "ok")
        assert over["attempts"][0]["answered_s"] < over["attempts"][0]["duration_s"]


async def test_call_before_its_first_attempt_has_ended_is_shown_too() -> None:
    async with facing((Hold(),)) as (stand, _), Connection(stand.url) as connection:
        connection.writer.write(CHAT.request())
        await eventually(lambda: any(call.attempts for call in stand.app.gateway.calls()))
        (running,) = (await get(stand, "/admin/calls?running=true&model=gpt"))["calls"]
        assert (running["status"], running["attempts"][0]["outcome"]) == (None, "running")


@pytest.mark.parametrize("name", ["lg-0", "", "%22", "x" * 200])
async def test_call_that_is_not_stored_is_not_found_and_the_response_states_why(name: str) -> None:
    async with facing(CHAT.ok) as (stand, _):
        await CHAT.ask(stand.url)
        reply = await ask(stand.url, f"/admin/calls/{name}", b"", HERE, "GET")
        assert reply.status == 404
        assert "ops.recent_calls" in reply.text


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "failed=perhaps", "limit=1&limit=2", "fail=1"])
async def test_question_that_makes_no_sense_is_refused(query: str) -> None:
    async with facing() as (stand, _):
        assert (await ask(stand.url, f"/admin/calls?{query}", b"", HERE, "GET")).status == 422


async def test_texts_of_a_provider_are_data() -> None:
    hostile = "<script>\\u001b[2J\u202e"
    answer = whole(500, json.dumps({"error": {"message": hostile, "code": hostile}}).encode())
    async with facing((answer,)) as (stand, _):
        name = (await CHAT.ask(stand.url)).headers["x-llm-guard-request-id"]
        await stand.idle()
        reply = await ask(stand.url, f"/admin/calls/{name}", b"", HERE, "GET")
        assert reply.headers["content-type"] == "application/json"
        assert reply.text.isprintable()
        shown = await command(stand, name)
        assert shown.output.replace("\n", "").isprintable()


async def test_nothing_is_stored_with_a_limit_of_zero() -> None:
    async with facing(CHAT.ok, ops={"recent_calls": {"calls": 0}}) as (stand, _):
        await CHAT.ask(stand.url)
        await stand.idle()
        assert (await get(stand, "/admin/calls"))["calls"] == []


# every response has the call's id


@pytest.mark.parametrize(
    ("target", "body", "headers", "status"),
    [
        (CHAT.path, b"{}", {}, 400),
        (CHAT.path, b"{", {}, 400),
        (CHAT.path, b'{"model":"nobody"}', {}, 404),
        ("/nowhere", b"", {}, 404),
        ("/upstreams/nobody/v1/models", b"", {}, 404),
        (MESSAGES.path, b'{"model":"gpt"}', {}, 400),
        (CHAT.path, b'{"model":"gpt"}', {"X-LLM-Guard-Priority": "now"}, 400),
        (CHAT.path, b"x" * 100_000, {}, 413),
        (CHAT.path, b'{"model":"gpt"}', {"Expect": "tea"}, 417),
    ],
)
async def test_every_refusal_and_its_log_line_name_the_call(
    target: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    async with facing(server={"max_body": "64KiB"}) as (stand, _):
        reply = await ask(stand.url, target, body, headers)
        assert reply.status == status
        (line,) = await stand.calls()
        assert line["request_id"] == reply.headers["x-llm-guard-request-id"]


async def test_breaker_change_names_the_call_that_caused_it() -> None:
    async with facing(BUSY, breaker={"consecutive_failures": 1}) as (stand, _):
        reply = await CHAT.ask(stand.url)
        (line,) = [line for line in stand.log if line["event"] == "breaker"]
        assert line["request_id"] == reply.headers["x-llm-guard-request-id"]


# explanations


async def test_explanation_names_the_chosen_deployment_and_sends_nothing() -> None:
    models = {"gpt": {"deployments": [{"upstream": "one"}], "fallbacks": ["other"]},
              "other": {"deployments": [{"upstream": "one"}]}}  # fmt: skip
    async with facing(models=models) as (stand, provider):
        said = (await explain(stand, model="gpt")).json
        assert said["summary"] == (
            "'gpt' matches the route 'gpt': one/gpt would be tried at once, and one/other if that fails."
        )
        assert [(each["deployment"], each["decision"]) for each in said["deployments"]] == [
            ("one/gpt", "selected"), ("one/other", "backup"),
        ]  # fmt: skip
        assert said["refusal"] is None
        assert (said["route"]["matched"], said["route"]["total_s"]) == ("name", 5.0)
        assert provider.requests == []


async def test_explanation_states_why_a_deployment_is_unavailable_and_for_how_long() -> None:
    async with facing(BUSY, breaker={"consecutive_failures": 1, "early_probes": False}) as (stand, _):
        await CHAT.ask(stand.url)
        said = (await explain(stand, model="gpt")).json
        (one,) = said["deployments"]
        assert (one["decision"], one["reason"], one["breaker"]) == ("skipped", "breaker open", "open")
        (behind,) = said["restrictions"]
        assert (behind["kind"], behind["deployment"], len(behind["errors"])) == ("breaker", "one/gpt", 1)
        assert behind["remedy"]
        assert 20 < one["retry_after_s"] <= 30
        assert "no deployment is available; one/gpt will be in" in said["summary"]
        assert (await CHAT.ask(stand.url)).headers["x-llm-guard-refused-by"] == "breaker"


async def test_explanation_of_a_call_that_would_wait_states_lack_of_room_and_wait() -> None:
    slow: list[Step] = [Pause(0.3), *CHAT.ok]
    models = {"gpt": {"deployments": [{"upstream": "one"}], "capacity": {"concurrency": 1}}}
    async with facing(slow, models=models) as (stand, _):
        running = asyncio.create_task(CHAT.ask(stand.url))
        await eventually(lambda: stand.deployment("one/gpt").gates.in_flight == 1)
        said = (await explain(stand, model="gpt")).json
        (one,) = said["deployments"]
        assert (one["decision"], one["reason"]) == ("queued", "at its concurrency limit")
        assert re.search(r"the call would wait about [0-9.]+ (us|ms|s) for one/gpt\.$", said["summary"])
        await running


async def test_explanation_does_not_enter_a_half_open_breaker() -> None:
    rules = {"consecutive_failures": 1, "early_probes": False, "open_for": "50ms"}
    async with facing(BUSY, CHAT.ok, breaker=rules) as (stand, _):
        await CHAT.ask(stand.url)
        await asyncio.sleep(0.06)
        for _ in range(3):
            (one,) = (await explain(stand, model="gpt")).json["deployments"]
            assert (one["decision"], one["breaker"]) == ("selected", "open")
        assert (await CHAT.ask(stand.url)).status == 200


async def test_explanation_does_not_create_a_name_under_a_pattern() -> None:
    async with facing(models={"x-*": {"deployments": [{"upstream": "one"}]}}) as (stand, _):
        before = stand.app.gateway.table.names()
        said = (await explain(stand, model="x-new")).json
        assert (said["route"]["route"], said["route"]["matched"]) == ("x-*", "pattern")
        assert said["deployments"][0]["model"] == "x-new"
        assert stand.app.gateway.table.names() == before
        assert not [deployment for deployment in stand.app.gateway.deployments() if deployment.model == "x-new"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"model": "gp"}, 404, "model_not_found"),
        ({"model": "claude"}, 400, "wrong_dialect"),
        ({"model": "gpt", "dialect": "anthropic"}, 400, "wrong_dialect"),
    ],
)
async def test_explanation_of_a_call_that_would_be_refused_is_the_refusal_itself(
    body: dict[str, str], status: int, code: str
) -> None:
    async with facing() as (stand, _):
        said = (await explain(stand, **body)).json
        assert (said["refusal"]["status"], said["refusal"]["code"]) == (status, code)
        form = MESSAGES if body.get("dialect") == "anthropic" else CHAT
        really = await ask(stand.url, form.path, json.dumps({"model": body["model"]}).encode())
        assert really.status == status
        assert said["refusal"]["message"] in really.text.replace("\\'", "'")


@pytest.mark.parametrize("body", [{}, {"model": ""}, {"model": 1}, {"model": "gpt", "messages": []},
                                  {"model": "gpt", "path": "/admin"}, {"model": "gpt", "priority": "now"}])  # fmt: skip
async def test_explanation_of_an_invalid_call_is_refused(body: dict[str, object]) -> None:
    async with facing() as (stand, _):
        assert (await explain(stand, **body)).status == 422


# the command


async def test_command_draws_a_call_and_lists_those_that_failed() -> None:
    async with facing(BUSY, BUSY, retry=RETRY) as (stand, _):
        nothing = await command(stand)
        assert (nothing.exit_code, nothing.output) == (0, "no failed calls in memory\n")
        name = (await CHAT.ask(stand.url)).headers["x-llm-guard-request-id"]
        await stand.idle()
        listed = await command(stand)
        assert listed.exit_code == 0
        assert name in listed.output.splitlines()[1]
        drawn = await command(stand, name, "--plain")
        assert drawn.exit_code == 0
        assert "1. one/gpt  overloaded" in drawn.output
        assert "2. one/gpt  overloaded" in drawn.output
        assert "waited" in drawn.output
        assert drawn.output.isascii()
        raw = await command(stand, name, "--json")
        assert json.loads(raw.output) == await get(stand, f"/admin/calls/{name}")


async def test_command_without_a_response_states_why_and_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_guard.cli.explain_command._TIMEOUT_S", 0.5)
    async with facing() as (stand, provider):
        unknown = await command(stand, "lg-0")
        assert (unknown.exit_code, unknown.output[:27]) == (1, "the gateway responded 404: ")
        elsewhere = await command(stand, "--url", provider.url)
        assert elsewhere.exit_code == 1
        gone = await command(stand, "--url", "http://127.0.0.1:1")
        assert gone.exit_code == 1
        assert "cannot connect to " in gone.output


async def test_command_brings_the_token_and_takes_it_nowhere_else() -> None:
    redirect = Respond(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
    async with facing((redirect,), ops={"token": "operators-own"}) as (stand, provider):
        stranger = await command(stand, env={})
        assert (stranger.exit_code, "--token or LLM_GUARD_OPS_TOKEN" in stranger.output) == (1, True)
        assert (await command(stand, "--token", "operators-own", env={})).exit_code == 0
        assert (await command(stand, env={"LLM_GUARD_OPS_TOKEN": "operators-own"})).exit_code == 0
        led = await command(stand, "--url", provider.url, "--token", "operators-own")
        assert (led.exit_code, "302" in led.output) == (1, True)
        assert "operators-own" not in led.output


@pytest.mark.parametrize(
    "arguments", [("lg/1",), ("x" * 65,), ("--url", "ftp://a"), ("--url", "http://"), ("--url", "http://a:0"),
                  ("--limit", "0")]
)  # fmt: skip
def test_command_with_wrong_arguments_ends_with_2(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, ["explain", *arguments]).exit_code == 2


async def test_explanation_names_the_dialect_into_which_a_call_would_be_translated() -> None:
    async with ScriptedProvider() as provider:
        config = f"""
server: {{port: 0}}
ops: {{token: {SHARED}}}
upstreams:
  openai: {{dialect: openai, base_url: "{provider.url}/v1"}}
  anthropic: {{dialect: anthropic, base_url: "{provider.url}", api_key: k}}
models:
  m: {{deployments: [{{upstream: openai}}], fallbacks: [claude]}}
  claude: {{deployments: [{{upstream: anthropic}}]}}
"""
        async with standing(parse_config(config, "f.yaml", {})) as stand:
            said = (await explain(stand, model="m")).json["deployments"]
            assert [(one["deployment"], one["translated_to"]) for one in said] == [
                ("openai/m", None), ("anthropic/claude", "anthropic"),
            ]  # fmt: skip
            said = (await explain(stand, model="m", path="/v1/embeddings")).json["deployments"]
            assert [one["decision"] for one in said] == ["selected", "skipped"]
            assert "/v1/embeddings is not translated" in said[1]["reason"]
            said = (await explain(stand, model="m", dialect="anthropic")).json
            assert [one["decision"] for one in said["deployments"]] == ["skipped", "selected"]
            assert said["deployments"][0]["retry_after_s"] is None


async def test_explanation_shows_that_a_server_without_the_responses_api_gets_a_chat() -> None:
    async with ScriptedProvider() as provider:
        config = f"""
server: {{port: 0}}
ops: {{token: {SHARED}}}
upstreams:
  local: {{dialect: openai, base_url: "{provider.url}/v1", responses: chat}}
models:
  m: {{deployments: [{{upstream: local}}]}}
"""
        async with standing(parse_config(config, "f.yaml", {})) as stand:
            for path, expected in (("/v1/responses", "openai"), ("/v1/chat/completions", None)):
                (one,) = (await explain(stand, model="m", path=path)).json["deployments"]
                assert (one["decision"], one["translated_to"]) == ("selected", expected)


async def test_explanation_shows_no_translation_where_only_the_form_differs() -> None:
    async with ScriptedProvider() as provider:
        config = f"""
server: {{port: 0}}
ops: {{token: {SHARED}}}
upstreams:
  bedrock: {{dialect: anthropic, form: bedrock-invoke, base_url: "{provider.url}", api_key: k}}
models:
  m: {{deployments: [{{upstream: bedrock}}]}}
"""
        async with standing(parse_config(config, "f.yaml", {})) as stand:
            for path, expected in (("/v1/messages", None), ("/v1/chat/completions", "anthropic")):
                dialect = "openai" if expected else "anthropic"
                (one,) = (await explain(stand, model="m", path=path, dialect=dialect)).json["deployments"]
                assert one["translated_to"] == expected
