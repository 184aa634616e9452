"""Sends one HTTP request to a webhook.

Isolated from calls: it has connections of its own, keeps none of them open, and reads no response beyond its head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from llm_guard.resilience.classification.retry_after import retry_after
from llm_guard.webhooks.resolver import NameLookup

_TOTAL_S = 10.0
_CONNECT_S = 5.0
_LONGEST_WAIT_S = 300.0
_TRY_AGAIN = frozenset({408, 425, 429})
_REMEDIES = {
    401: "check its key, or its headers",
    403: "check its key, or its headers",
    404: "check its url",
    410: "check its url",
}


@dataclass(frozen=True, slots=True)
class WebhookResult:
    """Result of one request."""

    is_delivered: bool
    may_retry: bool = False
    problem: str = ""
    """Never the response's body, which may repeat what was sent, keys included."""
    retry_after_s: float | None = None


class WebhookClient:
    """HTTP client for all webhooks of a process; opens nothing until it is used. `await close()` at its end."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, headers: Mapping[str, str], content: bytes, wall: float) -> WebhookResult:
        """Sends a request. Raises only CancelledError; takes ten seconds at most."""
        try:
            response = await self._open().post(url, data=content, headers=headers, allow_redirects=False)
        except TimeoutError:
            return WebhookResult(False, may_retry=True, problem=f"no response within {_TOTAL_S:g} s")
        except aiohttp.ClientSSLError as error:
            return WebhookResult(
                False, may_retry=True, problem=f"its TLS certificate is refused ({type(error).__name__})"
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return WebhookResult(False, may_retry=True, problem=f"connection failed ({type(error).__name__})")
        response.close()
        return _judge(response.status, {name.lower(): value for name, value in response.headers.items()}, wall)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, resolver=NameLookup(), use_dns_cache=False),
                timeout=aiohttp.ClientTimeout(total=_TOTAL_S, connect=_CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=True,
            )
        return self._session


def _judge(status: int, headers: Mapping[str, str], wall: float) -> WebhookResult:
    if 200 <= status < 300:
        return WebhookResult(True)
    problem = f"answered {status}"
    if 300 <= status < 400:
        return WebhookResult(False, problem=f"{problem}: redirects are not followed, set the final URL")
    if status >= 500 or status in _TRY_AGAIN:
        asked_s = retry_after(headers, wall)
        return WebhookResult(False, True, problem, None if asked_s is None else min(asked_s, _LONGEST_WAIT_S))
    return WebhookResult(False, problem=f"{problem}: {_REMEDIES.get(status, 'the receiver rejects the payload')}")
