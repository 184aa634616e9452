"""The five kinds of call that the tests make, with sample responses in both dialects and readers of their errors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.chaos.wire import Reply, ask
from tests.fakes.client import raw_request
from tests.fakes.provider import END, Respond, chunk, stream_head, whole


@dataclass(frozen=True, slots=True)
class Form:
    """One endpoint and its sample bytes."""

    path: str
    model: str
    answer: bytes
    """A complete unary response."""
    preamble: tuple[bytes, ...] = ()
    """Stream events before the first token."""
    token: bytes = b""
    end: bytes = b""
    """The terminal event and anything after it."""
    error: bytes = b""
    """An in-band error of the provider."""

    def __str__(self) -> str:
        return self.path.removeprefix("/v1/")

    @property
    def deployment(self) -> str:
        """Label of the stand's deployment for this form."""
        return f"{'two' if self.model == 'claude' else 'one'}/{self.model}"

    def body(self, *, stream: bool = False, **more: object) -> bytes:
        return json.dumps({"model": self.model, "stream": stream, **more}).encode()

    def request(self, *, stream: bool = False, **more: object) -> bytes:
        return raw_request(self.path, self.body(stream=stream, **more))

    async def ask(self, url: str, *, stream: bool = False, **more: object) -> Reply:
        """Sends one call of this form on a connection of its own."""
        return await ask(url, self.path, self.body(stream=stream, **more))

    @property
    def ok(self) -> tuple[Respond, ...]:
        """A good unary response."""
        return (whole(200, self.answer),)

    @property
    def good_stream(self) -> tuple[Respond, ...]:
        """A good stream of one token."""
        return (stream_head(), *map(chunk, self.preamble), chunk(self.token), chunk(self.end), END)

    @property
    def stream_bytes(self) -> bytes:
        """Bytes that a client receives from `good_stream`."""
        return b"".join((*self.preamble, self.token, self.end))

    def error_of(self, reply: Reply) -> dict[str, Any]:
        """Returns the gateway's error in this dialect."""
        return self._error(reply.json)

    def error_in(self, event: bytes) -> dict[str, Any]:
        """Returns the error in an error event of this dialect."""
        lines = event.split(b"\n")
        assert lines[0] == b"event: error"
        assert len(lines) == 2
        return self._error(json.loads(lines[1].removeprefix(b"data: ")))

    def _error(self, body: dict[str, Any]) -> dict[str, Any]:
        error = body["error"]
        if self.model == "claude":
            assert body["type"] == "error"
            assert set(error) == {"type", "message"}
        else:
            assert {"message", "type", "code", "param"} <= set(error)
        assert isinstance(error["message"], str)
        return dict(error)


def _event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


def _delta(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"


CHAT = Form(
    "/v1/chat/completions",
    "gpt",
    b'{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}',
    (_delta({"role": "assistant", "content": ""}),),
    _delta({"content": "hé"}),
    _delta({}, "stop") + b"data: [DONE]\n\n",
    b'data: {"error":{"message":"overloaded","type":"server_error","code":null,"param":null}}\n\n',
)
RESPONSES = Form(
    "/v1/responses",
    "gpt",
    b'{"id":"resp_1","object":"response","output":[],"usage":{"input_tokens":3,"output_tokens":1}}',
    (_event("response.created", response={"status": "in_progress"}), _event("response.in_progress", response={})),
    _event("response.output_text.delta", delta="hi"),
    _event("response.completed", response={"status": "completed", "usage": {"input_tokens": 3, "output_tokens": 1}}),
    _event("error", code="server_error", message="overloaded", param=None),
)
LEGACY = Form(
    "/v1/completions",
    "gpt",
    b"",
    (b'data: {"object":"text_completion","choices":[{"index":0,"text":"","finish_reason":null}]}\n\n',),
    b'data: {"object":"text_completion","choices":[{"index":0,"text":"hi","finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
    b'data: {"error":{"message":"overloaded","type":"server_error","code":null,"param":null}}\n\n',
)
EMBEDDINGS = Form(
    "/v1/embeddings",
    "gpt",
    b'{"object":"list","data":[{"embedding":[0.5],"index":0}],"usage":{"prompt_tokens":3}}',
)
MESSAGES = Form(
    "/v1/messages",
    "claude",
    b'{"type":"message","role":"assistant","content":[{"type":"text","text":"hi"}],'
    b'"usage":{"input_tokens":3,"output_tokens":1}}',
    (
        _event("message_start", message={"role": "assistant", "content": [], "usage": {"input_tokens": 3}}),
        _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        _event("ping"),
    ),
    _event("content_block_delta", index=0, delta={"type": "text_delta", "text": "hi"}),
    _event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1}) + _event("message_stop"),
    _event("error", error={"type": "overloaded_error", "message": "Overloaded"}),
)

UNARY = (CHAT, RESPONSES, EMBEDDINGS, MESSAGES)
STREAMS = (CHAT, RESPONSES, MESSAGES)
BOTH = tuple((form, False) for form in UNARY) + tuple((form, True) for form in STREAMS)
"""Form, and whether it is streamed."""


def name_of(value: object) -> str:
    """Names a parameter in a test's id."""
    if isinstance(value, bool):
        return "stream" if value else "unary"
    return str(value)


ANY_ANSWER = (
    b'{"id":"any","role":"assistant","choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}],'
    b'"data":[{"embedding":[0.5]}],"content":[],"output":[],"usage":{}}'
)
"""A good response for every form."""
