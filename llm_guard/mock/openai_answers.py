"""Successful responses of an OpenAI-compatible provider: chat, completions and the small endpoints.

They have the shapes that the `openai` SDK reads. The Responses API is in `openai_responses`, files and batches in
`files_and_batches`, errors in `errors`.
"""

from __future__ import annotations

import base64
import struct
import time
from collections.abc import Callable
from typing import Any

from msgspec.json import encode

from llm_guard.mock.content import example_of, say_json, split
from llm_guard.mock.continuation import speak
from llm_guard.mock.errors import error_body
from llm_guard.mock.exchange import MockRequest, MockResponse, Script, Upload
from llm_guard.mock.openai_responses import respond

_DONE = b"data: [DONE]\n\n"
_MODELS = ("gpt-4o", "gpt-4o-mini", "gpt-4-turbo", "text-embedding-3-small")
# The smallest valid PNG: one transparent pixel.
_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
_SOUND = b"ID3\x04\x00" + bytes(range(256)) * 16


def answer_openai(asked: MockRequest, tokens: int) -> MockResponse | Script | None:
    """Returns the response, with `tokens` tokens of content where it has any; None for an unknown path."""
    if asked.method == "GET" and asked.path.startswith("/models"):
        return _models(asked)
    endpoint = _ENDPOINTS.get(asked.path) if asked.method == "POST" else None
    return endpoint(asked, tokens) if endpoint is not None else None


def _chat(asked: MockRequest, tokens: int) -> MockResponse | Script:
    tool = _forced_tool(asked)
    if tool is not None:
        arguments = example_of(tool.get("parameters") or {}, is_another=asked.is_another)
        pieces = split(encode(arguments).decode(), tokens)
    else:
        schema = _json_schema(asked)
        pieces = speak(asked, tokens) if schema is None else say_json(schema, tokens, is_another=asked.is_another)
    name = None if tool is None else str(tool["name"])
    if asked.wants_stream:
        return _chat_stream(asked, pieces, name)
    content = "".join(pieces)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if name is not None:
        function = {"name": name, "arguments": content}
        call = {"id": "call_mock", "type": "function", "function": function}
        message |= {"content": None, "tool_calls": [call]}
    choices = [
        {"index": i, "message": message, "logprobs": None, "finish_reason": _finish(name)} for i in _choices(asked)
    ]
    answer = _head(asked, "chat.completion") | {"choices": choices, "usage": _usage(asked, len(pieces))}
    return _json(answer, len(pieces))


def _chat_stream(asked: MockRequest, pieces: list[str], tool: str | None) -> Script:
    head = _head(asked, "chat.completion.chunk")
    has_usage = _wants_usage(asked)
    if has_usage:
        head["usage"] = None

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return b"".join(
            _event(head | {"choices": [{"index": i, "delta": delta, "logprobs": None, "finish_reason": finish}]})
            for i in _choices(asked)
        )

    def piece(text: str) -> dict[str, Any]:
        if tool is None:
            return {"content": text}
        return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}

    first: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    if tool is not None:
        call = {
            "index": 0,
            "id": "call_mock",
            "type": "function",
            "function": {"name": tool, "arguments": ""},
        }
        first |= {"content": None, "tool_calls": [call]}
    trailer = (_event(head | {"choices": [], "usage": _usage(asked, len(pieces))}),) if has_usage else ()
    return Script(
        opening=(chunk(first),),
        tokens=tuple(chunk(piece(text)) for text in pieces),
        closing=(chunk({}, _finish(tool)), *trailer, _DONE),
        error=_event(error_body("openai", 500, asked.model)),
        broken=b'data: {"id":"chatcmpl-mock","choices":[{"index":0,"delta":{"content":\n\n',
    )


def _completion(asked: MockRequest, tokens: int) -> MockResponse | Script:
    pieces = speak(asked, tokens)
    head = _head(asked, "text_completion")

    def choices(text: str, finish: str | None) -> dict[str, Any]:
        return {
            "choices": [{"index": i, "text": text, "logprobs": None, "finish_reason": finish} for i in _choices(asked)]
        }

    usage = _usage(asked, len(pieces))
    if not asked.wants_stream:
        return _json(head | choices("".join(pieces), "stop") | {"usage": usage}, len(pieces))
    trailer = (_event(head | {"choices": [], "usage": usage}),) if _wants_usage(asked) else ()
    return Script(
        opening=(),
        tokens=tuple(_event(head | choices(text, None)) for text in pieces),
        closing=(_event(head | choices("", "stop")), *trailer, _DONE),
        error=_event(error_body("openai", 500, asked.model)),
        broken=b'data: {"id":"cmpl-mock","choices":[{"index":0,"text":\n\n',
    )


