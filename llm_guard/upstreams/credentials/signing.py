"""Requests to AWS: signed with the present credentials over what is sent; see `upstreams.credentials.sigv4`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from email.utils import parsedate_to_datetime

import structlog

from llm_guard.clock import Clock
from llm_guard.proxy.http_client.errors import unsendable
from llm_guard.proxy.http_client.interfaces import Dialing
from llm_guard.proxy.request_body.interfaces import FileBody
from llm_guard.upstreams.credentials.bearer import without_credentials
from llm_guard.upstreams.credentials.sigv4 import SigningKeys, SigningScope, canonical_query, signature_headers
from llm_guard.upstreams.credentials.source import CloudCredential, CredentialSource

_log = structlog.get_logger("llm_guard.upstreams.credentials")

_SKEW_S = 240.0
"""AWS refuses signatures that are five minutes away from its own time."""


class SignedRequests:
    """Signs requests; implements `proxy.http_client.interfaces.RequestAuthorizer`."""

    def __init__(self, source: CredentialSource, scope: SigningScope, clock: Clock) -> None:
        self._source = source
        self._scope = scope
        self._clock = clock
        self._keys = SigningKeys()
        self._ahead_s = 0.0
        """How far AWS's clock is ahead of this machine's, once a refusal has shown that it matters."""
        self._used: CloudCredential | None = None

    async def authorize(
        self,
        method: str,
        host: str,
        target: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | FileBody,
        dialing: Dialing | None,
    ) -> tuple[str, list[tuple[str, str]]]:
        """Implements `RequestAuthorizer`. A body in a file is read once for its hash, since Bedrock takes no request
        whose body is not signed."""
        if isinstance(body, bytes):
            payload_hash = hashlib.sha256(body).hexdigest()
        else:
            payload_hash = await self._hash_of(body, dialing)
        credential = self._used = self._source.valid() or await self._source.obtain(dialing)
        path, has_query, query = target.partition("?")
        query = canonical_query(query) if has_query else ""
        signed = without_credentials(headers)
        if credential.token:
            signed.append(("X-Amz-Security-Token", credential.token))
        signed += signature_headers(
            self._keys, credential.access_key, credential.secret_key, self._scope, self._clock.wall() + self._ahead_s,
            method, path, query, [("host", host), *signed], payload_hash,
        )  # fmt: skip
        return f"{path}?{query}" if query else path, signed

    def note_refusal(self, headers: Sequence[tuple[str, str]]) -> bool:
        """Implements `RequestAuthorizer`. A signature with a wrong time is repeated with AWS's own; any other refusal
        has the credentials renewed."""
        theirs = next((value for name, value in headers if name.lower() == "date"), "")
        try:
            ahead_s = parsedate_to_datetime(theirs).timestamp() - self._clock.wall()
        except (ValueError, OverflowError):
            ahead_s = self._ahead_s
        if abs(ahead_s - self._ahead_s) > _SKEW_S:
            self._ahead_s = ahead_s
            _log.warning(
                "this machine's clock is wrong, requests to AWS are signed with AWS's time: set it (NTP)",
                purpose=self._source.purpose, behind_s=round(ahead_s),
            )  # fmt: skip
            return True
        if self._used is not None:
            self._source.note_refusal(self._used)
        return False

    async def _hash_of(self, body: FileBody, dialing: Dialing | None) -> str:
        """Hashes a body in a file block by block, with other tasks in between."""
        if dialing is not None:
            dialing.on_authorizing()
        found = hashlib.sha256()
        try:
            for block in body.blocks():
                if isinstance(block, asyncio.Future):
                    await block
                else:
                    found.update(block)
                    await self._clock.sleep(0)
        except OSError as error:
            raise unsendable(str(error)) from error
        if dialing is not None:
            dialing.on_authorized()
        return found.hexdigest()
