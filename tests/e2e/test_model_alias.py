"""An alias changes the value of `model` in the request to the provider, and no other byte."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator, Callable

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from llm_guard.app import App
from tests.e2e.stand import SAID, config_text, gateway, standing
from tests.e2e.wire import exchange, wired
from tests.fakes.provider import ScriptedProvider, whole

ALIASES = """
  alias: {deployments: [{upstream: openai, model: real-name}]}
  claude-alias: {deployments: [{upstream: anthropic, model: claude-real}]}
"""
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nalias\r\n'
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n'
    b"Content-Type: audio/wav\r\n\r\nalias\x00\xff\r\n\r\nmodel\r\n--x--\r\n"
)


@pytest.fixture
async def provider() -> AsyncIterator[ScriptedProvider]:
    async with ScriptedProvider([whole()]) as provider:
        yield provider


@pytest.fixture
async def app(provider: ScriptedProvider) -> AsyncIterator[App]:
    async with gateway(config_text(provider.url, models=ALIASES, answers="off")) as app:
        yield app


@pytest.mark.parametrize(
    "body",
    [
        '{"model":"%s","messages":[]}',
        '{"messages": [ ],\n  "model" : "%s" ,\t"stream": false}\n',
        '{"metadata":{"model":"alias"},"messages":[{"model":"alias"}],"model":"%s"}',
        '{"model":"%s","messages":[{"content":"\\"model\\":\\"alias\\" déjà \U0001f600 \\u00e9"}]}',
        '{"tools":[{"parameters":{"properties":{"model":{"type":"string"}}}}],"model":"%s","x":1.0e2}',
        ' {"a":"model","model":"%s","b":12345678901234567890}',
    ],
)
async def test_rename_in_json_changes_the_value_alone(app: App, provider: ScriptedProvider, body: str) -> None:
    await exchange(app.addresses[0], "/v1/chat/completions", body.replace("%s", "alias").encode())
    assert wired(provider.requests[0]).body == body.replace("%s", "real-name").encode()


async def test_rename_in_a_form_changes_the_field_alone(app: App, provider: ScriptedProvider) -> None:
    headers = {"content-type": "multipart/form-data; boundary=x"}
    await exchange(app.addresses[0], "/v1/audio/transcriptions", FORM % b"alias", headers)
    seen = wired(provider.requests[0])
    assert seen.body == FORM % b"real-name"
    assert seen.values("content-length") == [str(len(seen.body))]


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_rename_in_a_compressed_body_leaves_it_compressed(
    app: App, provider: ScriptedProvider, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    plain = b'{"messages":[{"model":"alias"}],"model":"%b"}'
    packed = pack(plain % b"alias")
    await exchange(app.addresses[0], "/v1/chat/completions", packed, {"content-encoding": encoding})
    seen = wired(provider.requests[0])
    assert seen.values("content-encoding") == [encoding]
    assert seen.values("content-length") == [str(len(seen.body))]
    assert zlib.decompress(seen.body, wbits=47) == plain % b"real-name"


async def test_rename_in_a_query_changes_the_value_alone(app: App, provider: ScriptedProvider) -> None:
    await exchange(
        app.addresses[0], "/v1/realtime/calls?x[]=%2f&model=alias&y=a+b", b"v=0", {"content-type": "application/sdp"}
    )
    assert wired(provider.requests[0]).first_line == "POST /v1/realtime/calls?x[]=%2f&model=real-name&y=a+b HTTP/1.1"


async def test_sdks_see_the_providers_name_in_the_answer() -> None:
    async with (
        standing(models=ALIASES) as stand,
        AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="k", max_retries=0) as openai,
        AsyncAnthropic(base_url=stand.url, api_key="k", max_retries=0) as anthropic,
    ):
        answer = await openai.chat.completions.create(model="alias", messages=SAID)
        assert answer.model == stand.provider.last.model == "real-name"
        message = await anthropic.messages.create(model="claude-alias", max_tokens=9, messages=SAID)
        assert message.model == stand.provider.last.model == "claude-real"
