"""A dead model behind a front that keeps the connection alive: detected before and after the first token, for each
kind of keep-alive, and resumed on another deployment."""

from __future__ import annotations

import pytest

from tests.chaos.forms import CHAT, LEGACY, MESSAGES, RESPONSES, Form, name_of
from tests.chaos.stand import ANSWER_S, Section, facing
from tests.fakes.keep_alives import (
    ANYWHERE,
    EVERY_S,
    FORMS,
    OF_CHAT,
    Hang,
    begun,
    choice,
    for_ever,
    hangs,
    named,
)
from tests.fakes.provider import END, Close, Pause, Step, chunk, stream_head

LIMIT_S = 0.2
LIMIT = "200ms"
UNSEEN_S = LIMIT_S / 20
WORK: dict[str, tuple[bytes, ...]] = {
    str(CHAT): (
        choice(delta={"reasoning_content": "hm"}),
        choice(delta={"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
        choice(delta={"content": ""}, logprobs={"content": [{"token": "x", "logprob": -0.1}]}),
    ),
    str(LEGACY): (choice(text=" "),),
    str(RESPONSES): (
        named("response.output_item.added", output_index=1, item={"type": "web_search_call"}),
        named("response.web_search_call.searching", output_index=1),
        named("response.code_interpreter_call.interpreting", output_index=1),
        named("response.reasoning_summary_text.delta", delta="hm"),
    ),
    str(MESSAGES): (
        named("content_block_start", index=1, content_block={"type": "server_tool_use", "name": "web_search"}),
        named("content_block_delta", index=1, delta={"type": "thinking_delta", "thinking": "hm"}),
        named("content_block_delta", index=1, delta={"type": "thinking_delta", "thinking": "", "estimated_tokens": 50}),
        named("content_block_stop", index=1),
    ),
}
"""Events of each dialect that show progress."""
forms = pytest.mark.parametrize("form", FORMS, ids=name_of)
MODELS: Section = {
    "gpt": {"deployments": [{"upstream": "one"}], "fallbacks": ["gpt-spare"]},
    "gpt-spare": {"deployments": [{"upstream": "one"}]},
    "claude": {"deployments": [{"upstream": "two"}], "fallbacks": ["claude-spare"]},
    "claude-spare": {"deployments": [{"upstream": "two"}]},
}


each_hang = pytest.mark.parametrize("hang", list(hangs()), ids=str)


@each_hang
async def test_dead_model_with_keep_alives_is_found_after_the_first_token(hang: Hang) -> None:
    form, script = hang.form, [*begun(hang.form), Pause(EVERY_S), *for_ever(hang.keep_alive)]
    async with facing(script, timeout={"stall": LIMIT}, stream={"recover": "off"}) as (stand, provider):
        reply = await form.ask(stand.url, stream=True)
        assert not reply.is_whole
        assert LIMIT_S <= reply.took_s + EVERY_S <= LIMIT_S + UNSEEN_S + EVERY_S + ANSWER_S + stand.lag_s
        error = form.error_in(b"event: error" + reply.body.partition(b"event: error")[2].rstrip(b"\n"))
        assert error["type"] == "timeout_error"
        assert "nothing but keep-alives for 0.2 s" in error["message"]
        assert await provider.closed_within(1)
        assert await stand.metric("llm_guard_timeouts_total", deployment=form.deployment, limit="stall") == 1
        assert stand.breaker(form.deployment).failures == 1


@each_hang
async def test_dead_model_with_keep_alives_is_replaced_before_the_first_token(hang: Hang) -> None:
    form, script = hang.form, [stream_head(), *map(chunk, hang.form.preamble), *for_ever(hang.keep_alive)]
    async with facing(script, form.good_stream, timeout={"first_token": LIMIT}, models=MODELS) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.body == form.stream_bytes
        assert reply.headers["x-llm-guard-deployment"] == f"{form.deployment}-spare"
        assert await stand.metric("llm_guard_timeouts_total", limit="first_token") == 1


@forms
async def test_continuing_work_is_no_stall(form: Form) -> None:
    work = WORK[str(form)]
    steps: list[Step] = [
        step for number in range(8) for step in (chunk(work[number % len(work)]), Pause(LIMIT_S / 2.5))
    ]
    async with facing([*begun(form), *steps, *form.good_stream[-2:]], timeout={"stall": LIMIT}) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.took_s > 2 * LIMIT_S
        assert await stand.metric("llm_guard_timeouts_total") == 0


@pytest.mark.parametrize("name", ["comment", "empty text"])
async def test_stalled_stream_is_resumed_elsewhere(name: str) -> None:
    keep_alive = (ANYWHERE | OF_CHAT)[name]
    dead = [stream_head(), chunk(choice(delta={"content": "Once upon a time there was "})), *for_ever(keep_alive)]
    rest = [chunk(choice(delta={"content": text})) for text in ("Once upon a time there was ", "a gateway.")]
    whole: list[Step] = [stream_head(), *rest, chunk(CHAT.end), END]
    rules: Section = {"recover": "restart"}
    async with facing(dead, whole, timeout={"stall": LIMIT}, stream=rules, models=MODELS) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True, messages=[{"role": "user", "content": "hi"}])
        assert reply.is_whole
        assert b"a gateway." in reply.body
        assert b"event: error" not in reply.body
        (call,) = await stand.calls()
        assert [each["outcome"] for each in call["attempts"]] == ["timeout", "ok"]
        assert await stand.metric("llm_guard_stream_resumes_total", outcome="ok") == 1


@forms
async def test_stream_that_ends_after_keep_alives_within_the_limit_is_whole(form: Form) -> None:
    pings = [step for _ in range(3) for step in (chunk(ANYWHERE["comment"]), Pause(EVERY_S))]
    async with facing([*begun(form), *pings, *form.good_stream[-2:]], timeout={"stall": LIMIT}) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.body.count(ANYWHERE["comment"]) == 3


async def test_stall_is_set_for_a_model() -> None:
    models: Section = {"gpt": {"deployments": [{"upstream": "one"}], "timeout": {"stall": LIMIT}}}
    script = [*begun(CHAT), *for_ever(ANYWHERE["comment"])[:40], Close()]
    async with facing(script, models=models) as (stand, _):
        assert not (await CHAT.ask(stand.url, stream=True)).is_whole
        assert await stand.metric("llm_guard_timeouts_total", limit="stall") == 1
