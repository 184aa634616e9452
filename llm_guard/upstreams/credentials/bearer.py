"""Requests with a token: to Google Cloud and Azure."""

from __future__ import annotations

from collections.abc import Sequence

from llm_guard.proxy.http_client.interfaces import Dialing
from llm_guard.proxy.request_body.interfaces import FileBody
from llm_guard.resilience.memo import Memo
from llm_guard.upstreams.credentials.source import CloudCredential, CredentialSource

_KEYS = frozenset({"authorization", "x-api-key", "api-key", "cookie"})
_OF_CLOUDS = ("ocp-apim-", "x-amz-", "x-goog-")
"""Beginnings of headers with which a caller could present credentials, or choose an account that pays."""


class BearerRequests:
    """Adds tokens to requests; implements `proxy.http_client.interfaces.RequestAuthorizer`."""

    def __init__(self, source: CredentialSource) -> None:
        self._source = source
        self._used: CloudCredential | None = None

    async def authorize(
        self,
        method: str,  # noqa: ARG002  # the interface has it
        host: str,  # noqa: ARG002  # the interface has it
        target: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | FileBody,  # noqa: ARG002  # the interface has it
        dialing: Dialing | None,
    ) -> tuple[str, list[tuple[str, str]]]:
        """Implements `RequestAuthorizer`."""
        credential = self._used = self._source.valid() or await self._source.obtain(dialing)
        return target, [*without_credentials(headers), ("Authorization", f"Bearer {credential.token}")]

    def note_refusal(self, headers: Sequence[tuple[str, str]]) -> bool:  # noqa: ARG002  # the interface has it
        """Implements `RequestAuthorizer`. The token is renewed in the background."""
        if self._used is not None:
            self._source.note_refusal(self._used)
        return False


def without_credentials(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns headers without those that could present other credentials."""
    return [pair for pair in headers if not _is_credential[pair[0]]]


def _presents_credentials(name: str) -> bool:
    lower = name.lower()
    return lower in _KEYS or lower.startswith(_OF_CLOUDS)


_is_credential = Memo(_presents_credentials)
