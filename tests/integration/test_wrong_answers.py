"""A 200 that is no valid response to the request is a failed attempt: the second deployment is tried, and nothing of
the first response reaches the client. Valid responses of any form pass unmodified."""

from __future__ import annotations

import asyncio

import pytest

from llm_guard.config import Config
from tests.chaos.forms import CHAT, LEGACY, MESSAGES, RESPONSES
from tests.chaos.stand import config_of, facing, standing
from tests.chaos.wire import Connection, ask
from tests.fakes.client import raw_request
from tests.fakes.provider import END, Pause, Respond, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually
from tests.fakes.wrong_answers import PAGE, TITLE, Case, good_cases, wrong_cases

RETRY = {"max_attempts": 2}
FORMS = {"chat": CHAT, "completions": LEGACY, "responses": RESPONSES, "messages": MESSAGES}


def two_deployments(first: str, second: str, answers: str = "strict") -> Config:
    upstreams = {
        "other": {"dialect": "openai", "base_url": f"{second}/v1"},
        "another": {"dialect": "anthropic", "base_url": second},
    }
    models = {
        "gpt": {"deployments": [{"upstream": "one"}, {"upstream": "other", "priority": 1}]},
        "claude": {"deployments": [{"upstream": "two"}, {"upstream": "another", "priority": 1}]},
    }
    return config_of(first, retry=RETRY, upstreams=upstreams, models=models, answers=answers)


@pytest.mark.parametrize("case", list(wrong_cases()), ids=str)
async def test_wrong_answer_is_a_failed_attempt(case: Case) -> None:
    good = whole(200, case.endpoint.answer, {"content-type": case.endpoint.content_type})
    script = FORMS[case.endpoint.name].good_stream if case.is_stream else (good,)
    async with (
        ScriptedProvider(case.script) as first,
        ScriptedProvider(script) as second,
        standing(two_deployments(first.url, second.url)) as stand,
    ):
        reply = await ask(stand.url, case.endpoint.path, case.request, case.endpoint.headers)
        (call,) = await stand.calls()
        assert call["attempts"][0]["outcome"] == case.kind
        assert "secret words" not in str(call)
        assert b"secret words" not in reply.body
        if case.kind == "misrouted":
            assert TITLE in call["attempts"][0]["reason"]
        if not case.endpoint.is_repeatable:
            assert (reply.status, len(second.requests)) == (502, 0)
            return
        assert len(second.requests) == 1
        if not case.is_stream:
            assert (reply.status, reply.body) == (200, case.endpoint.answer)
        deployment = "two/claude" if case.endpoint.name == "messages" else "one/gpt"
        breaker = stand.breaker(deployment)
        # Cut JSON counts as evidence; a retry may repeat it before the second deployment is tried.
        assert bool(breaker.failures) == (case.kind == "truncated")
        assert breaker.calls == breaker.failures


@pytest.mark.parametrize("case", list(good_cases()), ids=str)
async def test_good_answer_passes_unmodified(case: Case) -> None:
    async with facing(case.script, retry=RETRY) as (stand, provider):
        reply = await ask(stand.url, case.endpoint.path, case.request, case.endpoint.headers)
        sent = b"".join(step.data for step in case.script if isinstance(step, Respond))
        assert (reply.status, reply.is_whole) == (200, True)
        assert reply.body in sent or reply.body == case.endpoint.answer
        assert len(provider.requests) == 1


async def test_judging_can_be_turned_off() -> None:
    async with facing([whole(200, PAGE, {"content-type": "text/html"})], answers="off") as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.body) == (200, PAGE)


async def test_wrong_answers_neither_open_nor_close_a_breaker() -> None:
    breaker = {"consecutive_failures": 3, "open_for": "50ms", "early_probes": False}
    failing: list[Step] = [whole(500)]
    wrong: list[Step] = [whole(200, b"{}")]
    async with facing(*[wrong] * 20, *[failing] * 3, wrong, breaker=breaker) as (stand, provider):
        for _ in range(20):
            assert (await CHAT.ask(stand.url)).status == 502
        assert stand.breaker(CHAT.deployment).state == "closed"
        for _ in range(3):
            await CHAT.ask(stand.url)
        assert stand.breaker(CHAT.deployment).state == "open"

        async def is_probed() -> bool:
            await CHAT.ask(stand.url)
            return len(provider.requests) > 25

        while not await is_probed():
            pass
        assert stand.breaker(CHAT.deployment).state == "half_open"