def _embeddings(asked: MockRequest, _tokens: int) -> MockResponse:
    inputs = asked.fields.get("input", "")
    # One list of numbers is one input, given as tokens.
    count = len(inputs) if isinstance(inputs, list) and inputs and not isinstance(inputs[0], int) else 1
    size = asked.fields.get("dimensions") or 8
    data: list[dict[str, Any]] = []
    for index in range(count):
        vector = [((index + 1) * (j + 1) % 17) / 16 for j in range(size)]
        packed = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
        embedding = packed if asked.fields.get("encoding_format") == "base64" else vector
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    usage = {"prompt_tokens": asked.prompt_tokens, "total_tokens": asked.prompt_tokens}
    return _json({"object": "list", "data": data, "model": asked.model, "usage": usage})


def _images(asked: MockRequest, _tokens: int) -> MockResponse:
    return _json({"created": int(time.time()), "data": [{"b64_json": _PNG} for _ in _choices(asked)]})


def _speech(_asked: MockRequest, _tokens: int) -> MockResponse:
    return MockResponse(200, _SOUND, content_type="audio/mpeg")


def _transcription(asked: MockRequest, _tokens: int) -> MockResponse:
    upload = asked.fields.get("file")
    text = f"heard {len(upload.data) if isinstance(upload, Upload) else 0} bytes"
    if asked.fields.get("response_format") == "text":
        return MockResponse(200, text.encode() + b"\n", content_type="text/plain; charset=utf-8")
    return _json({"text": text, "usage": {"type": "duration", "seconds": 1}})


_CATEGORIES = (
    "harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent",
    "self-harm", "self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors",
    "violence", "violence/graphic",
)  # fmt: skip


def _moderations(asked: MockRequest, _tokens: int) -> MockResponse:
    inputs = asked.fields.get("input")
    result = {
        "flagged": False,
        "categories": dict.fromkeys(_CATEGORIES, False),
        "category_scores": dict.fromkeys(_CATEGORIES, 0.001),
        "category_applied_input_types": {name: ["text"] for name in _CATEGORIES},
    }
    count = len(inputs) if isinstance(inputs, list) else 1
    return _json({"id": f"modr-mock{asked.number}", "model": asked.model, "results": [result] * count})


def _models(asked: MockRequest) -> MockResponse | None:
    if asked.path == "/models":
        return _json({"object": "list", "data": [_model(name) for name in _MODELS]})
    return _json(_model(asked.path.removeprefix("/models/")))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1_715_367_049, "owned_by": "mock"}


_ENDPOINTS: dict[str, Callable[[MockRequest, int], MockResponse | Script]] = {
    "/chat/completions": _chat,
    "/completions": _completion,
    "/responses": respond,
    "/embeddings": _embeddings,
    "/images/generations": _images,
    "/audio/speech": _speech,
    "/audio/transcriptions": _transcription,
    "/moderations": _moderations,
}


def _forced_tool(asked: MockRequest) -> dict[str, Any] | None:
    """The function that `tool_choice` demands: any of them (`required`), or one by its name."""
    functions = [tool["function"] for tool in asked.fields.get("tools") or () if "function" in tool]
    choice = asked.fields.get("tool_choice")
    if choice == "required" and functions:
        return dict(functions[0])
    if isinstance(choice, dict):
        name = choice.get("function", {}).get("name")
        return next((dict(function) for function in functions if function["name"] == name), None)
    return None


def _json_schema(asked: MockRequest) -> dict[str, Any] | None:
    wanted = asked.fields.get("response_format") or {}
    if wanted.get("type") == "json_object":
        return {}
    return wanted["json_schema"].get("schema", {}) if wanted.get("type") == "json_schema" else None


def _choices(asked: MockRequest) -> range:
    return range(asked.fields.get("n") or 1)


def _finish(tool: str | None) -> str:
    return "stop" if tool is None else "tool_calls"


def _wants_usage(asked: MockRequest) -> bool:
    return bool((asked.fields.get("stream_options") or {}).get("include_usage"))


def _head(asked: MockRequest, kind: str) -> dict[str, Any]:
    prefix = "cmpl" if kind == "text_completion" else "chatcmpl"
    return {
        "id": f"{prefix}-mock{asked.number}",
        "object": kind,
        "created": int(time.time()),
        "model": asked.model,
        "system_fingerprint": "fp_mock",
    }


def _usage(asked: MockRequest, tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": asked.prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": asked.prompt_tokens + tokens,
    }


def _json(value: dict[str, Any], output_tokens: int = 0) -> MockResponse:
    return MockResponse(200, encode(value), output_tokens=output_tokens)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + encode(value) + b"\n\n"
