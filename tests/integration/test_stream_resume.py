"""Resuming a stream that has died: the request to the next deployment, and events in the meantime."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llm_guard.dialects.resume.chat_splice import ChatContinuation
from tests.chaos.forms import CHAT, MESSAGES, RESPONSES, Form, name_of
from tests.chaos.manual import Exchange
from tests.chaos.pair import OnRequest, Pair, pair_of
from tests.chaos.stand import CLOSE_S
from tests.chaos.wire import Connection, Reply
from tests.fakes.client import raw_request
from tests.fakes.provider import END, Respond, chunk, stream_head, whole
from tests.fakes.waiting import eventually

CONTINUE = {"stream": {"recover": "continue"}, "retry": {"max_attempts": 2}}
RESTART = {"stream": {"recover": "restart"}, "retry": {"max_attempts": 2}}
SAID = [{"role": "user", "content": "hi"}]
FIRST = "Once upon a time there was a gateway that "
REST = "never lost a stream."


def delta(text: str | None, finish: str | None = None, identity: str = "a", **more: Any) -> bytes:
    choice = {"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": identity, "choices": [choice], **more}).encode() + b"\n\n"


DONE = delta(None, "stop", "b") + b"data: [DONE]\n\n"
CUT_EVENT = b'data: {"error": {"message": "the engine died", "type": "server_error"}}\n\n'


def begin(*texts: str) -> OnRequest:
    """Starts a stream with these texts that neither ends nor goes on."""
    return lambda exchange: exchange.say(stream_head(), *(chunk(delta(text)) for text in texts))


def finish(*texts: str) -> OnRequest:
    """Streams these texts with another id, and ends."""
    parts = [chunk(delta(text, identity="b")) for text in texts]
    return lambda exchange: exchange.answer(stream_head(), *parts, chunk(DONE), END)


def text_of(reply: Reply) -> str:
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in reply.events if event.startswith(b"data: {")]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", [])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@asynccontextmanager
async def dying(
    back: OnRequest = None, rules: dict[str, Any] = CONTINUE, form: Form = CHAT, **more: Any
) -> AsyncIterator[tuple[Pair, asyncio.Task[Reply], Exchange]]:
    """Starts a call with a stream in progress at the first deployment; the test ends that stream."""
    async with pair_of(begin(FIRST), back, **rules) as this:
        call = asyncio.create_task(form.ask(this.stand.url, stream=True, messages=SAID, **more))
        await eventually(lambda: this.front.open)
        await asyncio.sleep(0.02)  # until it is committed
        yield this, call, this.front.open[0]


async def test_next_deployment_is_asked_to_resume() -> None:
    async with dying(finish(FIRST[-40:] + REST)) as (this, call, stream):
        stream.cut()
        reply = await call
        assert reply.is_whole
        assert text_of(reply) == FIRST + REST
        assert reply.body.count(b'"id": "a"') + reply.body.count(b'"id":"a"') == len(reply.events) - 1
        (going_on,) = this.back.exchanges
        assert [message["role"] for message in going_on.body["messages"]] == ["user", "assistant", "user"]
        assert going_on.body["messages"][1]["content"] == FIRST.rstrip()
        (line,) = await this.stand.calls()
        assert (line["outcome"], line["status"]) == ("ok", 200)
        assert [(each["outcome"], each.get("resume_mode")) for each in line["attempts"]] == [
            ("truncated", None), ("ok", "instruction"),
        ]  # fmt: skip
        assert this.stand.breaker("one/gpt").failures == 1
        assert this.stand.breaker("one-back/gpt").failures == 0
        assert this.in_flight() == 0


async def test_error_event_is_hidden_when_another_deployment_resumes() -> None:
    async with dying(finish(FIRST[-40:] + "and " + REST)) as (_, call, stream):
        stream.answer(chunk(delta("and ") + CUT_EVENT + b"data: [DONE]\n\n"), END)
        reply = await call
        assert b"the engine died" not in reply.body
        assert reply.is_whole
        assert text_of(reply).startswith(FIRST + "and ")


async def test_error_event_is_shown_when_no_deployment_resumes() -> None:
    refused = whole(400, b'{"error": {"message": "no"}}')
    async with dying(lambda exchange: exchange.answer(refused)) as (_, call, stream):
        stream.answer(chunk(CUT_EVENT + b"data: [DONE]\n\n"), END)
        reply = await call
        assert reply.body.endswith(CUT_EVENT)  # without a `[DONE]` after it, at which clients would stop reading
        assert not reply.is_whole


async def test_stall_is_found_by_the_idle_limit_and_resumed() -> None:
    rules = {**CONTINUE, "timeout": {"idle": "200ms"}}
    async with dying(finish(FIRST[-40:] + REST), rules) as (this, call, stream):
        reply = await call
        assert text_of(reply) == FIRST + REST
        assert reply.took_s < 0.2 + 1 + this.stand.lag_s
        await stream.left()


async def test_client_that_leaves_meanwhile_ends_the_next_exchange() -> None:
    async with pair_of(begin(FIRST), None, **CONTINUE) as this:
        async with Connection(this.stand.url) as client:
            client.writer.write(CHAT.request(stream=True, messages=SAID))
            await client.reader.readuntil(b"\n\n")
            this.front.open[0].cut()
            await eventually(lambda: this.back.open)
            left_at = client.leave("reset")
        assert await this.back.exchanges[0].left() - left_at <= CLOSE_S + this.stand.lag_s
        (line,) = await this.stand.calls()
        assert line["outcome"] == "client_cancelled"
        assert this.in_flight() == 0


async def test_drain_during_a_resume_is_reported() -> None:
    async with dying() as (this, call, stream):
        stream.cut()
        await eventually(lambda: this.back.open)
        this.stand.app.gateway.end_running()
        reply = await call
        assert b"gateway_draining" in reply.events[-1]
        assert this.in_flight() == 0


async def test_connection_of_a_stream_resumed_during_a_drain_is_kept_as_its_head_says() -> None:
    """A server that closes a connection without `Connection: close` may lose the client's next request."""
    async with (
        pair_of(begin(FIRST), finish(FIRST[-40:] + REST), **CONTINUE) as this,
        Connection(this.stand.url) as client,
    ):
        client.writer.write(CHAT.request(stream=True, messages=SAID))
        await eventually(lambda: this.front.open)
        await asyncio.sleep(0.02)
        this.stand.app.gateway.is_leaving = True
        this.front.open[0].cut()
        reply = await client.reply()
        assert (reply.is_whole, "connection" in reply.headers) == (True, False)
        this.front.on_request = lambda exchange: exchange.answer(*CHAT.ok)
        second = await client.ask(CHAT.request())
        assert (second.status, second.headers["connection"]) == (200, "close")


