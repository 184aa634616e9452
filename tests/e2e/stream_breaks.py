"""Every way in which a stream can break after its first token, and every way in which the official SDKs read one.

The provider breaks as the model's name says (`gpt-reset`, `claude-stall`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from llm_guard.mock.anthropic_answers import answer_anthropic
from llm_guard.mock.content import say
from llm_guard.mock.exchange import MockRequest, Script
from llm_guard.mock.openai_answers import answer_openai
from tests.chaos.stand import Section, Stand, config_of, standing
from tests.e2e.stand import SAID
from tests.fakes.provider import END, Close, Hold, Pause, Reset, ScriptedProvider, Step, chunk, stream_head

HEARD = 3
"""Tokens before a stream breaks."""
TEXT = "".join(say(HEARD))
IDLE_S = 0.3
"""`idle` limit of the models `gpt-stall` and `claude-stall` only."""
TOTAL_S = 0.4
"""`total` limit of the models `gpt-total` and `claude-total` only."""

_AFTER_A_WHILE = Pause(0.02)
"""Delay before the break: an error in one packet with the first token would still be retried, and a reset could
overtake the token."""
_DONE = chunk(b"data: [DONE]\n\n")
_LLAMA_ERROR = chunk(b'error: {"code":500,"message":"slot lost","type":"server_error"}\n\n')


def _long(script: Script) -> bytes:
    """A token of two megabytes without its end: too large to be buffered until it is complete."""
    word = say(1)[0].encode()
    return script.tokens[0].partition(word)[0] + word * 200_000


def _squeezed(events: Sequence[bytes]) -> list[bytes]:
    squeeze = zlib.compressobj(wbits=31)
    return [squeeze.compress(event) + squeeze.flush(zlib.Z_SYNC_FLUSH) for event in events]


def _drip(script: Script) -> list[Step]:
    return [step for _ in range(100) for step in (chunk(script.tokens[0]), Pause(0.05))]


BREAKS: dict[str, Callable[[Script], Sequence[Step]]] = {
    "stall": lambda _: [Hold()],
    "cut": lambda _: [Close()],
    "cut-in-an-event": lambda script: [chunk(script.tokens[0][:-9]), Pause(0.01), Close()],
    "cut-in-a-long-event": lambda script: [chunk(_long(script)), Pause(0.05), Close()],
    "cut-gzip": lambda _: [Close()],
    "reset": lambda _: [Reset()],
    "truncated": lambda _: [END],
    "done": lambda _: [_DONE, END],
    "error": lambda script: [chunk(script.error), END],
    "error-and-done": lambda script: [chunk(script.error), _DONE, END],
    "error-without-name": lambda script: [chunk(b"data:" + script.error.partition(b"data:")[2]), END],
    "error-of-llama-cpp": lambda _: [_LLAMA_ERROR, _DONE, END],
    "total": _drip,
    "drain": lambda _: [Hold()],
}
"""Steps after the last good token, by model name."""

_FEW: dict[str, tuple[str, ...]] = {
    "error-and-done": ("chat", "responses", "legacy"),
    "error-without-name": ("responses", "responses-helper", "messages", "messages-helper"),
    "error-of-llama-cpp": ("chat", "chat-helper", "legacy"),
    "cut-in-a-long-event": ("chat", "responses", "messages"),
    "cut-gzip": ("chat", "responses", "messages"),
}
"""Breaks that only these listeners can see: chat events have no names, llama.cpp speaks no other format, and the rest
depend on the format alone."""


class BreakingProvider(ScriptedProvider):
    """Streams some good tokens, then breaks as the model's name says."""

    def next_script(self) -> Sequence[Step]:
        head, _, body = self.requests[-1].partition(b"\r\n\r\n")
        path = head.split(b" ")[1].decode().removeprefix("/v1")
        fields = json.loads(body)
        model: str = fields["model"]
        is_claude = model.startswith("claude")
        asked = MockRequest("anthropic" if is_claude else "openai", 1, "POST", path, {}, {}, fields, 1, model, True)
        script = (answer_anthropic if is_claude else answer_openai)(asked, HEARD)
        assert isinstance(script, Script)
        kind = model.partition("-")[2]
        good = [*script.opening, *script.tokens]
        if kind.endswith("gzip"):
            opened = [stream_head(200, {"content-encoding": "gzip"}), *map(chunk, _squeezed(good))]
        else:
            opened = [stream_head(), *map(chunk, good)]
        return [*opened, _AFTER_A_WHILE, *BREAKS[kind](script)]


