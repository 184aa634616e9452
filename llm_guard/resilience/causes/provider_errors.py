"""The last errors of a provider, as evidence of what opened a breaker or began a cooldown.

Recording one costs a scan of the response's headers. Code and message are read from the kept beginning of the body when
an operator requests them.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from llm_guard.outcome import Failure, FailureKind, Scope, Signal, Source
from llm_guard.resilience.classification.error_body import ErrorBody, read_body

KEPT = 3
"""Errors kept of each deployment, and of each upstream."""
MESSAGE_CHARS = 120
"""Most characters of a provider's message that an operator sees."""

_KEPT_BYTES = 2048
_INFLATED_BYTES = 8192
_REQUEST_IDS = (
    "x-request-id", "request-id", "apim-request-id", "x-ms-request-id", "x-amzn-requestid", "x-amz-request-id",
    "x-goog-request-id", "x-fireworks-request-id", "cf-ray",
)  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}")
"""Codes and ids that are shown. Anything else could be text of a request."""
_BESIDE_SCOPE = frozenset({FailureKind.WRONG_PATH, FailureKind.MISROUTED, FailureKind.NOT_FOUND})
"""Kinds that concern one call by their scope, but usually mean that the upstream is configured wrongly."""


@dataclass(frozen=True, slots=True)
class ProviderError:
    """One failed attempt."""

    at: float
    """Monotonic instant."""
    call_id: str
    """Id of the call."""
    kind: FailureKind
    status: int | None
    """HTTP status of the response; None: there was none."""
    request_id: str
    """The provider's id of the request; empty if it sent none."""
    body: bytes
    """Beginning of the response's body, as sent."""
    encoding: str
    """Content encoding of the body; empty: none."""

    @property
    def code(self) -> str:
        """The provider's machine-readable code or type; empty if it has none."""
        labels = ((layer.code, layer.type) for layer in reversed(self._read().layers))
        return next((label for pair in labels for label in pair if _PLAIN.fullmatch(label)), "")

    @property
    def message(self) -> str:
        """The first words of the provider's message, on one line. It may quote the request: only operators may see
        it."""
        words = " ".join(self._read().message.split())
        words = "".join(char for char in words if char.isprintable())
        return words if len(words) <= MESSAGE_CHARS else words[: MESSAGE_CHARS - 1] + "…"

    def _read(self) -> ErrorBody:
        return read_body(_plain(self.body, self.encoding))


class ErrorLog:
    """The last errors of one deployment or upstream."""

    __slots__ = ("_errors",)

    def __init__(self) -> None:
        self._errors: deque[ProviderError] = deque(maxlen=KEPT)

    def note(self, error: ProviderError) -> None:
        self._errors.append(error)

    def latest(self) -> tuple[ProviderError, ...]:
        """Returns the errors, the newest first."""
        return tuple(reversed(self._errors))


def provider_error(failure: Failure, status: int | None, call_id: str, now: float) -> ProviderError | None:
    """Returns the record of a failed attempt; None if the failure says nothing about the provider."""
    kind = failure.kind
    if kind.source is not Source.UPSTREAM:
        return None
    if failure.signal is not Signal.UNHEALTHY and kind.scope is Scope.CALL and kind not in _BESIDE_SCOPE:
        return None
    answer = failure.answer
    if answer is None:
        return ProviderError(now, call_id, kind, status, "", b"", "")
    request_id = encoding = ""
    rank = len(_REQUEST_IDS)
    for name, value in answer.headers:
        lower = name.lower()
        if lower == "content-encoding":
            encoding = value.strip().lower()
        elif lower in _REQUEST_IDS and _REQUEST_IDS.index(lower) < rank and _PLAIN.fullmatch(value):
            request_id, rank = value, _REQUEST_IDS.index(lower)
    return ProviderError(now, call_id, kind, answer.status, request_id, answer.body[:_KEPT_BYTES], encoding)


def latest_of(logs: Iterable[ErrorLog]) -> list[ProviderError]:
    """Returns the last errors of several deployments, the newest first, each call's once."""
    errors = sorted((error for log in logs for error in log.latest()), key=lambda error: -error.at)
    return list({(error.call_id, error.at): error for error in errors}.values())[:KEPT]


def call_ids_of(errors: Iterable[ProviderError]) -> tuple[str, ...]:
    """Returns the ids of the calls, each once."""
    return tuple(dict.fromkeys(error.call_id for error in errors))


def _plain(body: bytes, encoding: str) -> bytes:
    """Returns the body without its compression, as far as it was kept; empty if it cannot be read."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        return b""
    try:
        return zlib.decompressobj(wbits=47).decompress(body, _INFLATED_BYTES)
    except zlib.error:
        return b""
