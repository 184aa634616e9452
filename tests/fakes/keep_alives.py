"""Dead models behind a front that keeps the connection alive: the keep-alives that such fronts send on each endpoint,
and scripts of streams that hang behind them before or after the first token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.forms import CHAT, LEGACY, MESSAGES, RESPONSES, Form
from tests.fakes.provider import Pause, Respond, Step, chunk, stream_head

EVERY_S = 0.02
"""Seconds between two keep-alives."""
FORMS = (CHAT, LEGACY, RESPONSES, MESSAGES)


def named(name: str, **fields: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


def choice(**fields: object) -> bytes:
    body = {"object": "chat.completion.chunk", "choices": [{"index": 0, "finish_reason": None, **fields}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


ANYWHERE = {
    "comment": b": keep-alive\n\n",
    "comment line": b":\n",
    "blank lines": b"\n\n",
    "blank lines, CRLF": b"\r\n",
    "spaces": b"   \n\n",
    "ping": b'event: ping\ndata: {"type": "ping"}\n\n',
    "ping without data": b"event: ping\n\n",
    "heartbeat": b'data: {"type": "heartbeat"}\n\n',
    "empty data": b"data:\n\n",
    "empty object": b"data: {}\n\n",
    "id and retry": b"id: 7\nretry: 3000\n\n",
    "half an event": b"data: ",
}
OF_CHAT = {
    "empty delta": choice(delta={}),
    "empty text": choice(delta={"content": ""}),
    "role": choice(delta={"role": "assistant", "content": None}),
    "empty arguments": choice(delta={"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}),
    "no choice": b'data: {"object":"chat.completion.chunk","choices":[]}\n\n',
}
KEEP_ALIVES: dict[str, dict[str, bytes]] = {
    str(CHAT): OF_CHAT,
    str(LEGACY): {"empty text": choice(text=""), "no choice": b'data: {"choices":[]}\n\n'},
    str(RESPONSES): {
        "keepalive": named("keepalive", sequence_number=3),
        "empty text": named("response.output_text.delta", delta=""),
        "in progress": named("response.in_progress", response={"status": "in_progress"}),
        "queued": named("response.queued", response={"status": "queued"}),
    },
    str(MESSAGES): {
        "empty text": named("content_block_delta", index=0, delta={"type": "text_delta", "text": ""}),
        "empty thinking": named("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": ""}),
        "empty arguments": named(
            "content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": ""}
        ),
        "count of tokens": named("message_delta", delta={"stop_reason": None}, usage={"output_tokens": 1}),
        "message start": MESSAGES.preamble[0],
    },
}


@dataclass(frozen=True, slots=True)
class Hang:
    """One endpoint, and how its dead model's connection is kept alive."""

    form: Form
    name: str
    keep_alive: bytes

    def __str__(self) -> str:
        return f"{self.form}-{self.name}"


def hangs() -> Iterator[Hang]:
    for form in FORMS:
        for name, keep_alive in (ANYWHERE | KEEP_ALIVES[str(form)]).items():
            yield Hang(form, name, keep_alive)


def for_ever(keep_alive: bytes) -> list[Step]:
    return [step for _ in range(100) for step in (chunk(keep_alive), Pause(EVERY_S))]


def begun(form: Form) -> list[Respond]:
    return [stream_head(), *map(chunk, form.preamble), chunk(form.token)]
