"""Keys and prompts must not appear in the gateway's own logs, metrics and error messages.

The keys are distinctive, so that a search finds them anywhere. Text from a provider reaches only the client of that
call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from llm_guard.proxy.attempts.attempt_loop import AttemptLoop
from llm_guard.proxy.attempts.candidate_selection import CandidateSelector
from llm_guard.proxy.call import Call
from llm_guard.routing.route_table import Route
from tests.chaos.forms import CHAT, MESSAGES
from tests.chaos.process import serving, start, write
from tests.chaos.stand import config_of, config_text, standing
from tests.chaos.wire import ask, fetch
from tests.fakes.client import VanishingClient, raw_request
from tests.fakes.provider import END, Close, Hold, Reset, Respond, ScriptedProvider, Step, chunk, stream_head, whole
from tests.security.grammar import head
from tests.security.keys import CLIENT_KEY, DOOR, OPS_TOKEN, STRANGERS_KEY, UPSTREAM_KEY, keyed
from tests.security.stand import BODY, HOST, POST, hear

PROMPT = "CANARY-prompt-4d1e77"
ANSWER = "CANARY-answer-a03c5e"
SECRETS = (UPSTREAM_KEY, CLIENT_KEY, OPS_TOKEN, STRANGERS_KEY)


def found(text: str, *more: str) -> list[str]:
    """Returns the secrets, or halves of them, in a text: a truncated key still reveals half of it."""
    parts = [
        part
        for secret in (*SECRETS, *more)
        for part in (secret[: len(secret) // 2 + 2], secret[len(secret) // 2 - 2 :])
    ]
    return [part for part in parts if part in text]


def everything(lines: Iterable[object]) -> str:
    return "\n".join(str(line) for line in lines)


def prompting(model: str, **more: object) -> bytes:
    """Builds a call with a prompt, and with a key in its body."""
    said = {"messages": [{"role": "user", "content": PROMPT}], "user": PROMPT, "metadata": {"key": STRANGERS_KEY}}
    return json.dumps({"model": model, **said, **more}).encode()


def echoing(status: int) -> Respond:
    """A provider's error that quotes the key and the prompt."""
    said = f"Incorrect API key provided: {UPSTREAM_KEY}. You asked: {PROMPT}"
    error = {"message": said, "type": "invalid_request_error", "code": "invalid_api_key", "param": PROMPT}
    return whole(status, json.dumps({"error": error}).encode(), {"x-echo": UPSTREAM_KEY, "retry-after": PROMPT})


ERROR_EVENT = b'data: {"error":{"message":"%b %b","type":"%b"}}\n\n' % (UPSTREAM_KEY.encode(), *[PROMPT.encode()] * 2)
FAILING: tuple[Sequence[Step], ...] = (
    *((echoing(status),) for status in (400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 529)),
    [whole(200, b'{"error":{"message":"%b","code":"%b"}}' % (UPSTREAM_KEY.encode(), PROMPT.encode()))],
    [whole(200, b'{"' + UPSTREAM_KEY.encode())],
    [whole(307, b"", {"location": f"http://{UPSTREAM_KEY}.example/{PROMPT}"})],
    [Respond(b"HTTP/1.1 200 " + UPSTREAM_KEY.encode() + b"\r\nX: \0\r\n\r\n")],
    [Respond(UPSTREAM_KEY.encode() + b"\r\n\r\n"), Close()],
    [stream_head(), chunk(ERROR_EVENT)],
    [stream_head(), chunk(CHAT.token), chunk(ERROR_EVENT)],
    [stream_head(), chunk(CHAT.token), chunk(b"data: {" + UPSTREAM_KEY.encode() + b"\n\n"), Reset()],
    [Reset()],
    [Hold()],
)
"""Failures of a provider, with secrets wherever there is room for them."""


RIGHT = {"Authorization": f"Bearer {CLIENT_KEY}"}
REFUSED: tuple[tuple[str, bytes, dict[str, str]], ...] = (
    (CHAT.path, prompting("gpt"), {"Authorization": f"Bearer {STRANGERS_KEY}"}),
    (CHAT.path, prompting("gpt"), {"X-Api-Key": STRANGERS_KEY}),
    (MESSAGES.path, prompting("claude"), {"X-Api-Key": STRANGERS_KEY}),
    (f"{CHAT.path}?api_key={STRANGERS_KEY}&key={PROMPT}", prompting("gpt"), {}),
    (f"{CHAT.path}?api_key={STRANGERS_KEY}", prompting("gpt")[:-1] + PROMPT.encode(), RIGHT),
    (CHAT.path, prompting("unknown"), RIGHT),
    (CHAT.path, b'{"model":["' + PROMPT.encode() + b'"]}', RIGHT),
    (CHAT.path, b'{"messages":["' + PROMPT.encode() + b'"]}', RIGHT),
    (CHAT.path, b"x" * 100_000 + PROMPT.encode(), RIGHT),
    (CHAT.path, prompting("gone"), RIGHT),
    (CHAT.path, prompting("gpt"), {**RIGHT, "X-LLM-Guard-Priority": PROMPT}),
    (CHAT.path, prompting("gpt"), {**RIGHT, "Content-Encoding": "gzip"}),
    ("/upstreams/nobody/v1/models", b"", RIGHT),
)
"""Calls that the gateway answers itself."""