@asynccontextmanager
async def breaking(*, server: Section | None = None) -> AsyncIterator[tuple[Stand, BreakingProvider]]:
    """Runs a gateway in front of a BreakingProvider; `server` is that section of its config."""
    timeout = {"idle": "10s", "total": "20s"}
    shorter = {"stall": {"idle": f"{IDLE_S}s"}, "total": {"total": f"{TOTAL_S}s"}}
    models: dict[str, Section] = {}
    for family, upstream in (("gpt", "one"), ("claude", "two")):
        deployments = {"deployments": [{"upstream": upstream}]}
        models[f"{family}-*"] = deployments
        models |= {f"{family}-{kind}": {**deployments, "timeout": limit} for kind, limit in shorter.items()}
    async with BreakingProvider() as provider:
        config = config_of(provider.url, timeout=timeout, models=models, server=server or {}, retry={"max_attempts": 3})
        async with standing(config) as stand:
            yield stand, provider


@dataclass(frozen=True, slots=True)
class Listener:
    """One way to request a stream and to read it."""

    name: str
    ask: Callable[[Any, str], Any]
    """Takes a client, sync or async, and a model; returns a stream, or an object that opens one."""
    text_of: Callable[[Any], str]
    """Returns the text in one item of the stream, "" if it has none."""
    items: Callable[[Any], Any] = lambda stream: stream
    """Returns the object to iterate over."""
    final: str = ""
    """The helper's method that waits for the complete response."""
    family: str = "gpt"

    def __str__(self) -> str:
        return self.name

    def may_see(self, kind: str) -> bool:
        """Returns whether this listener can see this kind of break."""
        return kind not in _FEW or self.name in _FEW[kind]

    async def listen(self, url: str, kind: str, heard: list[str], *, is_sync: bool, final: str = "") -> None:
        """Requests the stream that breaks this way and reads it to its end into `heard`; with `final`, waits for the
        complete response by that method instead."""
        model = f"{self.family}-{kind}"
        if is_sync:
            await asyncio.to_thread(self._listen_in_thread, url, model, heard, final)
        else:
            await self._listen_async(url, model, heard, final)

    def _listen_in_thread(self, url: str, model: str, heard: list[str], final: str) -> None:
        keys: Any = {"api_key": "k", "max_retries": 0, "timeout": 10}
        client = Anthropic(base_url=url, **keys) if self.family == "claude" else OpenAI(base_url=f"{url}/v1", **keys)
        with client, self.ask(client, model) as stream:
            if final:
                getattr(stream, final)()
            else:
                for item in self.items(stream):
                    heard.append(self.text_of(item))  # noqa: PERF401  # what came before an exception is kept

    async def _listen_async(self, url: str, model: str, heard: list[str], final: str) -> None:
        keys: Any = {"api_key": "k", "max_retries": 0, "timeout": 10}
        of_claude = self.family == "claude"
        async with (
            AsyncAnthropic(base_url=url, **keys) if of_claude else AsyncOpenAI(base_url=f"{url}/v1", **keys) as client
        ):
            asked = self.ask(client, model)
            async with await asked if inspect.isawaitable(asked) else asked as stream:
                if final:
                    await getattr(stream, final)()
                else:
                    async for item in self.items(stream):
                        heard.append(self.text_of(item))  # noqa: PERF401


def _chat_text(chunk: Any) -> str:
    return (chunk.choices[0].delta.content or "") if chunk.choices else ""


def _responses_text(event: Any) -> str:
    return str(event.delta) if event.type == "response.output_text.delta" else ""


def _messages_text(event: Any) -> str:
    return str(event.delta.text) if event.type == "content_block_delta" else ""


_MESSAGE: Any = {"max_tokens": 9, "messages": SAID}

LISTENERS = [
    Listener(
        "chat",
        lambda client, model: client.chat.completions.create(model=model, messages=SAID, stream=True),
        _chat_text,
    ),
    Listener(
        "chat-helper",
        lambda client, model: client.chat.completions.stream(model=model, messages=SAID),
        lambda event: event.delta if event.type == "content.delta" else "",
        final="get_final_completion",
    ),
    Listener(
        "responses",
        lambda client, model: client.responses.create(model=model, input="hi", stream=True),
        _responses_text,
    ),
    Listener(
        "responses-helper",
        lambda client, model: client.responses.stream(model=model, input="hi"),
        _responses_text,
        final="get_final_response",
    ),
    Listener(
        "messages",
        lambda client, model: client.messages.create(model=model, stream=True, **_MESSAGE),
        _messages_text,
        family="claude",
    ),
    Listener(
        "messages-helper",
        lambda client, model: client.messages.stream(model=model, **_MESSAGE),
        str,
        items=lambda stream: stream.text_stream,
        final="get_final_message",
        family="claude",
    ),
    Listener(
        "legacy",
        lambda client, model: client.completions.create(model=model, prompt="hi", stream=True),
        lambda chunk: chunk.choices[0].text if chunk.choices else "",
    ),
]  # fmt: skip
