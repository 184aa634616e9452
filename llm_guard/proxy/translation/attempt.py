"""The translation of one attempt: its request, and its response."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TypeVar

from llm_guard.dialects.translation.canonical import RequestTarget, UnreadableRequestError
from llm_guard.dialects.translation.endpoints import (
    ClientEndpoint,
    TranslatedRequest,
    read_request,
    write_request,
)
from llm_guard.dialects.translation.error_bodies import translated_headers
from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Call, Opened
from llm_guard.proxy.http_client.connection_pool import UpstreamOrigin
from llm_guard.proxy.request_body.content_encoding import inflate
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.proxy.request_body.interfaces import FileBody
from llm_guard.proxy.streams.decoder import PlainStreamDecoder
from llm_guard.proxy.translation.decoder import TranslatingStreamDecoder, untranslatable
from llm_guard.proxy.translation.interfaces import WrittenRequest
from llm_guard.routing.api_keys import ApiKey
from llm_guard.routing.route_table import Target

_T = TypeVar("_T")
LARGE_BYTES = 1 << 18
"""A body above this size is translated in a thread: it would hold up all other calls for milliseconds."""
_MOST_BYTES = 64 << 20


class TranslatedAttempt:
    """Implements `proxy.translation.interfaces.AttemptTranslator`."""

    __slots__ = (
        "_at", "_call", "_client", "_request", "_shows_reasoning", "_target", "dialect", "dropped", "is_translated",
        "path",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        client: ClientEndpoint,
        request: TranslatedRequest,
        target: RequestTarget,
        dropped: tuple[str, ...],
        at: float,
        *,
        shows_reasoning: bool,
    ) -> None:
        """`request` is the translated request, `target` what it was written for."""
        self._call = call
        self._client = client
        self._request = request
        self._target = target
        self._at = int(at)
        self._shows_reasoning = shows_reasoning
        self.is_translated = True
        self.dialect = request.endpoint.dialect
        self.path = request.endpoint.path
        self.dropped = dropped

    async def request(self, target: Target, key: ApiKey | None, resumed: bytes | None) -> WrittenRequest:
        upstream = target.deployment.upstream
        path = f"{upstream.base_path}{self.path.removeprefix(upstream.path_in_base_url)}"
        headers = header_rules.translated(self._call, upstream, key)
        return WrittenRequest(path, headers, await self.body(resumed))

    def over(self, origin: UpstreamOrigin) -> UpstreamOrigin:
        return origin

    async def body(self, resumed: bytes | None) -> bytes:
        """Returns the request body. Raises BadRequest."""
        if resumed is not None:
            self._request = await in_thread_if_large(partial(self._resumed, resumed), len(resumed))
        return self._request.body

    def _resumed(self, body: bytes) -> TranslatedRequest:
        try:
            request = read_request(self._client, body)
            return write_request(request, self._client, self._request.endpoint, self._target)
        except UnreadableRequestError as error:
            raise BadRequest(400, "invalid_request", error.message, param=error.param) from None

    def decoder(self, view: PlainStreamDecoder) -> TranslatingStreamDecoder:
        translator = self._request.stream(self._at, shows_reasoning=self._shows_reasoning)
        return TranslatingStreamDecoder(view, translator, self._call.dialect, self._call.id)

    def opened(self, opened: Opened) -> Opened | Failure:
        """Returns the response for the client, with its body translated if that is whole: the same object."""
        headers = translated_headers(opened.headers, self._call.dialect)
        if opened.view is not None:
            opened.headers = (*headers, ("Content-Type", "text/event-stream; charset=utf-8"))
            return opened
        if opened.exchange is not None:
            return Failure(FailureKind.UNTRANSLATED, "sent a response that is too large to be translated")
        try:
            encoding = header_rules.value_of(opened.headers, "content-encoding")
            plain = inflate(opened.buffered, encoding, _MOST_BYTES)
            body = self._request.whole(plain, self._at, shows_reasoning=self._shows_reasoning)
        except (ValueError, BadRequest) as error:
            return untranslatable(error, "response")
        opened.headers, opened.buffered = (*headers, ("Content-Type", "application/json")), body
        return opened


async def in_thread_if_large(translate: partial[_T], size: int) -> _T:
    """Returns the result of a translation, made in a thread if the body is large."""
    if size <= LARGE_BYTES:
        return translate()
    return await asyncio.get_running_loop().run_in_executor(None, translate)


async def joined_blocks(body: FileBody) -> bytes:
    """Returns a body that is in a file, in one piece."""
    pieces = []
    for block in body.blocks():
        if isinstance(block, bytes):
            pieces.append(block)
        else:
            await block
    return b"".join(pieces)