async def test_deadline_ends_the_waiting_for_the_next() -> None:
    async with dying(rules={**CONTINUE, "timeout": {"total": "400ms"}}) as (this, call, stream):
        stream.cut()
        reply = await call
        assert reply.took_s < 0.4 + 1 + this.stand.lag_s
        assert "was not resumed" in CHAT.error_in(reply.events[-1])["message"]
        (line,) = await this.stand.calls()
        assert line["outcome"] == "truncated"
        await this.back.exchanges[0].left()


async def test_client_gets_keep_alives_during_a_resume() -> None:
    def late(exchange: Exchange) -> None:
        parts = [stream_head(), chunk(delta(FIRST[-40:] + REST)), chunk(DONE), END]
        asyncio.get_running_loop().call_later(0.25, lambda: exchange.answer(*parts))

    rules = {**CONTINUE, "stream": {"recover": "continue", "keepalive": {"interval": "50ms"}}}
    async with dying(late, rules) as (_, call, stream):
        stream.cut()
        reply = await call
        assert reply.body.count(b": waiting\n\n") >= 2
        assert text_of(reply) == FIRST + REST


async def test_text_that_does_not_join_soon_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short text can also fail to join in time, when the model is slow."""
    monkeypatch.setattr("llm_guard.proxy.streams.resume.JOIN_S", 0.1)
    rules = {**CONTINUE, "retry": {"max_attempts": 1}}
    async with dying(begin("Let me "), rules) as (this, call, stream):
        stream.cut()
        await eventually(lambda: this.back.open)
        await asyncio.sleep(0.2)
        this.back.open[0].say(chunk(b": ping\n\n"))
        reply = await call
        assert text_of(reply) == FIRST
        assert "was not resumed" in CHAT.error_in(reply.events[-1])["message"]
        (line,) = await this.stand.calls()
        assert [each["outcome"] for each in line["attempts"]] == ["truncated", "diverged"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param((whole(200, CHAT.answer),), id="no stream"),
        pytest.param((whole(400, b'{"error": {"message": "no"}}'),), id="refused"),
        pytest.param((stream_head(), chunk(CUT_EVENT), END), id="an error in a stream"),
        pytest.param((stream_head(200, {"content-encoding": "br"}), chunk(b"\x00"), END), id="unreadable"),
    ],
)
async def test_answer_that_is_of_no_use_leads_to_an_honest_error(answer: tuple[Respond, ...]) -> None:
    rules = {**CONTINUE, "retry": {"max_attempts": 1}}
    async with dying(lambda exchange: exchange.answer(*answer), rules) as (this, call, stream):
        stream.cut()
        reply = await call
        assert not reply.is_whole
        assert "was not resumed" in CHAT.error_in(reply.events[-1])["message"]
        assert text_of(reply) == FIRST
        await eventually(lambda: this.in_flight() == 0)


async def test_stream_that_is_cut_inside_an_event_that_was_too_long_to_hold_breaks_off() -> None:
    """Nothing can follow half an event."""
    async with dying(finish(REST)) as (this, call, stream):
        stream.say(chunk(delta("x" * (3 << 19)).rstrip()))
        await asyncio.sleep(0.1)
        stream.cut()
        reply = await call
        assert not reply.is_whole
        assert b"event: error" not in reply.body
        assert not this.back.exchanges


@pytest.mark.parametrize("rules", [{}, {"stream": {"recover": "auto"}}, {"stream": {"recover": "off"}}])
async def test_no_deployment_is_asked_to_resume_without_the_option(rules: dict[str, Any]) -> None:
    """By default only deployments that accept a prefill are tried, and these are not known to."""
    async with dying(finish(REST), rules) as (this, call, stream):
        stream.cut()
        reply = await call
        assert not reply.is_whole
        assert not this.back.exchanges


async def test_response_stored_by_the_provider_is_not_requested_twice() -> None:
    async with pair_of(None, None, **CONTINUE) as this:
        call = asyncio.create_task(RESPONSES.ask(this.stand.url, stream=True, input="hi"))
        await eventually(lambda: this.front.open)
        this.front.open[0].say(stream_head(), *map(chunk, RESPONSES.preamble), chunk(RESPONSES.token))
        await asyncio.sleep(0.02)
        this.front.open[0].cut()
        assert not (await call).is_whole
        assert not this.back.exchanges


async def test_two_choices_are_restarted_rather_than_resumed() -> None:
    # The second choice is waited for.
    async with dying(finish(REST), {**CONTINUE, "timeout": {"idle": "300ms"}}, n=2) as (this, call, stream):
        stream.cut()
        assert not (await call).is_whole
        assert this.back.exchanges[0].body["messages"] == SAID


async def test_second_run_must_repeat_the_sent_text() -> None:
    async with dying(finish(FIRST[:10], FIRST[10:] + REST[:5], REST[5:]), RESTART) as (this, call, stream):
        stream.cut()
        reply = await call
        assert reply.is_whole
        assert text_of(reply) == FIRST + REST
        assert await this.stand.metric("llm_guard_wasted_tokens_total", model="gpt") >= 1


async def test_second_run_that_differs_is_cut_at_once() -> None:
    rules = {**RESTART, "retry": {"max_attempts": 1}}
    async with dying(begin(FIRST[:10], "something else"), rules) as (this, call, stream):
        stream.cut()
        reply = await call
        assert text_of(reply) == FIRST
        await this.back.exchanges[0].left()
        (line,) = await this.stand.calls()
        assert [each["outcome"] for each in line["attempts"]] == ["truncated", "diverged"]
        assert this.stand.breaker("one-back/gpt").failures == 0


async def test_second_run_without_all_choices_is_no_whole_answer() -> None:
    def two(exchange: Exchange) -> None:
        other = delta("Hi ").replace(b'"index": 0', b'"index": 1')
        exchange.say(stream_head(), chunk(delta("Hello ") + other))

    rules = {**RESTART, "retry": {"max_attempts": 1}}
    async with pair_of(two, finish("Hello ", "world"), **rules) as this:
        call = asyncio.create_task(CHAT.ask(this.stand.url, stream=True, messages=SAID, n=2))
        await eventually(lambda: this.front.open)
        await asyncio.sleep(0.02)
        this.front.open[0].cut()
        reply = await call
        assert not reply.is_whole
        assert b"event: error" in reply.body
        (line,) = await this.stand.calls()
        assert [each["outcome"] for each in line["attempts"]] == ["truncated", "diverged"]


async def test_non_stream_response_is_a_failure_and_the_next_is_tried() -> None:
    answers = [(whole(200, CHAT.answer),), (stream_head(), chunk(delta(FIRST[-40:] + REST)), chunk(DONE), END)]

    def once(exchange: Exchange) -> None:
        if len(this.front.exchanges) == 1:
            exchange.say(stream_head(), chunk(delta(FIRST)))
        else:  # which of them comes first depends on their backoffs
            exchange.answer(whole(500, b"{}"))

    async with pair_of(once, lambda exchange: exchange.answer(*answers.pop(0)), **CONTINUE) as this:
        call = asyncio.create_task(CHAT.ask(this.stand.url, stream=True, messages=SAID))
        await eventually(lambda: this.front.open)
        await asyncio.sleep(0.02)
        this.front.open[0].cut()
        assert text_of(await call) == FIRST + REST
        (line,) = await this.stand.calls()
        outcomes = [each["outcome"] for each in line["attempts"]]
        assert (outcomes[:2], outcomes[-1]) == (["truncated", "malformed"], "ok")


async def test_bug_in_the_join_costs_an_error_event_and_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, choice: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ChatContinuation, "_join_choice", broken)
    async with dying(begin(REST)) as (this, call, stream):
        stream.cut()
        reply = await call
        assert b"event: error" in reply.body
        assert this.in_flight() == 0
        await this.back.exchanges[0].left()
        (line,) = await this.stand.calls()
        assert line["attempts"][1]["outcome"] == "internal"


async def test_counts_of_thousands_of_digits_do_no_harm() -> None:
    usage = {"prompt_tokens": int("9" * 4300), "completion_tokens": 1}

    def counted(exchange: Exchange) -> None:
        exchange.answer(
            stream_head(), chunk(delta(FIRST[-40:] + "x " + REST, identity="b", usage=usage)), chunk(DONE), END
        )

    async with dying(counted) as (this, call, stream):
        stream.say(chunk(delta("x ", usage=usage)))
        await asyncio.sleep(0.02)
        stream.cut()
        assert (await call).is_whole
        (line,) = await this.stand.calls()
        assert line["outcome"] == "ok"


# the request


async def test_stream_is_requested_uncompressed_and_inflated_if_it_is_compressed() -> None:
    def squeezed(exchange: Exchange) -> None:
        packer = zlib.compressobj(wbits=31)
        data = packer.compress(delta(FIRST) + delta(REST) + DONE) + packer.flush()
        exchange.answer(stream_head(200, {"content-encoding": "gzip"}), chunk(data), END)

    async with pair_of(squeezed, None, **CONTINUE) as this:
        request = raw_request(CHAT.path, CHAT.body(stream=True), {"accept-encoding": "gzip, br"})
        async with Connection(this.stand.url) as client:
            reply = await client.ask(request)
        assert b"accept-encoding: identity" in this.front.exchanges[0].request.lower()
        assert "content-encoding" not in reply.headers
        assert text_of(reply) == FIRST + REST


async def test_compressed_request_is_read_and_sent_on_plain() -> None:
    async with pair_of(begin(FIRST), finish(FIRST[-40:] + REST), **CONTINUE) as this:
        body = gzip.compress(CHAT.body(stream=True, messages=SAID))
        async with Connection(this.stand.url) as client:
            call = asyncio.create_task(client.ask(raw_request(CHAT.path, body, {"content-encoding": "gzip"})))
            await eventually(lambda: this.front.open)
            await asyncio.sleep(0.02)
            this.front.open[0].cut()
            assert text_of(await call) == FIRST + REST
        head = this.back.exchanges[0].request.partition(b"\r\n\r\n")[0].lower()
        assert b"content-encoding" not in head
        assert this.back.exchanges[0].body["messages"][0] == SAID[0]


@pytest.mark.parametrize("form", [CHAT, MESSAGES], ids=name_of)
async def test_request_that_is_no_json_object_cannot_be_resumed(form: Form) -> None:
    """A body that is not JSON may name a model, too."""
    async with pair_of(None, None, **CONTINUE) as this:
        field = '--x\r\ncontent-disposition: form-data; name="{}"\r\n\r\n{}\r\n'
        body = (field.format("model", form.model) + field.format("stream", "true") + "--x--\r\n").encode()
        async with Connection(this.stand.url) as client:
            headers = {"content-type": "multipart/form-data; boundary=x"}
            call = asyncio.create_task(client.ask(raw_request(form.path, body, headers)))
            await eventually(lambda: this.front.open)
            this.front.open[0].say(stream_head(), *map(chunk, form.preamble), chunk(form.token))
            await asyncio.sleep(0.02)
            this.front.open[0].cut()
            assert not (await call).is_whole
        assert not this.back.exchanges