@pytest.mark.parametrize("body", [b"", b"<html><title>nginx</title>404 Not Found", b'{"detail":"Not Found"}'])
async def test_404_of_a_server_that_does_not_know_the_path_is_misrouted(body: bytes) -> None:
    async with facing([whole(404, body)], retry=RETRY) as (stand, provider):
        assert (await CHAT.ask(stand.url)).status == 404
        (call,) = await stand.calls()
        assert (call["outcome"], len(provider.requests)) == ("misrouted", 1)
        assert "base_url" in call["reason"]


JOB = b'{"id":"ftjob-1","object":"fine_tuning.job","model":"gpt","error":{"code":null,"message":null,"param":null}}'
FAILED_JOB = JOB.replace(b"null", b'"failed"')


@pytest.mark.parametrize("path", ["/v1/fine_tuning/jobs", "/v1/videos", "/v1/videos/edits"])
@pytest.mark.parametrize("answer", [JOB, FAILED_JOB, b'{"id":"video_1","object":"video","error":null}'])
async def test_member_named_error_of_a_resource_is_no_error(path: str, answer: bytes) -> None:
    async with facing([whole(200, answer)], retry=RETRY) as (stand, provider):
        reply = await ask(stand.url, path, b'{"model":"gpt"}')
        assert (reply.status, reply.body, len(provider.requests)) == (200, answer, 1)


@pytest.mark.parametrize("path", ["/v1/organizations/external_keys/key_1/validate", "/v1/chat/completions", "/v1/any"])
async def test_error_of_a_checked_resource_is_no_error_and_a_bare_one_is(path: str) -> None:
    outcome = b'{"type":"external_key_validation","status":"failure","error":"the KMS timed out"}'
    async with facing([whole(200, outcome)], [whole(200, b'{"error":"model not loaded"}')]) as (stand, _):
        reply = await ask(stand.url, path, b'{"model":"gpt"}')
        assert (reply.status, reply.body) == (504 if path == CHAT.path else 200, outcome)
        assert (await ask(stand.url, path, b'{"model":"gpt"}')).status == 404


async def test_whole_answer_too_large_to_be_written_as_a_stream_is_a_failed_attempt() -> None:
    large = whole(200, CHAT.answer.replace(b'"hi"', b'"' + b"x" * 300_000 + b'"'))
    async with facing([large], CHAT.good_stream, retry=RETRY, defaults={"max_buffered_answer": "128KiB"}) as (stand, _):
        assert (await CHAT.ask(stand.url, stream=True)).body == CHAT.stream_bytes
        (call,) = await stand.calls()
        assert [each["outcome"] for each in call["attempts"]] == ["malformed", "ok"]
        await eventually(lambda: stand.app.upstreams.memory.taken_bytes == 0)


async def test_speech_passes_from_its_first_byte() -> None:
    go_on = asyncio.Event()
    script: list[Step] = [
        stream_head(200, {"content-type": "audio/mpeg"}),
        chunk(b"ID3"),
        Pause(go_on),
        chunk(b"rest"),
        END,
    ]
    async with facing(script) as (stand, _), Connection(stand.url) as client:
        client.writer.write(raw_request("/v1/audio/speech", b'{"model":"gpt"}'))
        assert (await client.head()).status == 200
        assert await client.reader.readuntil(b"ID3") is not None
        go_on.set()
        assert await client.reader.readuntil(b"0\r\n\r\n") is not None


async def test_memory_of_wrong_responses_is_released() -> None:
    large = b'{"detail":"' + b"x" * 300_000 + b'"}'
    async with facing([whole(200, large)], CHAT.ok, retry=RETRY) as (stand, _):
        assert (await CHAT.ask(stand.url)).status == 200
        await eventually(lambda: stand.app.upstreams.memory.taken_bytes == 0)


