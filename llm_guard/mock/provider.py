"""A mock provider of both dialects on a real socket, with the faults that requests specify.

Listens, parses requests, draws faults, and responds or fails. The shapes of responses are in `openai_answers` and
`anthropic_answers`; `player` carries the faults out.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler
from msgspec import DecodeError, Struct, ValidationError
from msgspec.json import decode, encode

from llm_guard.mock.anthropic_answers import answer_anthropic
from llm_guard.mock.continuation import NO_PREFILL, has_prefill, why_refused
from llm_guard.mock.errors import error_body, error_reply, limit_reply, quota_reply, refusal_reply
from llm_guard.mock.exchange import HEALTH, MockRequest, MockResponse, Script, dialect_of, understand
from llm_guard.mock.fault_state import FaultState, FaultStates
from llm_guard.mock.faults import BadFaultError, DrawnFaults, Fault
from llm_guard.mock.files_and_batches import FilesAndBatches
from llm_guard.mock.openai_answers import answer_openai
from llm_guard.mock.player import Player
from llm_guard.mock.realtime import converse
from llm_guard.mock.stats import Departure, Log, RecordedRequest, Stats
from llm_guard.resilience.bounded_map import BoundedMap

_KEYS_KEPT = 10_000


class MockProvider:
    """`async with MockProvider() as provider:` serves both dialects at `provider.url`, with `/v1` or without."""

    def __init__(self, seed: int = 0, tokens: int = 8, token_delay_s: float = 0.0, latency_s: float = 0.0) -> None:
        """Sends `tokens` (>= 1) of content in each response, after `token_delay_s` before each of a stream, and
        `latency_s` before each response's head. The same seed and the same requests produce the same faults."""
        self._tokens = tokens
        self._token_delay_s = token_delay_s
        self._latency_s = latency_s
        self._shelf = FilesAndBatches()
        self._log = Log()
        self._numbers = 0
        self._answered = BoundedMap[str, MockResponse | Script](_KEYS_KEPT)
        """Responses by idempotency key, oldest first."""
        self._courses = FaultStates(seed)
        self._server: _Server | None = None
        self._listener: asyncio.Server | None = None
        self.url = ""

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Starts listening; returns the base URL without `/v1`. Port 0 takes a free one. Raises OSError."""
        self._server = _Server(self._handle)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._server, host, port, backlog=1024)
        bound = self._listener.sockets[0].getsockname()[1]
        self.url = f"http://{host}:{bound}"
        return self.url

    async def stop(self) -> None:
        """Closes the listener and every connection at once."""
        server, listener = self._server, self._listener
        if server is None or listener is None:
            return
        self._server = self._listener = None
        listener.close()
        for transport in list(server.transports):
            transport.abort()
        await server.shutdown(timeout=0.1)
        await listener.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def seen(self) -> deque[RecordedRequest]:
        """The latest requests, oldest first, at most `stats.KEPT`."""
        return self._log.seen

    @property
    def last(self) -> RecordedRequest:
        """The latest request; raises IndexError before the first."""
        return self._log.seen[-1]

    def stats(self) -> Stats:
        """Counts so far, also served as JSON by `GET /mock/stats`."""
        return self._log.snapshot(0 if self._server is None else len(self._server.transports))

    def switch(self, model: str, faults: str) -> None:
        """Adds `faults` to those of `model` from now on; an empty text removes them. `/health` stands for the health
        page.

        Also `POST /mock/faults` with `{"model": ..., "faults": ...}`. The model is named without faults, and its draws
        are reset. Raises BadFaultError."""
        self._courses.switch(model, faults)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.raw_path == "/mock/stats":
            return web.Response(body=encode(self.stats().as_dict()), content_type="application/json")
        if request.raw_path == "/mock/faults":
            return await self._take_order(request)
        self._numbers += 1
        number = self._numbers
        is_anthropic = dialect_of(request.raw_path, request.headers) == "anthropic"
        headers = {"request-id" if is_anthropic else "x-request-id": f"req_mock{number:08d}"}
        player = Player(request, headers, self._token_delay_s)
        asked: MockRequest | MockResponse | None = None
        self._log.in_flight += 1
        try:
            body = await request.read()
            asked = _understand(number, request, body)
            self._log.arrived(_seen(request, body, _model_of(asked)))
            if isinstance(asked, MockResponse):
                return await player.reply(asked)
            return await self._answer(request, asked, player, headers)
        except asyncio.CancelledError:
            if not player.has_hung_up and self._server is not None:
                self._log.left(Departure(time.monotonic(), request.raw_path, _model_of(asked)))
            raise
        finally:
            self._log.in_flight -= 1
            self._log.generated(player.output_tokens)

    async def _take_order(self, request: web.BaseRequest) -> web.Response:
        try:
            order = decode(await request.read(), type=_Order)
            self.switch(order.model, order.faults)
        except (DecodeError, ValidationError, BadFaultError) as error:
            return web.Response(status=400, text=f"{error}\n")
        done = _Done(order.model, order.faults, time.monotonic())
        return web.Response(body=encode(done), content_type="application/json")

    async def _answer(
        self, request: web.BaseRequest, asked: MockRequest, player: Player, headers: dict[str, str]
    ) -> web.StreamResponse:
        try:
            course = self._courses.of(asked.model_text, request.headers.get("x-mock-fault", ""))
        except BadFaultError as error:
            return await player.reply(refusal_reply(asked.dialect, 400, str(error)))
        asked.model = course.plan.model
        call_id = request.headers.get("x-mock-call", "")
        struck = course.throw(call_id, self._courses.attempt(call_id))
        asked.overlap, asked.is_another = struck.overlap, struck.is_another
        asked.has_preamble = struck.has_preamble
        trouble = _choose(asked, course, struck)
        async with course.place(struck.places):
            return await self._play(request, asked, player, headers, struck, trouble)

    async def _play(
        self,
        request: web.BaseRequest,
        asked: MockRequest,
        player: Player,
        headers: dict[str, str],
        struck: DrawnFaults,
        trouble: Fault | MockResponse | None,
    ) -> web.StreamResponse:
        if (latency_s := self._latency_s + struck.latency_s) > 0:
            try:
                await asyncio.sleep(latency_s)
            except asyncio.CancelledError:
                if trouble is None and not asked.wants_stream:
                    player.output_tokens += self._tokens  # providers generate the rest for a client that has left
                raise
        if isinstance(trouble, MockResponse):
            return await player.reply(trouble)
        if trouble is not None and trouble.kind in ("silence", "close", "reset"):
            return await player.vanish(trouble)
        if asked.path == "/realtime" and request.headers.get("upgrade", "").lower() == "websocket":
            return await converse(request, asked, headers, self._tokens)
        if (why := why_refused(asked)) is not None:
            return await player.reply(refusal_reply(asked.dialect, 400, why))
        answer = self._executed(asked)
        if isinstance(answer, Script):
            return await player.stream(answer, trouble)
        if trouble is not None and trouble.kind == "error":
            answer = MockResponse(200, encode(error_body(asked.dialect, 500, asked.model)))
        return await player.reply(answer, trouble)

    def _executed(self, asked: MockRequest) -> MockResponse | Script:
        """Responds once per Idempotency-Key (draft-ietf-httpapi-idempotency-key-header-07): repeats get the same
        response."""
        key = asked.headers.get("idempotency-key")
        if key is None:
            return self._content(asked)
        if key not in self._answered:
            self._answered[key] = self._content(asked)
        return self._answered[key]

    def _content(self, asked: MockRequest) -> MockResponse | Script:
        if asked.path == HEALTH:
            return MockResponse(200, b'{"status":"ok"}')
        answer = answer_anthropic if asked.dialect == "anthropic" else answer_openai
        try:
            found = self._shelf.answer(asked) or answer(asked, self._tokens)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"A field of the request has an unexpected shape. ({error!r})"
            return refusal_reply(asked.dialect, 400, why)
        if found is None:
            return refusal_reply(asked.dialect, 404, f"Invalid URL ({asked.method} /v1{asked.path})")
        return found


class _Order(Struct):
    """Body of `POST /mock/faults`."""

    model: str
    faults: str


class _Done(Struct):
    """Response to an order."""

    model: str
    faults: str
    at: float
    """When the faults were switched, on this machine's monotonic clock."""


