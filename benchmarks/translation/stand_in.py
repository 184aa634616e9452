"""A provider of both dialects for the corpus. It enforces the rules of both, and plays the answer of each case.

A case has an address of its own: the first part of a request's path is the case's name, with `first.` before it for a
deployment that is tried before.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from benchmarks.translation.checks import value_at
from benchmarks.translation.corpus import Case
from benchmarks.translation.rules import refusals

Json = dict[str, Any]

FIRST = "first."
_DELTAS = ("content", "refusal", "reasoning", "reasoning_content", "role")
_SHORT = {"chunks": [{"content": "ok"}, {"finish": "stop"}]}
_USAGE = {"input_tokens": 5, "output_tokens": 7}
_CHAT_USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


@dataclass(slots=True)
class Received:
    """What the provider has received for one case."""

    bodies: list[Json] = field(default_factory=list)
    headers: list[Json] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Why it refused requests."""


class StandIn:
    """Serves all cases at `url`, from a thread."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self.cases = {case.name: case for case in cases}
        self.received: dict[str, Received] = {}
        self.has_begun = threading.Event()
        """Set while the client has a part of the stream that it reads: only then a stream breaks."""
        self.breaks_after_s = 10.0
        """When it breaks at the latest; a client that cannot say what it has should set less."""
        self._server = _Server(("127.0.0.1", 0), partial(_Handler, self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def taken(self, name: str) -> Received:
        """Returns what came for a case since the last time, and forgets it."""
        return self.received.pop(name, Received())


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Prints nothing: clients close their connections at any time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, stand_in: StandIn, *arguments: Any) -> None:
        self._stand_in = stand_in
        super().__init__(*arguments)

    def log_message(self, *_arguments: object) -> None:
        """Writes no log."""

    def do_POST(self) -> None:
        _, name, *rest = self.path.split("/")
        case = self._stand_in.cases.get(name.removeprefix(FIRST))
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        path = "/" + "/".join(rest).partition("?")[0]
        if case is None or not path.endswith(("/chat/completions", "/messages")):
            self._respond(404, {"error": {"type": "not_found_error", "message": f"no such path: {path}"}})
        elif name.startswith(FIRST):
            self._play(case, case.first or {}, body, is_chat=path.endswith("completions"))
        else:
            self._serve(case, body, is_chat=path.endswith("completions"))

    def _serve(self, case: Case, body: Json, *, is_chat: bool) -> None:
        received = self._stand_in.received.setdefault(case.name, Received())
        headers = {name.lower(): value for name, value in self.headers.items()}
        if not is_chat:
            body = as_understood(body, headers)
        received.bodies.append(body)
        received.headers.append(headers)
        found = refusals(body, case.most_tokens, is_chat=is_chat) if case.is_strict else []
        if found:
            received.refused += found
            error = {"type": "invalid_request_error", "message": "; ".join(found)}
            self._respond(400, {"type": "error", "error": error})
            return
        self._play(case, case.answer, body, is_chat=is_chat)

    def _play(self, case: Case, answer: Json, body: Json, *, is_chat: bool) -> None:
        answer = filled(answer, body)
        if "chunks" in answer or (body.get("stream") and not is_chat):
            breaks_off = "break" in answer or isinstance(answer.get("chunks", [None])[-1], str)
            pieces = chat_stream(answer) if is_chat else messages_stream(answer, case.model)
            self._stream(pieces, breaks_off=breaks_off)
        elif body.get("stream"):
            self._stream(chat_stream(_SHORT))
        else:
            self._respond(200, chat_body(answer) if is_chat else messages_body(answer, case.model))

    def _respond(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, pieces: Sequence[str], *, breaks_off: bool = False) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        with suppress(ConnectionError):  # a client that has read the end may not wait for the last bytes
            self._write("".join(pieces[:-1]))
            if breaks_off:
                self._stand_in.has_begun.wait(self._stand_in.breaks_after_s)
            self._write(pieces[-1])
            self.wfile.write(b"0\r\n\r\n")

    def _write(self, text: str) -> None:
        if data := text.encode():
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def as_understood(body: Json, headers: Json) -> Json:
    """Returns a Messages request as the API understands it: neighbours of one role are one turn, and the format of an
    output has an earlier name."""
    messages: list[Json] = []
    for message in body.get("messages", ()):
        if messages and messages[-1]["role"] == message["role"]:
            messages[-1] = {**message, "content": [*_blocks(messages[-1]), *_blocks(message)]}
        else:
            messages.append(message)
    body = {**body, "messages": messages}
    if "output_format" in body and "structured-outputs" in headers.get("anthropic-beta", ""):
        body["output_config"] = {**body.get("output_config", {}), "format": body.pop("output_format")}
    return body


def _blocks(message: Json) -> list[Json]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def filled(answer: Json, sent: Json) -> Json:
    """Returns the answer with each `{{sent.PATH}}` replaced by what the request has there."""

    def replace(found: re.Match[str]) -> str:
        value = value_at({"sent": sent}, found[1])
        return json.dumps(value)[1:-1] if isinstance(value, str) else "missing"

    return dict(json.loads(re.sub(r"\{\{(.+?)\}\}", replace, json.dumps(answer))))


def chat_body(answer: Json) -> Json:
    """Returns a chat completion."""
    message = {"role": "assistant", "content": "ok", "refusal": None, **answer.get("message", {})}
    if calls := message.pop("calls", None):
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": answer.get("finish", "stop"), "logprobs": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "gpt-4o-2024-08-06"}
    return {**head, "choices": [choice], "usage": answer.get("usage", _CHAT_USAGE)}


def chat_stream(answer: Json) -> list[str]:
    """Returns the events of a chat. Text instead of a chunk ends the stream."""
    pieces: list[str] = []
    for chunk in answer["chunks"]:
        if isinstance(chunk, str):
            return [*pieces, chunk]
        pieces.append(f"data: {json.dumps(_chunk(chunk))}\n\n")
    return [*pieces, "data: [DONE]\n\n"]


def _chunk(chunk: Json) -> Json:
    delta: Json = {name: chunk[name] for name in _DELTAS if name in chunk}
    if "calls" in chunk:
        delta["tool_calls"] = [_call(*call) for call in chunk["calls"]]
    finish = chunk.get("finish")
    choices = [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}] if delta or finish else []
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "gpt-4o"}
    return {**head, "choices": choices, **({"usage": chunk["usage"]} if "usage" in chunk else {})}


def _call(index: int, call_id: str | None, name: str | None, arguments: str) -> Json:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    call: Json = {"index": index, "function": function}
    return call if call_id is None else {**call, "id": call_id, "type": "function"}


def messages_body(answer: Json, model: str) -> Json:
    """Returns a message."""
    blocks = [_block(block, is_whole=True) for block in answer.get("blocks", ["ok"])]
    stop = {"stop_reason": answer.get("stop", "end_turn"), "stop_sequence": None}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": blocks}
    return {**head, **stop, "usage": answer.get("usage", _USAGE)}


def messages_stream(answer: Json, model: str) -> list[str]:
    """Returns the events of a message. `break` is sent before the end of the last block, and ends the stream."""
    start = {**messages_body({"blocks": []}, model), "stop_reason": None, "usage": answer.get("start", _USAGE)}
    events: list[Json] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(answer.get("blocks", ["ok"])):
        events.append({"type": "content_block_start", "index": index, "content_block": _block(block, is_whole=False)})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in _deltas(block)]
        events.append({"type": "content_block_stop", "index": index})
    if "break" in answer:
        return [*map(_event, events[:-1]), answer["break"]]
    delta = {"stop_reason": answer.get("stop", "end_turn"), "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": answer.get("usage", {"output_tokens": 7})})
    events.append({"type": "message_stop"})
    return [*map(_event, events)]


def _event(event: Json) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


def _block(block: str | Json, *, is_whole: bool) -> Json:
    if isinstance(block, str):
        return {"type": "text", "text": block if is_whole else ""}
    if "thinking" in block:
        text = "".join(block["thinking"]) if is_whole else ""
        return {"type": "thinking", "thinking": text, "signature": "c2ln" if is_whole else ""}
    call_id, name = block["call"]
    return {"type": "tool_use", "id": call_id, "name": name, "input": block.get("input", {})}


def _deltas(block: str | Json) -> list[Json]:
    if isinstance(block, str):
        return [{"type": "text_delta", "text": block}]
    if "thinking" in block:
        thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in block["thinking"]]
        return [*thoughts, {"type": "signature_delta", "signature": "c2ln"}]
    return [{"type": "input_json_delta", "partial_json": piece} for piece in block.get("pieces", ())]