async def test_no_secret_is_in_anything_that_a_process_writes_or_counts(tmp_path: Path) -> None:
    """C55 and C56: every class of error, with keys in headers, queries and bodies."""
    asked = [(script, is_stream) for script in FAILING for is_stream in (False, True)]
    async with ScriptedProvider(*(script for script, _ in asked)) as provider:
        # Each has an upstream of its own: an error about the key puts the key into cooldown.
        own_key = {"dialect": "openai", "api_key": UPSTREAM_KEY}
        upstreams = {f"u{at}": {**own_key, "base_url": f"{provider.url}/v1"} for at in range(len(asked))}
        upstreams["gone"] = {**own_key, "base_url": "http://127.0.0.1:1/v1"}
        models = {name: {"deployments": [{"upstream": name}]} for name in upstreams}
        config = config_text(
            provider.url, upstreams=upstreams, models=models, server={**DOOR, "max_body": "64KiB"},
            ops={"token": OPS_TOKEN}, timeout={"first_token": "300ms", "attempt": "300ms"},
        )  # fmt: skip
        async with serving(tmp_path / "config.yaml", config) as served:
            for at, (_, is_stream) in enumerate(asked):
                await ask(served.url, CHAT.path, prompting(f"u{at}", stream=is_stream), RIGHT)
            assert len(provider.requests) == len(asked)
            own = [await ask(served.url, *rest) for rest in REFUSED]
            for data in unparsable():
                own += (await hear(served.url, data)).answers
            await VanishingClient(served.url).vanish(raw_request(CHAT.path, prompting("gpt"), RIGHT), after_s=0.05)
            metrics = (await fetch(f"{served.url}/metrics")).text
            served.process.terminate()
            await served.exit_code()
        calls = [line for line in served.log if line["event"] == "call"]
        assert len(calls) >= len(asked) + len(REFUSED)
        assert all(reply.status >= 400 for reply in own)
        written = everything([served.said, *served.log, *served.complaints])
        assert not found(written, PROMPT), written
        assert not found(metrics, PROMPT)
        assert not found(everything(f"{reply.headers} {reply.text}" for reply in own), PROMPT)


def unparsable() -> list[bytes]:
    """Invalid requests with a key: a parser's error may quote them (C54)."""
    key = STRANGERS_KEY.encode()
    return [
        head(POST, HOST, b"Authorization: Bearer " + key + b"\x01", b"Content-Length: %d" % len(BODY)) + BODY,
        head(POST, HOST, b"Authorization: Bearer " + key + b"\rX", b"Content-Length: %d" % len(BODY)) + BODY,
        head(POST, HOST, b"Authorization : Bearer " + key),
        head(POST, HOST, b"Bearer " + key),
        head(POST, HOST, b"X-Api-Key: " + key + b"\0"),
        head(b"GET /v1/models?key=" + key + b" HTTP/9.9", HOST),
        head(key + b" /v1/models HTTP/1.1", HOST),
        head(POST, HOST, b"Content-Length: " + key),
        head(POST, HOST, b"Transfer-Encoding: chunked") + key + b"\r\n\r\n",
        head(POST, HOST, b"X-Api-Key: " + key * 2000),
        key + b"\r\n\r\n",
    ]


@pytest.mark.parametrize("data", [pytest.param(each, id=f"C54 {at}") for at, each in enumerate(unparsable())])
async def test_malformed_request_is_answered_without_quoting_it(data: bytes) -> None:
    async with keyed(is_open=False) as front:
        heard = await front.hear(data)
        assert heard.statuses
        assert all(status >= 400 for status in heard.statuses)
        assert not found(everything(f"{answer.headers} {answer.text}" for answer in heard.answers))
        assert not found(everything(front.stand.log))


async def test_exception_is_hidden_from_the_client_except_for_its_id() -> None:
    """C57: the client sees a generic message and no detail of the exception."""

    class Broken(AttemptLoop):
        def __init__(self) -> None:
            """Skips the collaborators that the base class needs."""

        def begin(self, call: Call, route: Route) -> CandidateSelector:
            raise RuntimeError("connect to redis://:word@10.0.0.7 failed in /srv/app.py")

    async with keyed() as front:
        front.stand.app.gateway._loop = Broken()
        reply = await CHAT.ask(front.url)
        error = CHAT.error_of(reply)
        assert (reply.status, error["code"], error["message"]) == (
            500,
            "internal_error",
            "internal error of the gateway",
        )
        assert not [word for word in ("redis", "10.0.0.7", ".py", "RuntimeError", "Traceback") if word in reply.text]
        (line,) = [line for line in front.stand.log if line.get("log_level") == "error"]
        assert line["request_id"] == reply.headers["x-llm-guard-request-id"]
        assert (await CHAT.ask(front.url)).status == 500, "the connection and the gateway go on"


