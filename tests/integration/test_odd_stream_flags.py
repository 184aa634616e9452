"""`stream` flags that are not `true` but that some servers accept as true: the form of the response decides."""

from __future__ import annotations

import json

import pytest

from tests.chaos.forms import STREAMS, Form, name_of
from tests.chaos.stand import Section, facing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import END, Close, Hold, Pause, Step, chunk, stream_head

FLAGS = (1, 1.0, "true", "True", "1", "yes")
NO_FLAGS: tuple[object, ...] = (False, None, 0, "", [], {})
forms = pytest.mark.parametrize("form", STREAMS, ids=name_of)
flags = pytest.mark.parametrize("flag", FLAGS)
MODELS: Section = {
    "gpt": {"deployments": [{"upstream": "one"}], "fallbacks": ["gpt-spare"]},
    "gpt-spare": {"deployments": [{"upstream": "one"}]},
    "claude": {"deployments": [{"upstream": "two"}], "fallbacks": ["claude-spare"]},
    "claude-spare": {"deployments": [{"upstream": "two"}]},
}


async def call(url: str, form: Form, flag: object) -> Reply:
    return await ask(url, form.path, json.dumps({"model": form.model, "stream": flag}).encode())


@forms
@flags
async def test_event_stream_is_passed_on(form: Form, flag: object) -> None:
    async with facing(form.good_stream) as (stand, _):
        reply = await call(stand.url, form, flag)
        assert (reply.status, reply.is_whole, reply.body) == (200, True, form.stream_bytes)
        (line,) = await stand.calls()
        assert (line["outcome"], line["stream"]) == ("ok", True)


@forms
@flags
async def test_whole_answer_is_passed_on(form: Form, flag: object) -> None:
    async with facing(form.ok) as (stand, _):
        reply = await call(stand.url, form, flag)
        assert (reply.status, reply.body) == (200, form.answer)
        (line,) = await stand.calls()
        assert (line["outcome"], line["stream"]) == ("ok", False)


@forms
async def test_stream_under_another_content_type_is_a_stream(form: Form) -> None:
    head = stream_head(200, {"content-type": "application/json"})
    async with facing([head, *form.good_stream[1:]]) as (stand, _):
        assert (await call(stand.url, form, "true")).body == form.stream_bytes


@forms
async def test_event_stream_is_still_wrong_where_none_was_requested(form: Form) -> None:
    async with facing(form.good_stream) as (stand, _):
        for flag in NO_FLAGS:
            reply = await call(stand.url, form, flag)
            assert (reply.status, b"not requested" in reply.body) == (502, True)


@forms
async def test_stream_that_errs_or_hangs_before_its_first_token_is_replaced(form: Form) -> None:
    bad: list[list[Step]] = [
        [stream_head(), chunk(form.error), END],
        [stream_head(), *map(chunk, form.preamble), Hold()],
    ]
    for script in bad:
        limits = {"first_token": "200ms"}
        async with facing(script, form.good_stream, timeout=limits, models=MODELS) as (stand, _):
            reply = await call(stand.url, form, 1)
            assert reply.body == form.stream_bytes
            assert reply.headers["x-llm-guard-deployment"] == f"{form.deployment}-spare"


@forms
async def test_stream_that_is_cut_ends_in_an_error_event(form: Form) -> None:
    script: list[Step] = [stream_head(), *map(chunk, form.preamble), chunk(form.token), Pause(0.02), Close()]
    async with facing(script, stream={"recover": "off"}) as (stand, _):
        reply = await call(stand.url, form, 1)
        assert not reply.is_whole
        assert form.error_in(b"event: error" + reply.body.partition(b"event: error")[2].rstrip(b"\n"))
        (line,) = await stand.calls()
        assert line["outcome"] == "truncated"


async def test_client_gets_no_head_before_the_format_of_the_response_is_known() -> None:
    waiting: Section = {"keepalive": {"interval": "50ms", "unary": True, "before_headers": True}}
    for form in STREAMS:
        for is_stream, script in ((True, form.good_stream), (False, form.ok)):
            async with facing([Pause(0.2), *script], stream=waiting) as (stand, _):
                reply = await call(stand.url, form, 1)
                assert reply.body == (form.stream_bytes if is_stream else form.answer)
                assert reply.headers["content-type"].startswith("text/event-stream") == is_stream
