"""Keep-alive comments for a waiting client: the official SDKs read past them."""

from __future__ import annotations

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.chaos.forms import CHAT, MESSAGES
from tests.chaos.stand import facing
from tests.e2e.stand import SAID
from tests.fakes.provider import Pause, Step, stream_head

WAITING = {"keepalive": {"interval": "50ms"}}


async def test_openai_reads_past_comments() -> None:
    script: list[Step] = [stream_head(), Pause(0.3), *CHAT.good_stream[1:]]
    # The SDK's read timeout would end a silence of this length.
    async with (
        facing(script, stream=WAITING) as (stand, _),
        AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="k", max_retries=0, timeout=0.2) as client,
    ):
        stream = await client.chat.completions.create(model="gpt", messages=SAID, stream=True)
        assert [chunk.choices[0].delta.content async for chunk in stream] == ["", "h\u00e9", None]


async def test_anthropic_reads_past_comments() -> None:
    script: list[Step] = [stream_head(), Pause(0.3), *MESSAGES.good_stream[1:]]
    async with (
        facing(script, stream=WAITING) as (stand, _),
        AsyncAnthropic(base_url=stand.url, api_key="k", max_retries=0, timeout=0.2) as client,
    ):
        stream = await client.messages.create(model="claude", max_tokens=9, messages=SAID, stream=True)
        assert [event.type async for event in stream][-1] == "message_stop"
