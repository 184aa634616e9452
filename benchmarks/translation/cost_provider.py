"""A provider of both dialects for the cost of a translated call: `python -m benchmarks.translation.cost_provider`.

The model says what it answers: `whole`, or `text-N` and `tool-N`, streams of N deltas a few milliseconds apart.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

PACE_S = 0.004
_WORDS = "The gateway passes on what it gets. "
_SAID = _WORDS * 12
_CHAT: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
_MESSAGE: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
_CHAT_USAGE = {"prompt_tokens": 300, "completion_tokens": 90, "total_tokens": 390}
_USAGE = {"input_tokens": 300, "output_tokens": 90}


def whole(*, is_chat: bool) -> bytes:
    """Returns a response that is not streamed."""
    if is_chat:
        message = {"role": "assistant", "content": _SAID, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        return json.dumps({**_CHAT, "choices": [choice], "usage": _CHAT_USAGE}).encode()
    content = [{"type": "text", "text": _SAID}]
    return json.dumps({**_MESSAGE, "content": content, "stop_reason": "end_turn", "usage": _USAGE}).encode()


def pieces(kind: str, count: int, *, is_chat: bool) -> list[bytes]:
    """Returns the events of a stream with `count` deltas of text or of a tool's arguments."""
    texts = ['{"text": "', *["word and "] * (count - 2), 'end"}'] if kind == "tool" else [_WORDS] * count
    return _chat(kind, texts) if is_chat else _messages(kind, texts)


def _chat(kind: str, texts: list[str]) -> list[bytes]:
    if kind == "tool":
        call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "write", "arguments": ""}}
        deltas: list[Any] = [{"tool_calls": [call]}]
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": text}}]} for text in texts]
    else:
        deltas = [{"content": text} for text in texts]
    head = {**_CHAT, "object": "chat.completion.chunk"}
    choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    choices.append([{"index": 0, "delta": {}, "finish_reason": "tool_calls" if kind == "tool" else "stop"}])
    chunks = [{**head, "choices": choice} for choice in choices]
    chunks.append({**head, "choices": [], "usage": _CHAT_USAGE})
    return [*(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks), b"data: [DONE]\n\n"]


def _messages(kind: str, texts: list[str]) -> list[bytes]:
    block: dict[str, Any] = {"type": "text", "text": ""}
    deltas: list[dict[str, Any]] = [{"type": "text_delta", "text": text} for text in texts]
    if kind == "tool":
        block = {"type": "tool_use", "id": "toolu_1", "name": "write", "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": text} for text in texts]
    stop = {"stop_reason": "tool_use" if kind == "tool" else "end_turn", "stop_sequence": None}
    message = {**_MESSAGE, "content": [], "stop_reason": None, "usage": _USAGE}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 90}},
        {"type": "message_stop"},
    ]
    return [b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode()) for event in events]


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            await _answer(writer, body["model"], is_chat=b"/chat/completions" in head.partition(b"\r\n")[0])
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _answer(writer: asyncio.StreamWriter, model: str, *, is_chat: bool) -> None:
    kind, _, count = model.partition("-")
    if kind == "whole":
        body = whole(is_chat=is_chat)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        return
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for piece in pieces(kind, int(count), is_chat=is_chat):
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await asyncio.sleep(PACE_S)
    writer.write(b"0\r\n\r\n")


async def main() -> None:
    """Serves until the process is ended."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, limit=1 << 24)
    print(f"provider on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