async def test_fifty_informational_answers_do_no_harm() -> None:
    hint = Respond(b"HTTP/1.1 103 Early Hints\r\nlink: </" + b"a" * 2000 + b">; rel=preload\r\n\r\n")
    async with facing([*[hint] * 51, *CHAT.ok]) as (stand, _):
        assert (await CHAT.ask(stand.url)).body == CHAT.answer


async def test_retry_after_of_a_4xx_is_preserved() -> None:
    refusal = whole(409, b'{"error":{"message":"locked","type":"x"}}', {"retry-after": "7"})
    for status in (400, 403, 404, 409):
        answer = Respond(refusal.data.replace(b" 409 ", b" %d " % status))
        async with facing([answer]) as (stand, _):
            reply = await CHAT.ask(stand.url)
            assert (reply.status, reply.headers["retry-after"]) == (status, "7")


@pytest.mark.parametrize("model", ['{"id":"claude","speed":"fast"}', '{"speed":"fast"}'])
async def test_agent_whose_model_is_an_object_is_passed_on(model: str) -> None:
    body = b'{"name":"a","model":' + model.encode() + b"}"
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    async with facing([whole(200, b'{"id":"agent_1","type":"agent"}')]) as (stand, provider):
        assert (await ask(stand.url, "/v1/agents", body, headers)).status == 200
        assert provider.requests[0].endswith(body)


IMAGES = ("/v1/images/generations", b'{"model":"gpt","prompt":"a cat","stream":true}')
SPEECH = ("/v1/audio/speech", b'{"model":"gpt","input":"hi","voice":"a"}')
ANSWER = ("/v1/chat/completions", b'{"model":"gpt","messages":[],"stream":true}')


@pytest.mark.parametrize("call", [IMAGES, SPEECH, ANSWER])
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (PAGE, "misrouted"),
        (b'{"detail":"Not Found"}', "malformed"),
        (b'{"error":{"message":"Internal error","type":"server_error","code":500}}', "server_error"),
        (b"", "truncated"),
        (b": ping\n\n", "truncated"),
    ],
)
async def test_false_event_stream_is_no_response(call: tuple[str, bytes], body: bytes, kind: str) -> None:
    async with facing([whole(200, body, {"content-type": "Text/Event-Stream"})]) as (stand, _):
        assert (await ask(stand.url, *call)).status == (500 if kind == "server_error" else 502)
        (call_seen,) = await stand.calls()
        assert call_seen["attempts"][0]["outcome"] == kind
        is_shape_only = kind in ("misrouted", "malformed")
        assert bool(stand.breaker(CHAT.deployment).failures) != is_shape_only


@pytest.mark.parametrize("accept", ["*/*", "application/json"])
async def test_page_is_no_answer_to_a_call_with_a_model_at_any_path(accept: str) -> None:
    headers = {"content-type": "application/json", "accept": accept}
    async with facing([whole(200, PAGE, {"content-type": "text/html"})]) as (stand, _):
        assert (await ask(stand.url, "/v1/pooling", b'{"model":"gpt"}', headers)).status == 502
        (call,) = await stand.calls()
        assert call["outcome"] == "misrouted"


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1/%63hat/completions", "/v1/chat%2Fcompletions"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_other_spellings_of_a_path_do_not_lead_around_the_checks(path: str, is_stream: bool) -> None:
    """FastAPI serves or redirects all of them."""
    wrong = whole(200, b'{"status": "ok"}', {"content-type": "application/json"})
    good = CHAT.good_stream if is_stream else CHAT.ok
    async with facing((wrong,), good, retry=RETRY) as (stand, provider):
        reply = await ask(stand.url, path, CHAT.body(stream=is_stream))
        assert reply.status == 200
        assert b"status" not in reply.body
        assert [request.split()[1] for request in provider.requests] == [b"/v1/chat/completions"] * 2


async def test_unknown_paths_are_forwarded_as_they_are_written() -> None:
    async with facing(CHAT.ok, CHAT.ok) as (stand, provider):
        for path in ("/v1/agents/a%2Fb/", "/v1/%61gents"):
            assert (await ask(stand.url, path, CHAT.body())).status == 200
        assert [request.split()[1] for request in provider.requests] == [b"/v1/agents/a%2Fb/", b"/v1/%61gents"]
