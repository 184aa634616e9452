"""Requests to an upstream that are no clients' calls: those of probes, and of `llm-guard doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from llm_guard.dialects import DIALECTS
from llm_guard.outcome import FailureKind
from llm_guard.proxy.call import Exchange
from llm_guard.proxy.headers import lower_names
from llm_guard.proxy.http_client.connection_pool import ConnectionPool, UpstreamError
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.routing.authorization import key_header
from llm_guard.routing.deployment import Upstream

MOST_BYTES = 1 << 16
MOST_LIST_BYTES = 1 << 22
"""Limit for a list of models. OpenRouter's is half a megabyte."""


@dataclass(frozen=True, slots=True)
class UpstreamResponse:
    """A response, as far as it was read."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name; of repeated ones the first."""
    body: bytes
    """Empty if the response was longer than the limit."""

    @property
    def is_json(self) -> bool:
        return "json" in self.headers.get("content-type", "")


class ListedModel(msgspec.Struct):
    """One entry of a list of models."""

    id: str


class ModelList(msgspec.Struct):
    """A list of models."""

    data: list[ListedModel]


class UpstreamRequests:
    """Sends requests that are no clients' calls to one upstream, over the same connections as calls."""

    def __init__(self, upstream: Upstream, connections: ConnectionPool, callers_key: str | None = None) -> None:
        """`callers_key`: sent if the upstream has no key or credentials of its own."""
        self.upstream = upstream
        self._key = upstream.secret if upstream.has_own_key else callers_key
        self.dialect = DIALECTS[upstream.dialect]
        self._connections = connections

    def target(self, path: str) -> str:
        """Path at this upstream of an endpoint that clients call at `path`."""
        return f"{self.upstream.base_path}{path.removeprefix(self.upstream.path_in_base_url)}"

    async def ask(self, method: str, target: str, body: bytes = b"", most: int = MOST_BYTES) -> UpstreamResponse:
        """Runs one exchange and reads at most `most` bytes of its response. Raises UpstreamError."""
        exchange = await self._send(method, target, body)
        try:
            return UpstreamResponse(exchange.status, lower_names(exchange.headers), await _read(exchange, most))
        finally:
            exchange.abort()

    async def _send(self, method: str, target: str, body: bytes) -> Exchange:
        """Repeats the request on a new connection if the kept-alive one had been closed: that says nothing about the
        upstream. A POST, which costs tokens, uses a new connection from the start."""
        is_repeatable = method != "POST"
        pairs = _headers(self.upstream, self._key)
        if body:
            pairs.append(("Content-Type", "application/json"))
        if body and self.upstream.form is not None:
            target, pairs, body = _formed(self.upstream, target, pairs, body)
        headers = RequestHeaders(pairs)
        send = self._connections.origin(self.upstream.link).send
        try:
            return await send(method, target, headers, body, None, is_repeatable=is_repeatable)
        except UpstreamError as error:
            if error.kind is not FailureKind.RETIRED:
                raise
        return await send(method, target, headers, body, None, is_repeatable=False)


async def _read(exchange: Exchange, most: int) -> bytes:
    pieces, size = [], 0
    while data := await exchange.read():
        size += len(data)
        if size > most:
            return b""
        pieces.append(data)
    return b"".join(pieces)


def decoded(body: bytes, kind: type[Any]) -> Any:
    """Returns a JSON body as this type; None if it is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _headers(upstream: Upstream, key: str | None) -> list[tuple[str, str]]:
    headers = [("Accept", "application/json, */*"), ("Accept-Encoding", "identity"), ("User-Agent", "llm-guard")]
    own_key = key_header(upstream.auth, key)
    if own_key is not None:
        headers.append(own_key)
    return [*headers, *DIALECTS[upstream.dialect].REQUIRED_HEADERS]


def _formed(
    upstream: Upstream, target: str, headers: list[tuple[str, str]], body: bytes
) -> tuple[str, list[tuple[str, str]], bytes]:
    """Returns a call in the form of the upstream's cloud."""
    from llm_guard.dialects.forms import FORMS  # noqa: PLC0415  # few upstreams have a form

    assert upstream.form is not None  # noqa: S101  # the caller has checked it
    path = target.removeprefix(upstream.base_path)
    try:
        written = FORMS[upstream.form].request(path, headers, body, None)
    except ValueError as error:
        raise UpstreamError(FailureKind.INTERNAL, f"the request could not be sent: {error}") from None
    return f"{upstream.base_path}{written.path}", written.headers, written.body
