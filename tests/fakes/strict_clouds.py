"""Claude on Vertex AI and on Amazon Bedrock, as strict as they are: paths, headers, and members of a body."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from llm_guard.dialects.sse import events_in
from tests.fakes.event_frames import frames_of
from tests.fakes.typed_requests import problems_of
from tests.unit.dialects.translation.conversions import message_events, text_block

KEY = "token-of-the-gateway"
PROJECT = "/v1/projects/p-1/locations/us-east5"
PIECES = ("Once ", "upon ", "a ", "time, ", "grüße.")
TEXT = "".join(PIECES)
MODELS = {"vertex": "claude-sonnet-4-5@20250929", "bedrock-invoke": "us.anthropic.claude-sonnet-4-5-20250929-v1:0"}
_VERSIONS = {"vertex": "vertex-2023-10-16", "bedrock-invoke": "bedrock-2023-05-31"}

Fault = Callable[["StrictCloud", web.Request], web.StreamResponse | None]


class StrictCloud:
    """Answers with a text of five pieces, unless the next of `faults` answers or sets what happens to the stream."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        """Path as it was written, headers by lower-case name, and body of each request."""
        self.refused: list[str] = []
        """Why requests were refused."""
        self.pieces: tuple[str, ...] = PIECES
        self.sent_after: bytes | None = None
        """What a stream ends with, in place of the rest."""
        self.whole_events = 0
        """Events before `sent_after`."""
        self.chunk_bytes = 0
        """Size of the chunks in which a stream is sent; 0: one for each event."""
        self.pause_s = 0.0
        """After `whole_events`, in seconds."""
        self.is_authorized: Callable[[dict[str, str]], bool] = _has_key
        """Judges the headers of a request."""
        self.latest = b""
        """The latest request, as it was sent."""
        self.url = ""

    @property
    def base_url(self) -> str:
        return self.url + (PROJECT if self.form == "vertex" else "")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        raw, headers = await request.read(), {name.lower(): value for name, value in request.headers.items()}
        body = json.loads(raw) if raw else {}
        self.requests.append((request.raw_path, headers, dict(body)))
        lines = [b"%b: %b" % pair for pair in request.raw_headers]
        begin = f"{request.method} {request.raw_path} HTTP/1.1".encode()
        self.latest = b"\r\n".join([begin, *lines, b"", raw])
        if request.method != "POST":
            return web.Response(status=404, text="Not Found")
        self.pieces, self.sent_after, self.chunk_bytes, self.pause_s = PIECES, None, 0, 0.0
        if self.faults and (response := self.faults.pop(0)(self, request)) is not None:
            return response
        return await (self._vertex if self.form == "vertex" else self._bedrock)(request, headers, body)

    async def _vertex(self, request: web.Request, headers: dict[str, str], body: dict[str, Any]) -> web.StreamResponse:
        model, _, method = request.raw_path.removeprefix(f"{PROJECT}/publishers/anthropic/models/").rpartition(":")
        if model == "count-tokens" and method == "rawPredict":
            problems = self._problems(headers, {"max_tokens": 1, **body}, body.get("model"))
            return _google(problems) or web.json_response({"input_tokens": 7})
        problems = self._problems(headers, body, unquote(model))
        if "model" in body:
            problems.append("model: Extra inputs are not permitted")
        if method != ("streamRawPredict" if body.get("stream") else "rawPredict") or "/" in model:
            problems.append(f"no such method: {request.raw_path}")
        if refusal := _google(problems):
            return refusal
        if not body.get("stream"):
            return web.json_response(self._message(body))
        return await self._streamed(request, "text/event-stream", self._events())

    async def _bedrock(self, request: web.Request, headers: dict[str, str], body: dict[str, Any]) -> web.StreamResponse:
        _, _, model, method = [*request.raw_path.split("/"), "", "", ""][:4]
        problems = self._problems(headers, body, unquote(model))
        if "model" in body or "stream" in body:
            problems.append("extraneous key [model] is not permitted")
        if "anthropic-beta" in headers:
            problems.append("betas belong into the body")
        if refusal := _amazon(problems):
            return refusal
        if method == "invoke":
            return web.json_response(self._message(body))
        if method != "invoke-with-response-stream":
            return web.Response(status=404, headers={"x-amzn-errortype": "UnknownOperationException"}, text="{}")
        return await self._streamed(request, "application/vnd.amazon.eventstream", frames_of(self._raw()))

    def _problems(self, headers: dict[str, str], body: dict[str, Any], model: object) -> list[str]:
        found = [] if model == MODELS[self.form] else [f"the model {model!r} was not found"]
        if not self.is_authorized(headers) or "x-api-key" in headers or "api-key" in headers:
            found.append("no credentials")
        if "anthropic-version" in headers:
            found.append("anthropic-version is not a header here")
        if body.get("anthropic_version") != _VERSIONS[self.form]:
            found.append("anthropic_version: Field required")
        own = {"anthropic_version", *(["anthropic_beta"] if self.form != "vertex" else [])}
        fields = {name: value for name, value in body.items() if name not in own}
        found += problems_of({**fields, "model": "claude"})
        self.refused += found
        return found

    def _message(self, body: dict[str, Any]) -> dict[str, Any]:
        del body
        content = [{"type": "text", "text": "".join(self.pieces)}]
        usage = {"input_tokens": 5, "output_tokens": 9}
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": content,
                "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}  # fmt: skip

    def _raw(self) -> bytes:
        return message_events(text_block(*self.pieces))

    def _events(self) -> list[bytes]:
        return [b"event: %b\ndata: %b\n\n" % (event.name.encode(), event.data) for event in events_in(self._raw())]

    async def _streamed(self, request: web.Request, kind: str, events: Iterable[bytes]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        sent = list(events)
        if self.sent_after is not None:
            sent = [*sent[: self.whole_events], self.sent_after]
        whole = b"".join(sent)
        size = self.chunk_bytes
        for index, piece in enumerate([whole[at : at + size] for at in range(0, len(whole), size)] if size else sent):
            if self.pause_s and index == self.whole_events:
                await asyncio.sleep(self.pause_s)
            await response.write(piece)
        await response.write_eof()
        return response


def _has_key(headers: dict[str, str]) -> bool:
    return headers.get("authorization") == f"Bearer {KEY}"


def _google(problems: list[str]) -> web.Response | None:
    return google_error(400, "INVALID_ARGUMENT", "; ".join(problems)) if problems else None


def _amazon(problems: list[str]) -> web.Response | None:
    return amazon_error(400, "ValidationException", "; ".join(problems)) if problems else None


def google_error(code: int, status: str, message: str) -> web.Response:
    return web.json_response([{"error": {"code": code, "message": message, "status": status}}], status=code)


def amazon_error(status: int, name: str, message: str) -> web.Response:
    kind = f"{name}:http://internal.amazon.com/coral/com.amazon.bedrock/"
    return web.json_response({"message": message}, status=status, headers={"x-amzn-errortype": kind})


def cut(events: int, rest: bytes = b"") -> Fault:
    """Makes a stream end after so many events, and some other bytes."""

    def fault(cloud: StrictCloud, request: web.Request) -> None:
        del request
        cloud.whole_events, cloud.sent_after = events, rest

    return fault


def chunked(size: int) -> Fault:
    """Makes a stream come in chunks of this size."""

    def fault(cloud: StrictCloud, request: web.Request) -> None:
        del request
        cloud.chunk_bytes = size

    return fault


def silent(events: int, seconds: float) -> Fault:
    """Makes a stream pause after so many events."""

    def fault(cloud: StrictCloud, request: web.Request) -> None:
        del request
        cloud.whole_events, cloud.pause_s = events, seconds

    return fault


def answered(response: Callable[[], web.Response]) -> Fault:
    """Answers with this response."""
    return lambda _cloud, _request: response()


@asynccontextmanager
async def strict_cloud(form: str) -> AsyncIterator[StrictCloud]:
    """Runs one on a free port."""
    cloud, app = StrictCloud(form), web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", cloud.answer)
    runner = web.AppRunner(app, handler_cancellation=True)  # a paused stream ends with its reader
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    cloud.url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        yield cloud
    finally:
        await runner.cleanup()
