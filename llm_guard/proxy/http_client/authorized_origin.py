"""Authorises requests to one origin at the last moment before they are written, so that what is signed is sent.

Adds the query parameters of the upstream and the credentials of its cloud to every request: calls and their retries,
probes, lists of models. `upstreams.credentials` has the credentials.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from llm_guard.proxy.call import Exchange
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.proxy.http_client.interfaces import Dialing, RequestAuthorizer
from llm_guard.proxy.request_body.interfaces import FileBody

if TYPE_CHECKING:
    from llm_guard.proxy.http_client.connection_pool import UpstreamOrigin

_REFUSED = (401, 403)
_CREDENTIALS = frozenset({
    "access_token", "api-key", "bearer_token", "key", "oauth_token", "quotauser", "subscription-key", "userproject",
})  # fmt: skip
"""Parameters in which clouds take credentials or an account that pays (Google Cloud, "System parameters", with or
without `$`; Azure API Management): what a caller puts there would be refused, and count against the upstream's own."""


class AuthorizedOrigin:
    """Sends requests to one origin with an upstream's own parameters and credentials; implements `UpstreamOrigin`."""

    def __init__(
        self,
        origin: Callable[[], UpstreamOrigin],
        host: str,
        query: Iterable[tuple[str, str]],
        authorizer: RequestAuthorizer | None,
    ) -> None:
        """`origin` returns the connections, `host` is the value of their Host header. `query` replaces parameters of
        the same names. Without an `authorizer` the headers are sent as they are."""
        self._origin = origin
        self._host = host
        self._query = tuple(query)
        self._authorizer = authorizer

    async def send(
        self,
        method: str,
        target: str,
        headers: RequestHeaders,
        body: bytes | FileBody,
        dialing: Dialing | None,
        *,
        is_repeatable: bool,
    ) -> Exchange:
        """See `connection_pool.UpstreamOrigin`."""
        authorizer = self._authorizer
        if authorizer is not None and "?" in target:
            target = _without_credentials(target)
        target = with_parameters(target, self._query)
        if authorizer is None:
            return await self._origin().send(method, target, headers, body, dialing, is_repeatable=is_repeatable)
        exchange = await self._send(authorizer, method, target, headers, body, dialing, is_repeatable)
        # A refused request was not executed, so that it may be sent again whatever it is.
        if exchange.status in _REFUSED and authorizer.note_refusal(exchange.headers):
            exchange.abort()
            exchange = await self._send(authorizer, method, target, headers, body, dialing, is_repeatable)
        return exchange

    async def _send(
        self,
        authorizer: RequestAuthorizer,
        method: str,
        target: str,
        headers: RequestHeaders,
        body: bytes | FileBody,
        dialing: Dialing | None,
        is_repeatable: bool,
    ) -> Exchange:
        target, signed = await authorizer.authorize(method, self._host, target, headers.pairs, body, dialing)
        return await self._origin().send(
            method, target, RequestHeaders(signed), body, dialing, is_repeatable=is_repeatable
        )


def with_parameters(target: str, parameters: tuple[tuple[str, str], ...]) -> str:
    """Returns a path and query with these parameters at its end, in place of those of the same names."""
    if not parameters:
        return target
    path, _, query = target.partition("?")
    names = {name for name, _ in parameters}
    kept = [part for part in query.split("&") if part and _name_of(part) not in names]
    own = [f"{_quoted(name)}={_quoted(value)}" for name, value in parameters]
    return f"{path}?{'&'.join([*kept, *own])}"


def _without_credentials(target: str) -> str:
    path, _, query = target.partition("?")
    kept = [part for part in query.split("&") if _name_of(part).removeprefix("$").lower() not in _CREDENTIALS]
    return f"{path}?{'&'.join(kept)}" if kept else path


def _name_of(parameter: str) -> str:
    return urllib.parse.unquote_plus(parameter.partition("=")[0])


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")