def _choose(asked: MockRequest, course: FaultState, struck: DrawnFaults) -> Fault | MockResponse | None:
    """The first fault that applies; as a response if it is one."""
    for fault in struck.faults:
        if fault.kind == "status":
            return error_reply(asked.dialect, fault.status, asked.model, fault.retry_after)
        if fault.kind == "quota":
            return quota_reply(asked.dialect)
        if fault.kind == "noprefill":
            if has_prefill(asked):
                return refusal_reply(asked.dialect, 400, NO_PREFILL)
            continue
        if fault.kind != "limit":
            return fault
        wait_s = course.take(fault, time.monotonic())
        if wait_s > 0:
            return limit_reply(asked.dialect, asked.model, fault.rate_per_s, wait_s, is_bare=fault.is_bare)
    return None


def _understand(number: int, request: web.BaseRequest, body: bytes) -> MockRequest | MockResponse:
    try:
        return understand(number, request.method, request.raw_path, request.headers, body)
    except ValueError as error:
        return refusal_reply(dialect_of(request.raw_path, request.headers), 400, str(error))


def _model_of(asked: MockRequest | MockResponse | None) -> str:
    return asked.model_text if isinstance(asked, MockRequest) else ""


def _seen(request: web.BaseRequest, body: bytes, model: str) -> RecordedRequest:
    return RecordedRequest(time.monotonic(), request.method, request.raw_path, tuple(request.raw_headers), body, model)


class _Server(web.Server):
    """Tracks its transports, so that `stop` does not wait for a peer that does not read.

    Accepts bodies of any size and leaves them compressed: tests compare bytes."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(
            handler,
            request_factory=self._unlimited_request,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            max_line_size=65_536,
            max_field_size=65_536,
        )
        self.transports: set[asyncio.Transport] = set()
        self._of_handler: dict[RequestHandler, asyncio.Transport] = {}

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._of_handler[handler] = transport
        self.transports.add(transport)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self.transports.discard(self._of_handler.pop(handler))

    def _unlimited_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop, client_max_size=0)