async def test_config_with_keys_shows_none_of_them() -> None:
    """C55 and C74: printed, logged, or in a traceback."""
    async with keyed(is_open=False) as front:
        app = front.stand.app
        (deployment, *_) = app.gateway.deployments()
        assert not found(everything(map(repr, (app.config, deployment, deployment.upstream, app.gateway.table))))


SPOKEN = CHAT.token.replace(b'"content": "', b'"content": "' + ANSWER.encode())
assert ANSWER.encode() in SPOKEN
ANSWERING: tuple[Sequence[Step], ...] = (
    [whole(200, b'{"choices":[{"message":{"content":"%b"}}]}' % ANSWER.encode())],
    [stream_head(), chunk(SPOKEN), chunk(CHAT.end), END],
    [stream_head(), chunk(SPOKEN), Reset()],
    [stream_head(), chunk(SPOKEN), chunk(ERROR_EVENT)],
    [whole(200, b'{"choices":[{"message":{"content":"%b' % ANSWER.encode())],
)
"""Responses that are complete or cut midway, with text that only the client may see."""


SCRIPTS = (*FAILING, *ANSWERING)


def one_each(url: str) -> dict[str, Any]:
    """Gives each script an upstream of its own: an error about the key puts the key into cooldown."""
    names = [f"u{at}" for at in range(len(SCRIPTS))]
    upstream = {"dialect": "openai", "api_key": UPSTREAM_KEY, "base_url": f"{url}/v1"}
    models = {name: {"deployments": [{"upstream": name}]} for name in names}
    return {"upstreams": dict.fromkeys(names, upstream), "models": models, "server": DOOR,
            "timeout": {"first_token": "300ms", "attempt": "300ms"}}  # fmt: skip


async def converse(url: str, provider: ScriptedProvider) -> None:
    """Makes one call for each script."""
    for at, script in enumerate(SCRIPTS):
        is_stream = any(b"event-stream" in step.data for step in script if isinstance(step, Respond))
        await ask(url, CHAT.path, prompting(f"u{at}", stream=is_stream), RIGHT)
    assert len(provider.requests) == len(SCRIPTS)


async def test_no_prompt_answer_or_key_is_on_any_page_of_the_operators() -> None:
    async with ScriptedProvider(*SCRIPTS) as provider, ScriptedProvider(*[[whole()]] * 9) as collector:
        ops = {"token": OPS_TOKEN, "traces": {"endpoint": f"{collector.url}/v1/traces"}}
        async with standing(config_of(provider.url, ops=ops, **one_each(provider.url))) as stand:
            await converse(stand.url, provider)
            await stand.idle()
            operator = {"host": "localhost", "authorization": f"Bearer {OPS_TOKEN}"}
            said = []
            for page in stand.app.ops._site.pages:
                if page.method == "GET" and page.live is None and "{" not in page.path:
                    reply = await ask(stand.url, page.path, b"", operator, "GET")
                    assert reply.status < 500, page.path
                    said.append(f"{page.path} {reply.text}")
            explained = await ask(stand.url, "/admin/explain", b'{"model":"u1"}', operator)
            assert explained.json["deployments"]
            assert not found(explained.text, PROMPT, ANSWER)
            calls = (await ask(stand.url, "/admin/calls", b"", operator, "GET")).json["calls"]
            pages = [f"/admin/calls/{call['request_id']}" for call in calls]
            said += [(await ask(stand.url, page, b"", operator, "GET")).text for page in pages]
            assert len(said) > 10 + len(FAILING)
            for each in said:
                assert not found(each, PROMPT, ANSWER), each
            assert not found(everything(stand.log), PROMPT, ANSWER)
        assert collector.requests
        assert not found(everything(collector.requests), PROMPT, ANSWER)


@pytest.mark.parametrize("form", ["json", "console"])
async def test_no_prompt_response_or_key_is_in_a_log_of_either_format(tmp_path: Path, form: str) -> None:
    async with ScriptedProvider(*SCRIPTS) as provider:
        text = config_text(provider.url, ops={"token": OPS_TOKEN}, **one_each(provider.url))
        process = await start(write(tmp_path / "config.yaml", text), "--log-format", form, "--log-level", "debug")
        assert process.stderr is not None
        try:
            url = (await process.stderr.readline()).decode().split()[-1]
            await converse(url, provider)
        finally:
            process.terminate()
            async with asyncio.timeout(10):
                written = b"".join(await process.communicate()).decode()
        assert written.count("request_id") >= len(SCRIPTS)
        assert not found(written, PROMPT, ANSWER), written


async def test_identity_of_a_caller_is_stored_as_a_digest() -> None:
    """C55: rate limits are kept per caller, which needs only a digest of the key."""
    async with keyed() as front:
        await ask(front.url, CHAT.path, BODY, {"Authorization": f"Bearer {STRANGERS_KEY}"})
        gates = front.stand.deployment(CHAT.deployment).gates
        assert not found(everything(gates._by_account))
