"""The listener: aiohttp's low-level server, 23 us a call, with what is not HTTP answered in both dialects at once.

Owns the limits on a request's head and on idle connections. Does not own calls (`gateway.server`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

import structlog
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler, _ErrInfo

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_log = structlog.get_logger("llm_guard")

_KEEPALIVE_S = 75.0
_HEAD_LINE_BYTES = 1 << 14
"""Longest request line, and longest header."""


class Listener(web.Server):
    """aiohttp's low-level server, with a request that is not HTTP answered in a form both dialects' clients read."""

    def __init__(self, serve: Handler, paths: Mapping[str, Handler]) -> None:
        """`paths` are answered by their own handlers, everything else by `serve`."""

        async def dispatch(request: web.BaseRequest) -> web.StreamResponse:
            return await paths.get(request.raw_path.partition("?")[0], serve)(request)

        super().__init__(
            dispatch,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=_KEEPALIVE_S,
            max_line_size=_HEAD_LINE_BYTES,
            max_field_size=_HEAD_LINE_BYTES,
        )

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(RequestHandler):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # aiohttp queues a broken chunk as the next message, and whoever reads the body would wait for ever.
        if self._current_request is not None and self._messages and isinstance(self._messages[-1][0], _ErrInfo):
            self._messages.pop()
            self._current_request.content.set_exception(web.RequestPayloadError("a broken chunk"))
            self._current_request.content.feed_eof()
            self.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002  # aiohttp's; it may quote the request
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        if status >= 500:
            _log.error("the listener failed", error=repr(exc))
        status = 431 if isinstance(exc, LineTooLong) else status
        text = "a header or the request line is too long" if status == 431 else "the request is not valid HTTP"
        error = {"type": "invalid_request_error", "message": text, "code": "invalid_request", "param": None}
        response = web.Response(
            status=status, body=json.dumps({"type": "error", "error": error}), content_type="application/json"
        )
        response.force_close()
        return response
